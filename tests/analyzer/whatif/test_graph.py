"""What-ifs on the graph: CUDA graphs and merged pointwise kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.graph.graph import EdgeKind, Edges, Graph, NodeKind
from wavecast.analyzer.graph.latencies import Term
from wavecast.analyzer.prediction.workload import measured_workload
from wavecast.analyzer.recorded.window import select_window
from wavecast.analyzer.replay.engine import measured_timing, replay
from wavecast.analyzer.replay.iterations import iteration_spans
from wavecast.analyzer.whatif.cuda_graph.capture import GRAPH_LAUNCH_NS, GRAPH_NODE_NS, find_stretches, with_cuda_graph
from wavecast.analyzer.whatif.fusion.fusion import Fusion, with_fused_elementwise
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.signature import Signature, TensorSpec
from wavecast.formats.trace.tables import (
    CallTable,
    Device,
    IterationTable,
    KernelTable,
    Meta,
    OperandTable,
    OpTable,
    TensorTable,
    Trace,
    Workload as Ran,
)

STEP_NS = 10_000
CALL_NS = 4_000
KERNEL_NS = 2_000
COUNT = 1 << 20
X = TensorSpec("float32", (1024, 1024))
BYTES = 4 * COUNT


@dataclass(frozen=True)
class Step:
    """One op with its call and kernel."""

    op: str
    tensors: tuple[TensorSpec, ...] = (X,)
    call: str = "cudaLaunchKernel"
    kernel: str = "vectorized_elementwise_kernel"
    phase: int = 0
    reads: tuple[int, ...] = ()
    writes: int = -1


def record(steps: Sequence[Step], *, mode: str = "inference", iterations: int = 1, kernels_per_op: int = 1) -> Trace:
    """Launch a kernel (or none, for other calls) every 10 µs."""
    names = tuple(dict.fromkeys(name for step in steps for name in (step.op, step.call, step.kernel)))
    names = (*names, "float32")
    signatures = tuple(dict.fromkeys(Signature(step.tensors) for step in steps))
    count = len(steps)
    start = np.arange(count) * STEP_NS + 5_000
    launched = [row for row, step in enumerate(steps) if "Launch" in step.call or "Memcpy" in step.call]
    calls = np.repeat(np.array(launched, dtype=int), kernels_per_op)
    edges = np.linspace(0, count * STEP_NS, iterations + 1).astype(int)
    end = edges[1:].copy()
    end[-1] += 1_000
    operands = [(row, item, out) for row, step in enumerate(steps) for item, out in uses(step)]
    tensors = 1 + max((item for _, item, _ in operands), default=-1)
    return Trace(
        meta=Meta(has_shapes=True, workload=Ran(mode=mode)),
        devices=(Device(name="Test"),),
        strings=names,
        signatures=signatures,
        iterations=build_table(
            IterationTable, iterations, start_ns=edges[:-1], end_ns=end, cpu_start_ns=edges[:-1], cpu_end_ns=end
        ),
        ops=build_table(
            OpTable,
            count,
            name=[names.index(step.op) for step in steps],
            signature=[signatures.index(Signature(step.tensors)) for step in steps],
            start_ns=start,
            duration_ns=np.full(count, STEP_NS - 1_000),
            phase=[step.phase for step in steps],
        ),
        tensors=build_table(
            TensorTable,
            tensors,
            storage=np.arange(tensors),
            dtype=np.full(tensors, len(names) - 1),
            element_count=np.full(tensors, COUNT),
        ),
        operands=build_table(
            OperandTable,
            len(operands),
            op=[row for row, _, _ in operands],
            tensor=[item for _, item, _ in operands],
            is_output=[out for _, _, out in operands],
        ),
        calls=build_table(
            CallTable,
            count,
            name=[names.index(step.call) for step in steps],
            start_ns=start + 1_000,
            duration_ns=np.full(count, CALL_NS),
            op=np.arange(count),
        ),
        kernels=build_table(
            KernelTable,
            len(calls),
            name=[names.index(steps[row].kernel) for row in calls],
            kind=[int("Memcpy" in steps[row].kernel) for row in calls],
            start_ns=start[calls] + 7_000 + np.tile(np.arange(kernels_per_op) * (KERNEL_NS + 1_300), len(launched)),
            duration_ns=np.full(len(calls), KERNEL_NS),
            call=calls,
            op=calls,
        ),
    )


def uses(step: Step) -> list[tuple[int, bool]]:
    return [(item, False) for item in step.reads] + ([(step.writes, True)] if step.writes >= 0 else [])


def launches(count: int, **changes: Any) -> list[Step]:
    return [Step("aten::mm", (X, X), kernel=f"gemm_{row % 3}", **changes) for row in range(count)]


def iteration_ns(trace: Trace, graph: Graph, ratio: Any = 1.0) -> float:
    timing = measured_timing(graph, graph.residual_ns)
    start, end = iteration_spans(trace, graph, replay(graph, replace(timing, base_ns=timing.base_ns * ratio)))
    return float((end[-1] - start[0])[0])


def fuse(trace: Trace) -> Fusion:
    return with_fused_elementwise(build_graph(trace), trace, measured_workload(trace, select_window(trace)))


def test_launches_become_one_graph_launch() -> None:
    trace = record(launches(50))
    graph = build_graph(trace)
    captured = with_cuda_graph(graph, trace)
    host = captured.nodes.kind == NodeKind.LAUNCH
    assert captured.nodes.cost_ns[host].sum() == pytest.approx(GRAPH_LAUNCH_NS + 50 * GRAPH_NODE_NS)
    assert captured.nodes.lag_ns[host].tolist() == [6_000.0] + [0.0] * 49
    assert iteration_ns(trace, captured) < 0.4 * iteration_ns(trace, graph)
    busy = 50 * (KERNEL_NS + graph.latency_ns[Term.GAP])
    assert iteration_ns(trace, captured) == pytest.approx(
        6_000 + CALL_NS + graph.latency_ns[Term.LAUNCH] + busy, rel=0.1
    )


@pytest.mark.parametrize(("duration_ns", "gaps"), [(KERNEL_NS, 49), (0, 0)])
def test_captured_kernels_of_no_measured_length_follow_one_another(duration_ns: int, gaps: int) -> None:
    trace = record(launches(50))
    trace = replace(trace, kernels=replace(trace.kernels, duration_ns=np.full(50, duration_ns)))
    captured = with_cuda_graph(build_graph(trace), trace)
    assert (captured.nodes.gap_term == Term.GAP).sum() == gaps


def test_the_graph_launches_nothing_later_than_before() -> None:
    # Three launches take 24 µs by themselves, a graph of three 15.6: its first kernel need not wait for all of it.
    trace = record(launches(3))
    graph = build_graph(trace)
    captured = with_cuda_graph(graph, trace)
    before, after = (replay(item, measured_timing(item, item.residual_ns)) for item in (graph, captured))
    assert np.all(after <= before)
    assert after[graph.nodes.kind == NodeKind.LAUNCH][0] == before[graph.nodes.kind == NodeKind.LAUNCH][0]


@pytest.mark.parametrize(
    ("step", "sizes"),
    [
        (Step("aten::item", call="cudaStreamSynchronize"), [4, 4]),
        (Step("aten::item", call="cudaDeviceSynchronize"), [4, 4]),
        (Step("aten::empty", call="cudaMalloc"), [4, 4]),
        (Step("aten::empty", call="hipFree"), [4, 4]),
        (Step("aten::empty", call="cudaMallocAsync"), [8]),
        (Step("aten::empty", call="cudaEventRecord"), [8]),
        (Step("replay", call="cudaGraphLaunch"), [4, 4]),
        (Step("aten::copy_", call="cudaMemcpyAsync", kernel="Memcpy HtoD (Pageable -> Device)"), [4, 4]),
        (Step("aten::copy_", call="cudaMemcpyAsync", kernel="Memcpy DtoD (Device -> Device)"), [9]),
    ],
)
def test_what_cannot_be_captured_ends_a_stretch(step: Step, sizes: list[int]) -> None:
    trace = record([*launches(4), step, *launches(4)])
    assert find_stretches(build_graph(trace), trace).sizes.tolist() == sizes


def test_stretches_end_with_the_iteration() -> None:
    trace = record(launches(12), iterations=3)
    assert find_stretches(build_graph(trace), trace).sizes.tolist() == [4, 4, 4]


def test_nothing_to_capture_changes_nothing() -> None:
    sync = Step("aten::item", call="cudaDeviceSynchronize")
    for steps in ([*launches(1), sync, *launches(1)], [sync]):
        trace = record(steps)
        graph = build_graph(trace)
        assert with_cuda_graph(graph, trace) is graph


def test_captured_launches_do_not_wait_for_room_in_the_queue() -> None:
    trace = record(launches(1_100))
    graph = build_graph(trace)
    captured = with_cuda_graph(graph, trace)
    assert np.any(graph.edges.kind == EdgeKind.QUEUE)
    assert not np.any(captured.edges.kind == EdgeKind.QUEUE)
    check_consistent(graph, captured)


def test_a_chain_becomes_one_kernel_by_its_bytes() -> None:
    # relu, exp, add of two: reads 1 + 1 + 2, writes 3. Merged: reads the input and the other operand, writes one.
    trace = record([Step("aten::relu"), Step("aten::exp"), Step("aten::add", (X, X))])
    fusion = fuse(trace)
    gpu = fusion.graph.nodes.is_gpu
    assert (fusion.chains, fusion.kernels_merged) == (1, 2)
    assert fusion.is_merged[gpu].tolist() == [False, True, True]
    assert fusion.base_ratio[gpu] == pytest.approx([3 / 7] * 3)


def test_training_keeps_what_backward_may_read() -> None:
    steps = [Step("aten::relu"), Step("aten::exp"), Step("aten::exp"), Step("aten::relu_")]
    fusion = fuse(record(steps, mode="training"))
    # Of 8 tensors moved, 3 are not read again, and the one that relu_ overwrites is not written.
    assert fusion.base_ratio[fusion.graph.nodes.is_gpu] == pytest.approx([4 / 8] * 4)


@pytest.mark.parametrize(
    ("steps", "ratio"),
    [
        # Nobody else reads tensor 1: neither read nor written. 2 of 4 tensors stay.
        ([Step("aten::relu", reads=(0,), writes=1), Step("aten::exp", reads=(1,), writes=2)], 2 / 4),
        # A matrix product reads tensor 1 later: it is written.
        (
            [
                Step("aten::relu", reads=(0,), writes=1),
                Step("aten::exp", reads=(1,), writes=2),
                Step("aten::mm", (X, X), kernel="gemm", reads=(1, 2), writes=3),
            ],
            3 / 4,
        ),
        # Tensor 0 is changed in place and read by nobody else: it lives on, so it is written.
        ([Step("aten::relu_", reads=(0,), writes=0), Step("aten::exp", reads=(0,), writes=2)], 3 / 4),
        # The second op overwrites the first one's result, which is therefore not what the product reads.
        (
            [
                Step("aten::relu", reads=(0,), writes=1),
                Step("aten::exp_", reads=(1,), writes=1),
                Step("aten::mm", (X, X), kernel="gemm", reads=(1, 1), writes=3),
            ],
            2 / 4,
        ),
        # The same outer tensor is read once for both.
        ([Step("aten::relu", reads=(0,), writes=1), Step("aten::add", (X, X), reads=(1, 0), writes=2)], 2 / 5),
    ],
)
def test_named_tensors_tell_what_must_be_written(steps: list[Step], ratio: float) -> None:
    fusion = fuse(record(steps, mode="training"))
    assert fusion.base_ratio[fusion.graph.nodes.is_gpu][:2] == pytest.approx([ratio] * 2)


OTHER = TensorSpec("float32", (1024, 512))
ROWS = Step("aten::native_layer_norm", (X, TensorSpec("float32", (1024,)), TensorSpec("float32", (1024,))))


@pytest.mark.parametrize(
    ("steps", "merged"),
    [
        ([Step("aten::relu"), Step("aten::relu")], 1),
        ([Step("aten::relu"), Step("aten::relu", (OTHER,))], 0),
        ([Step("aten::relu"), Step("aten::mm", (X, X), kernel="gemm"), Step("aten::relu")], 0),
        ([Step("aten::relu"), Step("aten::item", call="cudaStreamSynchronize"), Step("aten::relu")], 0),
        ([Step("aten::relu"), Step("aten::relu", phase=1)], 0),
        ([Step("aten::relu", phase=2), Step("aten::relu", phase=2)], 0),
        ([Step("aten::_softmax"), Step("aten::relu")], 0),
        ([Step("aten::relu"), Step("aten::sum")], 0),
        ([Step("aten::relu", reads=(0,), writes=1), Step("aten::exp", reads=(2,), writes=3)], 0),
        ([Step("aten::relu"), Step("my::op")], 0),
        ([Step("aten::relu")], 0),
    ],
)
def test_only_chains_that_a_compiler_sees_are_merged(steps: list[Step], merged: int) -> None:
    fusion = fuse(record(steps))
    assert fusion.kernels_merged == merged
    if not merged:
        assert np.all(fusion.base_ratio == 1)


def test_a_row_op_ends_a_chain_and_begins_none() -> None:
    shape, weight = (1024,), TensorSpec("float32", (1024,))
    trace = record([Step("aten::add", (X, X)), ROWS, Step("aten::relu")])
    norm = Signature((X, shape, weight, weight, 1e-5))
    known = replace(trace, signatures=tuple(norm if len(item.arguments) == 3 else item for item in trace.signatures))
    fusion = fuse(known)
    assert fusion.is_merged[fusion.graph.nodes.is_gpu].tolist() == [False, True, False]
    long = TensorSpec("float32", (64, 16_384))
    wide = TensorSpec("float32", (16_384,))
    norm = Signature((long, (16_384,), wide, wide, 1e-5))
    trace = record([Step("aten::add", (long, long)), ROWS])
    known = replace(trace, signatures=tuple(norm if len(item.arguments) == 3 else item for item in trace.signatures))
    assert fuse(known).kernels_merged == 0


def test_a_kernel_that_waits_for_another_stream_is_not_merged() -> None:
    trace = record([*launches(1), Step("aten::relu"), Step("aten::exp")])
    graph, workload = build_graph(trace), measured_workload(trace, select_window(trace))
    assert with_fused_elementwise(graph, trace, workload).kernels_merged == 1
    edges = graph.edges
    first = np.flatnonzero(graph.nodes.is_gpu)[0]
    extra = {"source": first, "target": edges.target[-1], "kind": EdgeKind.EVENT, "term": Term.EVENT}
    waits = Edges(**{name: np.append(getattr(edges, name), value) for name, value in extra.items()})
    assert with_fused_elementwise(replace(graph, edges=waits), trace, workload).kernels_merged == 0


def test_an_op_of_several_kernels_is_left_alone() -> None:
    assert fuse(record([Step("aten::relu"), Step("aten::relu")], kernels_per_op=2)).kernels_merged == 0


def test_merged_kernels_keep_their_place_without_launch_gap_or_host_time() -> None:
    trace = record([Step("aten::relu"), Step("aten::exp"), *launches(1)])
    graph = build_graph(trace)
    fusion = fuse(trace)
    merged = np.flatnonzero(fusion.is_merged)
    launch = np.flatnonzero(graph.nodes.kind == NodeKind.LAUNCH)[1]
    changed = fusion.graph
    assert changed.nodes.cost_ns[launch] == changed.nodes.lag_ns[launch] == 0
    assert np.all(changed.nodes.gap_term[merged] == Term.NONE)
    assert not np.any(np.isin(changed.edges.target, merged))
    check_consistent(graph, changed)
    assert iteration_ns(trace, graph) - iteration_ns(trace, changed, fusion.base_ratio) == pytest.approx(STEP_NS)


def check_consistent(before: Graph, after: Graph) -> None:
    """Fewer edges, still sorted and indexed; bindings name the same edges or the lane."""
    count = len(before.nodes.row)
    assert len(after.nodes.row) == count
    assert len(after.edges.target) < len(before.edges.target)
    assert np.all(np.diff(after.edges.target) >= 0)
    assert after.first_edge.tolist() == np.searchsorted(after.edges.target, np.arange(count + 1)).tolist()
    bound = np.flatnonzero(after.binding >= 0)
    assert np.all(after.edges.target[after.binding[bound]] == bound)
    old = before.binding[bound]
    assert np.all(before.edges.source[old] == after.edges.source[after.binding[bound]])
