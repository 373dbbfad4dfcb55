"""Replays recordings with kernel times measured on another machine, against that machine's own iteration.

    python -m benchmarks.check.replay_pairs ../shared/data/traces

The same model was recorded on two machines. The top-level ops of both files are the same, one to one: the GPU
activities of each op of the source take, in all, what those of its partner took on the target. Latencies move by what
the generations' table says (what `analyze` does); delays that no rule explains stay the source's.

Host ratio: the target's host time over the source's. Five rows each:
- not given: 1;
- CPU ops: what `relative_host_speed` makes of the durations of both recordings' CPU ops, and `--host TRACE` takes;
- ops: the sums of the durations of all top-level ops (the interpreter between them is not counted);
- other model: host time of the iteration of the other model's pair, so that nothing of what is compared played a part;
- iteration: host time of this iteration. Where launches bound an iteration this is all but the iteration itself: the
  row says that rules, latencies and kernels add the rest, not that a host's speed can be known beforehand.
Host time is what the graph counts as the host's own: all but the time held up in synchronisations.

DLRM: rank 0 of two with the durations of rank 1's collectives, which waited longer for the other.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import wavecast
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.graph.graph import Graph, NodeKind
from wavecast.analyzer.graph.latencies import generation_latencies
from wavecast.analyzer.host.recorded_speed import relative_host_speed
from wavecast.analyzer.replay.engine import Timing, measured_timing, replay
from wavecast.analyzer.replay.iterations import iteration_spans
from wavecast.formats.trace.tables import Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.gpu import Gpu
from wavecast.specs.match import match_device

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
MODELS = ("bert_small_inference", "vit_small_inference")
MACHINES = ("h100", "mi300x")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One recording and its graph."""

    trace: Trace
    gpu: Gpu
    graph: Graph

    @property
    def iteration_ns(self) -> float:
        return float(self.trace.iterations.end_ns[0] - self.trace.iterations.start_ns[0])


Pair = tuple[Machine, Machine]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One replay of a source against the target's measured iteration."""

    title: str
    host: str
    host_ratio: float
    source_ns: float
    replayed_ns: float
    target_ns: float

    @property
    def error(self) -> float:
        return self.replayed_ns / self.target_ns - 1.0


def main() -> None:
    """Print a row per pair of recordings and host ratio."""
    print("| replayed | host ratio by | host ratio | source ms | replayed ms | target ms | error % |")
    print("|---|---|---:|---:|---:|---:|---:|")
    found = list(compare_all(Path(sys.argv[1])))
    for item in found:
        times = " | ".join(f"{value / 1e6:.3f}" for value in (item.source_ns, item.replayed_ns, item.target_ns))
        print(f"| {item.title} | {item.host} | {item.host_ratio:.3f} | {times} | {item.error * 100:+.2f} |")
    print()
    for host in dict.fromkeys(item.host for item in found):
        errors = 100 * np.abs([item.error for item in found if item.host == host and "rank" not in item.title])
        print(
            f"{host}: {len(errors)} iterations, mean |error| {errors.mean():.2f} %, median {np.median(errors):.2f} %, "
            f"worst {errors.max():.2f} %"
        )


def compare_all(folder: Path) -> Iterator[Comparison]:
    """Yield every comparison."""
    recorded = {model: [load_machine(folder / f"{name}_{model}.json.gz") for name in MACHINES] for model in MODELS}
    for model, other in (MODELS, MODELS[::-1]):
        for source, target in ((0, 1), (1, 0)):
            pair, others = ((recorded[name][source], recorded[name][target]) for name in (model, other))
            yield from compare_ops(model, pair, others)
    ranks = [load_machine(folder / f"v100_dlrm_training_rank{rank}.json.gz") for rank in (0, 1)]
    yield compare_ranks(ranks[0], ranks[1])


def load_machine(path: Path) -> Machine:
    """Load a recording and build its graph."""
    trace = wavecast.load_trace(path)
    device = trace.devices[0]
    gpu = match_device(load_catalog(), device.name, sm_count=device.sm_count, memory_bytes=device.memory_bytes)
    if gpu is None:
        raise SystemExit(f"{path}: {device.name} is not in the catalogue")
    return Machine(trace=trace, gpu=gpu, graph=build_graph(trace, architecture=gpu.architecture))


