"""Measure what ops cost on the host, from eager traces.

    python -m wavecast.mlp_weights.train.host_costs DATA            # hosts, profiler, most frequent ops
    python -m wavecast.mlp_weights.train.host_costs DATA --check    # leave-one-trace-out error of the host time
    python -m wavecast.mlp_weights.train.host_costs DATA --write    # the shipped table

Each trace in DATA/traces is reduced to the ops that a shape-only recording would hold: the outermost ops that are not
composite for torch's dispatcher. Per op: its lead (host time since the op before: Python, autograd, wrappers), its own
time, and its launches. Waiting is left out: launches blocked by a full queue, syncs, memory allocation, gaps over 1 ms.
log(cost) = op + host is fitted robustly, for leads, own times and calls each. The profiler's share is taken out as
profiler_ratios.py measured it.
"""

from collections import Counter, defaultdict
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from ...analyzer.host.costs import LEAD_PLACES, HostCosts, costs_of_table, lead_keys, spellings
from ...analyzer.host.recorded_speed import speed_by_ops, winsorised
from ...analyzer.host.timeline import synthesize_timeline
from ...analyzer.work import Family, family_of
from ...arrays import Floats
from .constants import FittedConstants, Program, data_argument, hash_files, save_constants, write_options
from .host_kinds import by_pairs, by_recordings, mean_costs, towards
from .host_samples import HOSTS, Sample, load_sample
from .profiler_ratios import Mode, profiler_ratios

NAME: Final = "host_costs"
ABOUT: Final = (
    "Host time of ops in eager PyTorch, in ns on the reference host without a profiler, from the public profiler "
    "traces that `hosts` names. op_ns and lead_ns: [ns, calls measured]. speed_ratio: of each host, the reference "
    "host's being 1. unprofiled_over_profiled: the profiler's share, as profiler_ratios.json has it. "
    "unknown_host_half_width: what nine of ten traces lie within when every trace of their host is left out, natural "
    "log. counts: ops."
)
REFERENCE: Final = "h100-node"
PARTS: Final = ("lead", "own", "calls")
LEAST_CALLS: Final = 3
"""What was seen less often is left to the less specific kind."""


@click.command(cls=Program, help=__doc__)
@data_argument
@click.option("--check", "is_check", is_flag=True, help="Leave each trace out and predict its host time.")
@write_options
def main(data: Path, is_check: bool, write: bool, keep: str | None) -> None:
    """Print hosts, profiler and ops, or the errors."""
    paths = {name: data / "traces" / f"{name}.json.gz" for name in HOSTS}
    samples = [load_sample(paths[name], host) for name, host in HOSTS.items()]
    table = shipped_table(samples)
    if is_check or write:
        errors = check(samples)
        table |= {"unknown_host_half_width": round(ninth_tenth(errors[UNKNOWN_HOST]), 2)}
    if write:
        counts = {sample.name: len(sample.own_ns) for sample in samples}
        fitted = FittedConstants(values=table, counts=counts, inputs=hash_files(data, list(paths.values())))
        save_constants(NAME, ABOUT, fitted, keep=keep)
    if not is_check:
        show(table, samples)


Cells = dict[str, tuple[float, int]]


@cache
def cells_of(sample: Sample, part: str) -> Cells:
    """Return the mean cost and the count of each kind of op in a sample, in its profiler's time."""
    found: dict[str, list[float]] = defaultdict(list)
    strings = sample.trace.strings
    ops = sample.trace.ops
    names = [spellings(strings[name])[-1] for name in ops.name.tolist()]
    if part == "calls":
        return {
            kind: (float(np.median(values)), len(values)) for kind, values in sample.calls.items() if len(values) >= 5
        }
    if part == "own":
        for name, value in zip(names, sample.own_ns.tolist(), strict=True):
            found[name].append(value)
    else:
        before = ["", *names[:-1]]
        rows = zip(before, names, ops.phase.tolist(), sample.place.tolist(), sample.lead_ns.tolist(), strict=True)
        for first, name, phase, place, value in rows:
            if not np.isnan(value):
                for key in lead_keys(first, name, phase, LEAD_PLACES[place]):
                    found[key].append(value)
    return {key: (max(winsorised(np.array(values)), 1.0), len(values)) for key, values in found.items()}


