"""Which plan serves a load best on each GPU type, and how many GPUs hold a rate under limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import ceil, exp, inf, isinf, log
from typing import Final

from ....errors import InputError
from ....progress import tell
from ....records import dataclass, replace
from ....specs.cluster import USUAL, Cluster
from ....specs.gpu import Gpu
from ....specs.prices.book import PriceBook
from ...models.library import Library
from .engines import Engine, EngineStack, engine_on, stack_of
from .forecast import FIRST, PER_TOKEN, Capacity, LoadFigures, capacity_of, forecast_load
from .kept import KeptTimes
from .load import WAVES, closed_load, computed, open_load
from .ops import ServePlan
from .report import ServeQuestion, ServeRow, Target
from .schedule import RequestLoad, Schedule
from .step import StepTables, step_tables

RANKS: Final = (1, 2, 4, 8)
"""Tensor-parallel sizes that are tried."""
BISECTIONS: Final = 6
OVERLOADED: Final = "more requests than are served"
LEAST_SHARE: Final = 0.02
"""Of the largest rate, from which on the search looks for one that holds the limits."""
_Rank = tuple[bool, bool, float, int]


def answer(
    question: ServeQuestion, targets: Sequence[Target], library: Library, prices: PriceBook, cluster: Cluster = USUAL
) -> tuple[tuple[ServeRow, ...], tuple[tuple[str, str], ...]]:
    """Return the best plan of each target, the cheapest first, and the GPUs that are left out, each with its reason."""
    left_out: dict[str, str] = {}
    groups: dict[tuple[EngineStack, ServePlan], list[Target]] = {}
    for target in targets:
        for precision in question.precisions:
            try:
                stack = stack_of(target.gpu, precision, question.engine.name)
            except InputError as error:
                left_out[target.gpu.name] = str(error).partition(": ")[2]
                continue
            fitting = _fitting(question, target, precision, cluster)
            if not fitting:
                left_out[target.gpu.name] = _why_none(question, target, precision)
            for plan in fitting:
                groups.setdefault((stack, plan), []).append(target)
    candidates: dict[tuple[str, int | None, int], list[_Candidate]] = {}
    known: dict[tuple[object, ...], Schedule] = {}
    kept: KeptTimes = {}
    for (stack, plan), members in groups.items():
        gpus = [target.gpu for target in members]
        nodes = cluster.nodes_of(gpus)
        tables = step_tables(
            question.sizes, plan, stack, gpus, library, cache_bytes=question.cache_bytes, nodes=nodes, kept=kept
        )
        for column, target in enumerate(members):
            price = prices.price_of(target.gpu)
            for users, most in product(question.loads or (0,), sorted({*question.sequences} - {*question.too_many})):
                engine = engine_on(
                    replace(question.engine, max_sequences=most), target.gpu, question.sizes, stack.precision
                )
                capacity = _capacity(question, target.gpu, engine, stack.precision, plan)
                candidate = _Candidate(
                    tables=tables,
                    column=column,
                    target=target,
                    usd_per_hour=None if price is None else price.usd_per_hour,
                    users=users,
                    engine=engine,
                    capacity=capacity,
                    transfer_ns=question.prompt * capacity.token_bytes / nodes[column].nic_bandwidth_bytes_per_s * 1e9,
                    known=known,
                )
                candidates.setdefault((target.gpu.name, target.count, users), []).append(candidate)
    rows: list[ServeRow] = []
    for number, ((name, *_), plans) in enumerate(candidates.items(), 1):
        tell(name, number, len(candidates))
        row = _best(question, plans, left_out)
        rows += [] if row is None else [row]
        left_out.pop(name if row is not None else "", None)
    rows.sort(key=lambda row: rank_of(question, row))
    if len(question.loads) > 1:  # Rows of one GPU type stand together, the types by the best of theirs.
        types = list(dict.fromkeys(row.gpu for row in rows))
        rows.sort(key=lambda row: types.index(row.gpu))
    return tuple(rows), tuple(left_out.items())


def _best(question: ServeQuestion, plans: Sequence[_Candidate], left_out: dict[str, str]) -> ServeRow | None:
    """Return the best plan's row; None, and why, where none serves the load.

    Plans are tried by what they would be at best, until none that is left can be better.
    """
    bounded: list[tuple[_Rank, _Candidate]] = []
    best: tuple[_Rank, ServeRow] | None = None
    try:
        bounded = sorted(((_bound(question, item), item) for item in plans), key=lambda pair: pair[0])
    except InputError as error:
        left_out.setdefault(plans[0].target.gpu.name, str(error))
    for bound, candidate in bounded:
        if best is not None and bound >= best[0] and not question.loads:
            break
        try:
            row = _try(question, candidate, bound, None if best is None else best[0])
        except InputError as error:
            left_out.setdefault(candidate.target.gpu.name, str(error))
            continue
        rank = rank_of(question, row)
        if best is None or rank < best[0]:
            best = rank, row
    return None if best is None else best[1]


def _fitting(question: ServeQuestion, target: Target, precision: str, cluster: Cluster) -> list[ServePlan]:
    """Return the plans that divide the model, stand in one machine and leave room for a sequence.

    Stages are tried where they are asked for, of a number of GPUs that is given, and where nothing fits without.
    """

    def fitting(stages: Iterable[int]) -> list[ServePlan]:
        plans = (plan for count in stages for plan in _plans(question, target, count, cluster))
        return [plan for plan in plans if _capacity(question, target.gpu, engine, precision, plan).tokens > least]

    engine, least = engine_on(question.engine, target.gpu, question.sizes, precision), question.context

    if question.pp is not None or target.count is not None:
        return fitting(RANKS if question.pp is None else (question.pp,))
    return fitting((1,)) or fitting(RANKS[1:])


def _plans(question: ServeQuestion, target: Target, stages: int, cluster: Cluster) -> Iterator[ServePlan]:
    """Yield plans of so many stages, whose n GPUs share their layers.

    With experts also these in n parts, and attention either shared or in n replicas.
    """
    sizes = question.sizes
    most = target.count or max(cluster.node_of(target.gpu).gpu_count, 1)
    for tp in RANKS if question.tp is None else (question.tp,):
        divides = sizes.heads % tp == 0 and (tp <= sizes.kv_heads or tp % sizes.kv_heads == 0)
        gpus = tp * stages
        if gpus > most or stages > sizes.layers or not divides or (target.count is not None and target.count % gpus):
            continue
        yield ServePlan(tp=tp, pp=stages)
        if tp > 1 and sizes.experts % tp == 0 and sizes.experts:
            yield ServePlan(tp=tp, ep=tp, pp=stages)
            # Replicas share out requests, which a file has in one order for all.
            if question.tp is None and question.requests is None:
                yield ServePlan(dp=tp, ep=tp, pp=stages)


def _why_none(question: ServeQuestion, target: Target, precision: str) -> str:
    tp = question.tp or target.count or RANKS[-1]
    engine = engine_on(question.engine, target.gpu, question.sizes, precision)
    found = _capacity(question, target.gpu, engine, precision, ServePlan(tp=tp, pp=question.pp or 1))
    if found.tokens > question.context:
        return f"no plan of {tp} GPUs divides the model and stands in one machine"
    if found.tokens > 0:
        return f"its cache holds {found.tokens:,} tokens at tp={tp}, fewer than a request has"
    needed, memory = found.weight_bytes + found.rest_bytes, found.memory_bytes
    return f"does not fit: {needed / 2**30:.1f} GiB per GPU at tp={tp}, {memory / 2**30:.1f} GiB may be used"


def _capacity(question: ServeQuestion, gpu: Gpu, engine: Engine, precision: str, plan: ServePlan) -> Capacity:
    return capacity_of(
        question.sizes, plan, precision, gpu, engine, cache_bytes=question.cache_bytes, context=question.context
    )


@dataclass(slots=True, kw_only=True, eq=False)
class _Candidate:
    """Hold a plan on GPUs of one type that may be the best for a load."""

    tables: StepTables
    column: int
    target: Target
    usd_per_hour: float | None
    """Of a GPU."""
    users: int
    engine: Engine
    capacity: Capacity
    transfer_ns: float
    """Of a prompt's cache from one machine to another."""
    known: dict[tuple[object, ...], Schedule]
    """Steps of loads that other candidates served."""
    full: LoadFigures | None = None
    """With as many requests at once as it takes, once that was asked."""

    @property
    def instances(self) -> int:
        """Return how many of the plan the GPUs that were asked for hold."""
        return (self.target.count or self.tables.plan.gpus) // self.tables.plan.gpus

    def serve(self, load: RequestLoad, skips: int = 0) -> LoadFigures:
        """Return the figures of a load."""
        return forecast_load(self.tables, self.column, self.engine, self.capacity, load, skips=skips, known=self.known)

    def at_rate(self, question: ServeQuestion, rate: float) -> LoadFigures:
        """Return the figures of requests that come to an instance at a rate."""
        load = open_load(rate / self.tables.plan.batches, question.prompt, question.output, question.seed)
        return self.serve(computed(load, self.transfer_ns) if question.is_computed else load)

    def most(self, question: ServeQuestion) -> LoadFigures:
        """Return figures at the rate that the upper end of its steps can serve without a queue that grows."""
        if self.full is None:
            longest = (question.prompt + question.output) * 1.1
            places = int(max(min(self.engine.max_sequences, self.capacity.tokens / longest), 1))
            load = closed_load(places, question.prompt, question.output, question.seed)
            load = computed(load, 0.0) if question.is_computed else load
            full = self.serve(load, min(places, len(load.prompts) // 2))
            self.full = _with_rate(full, full.requests_per_s * exp(-full.step_half_width))
        return self.full

    def row(self, question: ServeQuestion, figures: LoadFigures, instances: int, *, holds: bool) -> ServeRow:
        """Return the row of figures of an instance."""
        gpus = instances * self.tables.plan.gpus
        return ServeRow(
            gpu=self.target.gpu.name,
            gpus=gpus,
            concurrency=self.users,
            plan=self.tables.plan,
            instances=instances,
            precision=self.tables.stack.precision,
            max_sequences=self.engine.max_sequences,
            note=self.tables.stack.fallback,
            capacity=self.capacity,
            figures=figures,
            rate_per_s=question.rate_per_s or figures.requests_per_s * instances,
            holds=holds if question.limits or figures.limit == OVERLOADED else None,
            usd_per_hour=None if self.usd_per_hour is None else self.usd_per_hour * gpus,
        )


def _bound(question: ServeQuestion, candidate: _Candidate) -> _Rank:
    """Return the best rank that a plan can have; of requests at all times and given ones nothing is known before."""
    if question.loads or question.requests is not None:
        return False, False, 0.0, 0
    most = candidate.most(question)
    return rank_of(question, candidate.row(question, most, _instances(question, candidate, most), holds=True))


def _instances(question: ServeQuestion, candidate: _Candidate, largest: LoadFigures) -> int:
    if candidate.target.count is not None or not question.rate_per_s:
        return candidate.instances
    return max(ceil(question.rate_per_s / largest.requests_per_s), 1)


def _try(question: ServeQuestion, candidate: _Candidate, bound: _Rank, best: _Rank | None) -> ServeRow:
    """Return what a plan does under the load that is asked for; what cannot beat the best is not searched to its end.

    `bound` is the plan's rank without limits.
    """
    plan, instances, users = candidate.tables.plan, candidate.instances, candidate.users
    if question.requests is not None:
        figures = candidate.serve(question.requests.part(instances * plan.batches))
    elif users:
        if plan.dp > 1 and users < instances * plan.dp:
            raise InputError("fewer users than replicas of attention")
        places = ceil(users / (instances * plan.batches))
        load = closed_load(places, question.prompt, question.output, question.seed)
        figures = candidate.serve(load, min(places, len(load.prompts) * (WAVES - 1) // WAVES))
        busy = users / (places * instances * plan.batches)
        figures = _shared_out(figures, busy, plan.gpus * candidate.tables.draws[candidate.column].idle_w)
    elif question.rate_per_s:
        figures, instances = _fewest(question, candidate, _share(bound, best))
    else:
        figures = _largest(question, candidate, _share(bound, best))
    return candidate.row(question, figures, instances, holds=_excess(question, figures) <= 1.0)


def _share(bound: _Rank, best: _Rank | None) -> float:
    """Return by how much a plan may cost more than without limits and still be no worse than the best."""
    return inf if best is None or best[0] or best[1] or bound[1] else best[2] / bound[2]


def _fewest(question: ServeQuestion, candidate: _Candidate, share: float) -> tuple[LoadFigures, int]:
    """Return the figures of an instance, and how many of them hold a rate within the limits: the fewest, or as asked.

    Between what serves the rate at all and `share` times as many, by the secant of logarithms (Illinois). Where no
    number holds them, what serves the rate; where those that were asked for are too few, the most that they serve.
    """
    most = candidate.most(question)

    def at(number: int) -> tuple[LoadFigures, float]:
        each = question.rate_per_s / number
        found = _with_rate(candidate.at_rate(question, each), min(each, most.requests_per_s))
        # Requests are served as fast as they come, at the upper end of the steps' interval, or it is overloaded.
        if candidate.full is not None and each > candidate.full.requests_per_s * (1.0 + 1e-9):
            found = replace(found, limit=OVERLOADED)
        return found, log(_excess(question, found))

    few = _instances(question, candidate, most)
    found, over = at(few)
    many = ceil(min(few / LEAST_SHARE, few * share * (1.0 + 1e-9)))
    if over <= 0.0 or candidate.target.count is not None or many <= few:
        return found, few
    best, under = at(many)
    if under > 0.0:
        return found, few
    while many - few > 1:
        part = 0.5 if isinf(over) else over / (over - under)
        tried = min(max(ceil(few * (many / few) ** part), few + 1), many - 1)
        figures, excess = at(tried)
        if excess <= 0.0:
            many, best, under, over = tried, figures, excess, over / 2.0
        else:
            few, over, under = tried, excess, under / 2.0
    return best, many


def _largest(question: ServeQuestion, candidate: _Candidate, share: float) -> LoadFigures:
    """Return the figures at the largest rate that an instance serves within the limits.

    By bisection of the rate's logarithm, below what it serves with as many requests at once as it takes.
    """
    high = candidate.most(question).requests_per_s
    low = high * LEAST_SHARE
    found = candidate.at_rate(question, high)
    if _excess(question, found) <= 1.0:
        return _with_rate(found, high)
    found = candidate.at_rate(question, low)
    # Lengths of the two loads differ by draws: 0.9 times the rate that it takes is surely too little.
    is_worse = low < (needed := 0.9 * high / share) and _excess(question, candidate.at_rate(question, needed)) > 1.0
    for _ in range(BISECTIONS if _excess(question, found) <= 1.0 and not is_worse else 0):
        middle = (low * high) ** 0.5
        tried = candidate.at_rate(question, middle)
        if _excess(question, tried) <= 1.0:
            low, found = middle, tried
        else:
            high = middle
    return _with_rate(found, low)


def _shared_out(found: LoadFigures, busy: float, idle_w: float) -> LoadFigures:
    """Return an instance's figures in the mean of several, whose users are so many times those of a busy one.

    What of them has no user draws `idle_w`.
    """
    idle_j = idle_w * (1.0 / busy - 1.0) / found.output_tokens_per_s
    joules, low, high = found.joules_per_token
    return replace(
        _with_rate(found, found.requests_per_s * busy),
        joules_per_token=(joules + idle_j, low + idle_j, high + idle_j),
        board_w=found.board_w * busy * (joules + idle_j) / joules,
    )


def _with_rate(found: LoadFigures, rate: float) -> LoadFigures:
    """Return figures with the rate that was asked: a finite run of requests ends with an emptying engine."""
    ratio = rate / found.requests_per_s
    return replace(
        found,
        requests_per_s=rate,
        output_tokens_per_s=found.output_tokens_per_s * ratio,
    )


def _excess(question: ServeQuestion, figures: LoadFigures) -> float:
    """Return how many times the limits the worst of the latencies is, at the upper end of its interval."""
    upper = {name: figures.latencies[name].within(question.measure)[2] for name in (FIRST, PER_TOKEN)}
    over = [upper[name] / limit for name, limit in question.limits.items()]
    return inf if figures.limit == OVERLOADED else max(over, default=1.0)


def rank_of(question: ServeQuestion, row: ServeRow) -> _Rank:
    """Return what rows are sorted by: that hold the limits first, then by the price of a token, then by its GPUs."""
    usd = row.usd_per_million_output_tokens
    per_gpu = row.gpus / row.output_tokens_per_s
    if question.rate_per_s:
        return row.holds is False, row.usd_per_hour is None, row.usd_per_hour or float(row.gpus), row.gpus
    return row.holds is False, usd is None, usd if usd is not None else per_gpu, row.gpus
