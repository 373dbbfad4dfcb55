"""Print how far off collectives are on machines left out: `python -m benchmarks.check.collectives DATA`.

Weights are fitted here, in about a minute: without a type of GPU (and its machines), without a generation of links,
without a cluster. A type whose generation another type stands for is judged blind. A generation left out is
judged blind and with two anchors, the smallest and the largest message of each number of ranks' all-gather, from which
latency and bandwidth ratios are calibrated; so is a cluster whose NICs nobody states. Rows of profilers below 1 MB are
not counted (mostly wait).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from wavecast.analyzer.measurements.collective import ClusterSamples, load_clusters, load_samples
from wavecast.analyzer.models.collective.calibrate import calibrate_fabric, spans_machines, with_ratios
from wavecast.analyzer.models.collective.model import MODEL
from wavecast.analyzer.models.collective.problems import CollectiveProblems
from wavecast.analyzer.models.frame.intervals import GPU_CLASSES, SIZE_EDGES_NS, gpu_positions
from wavecast.analyzer.models.frame.model import group_of
from wavecast.analyzer.models.frame.problems import take_problems
from wavecast.analyzer.models.library import Library, fitted_of
from wavecast.analyzer.models.store import StoredModel
from wavecast.analyzer.work.communication import CollectiveKind, Implementation
from wavecast.arrays import Floats, Mask, Rows
from wavecast.mlp_weights.train.collective import RECIPE
from wavecast.mlp_weights.train.driver import SEED
from wavecast.mlp_weights.train.variant import Pool, fit_variant, join_samples
from wavecast.specs.fleet import Fleet, build_fleet, take_gpus

SIZES = (("< 1 MB", 0.0, 1e6), ("1-16 MB", 1e6, 16e6), (">= 16 MB", 16e6, np.inf), (">= 64 MB", 64e6, np.inf))
GENERATIONS = {"NVLink 3": "A100", "NVLink 4": "H", "NVLink 5": "B200"}
"""Types of GPU of each generation, by what their names begin with."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judged:
    """Hold n predictions of a machine that the weights never saw."""

    name: str
    problems: CollectiveProblems
    ratio: Floats
    """Predicted over measured time."""


def main() -> None:
    """Fit without each type, generation and cluster, and print what comes of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    data = parser.parse_args().data
    pool = by_type(join_samples(load_samples(data)))
    clusters = load_clusters(data)
    is_spanning = collectives_of(pool).ranks > collectives_of(pool).run
    types = list(blind_types(pool, is_spanning))
    show("links, type left out, generation seen", types)
    show("host (PCIe), type left out", list(blind_types(pool, is_spanning, linked=False)))
    generations = list(left_generations(pool, is_spanning))
    show("links, generation left out", [item for item, _ in generations])
    show("links, generation left out, two anchors", [item for _, item in generations])
    show(
        "between machines, blind",
        [item for name in ("Snellius", "xxrjun") for item in blind_cluster(pool, clusters, name)],
    )
    anchored = [
        item for name in ("xxrjun", "vidur A100", "vidur H100") for item in anchored_cluster(pool, clusters, name)
    ]
    show("between machines, two anchors", anchored)


def by_type(pool: Pool) -> Pool:
    """Return the pool parted by type of GPU, where weights elsewhere leave whole chips out."""
    return replace(pool, chips=tuple(gpu.name for gpu in pool.gpus), chip=pool.gpu)


def library_without(pool: Pool, excluded: frozenset[str], rows: Mask | None = None) -> Library:
    """Fit without types, and without the other rows where some are given; intervals are of no matter here."""
    if rows is not None:
        pool = replace(pool, share=np.where(rows, pool.share, 1.0))
    theta = fit_variant(RECIPE, pool, excluded, SEED).theta
    groups = len(MODEL.group_names)
    arrays = {
        "theta": theta,
        "interval.half_width": np.ones((groups, len(SIZE_EDGES_NS) + 1)),
        "interval.class_factor": np.ones((len(GPU_CLASSES), groups)),
        "interval.seen_ratio": np.ones(1),
        "interval.reference": np.ones(1),
        "interval.positions": gpu_positions(build_fleet(pool.gpus[:1])),
        "interval.is_declared": np.zeros(groups),
        "anchor": np.ones(groups),
        "anchored_half_width": np.ones(groups),
    }
    stored = StoredModel(name=MODEL.name, variant="", arrays=arrays, trained_chips=frozenset())
    return Library(fitted={MODEL.name: fitted_of(stored)})


def collectives_of(pool: Pool) -> CollectiveProblems:
    """Return the pool's problems."""
    if not isinstance(pool.problems, CollectiveProblems):
        raise TypeError(type(pool.problems).__name__)
    return pool.problems