def compare_ops(model: str, pair: Pair, others: Pair) -> Iterator[Comparison]:
    """Yield the source's replay with the target's kernel times, for each way to know the host's speed."""
    source, target = pair
    timing = borrow_kernels(source, target)
    for host, ratio in host_ratios(source, target, others).items():
        yield compare(f"{model}, {source.gpu.name} as {target.gpu.name}", host, ratio, pair, timing)


def compare_ranks(source: Machine, target: Machine) -> Comparison:
    """Return the source's replay with the target's collectives."""
    nodes = source.graph.nodes
    base = nodes.cost_ns.copy()
    base[nodes.kind == NodeKind.COLLECTIVE] = target.graph.nodes.cost_ns[target.graph.nodes.kind == NodeKind.COLLECTIVE]
    timing = replace(measured_timing(source.graph, source.graph.residual_ns), base_ns=base)
    return compare("dlrm training, rank 0 with rank 1's collectives", "not given", 1.0, (source, target), timing)


def compare(title: str, host: str, ratio: float, pair: Pair, timing: Timing) -> Comparison:
    """Return one replay against the target."""
    source, target = pair
    end = replay(source.graph, replace(timing, host_ratio=np.array([ratio])))
    start, finish = iteration_spans(source.trace, source.graph, end)
    return Comparison(
        title=title,
        host=host,
        host_ratio=ratio,
        source_ns=source.iteration_ns,
        replayed_ns=float((finish - start)[0, 0]),
        target_ns=target.iteration_ns,
    )


def borrow_kernels(source: Machine, target: Machine) -> Timing:
    """Return the source's timing with each top-level op's GPU time as on the target, and the target's latencies."""
    if op_names(source.trace) != op_names(target.trace):
        raise SystemExit("the two recordings do not run the same ops")
    spent = [gpu_time_by_op(machine.trace) for machine in (source, target)]
    factor = np.divide(spent[1], spent[0], out=np.ones_like(spent[0]), where=spent[0] > 0)
    graph = source.graph
    kernels = np.where(graph.nodes.is_gpu, graph.nodes.row, 0)
    tables = [generation_latencies(machine.gpu.architecture) for machine in (source, target)]
    return replace(
        measured_timing(graph, graph.residual_ns),
        factor=np.append(factor, 1.0)[:, None],
        factor_row=top_position(source.trace)[source.trace.kernels.op][kernels],
        latency_ns=(graph.latency_ns + tables[1] - tables[0])[:, None],
    )


def op_names(trace: Trace) -> list[str]:
    """Return the names of the top-level ops in order."""
    return [trace.strings[name] for name in trace.ops.name[trace.ops.parent < 0].tolist()]


def top_position(trace: Trace) -> Rows:
    """Return for each op, and last for none, which top-level op it belongs to; their number for none."""
    parent = trace.ops.parent.astype(np.int64)
    top = np.flatnonzero(parent < 0)
    position = np.full(len(parent) + 1, len(top))
    position[top] = np.arange(len(top))
    for op in np.flatnonzero(parent >= 0).tolist():  # a parent comes before its children
        position[op] = position[parent[op]]
    return position


def gpu_time_by_op(trace: Trace) -> Floats:
    """Return the summed durations of the GPU activities of each top-level op."""
    position = top_position(trace)
    count = len(op_names(trace))
    spent = np.bincount(position[trace.kernels.op], trace.kernels.duration_ns, minlength=count + 1)
    return spent[:count].astype(np.float64)


def host_ratios(source: Machine, target: Machine, others: tuple[Machine, Machine]) -> dict[str, float]:
    """Return the target's host time over the source's, by what counts."""
    told = relative_host_speed(source.trace, target.trace)
    if told is None:
        raise SystemExit("the recordings hold too few CPU ops to compare hosts by")
    durations = [machine.trace.ops.duration_ns[machine.trace.ops.parent < 0].sum() for machine in (source, target)]
    return {
        "not given": 1.0,
        "CPU ops": 1.0 / told.ratio,
        "ops": float(durations[1] / durations[0]),
        "other model": host_time_ns(others[1]) / host_time_ns(others[0]),
        "iteration": host_time_ns(target) / host_time_ns(source),
    }


def host_time_ns(machine: Machine) -> float:
    """Return the host's own time within the iteration."""
    nodes = machine.graph.nodes
    inside = ~nodes.is_gpu & (nodes.end_ns <= machine.trace.iterations.cpu_end_ns[0])
    return float((nodes.lag_ns + nodes.cost_ns)[inside].sum())


if __name__ == "__main__":
    main()
