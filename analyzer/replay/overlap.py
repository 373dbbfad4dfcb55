"""Kernels slowed by collectives that run beside them: what the links carry comes from the same memory and SMs."""

from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from ...arrays import Floats, Rows, distinct, row_blocks
from ...formats.trace.column import row_count
from ...formats.trace.tables import Trace
from ..graph.graph import Graph, NodeKind, Runs
from ..recorded.waiting import collective_kernels
from .engine import Timing, on_gpus, replay

WITHIN_SLOWING: Final = 1.12
"""What a kernel takes beside a collective on links of its GPU's domain, over alone: the study of many GPUs found
medians of 1.1 to 1.2 in A100 traces."""
BETWEEN_SLOWING: Final = 1.05
"""The same beside a collective that crosses to other machines, which carries less per second (the same study's prior,
for which no trace was at hand)."""
_ROUNDS: Final = 2
"""Replays that tell what runs beside what: a kernel that is longer than the first one took it to be meets more. The
second changes iterations by 0.01 % at most on transformers' pieces (tensor-parallel, sharded; 256 to 4,096 tokens)."""
_MATTERING: Final = 0.005
"""Part of all time by which kernels have to be longer for a second replay: what that finds is about its square."""
_FEWEST_STREAMS: Final = 2
_BLOCK_VALUES: Final = 1 << 23
"""Nodes times GPUs replayed at a time, for memory's sake."""
_WHOLLY: Final = 0.9
"""Part of a kernel's time beside collectives from which on it counts as beside them; the rest: as alone."""
_LEAST_KERNEL_NS: Final = 20_000.0
"""Shorter kernels are not compared: theirs of 3 us, recorded in whole us, differ by a half in the public traces."""
_FEWEST_KERNELS: Final = 3
"""Equal kernels, both beside collectives and alone, that tell something."""
_PRIOR_KINDS: Final = 5.0
"""Kinds of kernels that say as much as the prior: single kinds of the public traces scatter by a tenth."""
_MOST_SLOWING: Final = 1.5
_MARK: Final = 2.0
"""Any slowing: turns a stretch back into the part of a kernel that was beside collectives."""
_LEAST_CHANGE: Final = 1e-3
"""Changes of a recorded kernel's slowing under this are the replay's noise."""


