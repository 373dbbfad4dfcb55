"""Which calls of two recordings are the same: equal ones in order, then what only encloses or weighs the same."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from ....arrays import Rows
from ....formats.trace.tables import Phase
from .calls import NO_KEY, OpCalls


class MatchRule(IntEnum):
    """Name how two calls were found to be the same; the earlier rule wins."""

    CALL_IN_PHASE = 0
    """The i-th call of the same problem in the same phase."""
    CALL = 1
    """The i-th call of the same problem, in phases that the recordings name differently."""
    ENCLOSING_OP = 2
    """What is left of the i-th enclosing op of the same shapes: one does in two ops what the other does in three."""
    WORK = 3
    """The i-th call of the same family, dtype, FLOPs and bytes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Alignment:
    """Hold p pairs of one or more calls on either side."""

    first: Rows
    """The pair of each call of the first recording; -1: none, [n]."""
    second: Rows
    """The same of the second, [m]."""
    rule: npt.NDArray[np.int8]
    """Of each pair, [p]."""


def align(first: OpCalls, second: OpCalls) -> Alignment:
    """Pair the calls of two recordings. Equal calls are interchangeable but for their order, so the i-th are paired."""
    sides = (first, second)
    pairs = (np.full(len(first.op), -1), np.full(len(second.op), -1))
    rules = list[int]()
    for rule in MatchRule:
        free = [np.flatnonzero(pair < 0) for pair in pairs]
        units = [_units(side, rows, rule) for side, rows in zip(sides, free, strict=True)]
        met = _meet(units[0][1], units[1][1])
        for pair, rows, (unit, codes), chosen in zip(pairs, free, units, met, strict=True):
            number = np.full(len(codes), -1)
            number[chosen] = len(rules) + np.arange(len(chosen))
            pair[rows] = number[unit]
        rules += [int(rule)] * len(met[0])
    return Alignment(first=pairs[0], second=pairs[1], rule=np.array(rules, dtype=np.int8))


def _units(calls: OpCalls, rows: Rows, rule: MatchRule) -> tuple[Rows, Rows]:
    """Return which unit each of some calls belongs to, and each unit's code; units are in order."""
    own = np.arange(len(rows))
    match rule:
        case MatchRule.CALL_IN_PHASE:
            return own, calls.key[rows] * len(Phase) + calls.phase[rows]
        case MatchRule.CALL:
            return own, calls.key[rows]
        case MatchRule.WORK:
            return own, calls.work_key[rows]
        case MatchRule.ENCLOSING_OP:
            _, first, unit = np.unique(calls.enclosing[rows], return_index=True, return_inverse=True)
            return unit, calls.enclosing_key[rows][first]


def _meet(left: Rows, right: Rows) -> tuple[Rows, Rows]:
    """Return the positions of equal codes in both, the i-th of one with the i-th of the other; NO_KEY meets nothing."""
    rows = [np.flatnonzero(codes != NO_KEY) for codes in (left, right)]
    longest = max(len(left), len(right), 1)
    mine, theirs = (codes[kept] * longest + _rank(codes[kept]) for codes, kept in zip((left, right), rows, strict=True))
    _, at_left, at_right = np.intersect1d(mine, theirs, assume_unique=True, return_indices=True)
    return rows[0][at_left], rows[1][at_right]


def _rank(codes: Rows) -> Rows:
    """Return for each code how many equal ones come before it."""
    order = np.argsort(codes, kind="stable")
    begins = np.append(True, codes[order][1:] != codes[order][:-1])[: len(codes)]
    rank = np.empty(len(codes), dtype=np.int64)
    rank[order] = np.arange(len(codes)) - np.flatnonzero(begins)[np.cumsum(begins) - 1]
    return rank
