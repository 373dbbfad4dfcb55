"""The critical path: its parts add up, its steps are joined, and nothing beside it matters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from wavecast.analyzer.graph.build import build_graph, finish_graph
from wavecast.analyzer.graph.critical import CriticalPath, critical_path
from wavecast.analyzer.graph.graph import NEVER_NS, EdgeKind, Edges, Graph, GraphQuality, NodeKind, Nodes
from wavecast.analyzer.graph.latencies import Term, generation_latencies
from wavecast.analyzer.graph.rules import LANE
from wavecast.analyzer.replay.engine import Timing, measured_timing, replay
from wavecast.analyzer.replay.iterations import iteration_rows
from wavecast.analyzer.replay.paths import measured_path, replayed_path, retime_nodes
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.tables import CallTable, KernelTable, Trace

from ...conftest import Recording


def edge_reason(from_gpu: bool, to_gpu: bool, is_queue: bool) -> tuple[EdgeKind, Term]:
    if to_gpu:
        return (EdgeKind.EVENT, Term.EVENT) if from_gpu else (EdgeKind.LAUNCH, Term.LAUNCH)
    return (EdgeKind.QUEUE, Term.QUEUE) if is_queue else (EdgeKind.SYNC, Term.STREAM_RETURN)


def random_graph(seed: int) -> Graph:
    """Threads and streams of random length, with random edges between them that never turn back in time."""
    rng = np.random.default_rng(seed)
    host_lanes, gpu_lanes = int(rng.integers(1, 3)), int(rng.integers(1, 4))
    lengths = rng.integers(1, 9, host_lanes + gpu_lanes).tolist()
    lane = np.repeat(np.arange(len(lengths)), lengths)
    count = len(lane)
    is_gpu = lane >= host_lanes
    own = rng.integers(0, np.where(is_gpu, 15_000, 3_000), endpoint=True).astype(np.float64)
    lag = np.where(is_gpu, 0.0, rng.integers(0, 3_000, count))
    released = is_gpu & (rng.random(count) < 0.1)
    level = np.concatenate([np.arange(length) for length in lengths])
    first = np.append(True, lane[1:] != lane[:-1])
    pairs = zip(*rng.integers(0, count, (2, int(rng.integers(0, 4 * count)))).tolist(), strict=True)
    kept = sorted(
        {
            (target, source, *edge_reason(bool(is_gpu[source]), bool(is_gpu[target]), rng.random() < 0.5))
            for source, target in pairs
            if lane[source] != lane[target] and level[source] < level[target] and (is_gpu[source] or is_gpu[target])
        }
    )
    release = np.where(is_gpu & first | released, 15_000.0 * level, NEVER_NS)
    return make_graph(lane, is_gpu, (own, lag, release), kept)


def make_graph(
    lane: np.ndarray,
    is_gpu: np.ndarray,
    times: tuple[np.ndarray, np.ndarray, np.ndarray],
    edges: list[tuple[int, int, EdgeKind, Term]],
) -> Graph:
    """A graph from each node's own time, the host's time before it and its release; edges are target, source, why."""
    count, (own, lag, release) = len(lane), times
    first = np.append(True, lane[1:] != lane[:-1])
    nodes = Nodes(
        kind=np.where(is_gpu, np.int8(NodeKind.KERNEL), np.int8(NodeKind.LAUNCH)),
        row=np.arange(count),
        lane=lane.astype(np.int32),
        start_ns=np.zeros(count),
        end_ns=own.copy(),
        lag_ns=lag,
        gap_term=np.where(is_gpu & ~first, np.int8(Term.GAP), np.int8(Term.NONE)),
        cost_ns=own,
        release_ns=release,
        iteration=np.zeros(count, dtype=np.int64),
    )
    target, source, kind, term = (np.array([item[at] for item in edges], dtype=np.int64) for at in range(4))
    columns = Edges(source=source, target=target, kind=kind.astype(np.int8), term=term.astype(np.int8))
    return finish_graph(nodes, columns, generation_latencies("Volta"), lanes=(), quality=GraphQuality())


graphs = st.builds(random_graph, st.integers(0, 2**32 - 1))


def plain_timing(graph: Graph, factor: np.ndarray | None = None) -> Timing:
    """The graph's own durations, each node's with a factor of its own; no residuals."""
    count = len(graph.nodes.row)
    factor = np.ones((count, 1)) if factor is None else factor
    timing = measured_timing(graph, np.zeros(count))
    return replace(timing, factor=factor, factor_row=np.arange(count))


def whole_path(graph: Graph, timing: Timing, end_ns: np.ndarray) -> CriticalPath:
    """The path to the last node of all, since the start of capture."""
    nodes = retime_nodes(graph, timing, end_ns)
    return critical_path(graph, nodes, timing.latency_ns[:, 0], last=int(np.argmax(end_ns)), since_ns=0.0)


def parts_ns(path: CriticalPath) -> float:
    return float(path.node_ns.sum() + path.edge_ns.sum() + path.unexplained_ns)


def assert_joined(graph: Graph, path: CriticalPath) -> None:
    """Each node follows the one that held it."""
    assert len(set(path.node.tolist())) == len(path.node)
    for before, node, edge in zip(path.node[:-1], path.node[1:], path.held_by[1:], strict=True):
        if edge == LANE:
            assert before == node - 1
            assert graph.nodes.lane[before] == graph.nodes.lane[node]
        else:
            assert edge >= 0
            assert (graph.edges.source[edge], graph.edges.target[edge]) == (before, node)


def test_a_full_queue_waits_for_a_start_not_for_an_end() -> None:
    # Two launches, a long kernel on one stream, a short one on another; the second launch waits for the first to start.
    own = np.array([1_000.0, 100.0, 50_000.0, 10.0])
    edges = [
        (1, 2, EdgeKind.QUEUE, Term.QUEUE),
        (2, 0, EdgeKind.LAUNCH, Term.LAUNCH),
        (3, 1, EdgeKind.LAUNCH, Term.LAUNCH),
    ]
    graph = make_graph(
        np.array([0, 0, 1, 2]), np.array([False, False, True, True]), (own, np.zeros(4), np.full(4, NEVER_NS)), edges
    )
    timing = plain_timing(graph)
    end = replay(graph, timing)[:, 0]
    nodes = retime_nodes(graph, timing, end)
    path = critical_path(graph, nodes, timing.latency_ns[:, 0], last=3, since_ns=0.0)
    launch, queue = (float(graph.latency_ns[term]) for term in (Term.LAUNCH, Term.QUEUE))
    assert path.node.tolist() == [0, 2, 1, 3]
    assert path.own_ns.tolist() == [1_000.0, 0.0, 0.0, 10.0]
    assert path.wait_ns.tolist() == [0.0, launch, queue, launch]
    assert path.length_ns == end[3] == 1_010.0 + 2 * launch + queue


@given(graphs, st.integers(0, 2**32 - 1))
@example(random_graph(47513), 47513)  # the last node ends before what held it
def test_the_parts_add_up_to_the_time_since_any_instant(graph: Graph, seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = len(graph.nodes.row)
    timing = replace(
        plain_timing(graph, rng.uniform(0.0, 3.0, (count, 1))),
        host_ratio=rng.uniform(0.3, 2.0, 1),
        residual_ns=rng.integers(-3_000, 9_000, count).astype(np.float64),
    )
    end = replay(graph, timing)[:, 0]
    nodes = retime_nodes(graph, timing, end)
    last, since = int(rng.integers(count)), float(rng.uniform(-5_000.0, end.max()))
    path = critical_path(graph, nodes, timing.latency_ns[:, 0], last=last, since_ns=since)
    assert path.length_ns == pytest.approx(max(end[last] - since, 0.0))
    assert parts_ns(path) == pytest.approx(path.length_ns, abs=1e-6)
    assert_joined(graph, path)
    assert not len(path.node) or path.node[-1] == last


@given(graphs)
def test_work_on_the_path_is_within_the_iteration_and_that_within_the_serial_sum(graph: Graph) -> None:
    timing = plain_timing(graph)
    end = replay(graph, timing)[:, 0]
    path = whole_path(graph, timing, end)
    nodes, latency = graph.nodes, float(timing.latency_ns.max())
    serial = float((nodes.cost_ns + nodes.lag_ns + latency).sum()) + max(float(nodes.release_ns.max()), 0.0)
    assert path.node_ns.sum() <= end.max() + 1e-6
    assert path.length_ns == pytest.approx(end.max())
    assert end.max() <= serial + 1e-6


@given(graphs)
def test_whatever_is_not_on_the_path_can_be_free(graph: Graph) -> None:
    timing = plain_timing(graph)
    end = replay(graph, timing)[:, 0]
    path = whole_path(graph, timing, end)
    factor = np.zeros((len(end), 1))
    factor[path.node[path.own_ns > 0]] = 1.0
    assert replay(graph, plain_timing(graph, factor)).max() == pytest.approx(end.max())


@given(graphs, st.data())
def test_whatever_takes_longer_on_the_path_lengthens_it_by_as_much(graph: Graph, data: st.DataObject) -> None:
    timing = plain_timing(graph)
    end = replay(graph, timing)[:, 0]
    path = whole_path(graph, timing, end)
    chosen = path.node[(path.own_ns > 0) & (path.node_kind >= NodeKind.KERNEL)]
    if not len(chosen):
        return
    factor = np.ones((len(end), 1))
    node = data.draw(st.sampled_from(chosen.tolist()))
    factor[node] = 1.5
    longer = replay(graph, plain_timing(graph, factor))[path.node[-1], 0]
    assert longer >= end.max() + 0.5 * graph.nodes.cost_ns[node] - 1e-6


@given(graphs)
def test_a_faster_gpu_may_move_the_path_to_the_host(graph: Graph) -> None:
    timing = plain_timing(graph, np.zeros((len(graph.nodes.row), 1)))
    path = whole_path(graph, timing, replay(graph, timing)[:, 0])
    assert path.node_ns[NodeKind.KERNEL] == 0.0


@pytest.mark.data
def test_real_iterations_are_explained_to_the_last_ns(data_dir: Path) -> None:
    for file in sorted((data_dir / "traces").glob("*.json.gz")):
        trace = load_trace(file)
        graph = build_graph(trace)
        timing = measured_timing(graph, graph.residual_ns)
        end = replay(graph, timing)[:, 0]
        for row in iteration_rows(trace).tolist():
            path = measured_path(trace, graph, row)
            measured = float(trace.iterations.end_ns[row] - trace.iterations.start_ns[row])
            assert path.length_ns == pytest.approx(measured, abs=1.0), file.name
            assert parts_ns(path) == pytest.approx(path.length_ns, abs=1e-3), file.name
            assert_joined(graph, path)
            again = replayed_path(trace, graph, timing, end, row)
            assert again.length_ns == pytest.approx(path.length_ns, abs=1.0), file.name


@pytest.mark.data
def test_faster_kernels_stand_on_the_path_with_their_new_times(data_dir: Path) -> None:
    factor = 0.25
    trace = load_trace(data_dir / "traces" / "v100_convnet_ddp_training.json.gz")
    graph = build_graph(trace)
    timing = replace(measured_timing(graph, graph.residual_ns), factor=np.full((1, 1), factor))
    end = replay(graph, timing)[:, 0]
    row = int(iteration_rows(trace)[-1])
    path, before = replayed_path(trace, graph, timing, end, row), measured_path(trace, graph, row)
    assert parts_ns(path) == pytest.approx(path.length_ns, abs=1e-3)
    kernels = path.node[(path.node_kind == NodeKind.KERNEL) & (path.own_ns > 0)][1:]
    own = path.own_ns[np.isin(path.node, kernels)]
    assert own == pytest.approx(factor * graph.nodes.cost_ns[kernels])
    host, host_before = (item.edge_ns[EdgeKind.PROGRAM_ORDER] / item.length_ns for item in (path, before))
    assert host > host_before


def test_nothing_to_hold_up_gives_an_empty_path(root_dir: Path) -> None:
    trace = load_trace(root_dir / "samples" / "dcgan-training-fp32-b64-shapes.json.gz")
    path = measured_path(trace, build_graph(trace), None)
    assert path.length_ns == 0.0
    assert not len(path.node)


def broken_clocks(seed: int) -> Trace:
    """Calls that overlap, kernels that start before their launch and run into one another."""
    rng, recording = np.random.default_rng(seed), Recording()
    for at in range(30):
        call = int(rng.integers(0, 40_000)) + 1_000 * at
        lasting = int(rng.integers(0, 9_000))
        recording.launch(call, int(rng.integers(0, 9_000)), max(0, call + int(rng.integers(-9_000, 9_000))), lasting)
    rows = recording.rows
    for table in (CallTable, KernelTable):
        order = np.argsort([row["start_ns"] for row in rows[table]], kind="stable").tolist()
        if table is CallTable:
            place = {row: new for new, row in enumerate(order)}
            for kernel in rows[KernelTable]:
                kernel["call"] = place[kernel["call"]]
        rows[table] = [rows[table][row] for row in order]
    return recording.trace()


@given(seed=st.integers(0, 2**32 - 1))
def test_no_part_of_a_path_is_negative_on_broken_clocks(seed: int) -> None:
    graph = build_graph(broken_clocks(seed))
    last = int(np.argmax(graph.nodes.end_ns))
    path = critical_path(graph, graph.nodes, graph.latency_ns, last=last, since_ns=float(graph.nodes.start_ns.min()))
    assert (path.node_ns >= 0).all()
    assert (path.edge_ns >= 0).all()
    assert path.unexplained_ns >= 0
    assert parts_ns(path) == pytest.approx(path.length_ns, abs=0.5 * len(path.node) + 1.0)