def predict(library: Library, problems: CollectiveProblems, fleet: Fleet) -> Floats:
    """Return the times on the one GPU of a fleet."""
    paired = take_gpus(fleet, np.zeros(len(problems.kind), dtype=np.int64))
    return library.predict(MODEL.name, problems, paired).time_ns


def judged(library: Library, pool: Pool, gpu: int, rows: Rows) -> Judged:
    """Predict rows of one type of GPU."""
    problems = take_problems(collectives_of(pool), rows)
    time_ns = predict(library, problems, build_fleet([pool.gpus[gpu]]))
    return Judged(name=pool.gpus[gpu].name, problems=problems, ratio=time_ns / pool.measured_ns[rows])


def blind_types(pool: Pool, is_spanning: Mask, *, linked: bool = True) -> Iterator[Judged]:
    """Yield each type predicted without it; of links, those whose generation another type stands for."""
    generation = build_fleet(pool.gpus).fabric.link_generation
    for gpu, known in enumerate(pool.gpus):
        rows = np.flatnonzero((pool.gpu == gpu) & ~is_spanning)
        twins = ((generation == generation[gpu]) & (np.bincount(pool.gpu, minlength=len(pool.gpus)) > 0)).sum() > 1
        if len(rows) and (twins if linked else True) and (generation[gpu] > 0) == linked:
            yield judged(library_without(pool, frozenset({known.name})), pool, gpu, rows)


def left_generations(pool: Pool, is_spanning: Mask) -> Iterator[tuple[Judged, Judged]]:
    """Yield each type predicted without its generation, blind and with two anchors."""
    for start in GENERATIONS.values():
        names = frozenset(gpu.name for gpu in pool.gpus if gpu.name.startswith(start))
        library = library_without(pool, names)
        for gpu, known in enumerate(pool.gpus):
            rows = np.flatnonzero((pool.gpu == gpu) & ~is_spanning)
            if known.name not in names or not len(rows):
                continue
            blind = judged(library, pool, gpu, rows)
            fleet = build_fleet([known])
            measured = pool.measured_ns[rows]
            yield blind, anchored(library, known.name, blind.problems, measured, fleet, between=False)


def anchored(
    library: Library, name: str, problems: CollectiveProblems, measured_ns: Floats, fleet: Fleet, *, between: bool
) -> Judged:
    """Calibrate the links by two measurements, and predict all others."""
    points = anchors(problems)
    latency, bandwidth = calibrate_fabric(take_problems(problems, points), measured_ns[points], fleet, library)
    known = with_ratios(fleet, latency, bandwidth, between=between)
    rest = np.setdiff1d(np.arange(len(measured_ns)), points)
    problems = take_problems(problems, rest)
    ratio = predict(library, problems, known) / measured_ns[rest]
    return Judged(name=f"{name} (x {latency:.2f}, x {bandwidth:.2f})", problems=problems, ratio=ratio)


