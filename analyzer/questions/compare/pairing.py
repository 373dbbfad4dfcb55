"""Which call of the old trace is which of the new one."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from ....arrays import Codes, Mask, Rows, group_rows
from ....records import dataclass
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
    found = [
        np.array([numbers.get(path, -1) for path in calls.module], dtype=np.int64)
        for calls, numbers in zip((old, new), modules.numbers, strict=True)
    ]
    sides, numbers = (old, new), (found[0], found[1])
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


_MOST_ROUNDS: Final = 64
_GAP_CELLS: Final = 4_096
"""Largest gap, old times new, that is solved exactly."""
_ALL_CELLS: Final = 2_000_000
"""What may be spent on all of them in one alignment: about a second."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Pair:
    """Hold two sequences to align, each cut into parts that align with the part of the same number alone."""

    old: Codes
    new: Codes
    old_part: Codes
    """Not decreasing, [n]."""
    new_part: Codes


def align(old: Codes, new: Codes, parts: tuple[Codes, Codes] | None = None) -> tuple[Rows, Rows]:
    """Return the places of what is the same in both, increasing on either side, as a person would who knows what tells.

    What occurs equally often on both sides is aligned first, each occurrence with the one of its number: the largest
    part of them that keeps its order stays (longest increasing subsequence, n log n). The same is done again between
    those anchors, where other things now occur equally often; gaps that are short are solved exactly, long ones with
    what there is. Takes nearly linear time.

    `parts` numbers the part of each element, not decreasing: only equal parts align with each other.

    >>> align(np.array([5, 7, 7, 9]), np.array([7, 5, 7, 9]))
    (array([1, 2, 3]), array([0, 2, 3]))
    """
    old_part, new_part = parts if parts is not None else (np.zeros_like(old), np.zeros_like(new))
    both = _Pair(old=old, new=new, old_part=old_part, new_part=new_part)
    if np.array_equal(old, new) and np.array_equal(old_part, new_part):
        return np.arange(len(old)), np.arange(len(old))
    partner = np.full(len(old), -1, dtype=np.int64)
    left = _ALL_CELLS
    for _ in range(_MOST_ROUNDS):
        cells, found = _solve_gaps(both, partner, left)
        left -= cells
        if not found and not any(_anchor(both, partner, equally_often=flag) for flag in (True, False)):
            break
    rows = np.flatnonzero(partner >= 0)
    return rows, partner[rows]


def _open_places(both: _Pair, partner: Rows) -> tuple[Rows, Rows, Rows, Rows]:
    """Return the places without a partner on either side, and the number of the gap between anchors of each."""
    at = np.flatnonzero(partner >= 0)
    taken = np.zeros(len(both.new), dtype=bool)
    taken[partner[at]] = True
    old_rows, new_rows = np.flatnonzero(partner < 0), np.flatnonzero(~taken)
    gap = np.concatenate((np.searchsorted(at, old_rows), np.searchsorted(partner[at], new_rows)))
    part = np.concatenate((both.old_part[old_rows], both.new_part[new_rows]))
    number = group_rows([part, gap])[1] if len(gap) else gap
    return old_rows, new_rows, number[: len(old_rows)], number[len(old_rows) :]


def _anchor(both: _Pair, partner: Rows, *, equally_often: bool) -> int:
    """Pair occurrences by their number within each gap, as far as they keep their order; return how many were."""
    old, new = both.old, both.new
    old_rows, new_rows, old_gap, new_gap = _open_places(both, partner)
    if not len(old_rows) or not len(new_rows):
        return 0
    codes = np.concatenate((old[old_rows], new[new_rows]))
    key = group_rows([np.concatenate((old_gap, new_gap)), codes])[1]
    old_key, new_key = key[: len(old_rows)], key[len(old_rows) :]
    size = int(key.max()) + 1
    counts = np.bincount(old_key, minlength=size), np.bincount(new_key, minlength=size)
    kept = np.minimum(*counts)
    if equally_often:
        kept = np.where(counts[0] == counts[1], kept, 0)
    sides = [rows[_first_of_each(keys, kept)] for rows, keys in ((old_rows, old_key), (new_rows, new_key))]
    order = np.argsort(sides[0], kind="stable")
    olds, news = sides[0][order], sides[1][order]
    chosen = _longest_increasing(news.tolist())
    partner[olds[chosen]] = news[chosen]
    return len(chosen)


def _first_of_each(keys: Codes, limit: Rows) -> Rows:
    """Return the places of the first `limit` occurrences of each key, by key and then in order."""
    order = np.argsort(keys, kind="stable")
    by_key = keys[order]
    rank = np.arange(len(by_key)) - np.searchsorted(by_key, by_key, side="left")
    return np.asarray(order[rank < limit[by_key]])


def _longest_increasing(values: Sequence[int]) -> Rows:
    """Return the places of a longest increasing subsequence of distinct values."""
    tails, tail_at = list[int](), list[int]()
    before = [-1] * len(values)
    for place, value in enumerate(values):
        length = bisect_left(tails, value)
        before[place] = tail_at[length - 1] if length else -1
        if length == len(tails):
            tails.append(value)
            tail_at.append(place)
        else:
            tails[length], tail_at[length] = value, place
    found = list[int]()
    place = tail_at[-1] if tail_at else -1
    while place >= 0:
        found.append(place)
        place = before[place]
    return np.array(found[::-1], dtype=np.int64)


def _solve_gaps(both: _Pair, partner: Rows, budget: int) -> tuple[int, int]:
    """Align the short gaps exactly; return how many cells that took and how many pairs it found."""
    cells = found = 0
    old, new = both.old, both.new
    for olds, news in list(_gaps(both, partner)):
        size = len(olds) * len(news)
        if size > _GAP_CELLS or cells + size > budget:
            continue
        cells += size
        pairs = _longest_common(old[olds].tolist(), new[news].tolist())
        for one, other in pairs:
            partner[olds[one]] = news[other]
        found += len(pairs)
    return cells, found


def _gaps(both: _Pair, partner: Rows) -> Iterator[tuple[Rows, Rows]]:
    """Yield what lies between two anchors on either side, where there is something on both."""
    old_rows, new_rows, old_gap, new_gap = _open_places(both, partner)
    shared = np.intersect1d(old_gap, new_gap)
    bounds = [np.searchsorted(gap, shared, side=side) for gap in (old_gap, new_gap) for side in ("left", "right")]
    for old_from, old_to, new_from, new_to in zip(*(item.tolist() for item in bounds), strict=True):
        yield old_rows[old_from:old_to], new_rows[new_from:new_to]


def _longest_common(old: Sequence[int], new: Sequence[int]) -> list[tuple[int, int]]:
    """Return the places of a longest common subsequence."""
    lengths = [[0] * (len(new) + 1)]
    for one in reversed(old):
        below, row = lengths[-1], [0] * (len(new) + 1)
        for place in range(len(new) - 1, -1, -1):
            row[place] = below[place + 1] + 1 if one == new[place] else max(below[place], row[place + 1])
        lengths.append(row)
    lengths.reverse()
    pairs, at, place = list[tuple[int, int]](), 0, 0
    while at < len(old) and place < len(new):
        if old[at] == new[place]:
            pairs.append((at, place))
            at, place = at + 1, place + 1
        elif lengths[at + 1][place] >= lengths[at][place + 1]:
            at += 1
        else:
            place += 1
    return pairs
