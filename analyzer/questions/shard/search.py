"""Looks for the fastest plan, table by table, then by moves and swaps, and proves it where that can be done."""

from collections.abc import Sequence
from itertools import combinations
from typing import Final

import numpy as np

from ....arrays import Floats, Rows
from ....records import dataclass, replace
from .problem import Load, PlanPhase, ShardingOption, ShardingProblem
from .tables import TableSharding

RANKS_TRIED: Final = 8
"""For one piece: the ranks with least to do."""
MOST_ROUNDS: Final = 100
LEAST_ROUNDS: Final = 3
ROUND_WORK: Final = 200_000
"""Tables times ranks, of all rounds together: a few seconds."""
LEAST_GAIN: Final = 1e-6
SWAPS_TRIED: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableChoice:
    """Say how a table is shared: which of its options, and the ranks chosen for its pieces."""

    option: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FoundPlan:
    """Hold a choice for every table, and what it costs."""

    choices: tuple[TableChoice, ...]
    loads: Floats
    common: Floats
    score: float


def assemble(problem: ShardingProblem, choices: Sequence[TableChoice]) -> FoundPlan:
    """Return a plan of the choices, one for each table."""
    loads, common = problem.start()
    for at, choice in enumerate(choices):
        option = problem.options[at][choice.option]
        _add(loads, common, option, choice.ranks, 1.0)
    return FoundPlan(choices=tuple(choices), loads=loads, common=common, score=float(problem.scores(loads, common)))


def search_greedily(problem: ShardingProblem, kinds: Sequence[TableSharding] | None = None) -> FoundPlan:
    """Return the plan that takes tables by what they cost, most first, each in the way that then costs least.

    With `kinds` only these ways are tried, where a table has one of them.
    """
    loads, common = problem.start()
    chosen: list[TableChoice | None] = [None] * len(problem.tables)
    for at in _by_cost(problem):
        allowed = _allowed(problem.options[at], kinds)
        candidates = _candidates(problem, at, loads, allowed)
        scores = _score(problem, at, candidates, loads, common)
        best = candidates[int(scores.argmin())]
        chosen[at] = best
        _add(loads, common, problem.options[at][best.option], best.ranks, 1.0)
    return assemble(problem, [choice for choice in chosen if choice is not None])


