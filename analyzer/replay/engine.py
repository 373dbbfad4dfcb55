"""Re-times a graph: every lane a max-plus scan, on all GPUs at once."""

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from ...arrays import Floats, Rows, Singles
from ...records import dataclass, replace
from ..graph.graph import NEVER_NS, EdgeKind, Graph, Runs
from ..graph.rules import lane_firsts

_QUEUE: Final = int(EdgeKind.QUEUE)
"""Plain, as comparing enum members costs in the loop over runs."""
_PIECE_VALUES: Final = 1 << 16
"""Nodes times GPUs replayed in one step at most, so that what a step needs stays in the cache."""
_FEWEST_ROWS: Final = 16
_SHORTEST_STRETCH: Final = 3
_FEWEST_COLUMNS: Final = 32
"""Below these, rows are combined one after the other."""
_LONGEST_LANE: Final = 8
"""Nodes of lanes that are replayed together where many of equal length follow one another."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timing:
    """Say how long everything takes on each of m GPUs."""

    base_ns: Floats
    """Duration of each GPU node before scaling, [n]; any for host nodes."""
    factor: Floats
    """What each distinct kernel's duration is multiplied with, [d, m]."""
    factor_row: Rows
    """Row of `factor` of each GPU node, [n]; any for host nodes."""
    latency_ns: Floats
    """Of each Term, [terms, m]."""
    host_ratio: Floats
    """Host time relative to the recording, [m]."""
    residual_ns: Floats
    """Delay of each node past the rules, carried over as it is, [n]."""
    stretch: Singles | None = None
    """By what the duration of each GPU node is multiplied besides, [n, m]; None: all by 1."""

    def node_ns(self, rows: Rows | slice) -> Floats:
        """Return how long some GPU nodes take, [rows, m]."""
        found = self.factor.take(self.factor_row[rows], axis=0)
        found *= self.base_ns[rows, None]
        if self.stretch is not None:
            found *= self.stretch[rows]
        return found


def on_gpus(timing: Timing, columns: slice | Rows) -> Timing:
    """Return the timing on some of the GPUs.

    >>> result.forecast.timing.factor.shape, on_gpus(result.forecast.timing, slice(1)).factor.shape
    ((14, 2), (14, 1))
    """
    return replace(
        timing,
        factor=np.ascontiguousarray(timing.factor[:, columns]),
        latency_ns=np.ascontiguousarray(timing.latency_ns[:, columns]),
        host_ratio=timing.host_ratio[columns],
        stretch=None if timing.stretch is None else timing.stretch[:, columns],
    )


class _Piece(NamedTuple):
    """Hold one stretch of nodes to replay in one step, and the edges into it; or whole short lanes side by side."""

    begin: int
    stop: int
    width: int
    """Its nodes, or those of each lane."""
    low: int
    """Its edges are `low` to `high`."""
    high: int
    head: int
    """Nodes with edges are rows `head` to `last_head` of the table of such nodes."""
    last_head: int
    has_queue: bool
    has_release: bool
    is_first: bool
    """Whether a lane begins with it."""
    is_gpu: bool


def replay(graph: Graph, timing: Timing, *, runs: Runs | None = None, piece_rows: int | None = None) -> Floats:
    """Return the end of every node on every GPU, ns since the start of capture, [n, m].

    `runs` are those that are replayed (default: all of the graph's; `runs_before`); other nodes end after all of these.
    `piece_rows` is how many nodes are replayed in one step at most (default: `piece_rows_for`): sums begin anew with
    every piece, so that only replays with equal pieces agree to the last bit.

    GPU: end = max(end before + gap, arrival) + residual + duration. Host: end = max(end before + host time, arrival) +
    residual. Within a run, with S the running sum of what each node adds to the one before it, end - S is the running
    maximum of (arrival + own - S). A node that came earlier than the rules say did so by what held it: it overlaps the
    one before it on its lane only as far as it did in the recording.

    >>> replay(graph, measured_timing(graph, graph.residual_ns)).max().item()
    578000.0
    """
    nodes = graph.nodes
    # Of what is not contiguous, taking rows copies the whole each time.
    timing = replace(
        timing, factor=np.ascontiguousarray(timing.factor), latency_ns=np.ascontiguousarray(timing.latency_ns)
    )
    kept_ns = _kept_apart_ns(graph, timing.residual_ns)
    shape = len(nodes.row), timing.latency_ns.shape[1]
    end = np.empty(shape) if runs is None else np.full(shape, -NEVER_NS)
    # The first edge of each node that has edges, and last their number.
    target = graph.edges.target
    heads = np.append(np.flatnonzero(np.append(True, target[1:] != target[:-1])[: len(target)]), len(target))
    runs = graph.runs if runs is None else runs
    for piece in _pieces(graph, heads, runs, piece_rows or piece_rows_for(end.shape[1])):
        run = slice(piece.begin, piece.stop)
        bound = _latest_arrivals(graph, timing, end, heads, piece)
        step = _add_own(bound, graph, timing, run, on_gpu=piece.is_gpu)
        if kept_ns is not None:
            step += kept_ns[run, None]
        if piece.width < piece.stop - piece.begin:
            _scan_lanes(bound, step, piece.width, on_gpu=piece.is_gpu)
            np.add(bound, step, out=end[run])
            continue
        if piece.width > 1:
            _scan(np.add, step)
        bound -= step
        if not piece.is_first:
            np.maximum(bound[0], end[piece.begin - 1], out=bound[0])
        elif not piece.is_gpu:
            np.maximum(bound[0], 0.0, out=bound[0])
        if piece.width > 1:
            _scan(np.maximum, bound)
        np.add(bound, step, out=end[run])
    return end


