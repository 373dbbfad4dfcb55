"""Gives ops without times the order and the nesting that their numbers and parents tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...arrays import Rows
from ...errors import TraceError
from ..trace.column import MISSING
from .nodes import USER_SCOPE, EtNode

_STEP = "ProfilerStep#"
_IDLE_RATIO = 0.05
"""Of the ops of the step that has most: what has fewer is no iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticks:
    """Hold when each node begins and how long it lasts, in ticks that only order means anything of."""

    begin: Rows
    length: Rows


def count_ticks(nodes: Sequence[EtNode]) -> Ticks:
    """Return ticks by which each node lies inside its parent and after what ended before it.

    `nodes` are in order of their numbers. A parent that is not in the file, or not before its child, is none.
    """
    place = {node.number: row for row, node in enumerate(nodes)}
    last = list(range(len(nodes)))
    for row in range(len(nodes) - 1, -1, -1):
        parent = place.get(nodes[row].parent, MISSING)
        if MISSING < parent < row and nodes[parent].thread == nodes[row].thread:
            last[parent] = max(last[parent], last[row])
    begin = 2 * np.arange(len(nodes), dtype=np.int64)
    return Ticks(begin=begin, length=2 * np.array(last, dtype=np.int64) + 1 - begin)


def choose_step(nodes: Sequence[EtNode], ticks: Ticks, iteration: int | None) -> tuple[Sequence[EtNode], Ticks, int]:
    """Return the nodes of one step of the profiler, and how many ops lie outside it; all where no step is marked.

    Without `iteration` it is the step of median number of ops among those that do work.
    """
    steps = [row for row, node in enumerate(nodes) if node.scope == USER_SCOPE and node.name.startswith(_STEP)]
    if not steps:
        if iteration not in (None, 0):
            raise TraceError(f"iteration {iteration}: the file marks no iterations (ProfilerStep#); leave it out")
        return nodes, ticks, 0
    is_op = np.array([node.scope != USER_SCOPE for node in nodes], dtype=bool)
    before = np.concatenate(([0], np.cumsum(is_op)))
    begin = np.array(steps, dtype=np.int64)
    end = (ticks.begin[begin] + ticks.length[begin]) // 2 + 1
    counts = before[end] - before[begin]
    chosen = _median(counts) if iteration is None else iteration
    if not 0 <= chosen < len(steps):
        raise TraceError(f"iteration {iteration}: expected one of the file's {len(steps)}: 0 to {len(steps) - 1}")
    rows = slice(int(begin[chosen]), int(end[chosen]))
    kept = Ticks(begin=ticks.begin[rows], length=ticks.length[rows])
    return nodes[rows], kept, int(is_op.sum() - counts[chosen])


def _median(counts: Rows) -> int:
    working = np.flatnonzero(counts >= _IDLE_RATIO * counts.max())
    ordered = working[np.argsort(counts[working], kind="stable")]
    return int(ordered[(len(ordered) - 1) // 2])
