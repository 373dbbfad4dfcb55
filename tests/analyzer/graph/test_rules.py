"""The rules on measured times, against the same node by node."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.graph.graph import NEVER_NS, EdgeKind, Graph
from wavecast.analyzer.graph.latencies import Term, generation_latencies
from wavecast.analyzer.graph.rules import LANE, RELEASE, hold_nodes, lane_firsts, trimmed_mean

from ...conftest import Recording
from ..replay.conftest import graphs, recordings

CLEAR_NS = 1_500.0


def slow_hold(graph: Graph, node: int) -> tuple[float, float, int, float]:
    """The bound of one node, the next reason's, what binds it, and the lane's bound."""
    nodes, edges, latency = graph.nodes, graph.edges, graph.latency_ns
    on_gpu, is_first = bool(nodes.is_gpu[node]), bool(lane_firsts(nodes)[node])
    origin = NEVER_NS if on_gpu else 0.0
    own = latency[nodes.gap_term[node]] if on_gpu else nodes.lag_ns[node] + nodes.cost_ns[node]
    lane = (origin if is_first else float(nodes.end_ns[node - 1])) + own
    reasons = [(lane, LANE), (float(nodes.release_ns[node]), RELEASE)]
    for edge in np.flatnonzero(edges.target == node).tolist():
        source = edges.source[edge]
        from_ns = (nodes.start_ns if edges.kind[edge] == EdgeKind.QUEUE else nodes.end_ns)[source]
        reasons.append((float(from_ns + latency[edges.term[edge]]), edge))
    instants = sorted((instant for instant, _ in reasons), reverse=True)
    binding = next(reason for instant, reason in reasons if instant == instants[0])
    return instants[0], instants[1], binding, lane


@settings(deadline=None, max_examples=60)
@given(st.one_of(graphs(may_be_cyclic=True), recordings().map(build_graph)))
def test_each_node_is_held_by_what_arrives_last(graph: Graph) -> None:
    nodes = graph.nodes
    held = hold_nodes(nodes, graph.edges, lane_firsts(nodes), graph.latency_ns)
    observed = np.where(nodes.is_gpu, nodes.start_ns, nodes.end_ns)
    for node in range(len(nodes.row)):
        bound, second, binding, lane = slow_hold(graph, node)
        assert held.bound_ns[node] == bound
        if bound > second:  # else two reasons hold it alike
            assert held.binding[node] == binding
        assert held.residual_ns[node] == graph.residual_ns[node] == observed[node] - bound
        assert held.lane_slack_ns[node] == graph.lane_slack_ns[node] == observed[node] - lane
        assert held.is_clear[node] == (bound - second > CLEAR_NS)


def test_the_mean_leaves_out_the_outer_tenths() -> None:
    values = np.array([1_000.0, *(at**2 for at in range(18)), -5_000.0])
    assert trimmed_mean(values) == np.mean([at**2 for at in range(1, 17)])
    assert trimmed_mean(np.array([1.0, 2.0, 6.0])) == 3.0


@pytest.mark.parametrize("count", [7, 8])
def test_eight_observations_make_a_latency(recording: Recording, count: int) -> None:
    for at in range(count):
        recording.launch(100_000 * at, 4_000, 100_000 * at + 4_000 + 2_500, 2_000)
    graph = build_graph(recording.trace(), architecture="Volta")
    assert graph.latency_ns[Term.LAUNCH] == (2_500 if count == 8 else 1_900)


@pytest.mark.parametrize(("late", "fitted"), [(9_900, 11_800), (10_100, 1_900)])
def test_what_is_ten_microseconds_off_is_no_latency(recording: Recording, late: int, fitted: int) -> None:
    for at in range(9):
        recording.launch(100_000 * at, 4_000, 100_000 * at + 4_000 + 1_900 + late, 2_000)
    assert build_graph(recording.trace(), architecture="Volta").latency_ns[Term.LAUNCH] == fitted


@pytest.mark.parametrize("name", ["Volta", "Turing", "Ampere", "Hopper", "Blackwell", "CDNA", None])
def test_every_latency_is_of_its_order(name: str | None) -> None:
    """Gaps and returns of one generation are within a factor of ten of the defaults, and none is instant."""
    usual, found = (generation_latencies(item)[1:] for item in (None, name))
    assert (found >= usual / 10).all()
    assert (found <= usual * 10).all()
    assert ((found >= 100) & (found <= 20_000)).all()
    assert generation_latencies(name)[Term.NONE] == 0.0
