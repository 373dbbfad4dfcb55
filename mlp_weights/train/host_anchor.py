"""Measure the machine that measured hosts are compared with: how fast it is by CPU ops; a minute, there alone.

    python -m wavecast.mlp_weights.train.host_anchor [--write]

The times of `REFERENCE_HOST` in formats/measured/host_file.py were measured on this machine; the host of host_costs
is known by recordings of GPU work alone. What ties the two together is what is the same code with and without a GPU:
views among the ops, and all that runs between ops (Python, autograd, wrappers). Small models run here under the
profiler, and their views, and the time between their ops, are compared with those of the table of costs. Other ops
differ by more than views do: half_width is the spread of the ratio over families of ops, and that is what the interval
of a measured host rests on. What `measure --host` says at that moment, beside REFERENCE_HOST, takes out how busy the
machine is.
"""

import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import click
import numpy as np
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from ...analyzer.host.costs import HostCosts, load_host_costs, profiler_shares
from ...analyzer.host.recorded_speed import kinds_of_ops
from ...analyzer.host.speed import speeds_between
from ...analyzer.host.timeline import leads_of
from ...analyzer.work import VARYING_FAMILIES, Family, family_of
from ...formats.files.open import load_trace
from ...formats.measured.host_file import REFERENCE_HOST
from ...formats.trace.meta import HostTimes
from ...formats.trace.tables import Trace
from ...records import dataclass
from ...tracer.host_times.measure import measure_host
from .constants import Fitted, program
from .host_samples import Sample, load_sample
from .host_speeds import geometric_mean
from .profiler_ratios import models, step

NAME: Final = "host_anchor"
ABOUT: Final = (
    "The machine of REFERENCE_HOST, whose pieces of host work are measured: ops_ratio is its speed relative to the "
    "reference host of host_costs, by the views of small models under the profiler. half_width: what "
    "the ratio differs by from one family of ops to another, 90 %, natural log."
)
ROUNDS: Final = 7
_STEPS: Final = 10
_HOST_S: Final = 0.3
_LEAST_CALLS: Final = 20
_NORMAL_90: Final = 1.645


@program(NAME, ABOUT, __doc__, has_data=False)
def main() -> Fitted:
    """Print the ratios."""
    torch.set_num_threads(1)
    costs = load_host_costs()
    found: dict[Family, list[float]] = defaultdict(list)
    leads = []
    for model, data in models():
        rounds = [round_of(model, data, costs) for _ in range(ROUNDS)]
        leads.append(float(np.median([item.lead for item in rounds])))
        for family in {family for item in rounds for family in item.families}:
            ratios = [item.families[family] for item in rounds if family in item.families]
            found[family].append(float(np.median(ratios)))
        click.echo(f"{type(model).__name__:20} {leads[-1]:.2f} times as fast between ops as the reference host")
    by_family = {family: geometric_mean(ratios) for family, ratios in found.items()}
    for family, ratio in sorted(by_family.items()):
        click.echo(f"{family:16} {ratio:.2f} times as fast as on the reference host")
    spread = float(np.std([np.log(ratio / by_family[Family.VIEW]) for ratio in by_family.values()]))
    values = {"ops_ratio": round(by_family[Family.VIEW], 2), "half_width": round(_NORMAL_90 * spread, 2)}
    click.echo(str(values))
    return values, {"rounds": ROUNDS, "models": len(models())}, ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorRatios:
    """Say how fast the machine of REFERENCE_HOST is beside the reference host of the costs, by one round of a model."""

    families: Mapping[Family, float]
    lead: float


def round_of(model: nn.Module, data: torch.Tensor, costs: HostCosts) -> AnchorRatios:
    """Run a model under the profiler between two measurements of this host."""
    before, (recorded, sample), after = measure_host(_HOST_S), record(model, data), measure_host(_HOST_S)
    ops, python = (mean_slowness((before, after), kinds) for kinds in (("dispatch",), ("python", "module", "autograd")))
    listed = np.where(np.isnan(sample.lead_ns), 0.0, leads_of(sample.trace, costs)).sum()
    took = np.nansum(sample.lead_ns) * profiler_shares(recorded).lead
    families = {family: ratio * ops for family, ratio in ratios_by_family(recorded, costs).items()}
    return AnchorRatios(families=families, lead=float(listed / took) * python)


def mean_slowness(hosts: Sequence[HostTimes], kinds: Sequence[str]) -> float:
    """Return how much longer this machine takes at some kinds of work just now than REFERENCE_HOST."""
    speeds = [speeds_between(host, REFERENCE_HOST) for host in hosts]
    return geometric_mean([item.ratios[kind] for item in speeds if item is not None for kind in kinds])


def record(model: nn.Module, data: torch.Tensor) -> tuple[Trace, Sample]:
    """Return some steps of a model under the profiler, on the CPU, and what a recording of shapes holds of them."""
    step(model, data)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        for _ in range(_STEPS):
            step(model, data)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        return load_trace(path), load_sample(path, "here")


def ratios_by_family(trace: Trace, costs: HostCosts) -> dict[Family, float]:
    """Return how much faster a trace's ops are than those of the table, by family; not where libraries do the work."""
    listed: dict[Family, float] = defaultdict(float)
    took: dict[Family, float] = defaultdict(float)
    calls: dict[Family, int] = defaultdict(int)
    for name, kind in kinds_of_ops(trace, costs.op_ns)[0].items():
        family = family_of(name)
        if family is not None and family not in VARYING_FAMILIES:
            listed[family] += kind.call_count * costs.op_ns[name]
            took[family] += kind.call_count * kind.own_ns
            calls[family] += kind.call_count
    return {family: listed[family] / took[family] for family in listed if calls[family] >= _LEAST_CALLS}


if __name__ == "__main__":
    main()
