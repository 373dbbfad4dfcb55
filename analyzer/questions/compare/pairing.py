"""Which call of the old trace is which of the new one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....arrays import Codes, Mask, Rows, group_rows
from .alignment import align
from .calls import CallColumns
from .modules import ModuleMap


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CallPairing:
    """Hold p pairs of calls, and where each call stands."""

    old: Rows
    new: Rows
    is_moved: Mask
    """Whether it runs in another module, or in another order within its own, [p]."""
    site: tuple[Codes, Codes]
    """Of each call of either side: the number of its module; without one, of the gap between pairs it stands in."""
    left: tuple[Rows, Rows]
    """Calls without a partner."""


def pair_calls(old: CallColumns, new: CallColumns, modules: ModuleMap) -> CallPairing:
    """Pair the calls of the same module and phase: same sizes first, then the same op; the rest by what they are."""
    # Three passes, each finer in what it forgives. Calls of matched modules and equal phase are aligned by their full
    # key (op and sizes). Between two calls that were so paired lies a gap; what is left in the same gap of both sides
    # is aligned by the op's name alone, so a changed size stays with its place. What is still left may have moved to
    # another module.
    sides, numbers = (old, new), _module_numbers(old, new, modules)
    phases = np.concatenate((old.phase, new.phase)).astype(np.int64)
    column = group_rows([np.concatenate(numbers), phases])[1]
    part = column[: old.count], column[old.count :]
    order = np.argsort(part[0], kind="stable"), np.argsort(part[1], kind="stable")
    parts = part[0][order[0]], part[1][order[1]]
    olds, news = align(old.full[order[0]], new.full[order[1]], parts)
    gaps = [np.searchsorted(found, np.arange(len(item))) for found, item in ((olds, order[0]), (news, order[1]))]
    left = [np.setdiff1d(np.arange(len(item)), found) for item, found in ((order[0], olds), (order[1], news))]
    finer = group_rows(
        [
            np.concatenate([parts[side][left[side]] for side in (0, 1)]),
            np.concatenate([gaps[side][left[side]] for side in (0, 1)]),
        ]
    )[1]
    names = [sides[side].name[order[side]][left[side]] for side in (0, 1)]
    more = align(names[0], names[1], (finer[: len(left[0])], finer[len(left[0]) :]))
    olds, news = np.append(olds, left[0][more[0]]), np.append(news, left[1][more[1]])
    pairs = order[0][olds], order[1][news]
    moved = _pair_moved(old, new, pairs, numbers)
    rows = np.append(pairs[0], moved[0]), np.append(pairs[1], moved[1])
    is_moved = np.arange(len(rows[0])) >= len(pairs[0])
    by_old = np.argsort(rows[0], kind="stable")
    return CallPairing(
        old=rows[0][by_old],
        new=rows[1][by_old],
        is_moved=is_moved[by_old],
        site=_sites(numbers, (old, new), rows),
        left=(np.setdiff1d(np.arange(old.count), rows[0]), np.setdiff1d(np.arange(new.count), rows[1])),
    )


def _module_numbers(old: CallColumns, new: CallColumns, modules: ModuleMap) -> tuple[Codes, Codes]:
    found = [
        np.array([numbers.get(path, -1) for path in calls.module], dtype=np.int64)
        for calls, numbers in zip((old, new), modules.numbers, strict=True)
    ]
    return found[0], found[1]


def _pair_moved(
    old: CallColumns, new: CallColumns, pairs: tuple[Rows, Rows], numbers: tuple[Codes, Codes]
) -> tuple[Rows, Rows]:
    """Pair what is left and equal within a module and phase but in another order; calls without a module stay."""
    left = np.setdiff1d(np.arange(old.count), pairs[0]), np.setdiff1d(np.arange(new.count), pairs[1])
    left = left[0][numbers[0][left[0]] >= 0], left[1][numbers[1][left[1]] >= 0]
    waiting: dict[tuple[int, int, int], list[int]] = {}
    for row in left[1].tolist():
        key = (int(numbers[1][row]), int(new.phase[row]), int(new.full[row]))
        waiting.setdefault(key, []).append(row)
    olds, news = list[int](), list[int]()
    for row in left[0].tolist():
        same = waiting.get((int(numbers[0][row]), int(old.phase[row]), int(old.full[row])))
        if same:
            olds.append(row)
            news.append(same.pop(0))
    return np.array(olds, dtype=np.int64), np.array(news, dtype=np.int64)


def _sites(
    numbers: tuple[Codes, Codes], sides: tuple[CallColumns, CallColumns], pairs: tuple[Rows, Rows]
) -> tuple[Codes, Codes]:
    """Return the module's number, or below zero that of the gap, counted in pairs that keep their order."""
    found = []
    for side in (0, 1):
        is_free = numbers[side] < 0
        paired = np.zeros(sides[side].count, dtype=np.int64)
        paired[pairs[side]] = 1
        paired[~is_free] = 0
        gap = np.cumsum(paired) - paired
        found.append(np.where(is_free, -2 - gap, numbers[side]))
    return found[0], found[1]