def improve(problem: ShardingProblem, plan: FoundPlan) -> FoundPlan:
    """Return the plan after moves of single tables, and swaps of two where no move gains, again and again."""
    size = len(problem.tables) * problem.gpu_count
    for _ in range(max(LEAST_ROUNDS, min(MOST_ROUNDS, ROUND_WORK // size))):
        moved = _moved(problem, plan)
        if moved.score >= plan.score * (1.0 - LEAST_GAIN):
            moved = _best_swap(problem, plan)
        if moved.score >= plan.score * (1.0 - LEAST_GAIN):
            return plan
        plan = moved
    return plan


def search_plan(problem: ShardingProblem) -> tuple[FoundPlan, FoundPlan]:
    """Return the best plan found by swaps from several starts, and the greedy one."""
    greedy = search_greedily(problem)
    starts = [greedy, *(search_greedily(problem, [kind]) for kind in TableSharding)]
    improved = [improve(problem, start) for start in starts]
    return min(improved, key=lambda plan: plan.score), greedy


def _by_cost(problem: ShardingProblem) -> list[int]:
    costs = [
        max(float((option.piece + option.every)[[Load.LOOKUP_NS, Load.UPDATE_NS]].sum()) for option in options)
        for options in problem.options
    ]
    return sorted(range(len(costs)), key=lambda at: -costs[at])


def _allowed(options: Sequence[ShardingOption], kinds: Sequence[TableSharding] | None) -> list[int]:
    found = [at for at, option in enumerate(options) if kinds is None or option.sharding in kinds]
    return found or [0]


def _candidates(
    problem: ShardingProblem, at: int, loads: Floats, allowed: Sequence[int] | None = None
) -> list[TableChoice]:
    """Return choices for a table beside loads: a piece on one of the ranks with least to do, several on these."""
    busy = loads[:, Load.LOOKUP_NS] + loads[:, Load.UPDATE_NS]
    orders = [np.argsort(key, kind="stable") for key in (busy, loads[:, Load.MEMORY_BYTES], loads[:, Load.SENT_BYTES])]
    found: dict[tuple[int, tuple[int, ...]], TableChoice] = {}
    options = problem.options[at]
    for number in range(len(options)) if allowed is None else allowed:
        pieces = options[number].pieces
        chosen: list[tuple[int, ...]] = [()]
        if pieces == 1:
            chosen = [(int(rank),) for order in orders for rank in order[:RANKS_TRIED]]
        elif pieces > 1:
            chosen = [tuple(sorted(order[:pieces].tolist())) for order in orders]
        for ranks in chosen:
            found[number, ranks] = TableChoice(option=number, ranks=ranks)
    return list(found.values())


def _score(
    problem: ShardingProblem, at: int, candidates: Sequence[TableChoice], loads: Floats, common: Floats
) -> Floats:
    tried, shared = np.repeat(loads[None], len(candidates), axis=0), np.repeat(common[None], len(candidates), axis=0)
    for row, choice in enumerate(candidates):
        _add(tried[row], shared[row], problem.options[at][choice.option], choice.ranks, 1.0)
    return problem.scores(tried, shared)


def _moved(problem: ShardingProblem, plan: FoundPlan) -> FoundPlan:
    """Return the plan with each table in turn, the most expensive first, moved where the iteration takes least."""
    choices, loads, common, score = list(plan.choices), plan.loads.copy(), plan.common.copy(), plan.score
    for at in _by_cost(problem):
        options, choice = problem.options[at], choices[at]
        _add(loads, common, options[choice.option], choice.ranks, -1.0)
        candidates = _candidates(problem, at, loads)
        scores = _score(problem, at, candidates, loads, common)
        best = int(scores.argmin())
        if scores[best] < score * (1.0 - LEAST_GAIN):
            choices[at], score = candidates[best], float(scores[best])
        _add(loads, common, options[choices[at].option], choices[at].ranks, 1.0)
    return assemble(problem, choices)


def _best_swap(problem: ShardingProblem, plan: FoundPlan) -> FoundPlan:
    """Return the plan with two tables' single ranks exchanged, whichever pair gains most."""
    single = np.array([at for at, choice in enumerate(plan.choices) if len(choice.ranks) == 1], dtype=np.int64)
    if len(single) < 2:
        return plan
    rank = np.array([plan.choices[at].ranks[0] for at in single.tolist()])
    left, right = np.triu_indices(len(single), 1)
    busy = plan.loads[:, Load.LOOKUP_NS] + plan.loads[:, Load.UPDATE_NS]
    apart = rank[left] != rank[right]
    left, right = left[apart], right[apart]
    order = np.argsort(-np.maximum(busy[rank[left]], busy[rank[right]]), kind="stable")[:SWAPS_TRIED]
    left, right = left[order], right[order]
    if not len(left):
        return plan
    own = np.stack([problem.options[at][plan.choices[at].option].piece for at in single.tolist()])
    loads, rows = np.repeat(plan.loads[None], len(left), axis=0), np.arange(len(left))
    change = own[right] - own[left]
    loads[rows, rank[left]] += change
    loads[rows, rank[right]] -= change
    scores = problem.scores(loads, np.repeat(plan.common[None], len(left), axis=0))
    best = int(scores.argmin())
    choices = list(plan.choices)
    one, other = int(single[left[best]]), int(single[right[best]])
    choices[one] = replace(choices[one], ranks=plan.choices[other].ranks)
    choices[other] = replace(choices[other], ranks=plan.choices[one].ranks)
    return assemble(problem, choices)


def _add(loads: Floats, common: Floats, option: ShardingOption, ranks: Sequence[int], sign: float) -> None:
    loads += sign * option.every
    if len(set(ranks)) < len(ranks):
        np.add.at(loads, list(ranks), sign * option.piece)
    elif ranks:
        loads[list(ranks)] += sign * option.piece
    common += sign * option.common


MOST_RANKS: Final = 8
MOST_TABLES: Final = 10
MOST_STATES: Final = 10_000
"""Partial plans of one length; beyond, the search is given up."""
MOST_EXPANDED: Final = 100_000


def prove_fastest(problem: ShardingProblem, best: FoundPlan) -> tuple[FoundPlan, bool]:
    """Return the fastest plan of all and True, or the one given and False where there are too many.

    Tables are placed one after the other, all partial plans of one length at a time as arrays. Ranks are alike: plans
    that differ by their numbers are one. A partial plan is dropped where what it has already, and the least that the
    tables to come add to all ranks together, takes as long as the best plan known.
    """
    if problem.gpu_count > MOST_RANKS or len(problem.tables) > MOST_TABLES:
        return best, False
    order = _by_cost(problem)
    rest = _least_rest(problem, order)
    start, shared = problem.start()
    loads, common = start[None], shared[None]
    steps: list[tuple[Rows, list[TableChoice], Rows, Rows]] = []
    for depth, at in enumerate(order):
        choices = [
            TableChoice(option=number, ranks=ranks)
            for number, option in enumerate(problem.options[at])
            for ranks in combinations(range(problem.gpu_count), option.pieces)
        ]
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