def anchors(problems: CollectiveProblems) -> Rows:
    """Return two rows: the smallest and the largest all-gather of the most ranks of a machine, or between machines of
    the middle one of the numbers of ranks; all-reduce where there is no all-gather.

    Of all-gather, all-reduce and reduce-scatter the first calibrates best: no switch adds up in it. Both choices were
    made on these tables.
    """
    p, rows = problems, np.arange(len(problems.kind))
    for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.ALL_REDUCE):
        found = (p.kind == kind) & (p.implementation == Implementation.NCCL)
        if found.any():
            numbers = np.unique(p.ranks[found])
            chosen = numbers[len(numbers) // 2] if (p.ranks > p.run).all() else numbers[-1]
            rows = np.flatnonzero(found & (p.ranks == chosen))
            break
    order = rows[np.argsort(p.message_bytes[rows], kind="stable")]
    return np.array([order[0], order[-1]])


def blind_cluster(pool: Pool, clusters: Sequence[ClusterSamples], name: str) -> Iterator[Judged]:
    """Yield a cluster's rows between machines predicted without them."""
    for item in clusters:
        if item.name == name:
            library = library_without(pool, frozenset(), ~_of_cluster(pool, name))
            rows = np.flatnonzero(spans_machines(item.problems, item.fleet))
            problems = take_problems(item.problems, rows)
            ratio = predict(library, problems, item.fleet) / item.measured_ns[rows]
            yield Judged(name=name, problems=problems, ratio=ratio)


def anchored_cluster(pool: Pool, clusters: Sequence[ClusterSamples], name: str) -> Iterator[Judged]:
    """Yield a cluster's rows between machines, calibrated by two of them, on weights without the cluster."""
    for item in clusters:
        if item.name == name:
            library = library_without(pool, frozenset(), ~_of_cluster(pool, name))
            spans = spans_machines(item.problems, item.fleet)
            sends = item.problems.kind == CollectiveKind.SEND_RECEIVE
            parts = (("", spans),) if name == "xxrjun" else (("", spans & ~sends), (" sends", spans & sends))
            for label, chosen in parts:
                rows = np.flatnonzero(chosen)
                if len(rows):
                    problems, measured = take_problems(item.problems, rows), item.measured_ns[rows]
                    yield anchored(library, name + label, problems, measured, item.fleet, between=True)


def _of_cluster(pool: Pool, name: str) -> Mask:
    """Say which rows are those that the cluster gave: only one cluster between machines trains."""
    p = collectives_of(pool)
    exchanges = np.isin(p.kind, [CollectiveKind.DISPATCH, CollectiveKind.COMBINE])
    return np.asarray((name == "xxrjun") & (p.ranks > p.run) & ~exchanges)


def show(title: str, found: Sequence[Judged]) -> None:
    """Print mean absolute error, bias and worst by size, of plain collectives, then of the other groups."""
    print(f"\n{title}")
    for name, low, high in SIZES:
        parts = [(item.name, item.ratio[_is_plain(item.problems, low, high)] - 1.0) for item in found]
        line(name, parts)
    for group, label in ((5, "frameworks' all-reduce"), (6, "dispatch, combine")):
        line(label, [(item.name, item.ratio[group_of(MODEL, item.problems) == group] - 1.0) for item in found])


def _is_plain(problems: CollectiveProblems, low: float, high: float) -> Mask:
    plain = group_of(MODEL, problems) < 5
    return np.asarray(plain & (problems.message_bytes >= low) & (problems.message_bytes < high))


def line(label: str, parts: Sequence[tuple[str, Floats]]) -> None:
    """Print one row of the table: all types alike weighted, then each."""
    parts = [(name, errors) for name, errors in parts if len(errors)]
    if not parts:
        return
    means = [float(np.abs(errors).mean()) for _, errors in parts]
    every = np.concatenate([errors for _, errors in parts])
    each = "; ".join(
        f"{name} {100 * mean:.1f} ({len(errors)})" for (name, errors), mean in zip(parts, means, strict=True)
    )
    print(
        f"  {label:24} {100 * np.mean(means):5.1f} % of {len(every):5}, median {100 * np.median(np.abs(every)):.1f}, "
        f"bias {100 * every.mean():+.1f}, worst {100 * every[np.abs(every).argmax()]:+.0f}: {each}"
    )


if __name__ == "__main__":
    main()