def fit(cells: dict[str, Cells]) -> tuple[dict[str, float], dict[str, float]]:
    """Fit log(cost) = op + host by alternating weighted medians; return the costs of host effect 1 and the effects."""
    keys = dict.fromkeys(key for found in cells.values() for key in found)
    effect = dict.fromkeys(cells, 0.0)
    op: dict[str, float] = {}
    shared_keys = {key for key in keys if sum(key in found for found in cells.values()) > 1}
    for _ in range(30):
        for key in keys:
            rows = [
                (np.log(found[key][0]) - effect[name], found[key][1]) for name, found in cells.items() if key in found
            ]
            op[key] = float(np.average([cost for cost, _ in rows], weights=[np.sqrt(count) for _, count in rows]))
        for name, found in cells.items():
            shared = [key for key in found if key in shared_keys]
            if shared:
                gaps = np.array([np.log(found[key][0]) - op[key] - effect[name] for key in shared])
                effect[name] += 0.5 * weighted_median(gaps, np.array([found[key][0] * found[key][1] for key in shared]))
        mean = float(np.mean(list(effect.values())))
        effect = {name: value - mean for name, value in effect.items()}
    return {key: float(np.exp(value)) for key, value in op.items()}, {
        name: float(np.exp(value)) for name, value in effect.items()
    }


def weighted_median(values: Floats, weights: Floats) -> float:
    """Return the value under which lies half of the weight."""
    order = np.argsort(values, kind="stable")
    share = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(share, 0.5)])


def in_bare_time(cells: Cells, part: str, mode: Mode) -> Cells:
    """Take the profiler's share out of a sample's costs; what CUPTI adds to a runtime call is not known and stays."""
    ratios = profiler_ratios()[mode]
    ratio = {"lead": ratios.lead, "own": ratios.own, "calls": 1.0}[part]
    return {key: (cost * ratio, count) for key, (cost, count) in cells.items()}


Fit = tuple[dict[str, float], dict[str, float], dict[str, int]]
"""Cost per kind of op on the mean host, effect per trace, calls per kind of op."""


def fit_samples(samples: list[Sample]) -> dict[str, Fit]:
    """Fit each part of the cost."""
    result: dict[str, Fit] = {}
    for part in PARTS:
        pooled: dict[str, Cells] = {}
        for sample in samples:
            pooled[sample.name] = in_bare_time(cells_of(sample, part), part, sample.mode)
        counts: dict[str, int] = defaultdict(int)
        for found in pooled.values():
            for key, (_, count) in found.items():
                counts[key] += count
        result[part] = (*fit(pooled), dict(counts))
    return result


def table_of(samples: list[Sample], factors: dict[str, float] | None = None) -> dict[str, Any]:
    """Build the table of costs, in the layout that `costs_of_table` reads, on the mean host times `factors` by part."""
    fits = fit_samples(samples)
    by = factors or dict.fromkeys(PARTS, 1.0)
    own, _, own_count = fits["own"]
    lead, _, lead_count = fits["lead"]
    lead = by_recordings(by_pairs(lead, lead_count), recordings_of(samples))
    calls = fits["calls"][0]
    own_ns = {key: own[key] * by["own"] for key in sorted(own)}
    kinds = mean_costs(own_ns, own_count)
    own_ns = {key: towards(cost, own_count[key], kinds.of(key)) for key, cost in own_ns.items()}
    launched = [sample.before_launch_ratio for sample in samples]
    return {
        "op_ns": {key: [round(cost), own_count[key]] for key, cost in own_ns.items() if own_count[key] >= LEAST_CALLS},
        "family_op_ns": {key: round(cost) for key, cost in sorted(kinds.families.items())},
        "other_op_ns": round(kinds.all_ops),
        "custom_op_ns": round(kinds.custom_ops),
        "lead_ns": {
            key: [round(lead[key] * by["lead"]), lead_count[key]]
            for key in sorted(lead)
            if lead_count[key] >= LEAST_CALLS or key.count("/") < 2
        },
        "launch_ns": round(calls["launch"] * by["calls"]),
        "copy_ns": round(calls["copy"] * by["calls"]),
        "sync_ns": round(sync_ns(samples) * by["calls"]),
        "before_launch_ratio": round(float(np.clip(np.median(np.concatenate(launched)), 0.0, 1.0)), 2),
        "kernel_count": kernel_counts(samples),
    }


def recordings_of(samples: list[Sample]) -> dict[str, int]:
    """Return how many recordings hold each kind of lead."""
    return Counter(key for sample in samples for key in cells_of(sample, "lead"))