def slowed_timing(
    graph: Graph,
    timing: Timing,
    slowing: Floats,
    recorded: Floats | None = None,
    *,
    rounds: int = _ROUNDS,
    runs: Runs | None = None,
) -> Timing:
    """Return a timing whose kernels take longer while collectives run on another stream of their GPU.

    `slowing` says per collective and GPU how much longer a kernel takes beside it, over alone, [c, m]. The durations of
    a recording hold the overlap that it had: where `recorded`, the same on its GPU [c], is given, they change by what
    differs.
    Nodes of other runs than `runs` (default: all) are left as they are.
    A kernel of d alone takes T with d = T - integral over T of (1 - 1 / slowing).

    >>> timing = result.forecast.timing
    >>> slowed_timing(result.graph, timing, np.ones((0, 2))) is timing  # no collectives
    True
    """
    nodes = graph.nodes
    slows = nodes.kind == NodeKind.COLLECTIVE
    slowed = nodes.is_gpu & ~slows
    if len(distinct(nodes.lane[slows | slowed])) < _FEWEST_STREAMS or not slows.any() or not slowed.any():
        return timing
    is_run = np.ones(len(nodes.row), dtype=bool)
    if runs is not None:
        within = np.zeros(len(nodes.row) + 1, dtype=np.int64)
        np.add.at(within, runs[:, 0], 1)
        np.add.at(within, runs[:, 1], -1)
        is_run = np.cumsum(within)[:-1] > 0
    kernels, collectives = np.flatnonzero(slowed & is_run), np.flatnonzero(slows & is_run)
    if not len(kernels):
        return timing
    known: Floats = np.ones((len(kernels), 1))
    if recorded is not None:
        known = _stretch(graph, _measured(graph, kernels), _measured(graph, np.flatnonzero(slows)), recorded[:, None])
    slowing = slowing[is_run[slows]]
    shape = len(nodes.row), timing.latency_ns.shape[1]
    found = np.ones(shape, dtype=np.float32) if timing.stretch is None else timing.stretch.copy()
    given = found[kernels]
    block = max(1, _BLOCK_VALUES // max(1, len(nodes.row)))
    for columns in row_blocks(shape[1], block):
        part = on_gpus(timing, columns)
        for _ in range(rounds):
            end = replay(graph, part, runs=runs)
            ends = [(rows, end[rows]) for rows in (kernels, collectives)]
            del end  # as large as all else together
            spans = [_Spans(rows, (stop - part.node_ns(rows)).T, stop.T) for rows, stop in ends]
            stretch = _stretch(graph, spans[0], spans[1], slowing[:, columns]) / known
            stretch[np.abs(stretch - 1.0) < _LEAST_CHANGE] = 1.0
            found[kernels, columns] = stretch.astype(np.float32) * given[:, columns]
            begun, ended = spans[0].start_ns, spans[0].end_ns
            longer = np.einsum("mk,mk->m", ended - begun, np.abs(stretch.T - 1.0))
            if np.all(longer <= _MATTERING * (ended.max(axis=1) - begun.min(axis=1))):
                break
            part = replace(part, stretch=found[:, columns])
    return replace(timing, stretch=found)


def learn_slowing(graph: Graph, rows: Rows, slowing: Floats) -> float | None:
    """Return what a recording says of how much longer kernels take beside collectives; None: too little.

    Of equal kernels (`rows`: which of them each node is, [n]) the median time beside a collective over that alone; of
    all kinds of kernels the median, weighted by their time; with the prior as much as some kinds of kernels say.
    """
    nodes = graph.nodes
    slows = np.flatnonzero(nodes.kind == NodeKind.COLLECTIVE)[slowing > 1.0]
    if not len(slows):
        return None
    slowed = np.flatnonzero(nodes.kind == NodeKind.KERNEL)
    marks = np.full((len(slows), 1), _MARK)
    stretch = _stretch(graph, _measured(graph, slowed), _measured(graph, slows), marks)[:, 0]
    beside = (1.0 - 1.0 / stretch) / (1.0 - 1.0 / _MARK)
    length, rows = (nodes.end_ns - nodes.start_ns)[slowed], rows[slowed]
    ratios, weights = [], []
    order = np.flatnonzero(((beside > _WHOLLY) | (beside < 1.0 - _WHOLLY)) & (length > _LEAST_KERNEL_NS))
    order = order[np.argsort(rows[order], kind="stable")]
    for members in np.split(order, np.flatnonzero(np.diff(rows[order])) + 1):
        with_it, alone = length[members[beside[members] > _WHOLLY]], length[members[beside[members] < 1.0 - _WHOLLY]]
        if min(len(with_it), len(alone)) >= _FEWEST_KERNELS:
            ratios.append(float(np.median(with_it) / np.median(alone)))
            weights.append(float(with_it.sum()))
    if not ratios:
        return None
    by_ratio = np.argsort(ratios)
    passed = np.cumsum(np.array(weights)[by_ratio])
    found = np.log(np.array(ratios)[by_ratio][np.searchsorted(passed, passed[-1] / 2.0)])
    prior = np.log(float(np.median(slowing[slowing > 1.0])))
    mean = (len(ratios) * found + _PRIOR_KINDS * prior) / (len(ratios) + _PRIOR_KINDS)
    return float(np.clip(np.exp(mean), 1.0, _MOST_SLOWING))


def with_learned(slowing: Floats, recorded: Floats, learned: float | None) -> tuple[Floats, Floats]:
    """Return what collectives do on m GPUs [c, m] and on the recorded one [c] with what the recording taught.

    Where they are as near each other as they were there, it stands for both.

    >>> with_learned(np.array([[1.12, 1.05, 1.0]]), np.array([1.12]), 1.2)
    (array([[1.2 , 1.05, 1.  ]]), array([1.2]))
    """
    if learned is None:
        return slowing, recorded
    is_alike = (slowing == recorded[:, None]) & (slowing > 1.0)
    return np.where(is_alike, learned, slowing), np.where(recorded > 1.0, learned, recorded)


def collective_slowing(graph: Graph, trace: Trace, domain_gpu_count: Floats) -> Floats:
    """Return by what each of the graph's collectives, in its order, slows kernels beside it on each GPU, [c, m].

    `domain_gpu_count` says how many of each GPU the fastest links join, [m].

    >>> collective_slowing(graph, measured, fleet.fabric.domain_gpu_count).shape  # no collectives
    (0, 2)
    """
    reach = _reach_of_kernels(trace)[graph.nodes.row[graph.nodes.kind == NodeKind.COLLECTIVE]]
    return np.where(reach[:, None] <= domain_gpu_count, WITHIN_SLOWING, BETWEEN_SLOWING)


def _reach_of_kernels(trace: Trace) -> Rows:
    """Return among how many neighbouring ranks each kernel's group lies, [kernels]; 0 where nothing tells."""
    table, members = trace.collectives, trace.members
    size = np.append(trace.groups.size.astype(np.int64), 0)
    low, high = np.full(len(size), np.iinfo(np.int64).max), np.full(len(size), -1)
    np.minimum.at(low, members.group, members.rank)
    np.maximum.at(high, members.group, members.rank)
    size = np.where(high >= low, high - low + 1, size)
    reach = np.zeros(row_count(trace.kernels), dtype=np.int64)
    kernel = collective_kernels(trace)
    known = np.flatnonzero(kernel >= 0)
    of_group = size[np.minimum(table.group[known], len(size) - 1)]
    reach[kernel[known]] = np.where(of_group > 0, of_group, np.maximum(table.group_size[known], 0))
    return reach


class _Spans(NamedTuple):
    """Hold when some nodes run on m GPUs, [m, nodes]."""

    node: Rows
    start_ns: Floats
    end_ns: Floats


def _measured(graph: Graph, node: Rows) -> _Spans:
    return _Spans(node, graph.nodes.start_ns[None, node], graph.nodes.end_ns[None, node])


def _stretch(graph: Graph, kernels: _Spans, collectives: _Spans, slowing: Floats) -> Floats:
    """Return how much longer kernels take than alone, as they lie beside collectives of their device, [kernels, m]."""
    found = np.ones(kernels.start_ns.shape)
    device = np.repeat([lane.device for lane in graph.lanes], [lane.end - lane.begin for lane in graph.lanes])
    for number in np.unique(device[collectives.node]).tolist():
        beside = np.flatnonzero(device[collectives.node] == number)
        mine = np.flatnonzero(device[kernels.node] == number)
        bounds = np.concatenate((kernels.start_ns[:, mine], kernels.end_ns[:, mine]), axis=1)
        part = np.zeros((len(bounds), len(mine)))
        for column, instants in enumerate(bounds):
            lost = np.zeros(len(instants))
            factor = slowing[beside, column]
            for value in np.unique(factor[factor > 1.0]).tolist():
                start, end = (ends[column, beside[factor == value]] for ends in collectives[1:])
                lost += (1.0 - 1.0 / value) * covered_before(start, end, instants)
            begun, ended = instants[: len(mine)], instants[len(mine) :]
            np.divide(lost[len(mine) :] - lost[: len(mine)], ended - begun, out=part[column], where=ended > begun)
        found[:, mine] = 1.0 / (1.0 - part)
    return found.T


def covered_before(start: Floats, end: Floats, instants: Floats) -> Floats:
    """Return how long intervals (their union) covered the time before each instant."""
    order = np.argsort(start, kind="stable")
    start, latest = start[order], np.maximum.accumulate(end[order])
    begun = np.maximum(start, np.append(-np.inf, latest[:-1]))
    total = np.append(0.0, np.cumsum(np.maximum(latest - begun, 0.0)))
    at = np.searchsorted(start, instants, side="right")
    past = np.maximum(np.append(-np.inf, latest)[at] - instants, 0.0)
    return np.asarray(total[at] - past)
