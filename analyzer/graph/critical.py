"""The critical path: the chain of waits that ends with an iteration, and what its time goes to."""

from typing import Final

import numpy as np
import numpy.typing as npt

from ...arrays import Floats, Mask, Rows, at_rows
from ...records import dataclass
from .graph import EdgeKind, Graph, NodeKind, Nodes
from .rules import LANE, RELEASE, Held, hold_nodes, lane_firsts

_ROUNDING_NS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CriticalPath:
    """Hold the nodes that an iteration waited for, p of them, first to last.

    `own_ns`, `wait_ns` and `residual_ns` add up to `length_ns`: from `since_ns` to the end of the last node nothing is
    left out and nothing counted twice. None of the sums is negative, whatever the clocks say.
    """

    node: Rows
    held_by: Rows
    """The edge that held each node; LANE or RELEASE."""
    node_kind: npt.NDArray[np.int8]
    edge_kind: npt.NDArray[np.int8]
    """`EdgeKind` of what held each node."""
    own_ns: Floats
    """What each node takes by itself; 0 where only its start counts, or where the host merely waited."""
    wait_ns: Floats
    """The latency of what held it; for program order, the host's own time between two calls."""
    residual_ns: Floats
    """Beyond the rules; negative where it came earlier."""
    since_ns: float
    until_ns: float

    @property
    def length_ns(self) -> float:
        """Return the length of the path."""
        return self.until_ns - self.since_ns

    @property
    def node_ns(self) -> Floats:
        """Return the time spent in nodes by `NodeKind`."""
        return np.asarray(np.bincount(self.node_kind, self.own_ns, minlength=len(NodeKind)), dtype=np.float64)

    @property
    def edge_ns(self) -> Floats:
        """Return the time spent between nodes by `EdgeKind`."""
        return np.asarray(np.bincount(self.edge_kind, self.wait_ns, minlength=len(EdgeKind)), dtype=np.float64)

    @property
    def unexplained_ns(self) -> float:
        """Return the sum of the residuals."""
        return float(self.residual_ns.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSummary:
    """Say what a critical path goes to; nodes, edges and the unexplained rest add up to its length."""

    length_ns: float
    node_ns: dict[str, float]
    """By kind of node: launch, sync, kernel, memcpy, memset, collective."""
    edge_ns: dict[str, float]
    """By kind of edge: program_order (the host's own time), stream_order, launch, event, sync, queue, collective."""
    unexplained_ns: float
    """Beyond the rules; negative where things came earlier."""


def summarize_path(path: CriticalPath) -> PathSummary:
    """Return what a critical path goes to; kinds that take no time are left out.

    >>> from wavecast.analyzer.replay.paths import measured_path
    >>> summarize_path(measured_path(measured, graph, None)).node_ns
    {'launch': 5000.0, 'kernel': 526000.0}
    """
    return PathSummary(
        length_ns=path.length_ns,
        node_ns={kind.name.lower(): float(path.node_ns[kind]) for kind in NodeKind if path.node_ns[kind]},
        edge_ns={kind.name.lower(): float(path.edge_ns[kind]) for kind in EdgeKind if path.edge_ns[kind]},
        unexplained_ns=path.unexplained_ns,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Steps:
    """Hold what each node of the graph would add to a path, [n]; the parts fill the time since `origin_ns`."""

    source: Rows
    """The node that held it, -1: none."""
    from_start: Mask
    """Whether it waited for that node's start, not its end."""
    origin_ns: Floats
    held_by: Rows
    kind: npt.NDArray[np.int8]
    wait_ns: Floats
    own_ns: Floats
    residual_ns: Floats


def critical_path(graph: Graph, nodes: Nodes, latency_ns: Floats, *, last: int, since_ns: float) -> CriticalPath:
    """Return the chain of nodes that ends with node `last`, back to the instant `since_ns`.

    `nodes` are the graph's own, or the same with the times of another GPU (`retime_nodes`): which edge holds a node
    changes with the times. Each node is held by what the replay's rules let arrive last; a node that nothing recorded
    holds (launched before the capture) ends the path, and the time before it counts as RELEASE.

    >>> last = len(graph.nodes.row) - 1
    >>> critical_path(graph, graph.nodes, graph.latency_ns, last=last, since_ns=0.0).length_ns
    578000.0
    """
    steps = _take_steps(graph, nodes, latency_ns)
    until_ns = max(float(nodes.end_ns[last]), since_ns)
    path = _walk_back(steps, last, since_ns) if nodes.end_ns[last] > since_ns else np.zeros(0, dtype=np.int64)
    own = steps.own_ns[path]
    own[:-1][steps.from_start[path[1:]]] = 0.0
    parts = np.stack((steps.wait_ns[path], steps.residual_ns[path], own))
    if len(path):
        _fit_first(parts[:, 0], float(steps.origin_ns[path[0]]) - since_ns)
        _mend_parts(parts, steps.origin_ns[path], since_ns, until_ns)
    return CriticalPath(
        node=path,
        held_by=steps.held_by[path],
        node_kind=nodes.kind[path],
        edge_kind=steps.kind[path],
        wait_ns=parts[0],
        residual_ns=parts[1],
        own_ns=parts[2],
        since_ns=since_ns,
        until_ns=until_ns,
    )


def _take_steps(graph: Graph, nodes: Nodes, latency_ns: Floats) -> _Steps:
    is_first, edges = lane_firsts(nodes), graph.edges
    held = hold_nodes(nodes, edges, is_first, latency_ns)
    by_lane, by_edge = held.binding == LANE, held.binding >= 0
    edge = np.where(by_edge, held.binding, 0)
    source = np.where(by_lane & ~is_first, np.arange(len(nodes.row)) - 1, -1)
    source[by_edge] = edges.source[held.binding[by_edge]]
    from_start = by_edge & (at_rows(edges.kind, edge) == EdgeKind.QUEUE)
    wait = np.where(nodes.is_gpu, latency_ns[nodes.gap_term], nodes.lag_ns)
    wait[by_edge] = latency_ns[edges.term[held.binding[by_edge]]]
    wait[held.binding == RELEASE] = 0.0
    unheld = by_lane & is_first & nodes.is_gpu
    wait[unheld] = 0.0
    return _Steps(
        source=source,
        from_start=from_start,
        origin_ns=_origins(nodes, held, source, from_start),
        held_by=np.where(unheld, RELEASE, held.binding),
        kind=_kinds(graph, nodes, held, unheld),
        wait_ns=wait,
        own_ns=np.where(nodes.is_gpu, nodes.end_ns - nodes.start_ns, np.where(by_lane, nodes.cost_ns, 0.0)),
        residual_ns=np.where(unheld, 0.0, held.residual_ns),
    )


def _origins(nodes: Nodes, held: Held, source: Rows, from_start: Mask) -> Floats:
    """Return when each node's wait began: what held it ended (or started), its release, or the start of capture."""
    let_go = np.where(from_start, nodes.start_ns[source], nodes.end_ns[source]) if len(source) else np.zeros(0)
    outside = np.where(nodes.is_gpu, nodes.start_ns, 0.0)
    unheld = np.where(held.binding == RELEASE, nodes.release_ns, outside)
    return np.where(source >= 0, let_go, unheld)


def _kinds(graph: Graph, nodes: Nodes, held: Held, unheld: Mask) -> npt.NDArray[np.int8]:
    kind = np.where(nodes.is_gpu, np.int8(EdgeKind.STREAM_ORDER), np.int8(EdgeKind.PROGRAM_ORDER))
    by_edge = held.binding >= 0
    kind[by_edge] = graph.edges.kind[held.binding[by_edge]]
    kind[unheld | (held.binding == RELEASE)] = EdgeKind.RELEASE
    return kind


def _walk_back(steps: _Steps, last: int, since_ns: float) -> Rows:
    """Follow what held each node until that ends before `since_ns`; return the nodes first to last."""
    goes_on = (steps.source >= 0) & (steps.origin_ns > since_ns)
    source = np.where(goes_on, steps.source, -1).tolist()
    path, at = [], last
    while at >= 0:
        path.append(at)
        at = source[at]
    return np.array(path[::-1], dtype=np.int64)


def _fit_first(parts: Floats, ahead_ns: float) -> None:
    """Make the first step begin with the path: cut what lies before it, or wait for what is not recorded."""
    if ahead_ns >= 0:
        parts[0] += ahead_ns
        return
    excess = -ahead_ns
    for at in range(len(parts)):
        cut = min(max(parts[at], 0.0), excess)
        parts[at] -= cut
        excess -= cut


def _mend_parts(parts: Floats, origin_ns: Floats, since_ns: float, until_ns: float) -> None:
    """Make the parts of steps that broken clocks tore apart fill their stretch of the path, none of them negative.

    A step may claim time that a later one has, or end before what held it did: it keeps what is left of its stretch.
    Where things came so early that the unexplained rest of the whole path is negative, every step gives up its own.
    """
    begin = np.clip(np.minimum.accumulate(origin_ns[::-1])[::-1], since_ns, until_ns)
    begin[0] = since_ns
    length = np.append(begin[1:], until_ns) - begin
    torn = (parts[[0, 2]] < 0).any(axis=0) | (np.abs(parts.sum(axis=0) - length) > _ROUNDING_NS)
    if parts[1, ~torn].sum() < 0:
        torn[:] = True
    mended = np.maximum(parts[:, torn], 0.0)
    excess = mended.sum(axis=0) - length[torn]
    mended[1] += np.maximum(-excess, 0.0)
    for row in range(len(mended)):
        cut = np.clip(excess, 0.0, mended[row])
        mended[row] -= cut
        excess -= cut
    parts[:, torn] = mended