def sync_ns(samples: list[Sample]) -> float:
    """Return what a sync costs that has nothing to wait for: the tenth percentile, median over traces."""
    found = [np.percentile(sample.calls["sync"], 10) for sample in samples if len(sample.calls["sync"])]
    return float(np.median(found))


def kernel_counts(samples: list[Sample]) -> dict[str, float]:
    """Return launches per call of each op that is no view: the mean in each trace, of which the lower median.

    Traces of AMD GPUs count only for ops seen nowhere else (MIOpen launches twice as many for a convolution), and so
    do traces with few calls.
    """
    found: dict[str, list[tuple[bool, float]]] = defaultdict(list)
    for sample in samples:
        counts: dict[str, list[int]] = defaultdict(list)
        for name, count in zip(sample.trace.ops.name.tolist(), sample.launch_count.tolist(), strict=True):
            counts[spellings(sample.trace.strings[name])[-1]].append(count)
        for name, values in counts.items():
            is_second_choice = sample.host.startswith("mi") or len(values) < LEAST_CALLS
            found[name].append((is_second_choice, float(np.mean(values))))
    result = {}
    for name, rows in sorted(found.items()):
        best = min(rows)[0]
        means = sorted(mean for second_choice, mean in rows if second_choice == best)
        if family_of(name) is not Family.VIEW:
            result[name] = round(means[(len(means) - 1) // 2], 2)
    return result


def shipped_table(samples: list[Sample]) -> dict[str, Any]:
    """Build the table on the reference host, with every host's speed: how much faster it runs its own mix of ops."""
    fits = fit_samples(samples)
    effects = {part: host_effects(fits[part][1]) for part in PARTS}
    hosts = {}
    for host in dict.fromkeys(HOSTS.values()):
        mine = [sample for sample in samples if sample.host == host]
        spent, reference = 0.0, 0.0
        for part in PARTS:
            share = sum(part_ns(sample, fits[part][0], part) for sample in mine)
            spent += share * effects[part][host]
            reference += share * effects[part][REFERENCE]
        hosts[host] = {
            "speed_ratio": round(reference / spent, 3),
            "traces": [sample.name for sample in mine],
            "ops": int(sum(len(sample.own_ns) for sample in mine)),
            "profiler": mine[0].mode.value,
            "framework": mine[0].trace.meta.framework or "torch, version not recorded",
        }
    factors = {part: effects[part][REFERENCE] for part in PARTS}
    profiler = {mode.value: asdict(row) for mode, row in profiler_ratios().items()}
    head = {"reference_host": REFERENCE, "hosts": hosts, "unprofiled_over_profiled": profiler}
    return head | table_of(samples, factors)


def host_effects(effects: dict[str, float]) -> dict[str, float]:
    """Average the effects of the traces of each host."""
    return {
        host: float(np.exp(np.mean([np.log(effects[name]) for name in effects if HOSTS[name] == host])))
        for host in dict.fromkeys(HOSTS[name] for name in effects)
    }


def part_ns(sample: Sample, costs: dict[str, float], part: str) -> float:
    """Return what the sample's ops would cost on the mean host, one part of the cost."""
    if part == "calls":
        return float(costs["launch"] * sample.launch_count.sum())
    cells = cells_of(sample, part)
    return sum(costs[key] * count for key, (_, count) in cells.items() if part == "own" or is_plain_lead(key))


def is_plain_lead(key: str) -> bool:
    """Say whether a kind of lead is by phase and op alone: every lead is of exactly one such kind."""
    return "/any/" in key and ">" not in key


def predicted_ns(sample: Sample, table: dict[str, Any]) -> Floats:
    """Synthesise the sample's timeline and return each op's host time, its lead where one was recorded."""
    ratios = profiler_ratios()[sample.mode]
    costs = profiled_costs(costs_of_table(table | {"reference_host": "mean"}), 1 / ratios.lead, 1 / ratios.own)
    ops = synthesize_timeline(sample.trace, costs).ops
    end = ops.start_ns + ops.duration_ns
    lead = ops.start_ns - np.concatenate([[0], end[:-1]])
    return np.where(np.isnan(sample.lead_ns), 0.0, lead) + np.where(sample.own_ns > 0, ops.duration_ns, 0.0)


def profiled_costs(costs: HostCosts, lead: float, own: float) -> HostCosts:
    """Return the costs as a profiler that slows leads and own times would show them."""
    return replace(
        costs,
        lead_ns={key: cost * lead for key, cost in costs.lead_ns.items()},
        op_ns={key: cost * own for key, cost in costs.op_ns.items()},
        family_op_ns={key: cost * own for key, cost in costs.family_op_ns.items()},
        other_op_ns=costs.other_op_ns * own,
        custom_op_ns=costs.custom_op_ns * own,
    )


def check(samples: list[Sample]) -> dict[str, list[float]]:
    """Print and return the relative errors of the host time, the trace left out of the fit, by what is known.

    Other hosts: fitted on traces of other hosts alone, on the median one. By its ops: so, but on the mean host, made as
    fast as the trace's CPU ops say (`speed_by_ops`), which know nothing of the time between them. Same host: fitted
    with the other trace of the host, on that host. Speed known: as other hosts, scaled by what the first half of the
    ops took, over the second.
    """
    heads = " ".join(f"{label:>12}" for label in COLUMNS)
    click.echo(f"{'trace':38} {'ops':>6} {'recorded':>10} {heads}")
    errors: dict[str, list[float]] = defaultdict(list)
    for sample in samples:
        recorded = sample.op_times_ns()
        strangers = [other for other in samples if other.host != sample.host]
        middle = {
            part: float(np.median([*host_effects(fit[1]).values()])) for part, fit in fit_samples(strangers).items()
        }
        predicted = predicted_ns(sample, table_of(strangers, middle))
        mean = table_of(strangers)
        told = speed_by_ops(sample.recorded, costs_of_table(mean | {"reference_host": "mean"})) or 1.0
        half = len(recorded) // 2
        speed = recorded[:half].sum() / predicted[:half].sum()
        found = {
            UNKNOWN_HOST: predicted.sum() / recorded.sum() - 1,
            KNOWN_HOST: predicted_ns(sample, mean).sum() / told / recorded.sum() - 1,
            "speed known": predicted[half:].sum() * speed / recorded[half:].sum() - 1,
        }
        others = [other for other in samples if other is not sample]
        if len(others) > len(strangers):
            factors = {part: host_effects(fit[1])[sample.host] for part, fit in fit_samples(others).items()}
            found[SAME_HOST] = predicted_ns(sample, table_of(others, factors)).sum() / recorded.sum() - 1
        for label, value in found.items():
            errors[label].append(value)
        columns = [f"{100 * found[label]:+.1f} %" if label in found else "-" for label in COLUMNS]
        cells = " ".join(f"{text:>12}" for text in columns)
        click.echo(f"{sample.name:38} {len(recorded):>6} {recorded.sum() / 1e6:>7.2f} ms {cells}")
    for label in COLUMNS:
        values = 100 * np.abs(errors[label])
        middle_log = np.median(np.abs(np.log1p(errors[label])))
        click.echo(
            f"{label:12} {len(values):>2} traces: median {np.median(values):.1f} %, mean {values.mean():.1f} %, "
            f"worst {values.max():.1f} %; |ln| median {middle_log:.2f}, 90 % under {ninth_tenth(errors[label]):.2f}"
        )
    return errors


def ninth_tenth(errors: list[float]) -> float:
    """Return the 90 % quantile of |ln(predicted / recorded)|."""
    return float(np.percentile(np.abs(np.log1p(errors)), 90))


UNKNOWN_HOST: Final = "other hosts"
KNOWN_HOST: Final = "by its ops"
SAME_HOST: Final = "same host"
COLUMNS: Final = (UNKNOWN_HOST, KNOWN_HOST, SAME_HOST, "speed known")


def show(table: dict[str, Any], samples: list[Sample]) -> None:
    """Print the hosts, the constants, and the ops that most time goes to."""
    for host, entry in table["hosts"].items():
        click.echo(f"{host:24} speed {entry['speed_ratio']:.3f}   {entry['ops']:>6} ops   {entry['profiler']}")
    for name in ("launch_ns", "copy_ns", "sync_ns", "other_op_ns", "before_launch_ratio"):
        click.echo(f"{name:24} {table[name]}")
    ranked = sorted(table["op_ns"].items(), key=lambda item: -item[1][0] * item[1][1])[:25]
    for name, (cost, count) in ranked:
        click.echo(f"{name:48} {cost:>7} ns x {count:>6}   {table['kernel_count'].get(name, 0):>5} kernels")
    click.echo(f"{len(table['op_ns'])} ops, {len(table['lead_ns'])} leads, from {len(samples)} traces")


if __name__ == "__main__":
    main()
