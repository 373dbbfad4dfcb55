"""The replay's rules on measured times: what held each node, how late it was, and the latencies that fit best."""

from typing import Final

import numpy as np

from ...arrays import Floats, Mask, Rows
from ...records import dataclass
from .graph import NEVER_NS, EdgeKind, Edges, Nodes
from .latencies import Term

LANE: Final = -1
RELEASE: Final = -2
_ROUNDS: Final = 4
_NOISE_NS: Final = 10_000.0
"""Residuals beyond this tell of something else than a latency."""
_CLEAR_NS: Final = 1_500.0
"""A latency is read only where the reason that holds a node is this far ahead of the next."""
_FEWEST: Final = 8
"""Observations below which the generation's value stands."""
_TRIMMED: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """Say what held each node, by the measured times of what it waits for."""

    binding: Rows
    """The edge; LANE or RELEASE."""
    bound_ns: Floats
    """The earliest start (GPU) or end (host) by rule."""
    residual_ns: Floats
    """Measured minus rule."""
    is_clear: Mask
    """Whether the reason is well ahead of any other."""
    lane_slack_ns: Floats
    """Measured minus what the lane's order alone asks for; negative where kernels of one stream overlap."""


def lane_firsts(nodes: Nodes) -> Mask:
    """Say which nodes are the first of their lane, [n].

    >>> lane_firsts(graph.nodes)
    array([ True, False, False, False,  True, False])
    """
    return np.append(True, nodes.lane[1:] != nodes.lane[:-1])[: len(nodes.lane)]


def first_edges(edges: Edges, count: int) -> Rows:
    """Return where the edges into each of `count` nodes begin, [count + 1]."""
    return np.append(0, np.cumsum(np.bincount(edges.target, minlength=count)))


def hold_nodes(nodes: Nodes, edges: Edges, is_lane_first: Mask, latency_ns: Floats) -> Held:
    """Apply the rules to measured times.

    GPU: start = max(end before on the stream + gap, source end + latency, release).
    Host: end = max(end before on the thread + host time + cost, source end + latency, release).
    """
    count = len(nodes.row)
    observed = np.where(nodes.is_gpu, nodes.start_ns, nodes.end_ns)
    before = np.append(0.0, nodes.end_ns[:-1])[:count]
    own = np.where(nodes.is_gpu, latency_ns[nodes.gap_term], nodes.lag_ns + nodes.cost_ns)
    origin = np.where(nodes.is_gpu, NEVER_NS, 0.0)
    lane_bound = np.where(is_lane_first, origin, before) + own
    bound, binding = lane_bound.copy(), np.full(count, LANE, dtype=np.int64)
    second = np.full(count, NEVER_NS)
    released = np.flatnonzero(nodes.release_ns > NEVER_NS)
    _raise_bound(bound, binding, second, released, nodes.release_ns[released], np.full(len(released), RELEASE))
    source_ns = np.where(edges.kind == EdgeKind.QUEUE, nodes.start_ns[edges.source], nodes.end_ns[edges.source])
    arrival = source_ns + latency_ns[edges.term]
    first = first_edges(edges, count)
    # The edges by target, then arrival; they are sorted by target already.
    order = np.arange(len(edges.target))
    shared = np.flatnonzero(np.diff(first)[edges.target] > 1)
    order[shared] = shared[np.lexsort((arrival[shared], edges.target[shared]))]
    for back in (1, 0):
        reached = np.flatnonzero(np.diff(first) > back)
        edge = order[first[reached + 1] - 1 - back]
        _raise_bound(bound, binding, second, reached, arrival[edge], edge)
    return Held(
        binding=binding,
        bound_ns=bound,
        residual_ns=observed - bound,
        is_clear=bound - second > _CLEAR_NS,
        lane_slack_ns=observed - lane_bound,
    )


def _raise_bound(bound: Floats, binding: Rows, second: Floats, node: Rows, arrival: Floats, reason: Rows) -> None:
    """Let a later arrival at some nodes take over, and keep the one that it overtakes."""
    later = arrival > bound[node]
    second[node] = np.maximum(second[node], np.where(later, bound[node], arrival))
    taken = node[later]
    bound[taken] = arrival[later]
    binding[taken] = reason[later]


def fit_latencies(nodes: Nodes, edges: Edges, is_lane_first: Mask, start_ns: Floats) -> Floats:
    """Return the latency of each term that fits the measured times best, from `start_ns` on.

    Trimmed means of what was observed where the term alone held a node: medians cost up to 7 % of an iteration. Whole
    ns, as recorded times are, so that a replay with every residual is exact to the last bit.
    """
    latency = start_ns.copy()
    for _ in range(_ROUNDS):
        for code, seen in seen_latencies(nodes, edges, is_lane_first, latency).items():
            latency[code] += trimmed_mean(seen)
    return np.rint(latency)


def seen_latencies(nodes: Nodes, edges: Edges, is_lane_first: Mask, latency_ns: Floats) -> dict[Term, Floats]:
    """Return by how much each term was observed to exceed `latency_ns`, where it alone held a node and often enough."""
    held = hold_nodes(nodes, edges, is_lane_first, latency_ns)
    usable = held.is_clear & (np.abs(held.residual_ns) < _NOISE_NS)
    gap = np.where(held.binding == LANE, nodes.gap_term, np.int8(Term.NONE))
    term = np.where(held.binding >= 0, np.append(edges.term, np.int8(Term.NONE))[np.maximum(held.binding, -1)], gap)
    seen = {code: held.residual_ns[usable & (term == code)] for code in Term if code != Term.NONE}
    return {code: values for code, values in seen.items() if len(values) >= _FEWEST}


def trimmed_mean(values: Floats) -> float:
    """Return the mean without the lowest and highest tenth."""
    ordered = np.sort(values)
    cut = int(len(ordered) * _TRIMMED)
    return float(ordered[cut : len(ordered) - cut].mean())
