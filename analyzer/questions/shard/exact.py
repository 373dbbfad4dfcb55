"""Proves a plan the fastest, where few tables meet few ranks: all plans, but for those that cannot be faster.

Tables are placed one after the other, all partial plans of one length at a time as arrays. Ranks are alike: plans that
differ by their numbers are one. A partial plan is dropped where what it has already, and the least that the tables to
come add to all ranks together, takes as long as the best plan known.
"""

from __future__ import annotations

from itertools import combinations
from typing import Final

import numpy as np

from ....arrays import Floats, Rows
from .problem import Load, PlanPhase, ShardingProblem
from .search import FoundPlan, TableChoice, assemble

MOST_RANKS: Final = 8
MOST_TABLES: Final = 10
MOST_STATES: Final = 10_000
"""Partial plans of one length; beyond, the search is given up."""
MOST_EXPANDED: Final = 100_000
_TIMES: Final = (Load.LOOKUP_NS, Load.UPDATE_NS)


def prove_fastest(problem: ShardingProblem, best: FoundPlan) -> tuple[FoundPlan, bool]:
    """Return the fastest plan of all and True, or the one given and False where there are too many."""
    if problem.gpu_count > MOST_RANKS or len(problem.tables) > MOST_TABLES:
        return best, False
    order = sorted(range(len(problem.tables)), key=lambda at: -_weight(problem, at))
    rest = _least_rest(problem, order)
    start, shared = problem.start()
    loads, common = start[None], shared[None]
    steps: list[tuple[Rows, list[TableChoice], Rows, Rows]] = []
    for depth, at in enumerate(order):
        choices = _choices(problem, at)
        if len(loads) * len(choices) > MOST_EXPANDED:
            return best, False
        parent, choice = (grid.ravel() for grid in np.indices((len(loads), len(choices))))
        pieces = np.stack([_matrix(problem, at, item) for item in choices])
        added = np.stack([problem.options[at][item.option].common for item in choices])
        loads, common = loads[parent] + pieces[choice], common[parent] + added[choice]
        kept = _bounds(problem, loads, common, rest[depth + 1]) < best.score
        loads, common, parent, choice = loads[kept], common[kept], parent[kept], choice[kept]
        if not len(loads):
            return best, True
        loads, order_of = _sorted_ranks(loads)
        first = _distinct(loads, common)
        if len(first) > MOST_STATES:
            return best, False
        loads, common = loads[first], common[first]
        steps.append((parent[first], choices, choice[first], order_of[first]))
    found = _trace_back(problem, order, steps, int(problem.scores(loads, common).argmin()))
    return (found, True) if found.score < best.score else (best, True)


def _weight(problem: ShardingProblem, at: int) -> float:
    return max(float((option.piece + option.every)[list(_TIMES)].sum()) for option in problem.options[at])


def _choices(problem: ShardingProblem, at: int) -> list[TableChoice]:
    return [
        TableChoice(option=number, ranks=ranks)
        for number, option in enumerate(problem.options[at])
        for ranks in combinations(range(problem.gpu_count), option.pieces)
    ]


def _matrix(problem: ShardingProblem, at: int, choice: TableChoice) -> Floats:
    option = problem.options[at][choice.option]
    found = np.repeat(option.every[None], problem.gpu_count, axis=0)
    if choice.ranks:
        found[list(choice.ranks)] += option.piece
    return found


def _least_rest(problem: ShardingProblem, order: list[int]) -> Floats:
    """Return the least that the tables from each depth on add to all ranks together, [depth, Load]."""
    least = []
    for at in order:
        totals = [option.piece * option.pieces + option.every * problem.gpu_count for option in problem.options[at]]
        least.append(np.min(totals, axis=0))
    sums = np.cumsum(np.array(least)[::-1], axis=0)[::-1]
    return np.concatenate([sums, np.zeros((1, len(Load)))])


def _bounds(problem: ShardingProblem, loads: Floats, common: Floats, rest: Floats) -> Floats:
    """Return a time that no completion of the partial plans can be under, [states]."""
    phases = problem.phases(loads, common)
    mean = (loads.sum(axis=1) + rest) / problem.gpu_count
    phases[:, PlanPhase.LOOKUP] = np.maximum(phases[:, PlanPhase.LOOKUP], mean[:, Load.LOOKUP_NS])
    phases[:, PlanPhase.UPDATE] = np.maximum(phases[:, PlanPhase.UPDATE], mean[:, Load.UPDATE_NS])
    is_over = (loads[..., Load.MEMORY_BYTES] > problem.limit_bytes).any(axis=1)
    is_over |= mean[:, Load.MEMORY_BYTES] > problem.limit_bytes
    return np.where(is_over, np.inf, phases.sum(axis=1))


def _sorted_ranks(loads: Floats) -> tuple[Floats, Rows]:
    """Return the loads with ranks in an order of their own, and which rank came to each place."""
    weights = np.sqrt(np.arange(2.0, 2.0 + len(Load))) / np.maximum(loads.max(axis=(0, 1)), 1.0)
    order = np.argsort(-(loads @ weights), axis=1, kind="stable")
    return np.take_along_axis(loads, order[..., None], axis=1), order


def _distinct(loads: Floats, common: Floats) -> Rows:
    flat = np.concatenate([loads.reshape(len(loads), -1), common], axis=1)
    scale = np.maximum(np.abs(flat).max(axis=0), 1.0)
    _, first = np.unique(np.round(flat / scale, 9), axis=0, return_index=True)
    return np.sort(first)


def _trace_back(
    problem: ShardingProblem, order: list[int], steps: list[tuple[Rows, list[TableChoice], Rows, Rows]], state: int
) -> FoundPlan:
    """Return the plan that a state stands for: each table's ranks, followed through later renumberings."""
    chosen: dict[int, TableChoice] = {}
    place = np.arange(problem.gpu_count)  # final number of the rank at each place of the state
    for at, (parent, choices, choice, order_of) in zip(reversed(order), reversed(steps), strict=True):
        before = np.empty_like(place)
        before[order_of[state]] = place
        place = before
        item = choices[int(choice[state])]
        chosen[at] = TableChoice(option=item.option, ranks=tuple(sorted(int(place[rank]) for rank in item.ranks)))
        state = int(parent[state])
    return assemble(problem, [chosen[at] for at in range(len(problem.tables))])
