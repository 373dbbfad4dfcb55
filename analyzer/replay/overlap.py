"""Kernels slowed by collectives that run beside them: what the links carry comes from the same memory and SMs."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from ...arrays import Floats, Mask, Rows
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
_FEWEST_STREAMS: Final = 2
_BLOCK_VALUES: Final = 1 << 21
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

    `slowing` says per node and GPU how much longer a kernel takes beside this collective, over alone, [n, m]; that of
    other nodes is not read. The durations of a recording hold the overlap that it had: where `recorded`, the same on
    its GPU [n], is given, they change by what differs.
    Nodes of other runs than `runs` (default: all) are left as they are.
    A kernel of d alone takes T with d = T - integral over T of (1 - 1 / slowing).

    >>> timing = result.forecast.timing
    >>> slowed_timing(result.graph, timing, np.ones((len(result.graph.nodes.row), 2))) is timing  # no collectives
    True
    """
    nodes = graph.nodes
    slows = nodes.kind == NodeKind.COLLECTIVE
    slowed = nodes.is_gpu & ~slows
    if len(np.unique(nodes.lane[slows | slowed])) < _FEWEST_STREAMS or not slows.any() or not slowed.any():
        return timing
    known: Floats = np.ones((len(nodes.row), 1))
    if recorded is not None:
        known = _stretch(graph, nodes.start_ns[:, None], nodes.end_ns[:, None], recorded[:, None], slows, slowed)
    is_run = np.ones(len(nodes.row), dtype=bool)
    if runs is not None:
        within = np.zeros(len(nodes.row) + 1, dtype=np.int64)
        np.add.at(within, runs[:, 0], 1)
        np.add.at(within, runs[:, 1], -1)
        is_run = np.cumsum(within)[:-1] > 0
        known[~is_run] = 1.0
    count = timing.latency_ns.shape[1]
    block = max(1, _BLOCK_VALUES // max(1, len(nodes.row)))
    parts = []
    for begin in range(0, count, block):
        columns = slice(begin, begin + block)
        part = on_gpus(timing, columns)
        given, found = part.stretch, np.ones((0, 0), dtype=np.float32)
        for _ in range(rounds):
            end = replay(graph, part, runs=runs)
            start = end - part.node_ns(slice(None))
            stretch = _stretch(graph, start, end, slowing[:, columns], slows & is_run, slowed & is_run) / known
            stretch[np.abs(stretch - 1.0) < _LEAST_CHANGE] = 1.0
            found = stretch.astype(np.float32) if given is None else stretch.astype(np.float32) * given
            part = replace(part, stretch=found)
        parts.append(found)
    return replace(timing, stretch=np.concatenate(parts, axis=1, dtype=np.float32))


def learn_slowing(graph: Graph, rows: Rows, slowing: Floats) -> float | None:
    """Return what a recording says of how much longer kernels take beside collectives; None: too little.

    Of equal kernels (`rows`: which of them each node is, [n]) the median time beside a collective over that alone; of
    all kinds of kernels the median, weighted by their time; with the prior as much as some kinds of kernels say.
    """
    nodes = graph.nodes
    slows = (nodes.kind == NodeKind.COLLECTIVE) & (slowing > 1.0)
    slowed = nodes.kind == NodeKind.KERNEL
    if not slows.any():
        return None
    marks = np.where(slows, _MARK, 1.0)[:, None]
    stretch = _stretch(graph, nodes.start_ns[:, None], nodes.end_ns[:, None], marks, slows, slowed)[:, 0]
    beside = (1.0 - 1.0 / stretch) / (1.0 - 1.0 / _MARK)
    length = nodes.end_ns - nodes.start_ns
    ratios, weights = [], []
    order = np.flatnonzero(slowed & ((beside > _WHOLLY) | (beside < 1.0 - _WHOLLY)) & (length > _LEAST_KERNEL_NS))
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
    prior = np.log(float(np.median(slowing[slows])))
    mean = (len(ratios) * found + _PRIOR_KINDS * prior) / (len(ratios) + _PRIOR_KINDS)
    return float(np.clip(np.exp(mean), 1.0, _MOST_SLOWING))


def with_learned(slowing: Floats, recorded: Floats, learned: float | None) -> tuple[Floats, Floats]:
    """Return what collectives do on m GPUs [n, m] and on the recorded one [n] with what the recording taught.

    Where they are as near each other as they were there, it stands for both.

    >>> with_learned(np.array([[1.12, 1.05, 1.0]]), np.array([1.12]), 1.2)
    (array([[1.2 , 1.05, 1.  ]]), array([1.2]))
    """
    if learned is None:
        return slowing, recorded
    is_alike = (slowing == recorded[:, None]) & (slowing > 1.0)
    return np.where(is_alike, learned, slowing), np.where(recorded > 1.0, learned, recorded)


def collective_slowing(graph: Graph, trace: Trace, domain_gpu_count: Floats) -> Floats:
    """Return by what each collective's node slows kernels beside it on each GPU, [n, m]; 1 for other nodes.

    `domain_gpu_count` says how many of each GPU the fastest links join, [m].

    >>> collective_slowing(graph, measured, fleet.fabric.domain_gpu_count).shape  # no collectives
    (6, 2)
    """
    nodes = graph.nodes
    at = np.flatnonzero(nodes.kind == NodeKind.COLLECTIVE)
    found = np.ones((len(nodes.row), len(domain_gpu_count)))
    reach = _reach_of_kernels(trace)[nodes.row[at]]
    is_within = reach[:, None] <= domain_gpu_count
    found[at] = np.where(is_within, WITHIN_SLOWING, BETWEEN_SLOWING)
    return found


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


def _stretch(graph: Graph, start: Floats, end: Floats, slowing: Floats, slows: Mask, slowed: Mask) -> Floats:
    """Return how much longer each kernel takes than alone, as it lies beside collectives of its device, [n, m]."""
    found = np.ones(start.shape)
    device = np.repeat([lane.device for lane in graph.lanes], [lane.end - lane.begin for lane in graph.lanes])
    for number in np.unique(device[slows]).tolist():
        beside = np.flatnonzero(slows & (device == number))
        mine = np.flatnonzero(slowed & (device == number))
        for column in range(start.shape[1]):
            begun, ended = start[mine, column], end[mine, column]
            lost = np.zeros(len(mine))
            factor = slowing[beside, min(column, slowing.shape[1] - 1)]
            for value in np.unique(factor[factor > 1.0]).tolist():
                chosen = beside[factor == value]
                reach = covered_before(start[chosen, column], end[chosen, column], np.concatenate((begun, ended)))
                lost += (1.0 - 1.0 / value) * (reach[len(mine) :] - reach[: len(mine)])
            length = ended - begun
            part = np.divide(lost, length, out=np.zeros_like(lost), where=length > 0)
            found[mine, column] = 1.0 / (1.0 - part)
    return found


def covered_before(start: Floats, end: Floats, instants: Floats) -> Floats:
    """Return how long intervals (their union) covered the time before each instant."""
    order = np.argsort(start, kind="stable")
    start, latest = start[order], np.maximum.accumulate(end[order])
    begun = np.maximum(start, np.append(-np.inf, latest[:-1]))
    total = np.append(0.0, np.cumsum(np.maximum(latest - begun, 0.0)))
    at = np.searchsorted(start, instants, side="right")
    past = np.maximum(np.append(-np.inf, latest)[at] - instants, 0.0)
    return np.asarray(total[at] - past)