def piece_rows_for(gpu_count: int) -> int:
    """Return how many nodes are best replayed in one step on so many GPUs."""
    return max(_FEWEST_ROWS, _PIECE_VALUES // max(1, gpu_count))


def _kept_apart_ns(graph: Graph, residual_ns: Floats) -> Floats | None:
    """Return what of a negative residual does not bring a node nearer to the one before it, [n]; None: nowhere any."""
    early = residual_ns < 0
    if not early.any():
        return None
    nearer = np.minimum(np.maximum(graph.lane_slack_ns, residual_ns), 0.0)
    return np.where(early, nearer - residual_ns, 0.0)


def _pieces(graph: Graph, heads: Rows, runs: Runs, most_rows: int) -> Iterator[_Piece]:
    """Return the runs in order: long ones in pieces, short lanes that follow one another together."""
    if not len(runs):
        return iter(())
    counts = -(-(runs[:, 1] - runs[:, 0]) // most_rows)
    at = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    begin = np.repeat(runs[:, 0], counts) + at * most_rows
    stop = np.minimum(begin + most_rows, np.repeat(runs[:, 1], counts))
    leads = _lead_lanes(graph, begin, stop, most_rows)
    width, begin, stop = (stop - begin)[leads], begin[leads], stop[np.append(leads[1:], len(stop)) - 1]
    low, high = graph.first_edge[begin], graph.first_edge[stop]
    columns = [begin, stop, width, low, high, np.searchsorted(heads, low), np.searchsorted(heads, high)]
    queued, released = (
        np.append(0, np.cumsum(flags)) for flags in (graph.edges.kind == _QUEUE, graph.nodes.release_ns > NEVER_NS)
    )
    columns += [queued[high] > queued[low], released[stop] > released[begin]]
    columns += [lane_firsts(graph.nodes)[begin], graph.nodes.is_gpu[begin]]
    return map(_Piece._make, zip(*(column.tolist() for column in columns), strict=True))


def _lead_lanes(graph: Graph, begin: Rows, stop: Rows, most_rows: int) -> Rows:
    """Return the pieces that are replayed in a step of their own; each takes those up to the next one along.

    Whole lanes of one length that follow one another, none of which waits for another of them, go together.
    """
    # Traces of data loaders and pools have thousands of lanes of a few nodes, and one step per lane would cost more
    # than the arithmetic. Equal lanes side by side are one array with an axis more. They may not wait for each other,
    # as all of a step is computed at once: a group with such an edge inside falls apart again.
    length, side = stop - begin, graph.nodes.is_gpu[begin]
    whole = lane_firsts(graph.nodes)[begin] & (length <= _LONGEST_LANE)
    follows = (begin[1:] == stop[:-1]) & (length[1:] == length[:-1]) & (side[1:] == side[:-1])
    leads = np.append(True, ~(follows & whole[1:] & whole[:-1]))
    if leads.all():
        return np.arange(len(begin))
    group = np.cumsum(leads)
    place = np.arange(len(begin)) - np.flatnonzero(leads)[group - 1]
    leads |= place % np.maximum(most_rows // np.maximum(length, 1), 1) == 0
    group = np.cumsum(leads)
    of_node = np.zeros(len(graph.nodes.row), dtype=np.int64)
    single = np.bincount(group)[group] == 1
    rows = np.concatenate([begin[~single] + row for row in range(_LONGEST_LANE)])
    inside = np.concatenate([length[~single] > row for row in range(_LONGEST_LANE)])
    of_node[rows[inside]] = np.tile(group[~single], _LONGEST_LANE)[inside]
    meets = of_node[graph.edges.source]
    meets = meets[(meets > 0) & (meets == of_node[graph.edges.target])]
    return np.flatnonzero(leads | np.isin(group, meets))


def _scan_lanes(bound: Floats, step: Floats, width: int, *, on_gpu: bool) -> None:
    """Scan whole lanes of `width` nodes that lie one after the other, as one alone is scanned."""
    shape = (-1, width, bound.shape[1])
    bounds, steps = bound.reshape(shape), step.reshape(shape)
    np.cumsum(steps, axis=1, out=steps)
    bounds -= steps
    if not on_gpu:
        np.maximum(bounds[:, 0], 0.0, out=bounds[:, 0])
    np.maximum.accumulate(bounds, axis=1, out=bounds)


def _scan(combine: np.ufunc, values: Floats) -> None:
    """Combine each row with all before it, in place: within stretches of rows side by side, then stretch by stretch.

    `accumulate` goes down the columns one by one, which costs several times as much on many GPUs.
    """
    count, width = len(values), math.isqrt(len(values))
    if width < _SHORTEST_STRETCH or values.shape[1] < _FEWEST_COLUMNS:
        combine.accumulate(values, axis=0, out=values)
        return
    whole = count - count % width
    stretches = values[:whole].reshape(-1, width, values.shape[1])
    for row in range(1, width):
        combine(stretches[:, row], stretches[:, row - 1], out=stretches[:, row])
    for at in range(1, len(stretches)):
        combine(stretches[at], stretches[at - 1, -1], out=stretches[at])
    for row in range(whole, count):
        combine(values[row], values[row - 1], out=values[row])


def _latest_arrivals(graph: Graph, timing: Timing, end: Floats, heads: Rows, piece: _Piece) -> Floats:
    """Return the latest of each node's release and of when the edges into it let it go, [run, m]."""
    edges, span = graph.edges, slice(piece.low, piece.high)
    arrival = end.take(edges.source[span], axis=0)
    arrival += timing.latency_ns.take(edges.term[span], axis=0)
    if piece.has_queue:
        queued = np.flatnonzero(edges.kind[span] == _QUEUE)
        held = edges.source[span][queued]
        arrival[queued] -= timing.node_ns(held)
    count, known = piece.stop - piece.begin, piece.last_head - piece.head
    if known < piece.high - piece.low:
        arrival = np.maximum.reduceat(arrival, heads[piece.head : piece.last_head] - piece.low, axis=0)
    if known < count:
        bound = np.full((count, end.shape[1]), NEVER_NS)
        if known:
            bound[edges.target[heads[piece.head : piece.last_head]] - piece.begin] = arrival
    else:
        bound = arrival
    if piece.has_release:
        np.maximum(bound, graph.nodes.release_ns[piece.begin : piece.stop, None], out=bound)
    return bound


def _add_own(bound: Floats, graph: Graph, timing: Timing, run: slice, *, on_gpu: bool) -> Floats:
    """Move bounds from starts to ends; return what each node adds to the end of the one before it, [run, m]."""
    nodes, residual = graph.nodes, timing.residual_ns[run, None]
    if not on_gpu:
        bound += residual
        step = (nodes.lag_ns[run] + nodes.cost_ns[run])[:, None] * timing.host_ratio
        step += residual
        return step
    step = timing.node_ns(run)
    step += residual
    bound += step
    step += timing.latency_ns.take(nodes.gap_term[run], axis=0)
    return step


def measured_timing(graph: Graph, residual_ns: Floats) -> Timing:
    """Return the timing of the recording itself, one GPU.

    >>> measured_timing(graph, graph.residual_ns).base_ns.max().item()
    500000.0
    """
    return Timing(
        base_ns=graph.nodes.cost_ns,
        factor=np.ones((1, 1)),
        factor_row=np.zeros(len(graph.nodes.row), dtype=np.int64),
        latency_ns=graph.latency_ns[:, None],
        host_ratio=np.ones(1),
        residual_ns=residual_ns,
    )
