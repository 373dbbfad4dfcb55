"""Several ranks of one job replayed together: a collective moves its data once all of them are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ...arrays import Floats, Mask, Rows
from ..graph.graph import Graph
from .engine import Timing, on_gpus, replay

_SETTLED_NS: Final = 1.0
"""Ends that move by less are as good as the clock's own steps."""
_MOST_ROUNDS: Final = 200
"""Each round settles at least the earliest collective that is not yet; recordings take three to ten."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankGraph:
    """Hold what is replayed of one rank."""

    graph: Graph
    timing: Timing
    """On one GPU."""
    node: Rows
    """The GPU node of each of c collectives that ranks share, [c]; -1 where this rank takes no part."""
    clock_ns: float
    """By how much its clock is ahead of the first rank's."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JointReplay:
    """Hold the ends of all nodes of r ranks, each on its own clock, and what its collectives took."""

    end_ns: tuple[Floats, ...]
    """Of every node of each rank, [n] each."""
    waiting_ns: Floats
    """Of each rank for the latest one in each collective, [c, r]; NaN where it takes no part."""
    rounds: int


def replay_jointly(ranks: Sequence[RankGraph], transfer_ns: Floats, heeded: Mask | None = None) -> JointReplay:
    """Replay ranks until all agree when each shared collective ends: `transfer_ns` [c] after its latest rank is there.

    Of ranks that are not `heeded` [r] nobody waits for: what the others would do without them. A rank's collectives
    hold its streams until they end, so that what one rank does late, others do late, too.

    >>> from wavecast.analyzer.replay.engine import measured_timing
    >>> alone = RankGraph(graph=graph, timing=measured_timing(graph, graph.residual_ns), node=np.array([4]), clock_ns=0)
    >>> replay_jointly([alone], np.array([9e3])).waiting_ns
    array([[0.]])
    """
    takes_part = np.stack([rank.node >= 0 for rank in ranks], axis=1)
    counts = takes_part if heeded is None else takes_part & heeded
    clock = np.array([rank.clock_ns for rank in ranks])
    length = np.where(takes_part, transfer_ns[:, None], np.nan)
    ends: list[Floats] = []
    rounds, changed = 0, np.ones(len(ranks), dtype=bool)
    for _ in range(_MOST_ROUNDS):
        rounds += 1
        ends = [
            ends[at] if rounds > 1 and not changed[at] else _replay_with(rank, length[:, at])
            for at, rank in enumerate(ranks)
        ]
        end = np.stack([np.append(found, np.nan)[rank.node] for found, rank in zip(ends, ranks, strict=True)], axis=1)
        arrival = end - length - clock
        latest = np.max(np.where(counts, arrival, -np.inf), axis=1, initial=-np.inf)
        waited = np.where(takes_part, np.maximum(latest[:, None] - arrival, 0.0), np.nan)
        settled = transfer_ns[:, None] + waited
        apart = np.where(takes_part, np.abs(settled - length), 0.0)
        moved, changed = apart.max(initial=0.0), apart.max(axis=0, initial=0.0) > 0.0
        length = settled
        if moved < _SETTLED_NS:
            break
    return JointReplay(end_ns=tuple(ends), waiting_ns=length - transfer_ns[:, None], rounds=rounds)


def _replay_with(rank: RankGraph, length_ns: Floats) -> Floats:
    """Return the ends of a rank's nodes [n] where its collectives take so long [c]."""
    shared = np.flatnonzero(rank.node >= 0)
    nodes, timing = rank.node[shared], rank.timing
    base, row = timing.base_ns.copy(), timing.factor_row.copy()
    base[nodes], row[nodes] = length_ns[shared], len(timing.factor)
    stretch = timing.stretch
    if stretch is not None:
        stretch = stretch.copy()
        stretch[nodes] = 1.0
    timing = replace(
        timing,
        base_ns=base,
        factor_row=row,
        factor=np.concatenate((timing.factor, np.ones((1, timing.factor.shape[1])))),
        stretch=stretch,
    )
    return replay(rank.graph, timing)[:, 0]


def rank_graph(graph: Graph, timing: Timing, column: int, kernel: Rows, clock_ns: float) -> RankGraph:
    """Return a rank on one of its timing's GPUs; `kernel` is that of each shared collective, -1 for none, [c]."""
    node_of = np.full(int(max(kernel.max(initial=-1), graph.nodes.row.max(initial=-1))) + 2, -1, dtype=np.int64)
    on_gpu = np.flatnonzero(graph.nodes.is_gpu)
    node_of[graph.nodes.row[on_gpu]] = on_gpu
    node_of[-1] = -1
    return RankGraph(
        graph=graph, timing=on_gpus(timing, slice(column, column + 1)), node=node_of[kernel], clock_ns=clock_ns
    )
