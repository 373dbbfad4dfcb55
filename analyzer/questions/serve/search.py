"""Which plan serves a load best on each GPU type, and how many GPUs hold a rate under limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, exp
from typing import Final

from ....errors import InputError
from ....records import dataclass, field, replace
from ....specs.cluster import USUAL, Cluster
from ....specs.gpu import Gpu
from ....specs.prices.book import PriceBook
from ...iteration.decision.electricity import JOULE_PER_KWH, Electricity, billed_joule
from ...models.library import Library
from .capacity import Capacity, capacity_of
from .engines import Engine, engine_on
from .forecast import END_TO_END, FIRST, PER_TOKEN, LoadFigures, forecast_load
from .formats import EngineStack, stack_of
from .load import WAVES, closed_load, open_load
from .ops import ServePlan
from .schedule import RequestLoad
from .sizes import ModelSizes
from .step import StepTables, step_tables

RANKS: Final = (1, 2, 4, 8)
"""Tensor-parallel sizes that are tried."""
BISECTIONS: Final = 6
LEAST_SHARE: Final = 0.02
"""Of the largest rate, from which on the search looks for one that holds the limits."""
HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Name a GPU, and how many of it serve together; None: as many as one instance takes."""

    gpu: Gpu
    count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeQuestion:
    """Hold what is asked; times in ns."""

    sizes: ModelSizes
    precision: str
    engine: Engine
    cache_bytes: float
    prompt: int
    output: int
    loads: tuple[int, ...] = ()
    """Requests at all times, each answered; empty: a rate or given requests."""
    rate_per_s: float = 0.0
    requests: RequestLoad | None = None
    tp: int | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    """TTFT and TPOT that may not be exceeded, ns."""
    measure: str = "p90"
    """Which of `MEASURES` the limits are of."""
    seed: int = 0
    electricity: Electricity = field(default_factory=Electricity)

    @property
    def context(self) -> float:
        """Return the tokens of a sequence in its middle."""
        if self.requests is not None:
            return float(self.requests.prompts.mean() + self.requests.outputs.mean() / 2)
        return self.prompt + self.output / 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRow:
    """Hold what a plan on GPUs of one type does."""

    gpu: str
    gpus: int
    """In all."""
    concurrency: int
    """Requests at all times, in all; 0: they come at a rate, or as given."""
    plan: ServePlan
    """Of each instance."""
    instances: int
    note: str
    """What the GPU does instead of a format that it lacks."""
    capacity: Capacity
    figures: LoadFigures
    rate_per_s: float
    """Requests that all instances serve."""
    holds: bool | None
    """Whether the limits hold at the upper end of the interval; None without limits."""
    usd_per_hour: float | None

    @property
    def output_tokens_per_s(self) -> float:
        """Return what all instances write."""
        return self.figures.output_tokens_per_s * self.instances

    @property
    def tokens_per_s_per_user(self) -> float:
        """Return what each user gets after the first token; of one token alone, in all."""
        per_token, whole = (self.figures.latencies[name].values["mean"] for name in (PER_TOKEN, END_TO_END))
        return 1e9 / (per_token or whole)

    @property
    def usd_per_million_output_tokens(self) -> float | None:
        """Return the price of a million tokens that are written; None without a price."""
        if self.usd_per_hour is None:
            return None
        return self.usd_per_hour / (self.output_tokens_per_s * HOUR) * 1e6

    def kwh_per_million_output_tokens(self, electricity: Electricity) -> float:
        """Return what is billed for a million tokens that are written."""
        gpu_ns = 1e9 * self.gpus / self.output_tokens_per_s
        return billed_joule(self.figures.joules_per_token[0], gpu_ns, electricity) * 1e6 / JOULE_PER_KWH


def answer(
    question: ServeQuestion,
    targets: Sequence[Target],
    library: Library,
    prices: PriceBook,
    cluster: Cluster = USUAL,
) -> tuple[tuple[ServeRow, ...], tuple[tuple[str, str], ...]]:
    """Return the best plan of each target, the cheapest first, and the GPUs that are left out, each with its reason."""
    left_out: dict[str, str] = {}
    groups: dict[tuple[EngineStack, ServePlan], list[tuple[Target, Gpu]]] = {}
    for target in targets:
        try:
            stack = stack_of(target.gpu, question.precision, question.engine.name)
        except InputError as error:
            left_out[target.gpu.name] = str(error).partition(": ")[2]
            continue
        fitting = list(_fitting(question, target, cluster))
        if not fitting:
            left_out[target.gpu.name] = _why_none(question, target)
        for plan in fitting:
            groups.setdefault((stack, plan), []).append((target, target.gpu))
    best: dict[tuple[str, int | None, int], ServeRow] = {}
    for (stack, plan), members in groups.items():
        gpus = [gpu for _, gpu in members]
        tables = step_tables(
            question.sizes,
            plan,
            stack,
            gpus,
            library,
            cache_bytes=question.cache_bytes,
            nodes=cluster.nodes_of(gpus),
        )
        for column, (target, gpu) in enumerate(members):
            price = prices.price_of(gpu)
            for users in question.loads or (0,):
                usd = None if price is None else price.usd_per_hour
                try:
                    row = _row(question, tables, column, target, usd, users)
                except InputError as error:
                    left_out.setdefault(gpu.name, str(error))
                    continue
                key = (gpu.name, target.count, users)
                if key not in best or _rank(question, row) < _rank(question, best[key]):
                    best[key] = row
    served = {name for name, *_ in best}
    rows = sorted(best.values(), key=lambda row: _rank(question, row))
    if len(question.loads) > 1:  # Rows of one GPU type stand together, the types by the best of theirs.
        types = list(dict.fromkeys(row.gpu for row in rows))
        rows.sort(key=lambda row: types.index(row.gpu))
    return tuple(rows), tuple((name, why) for name, why in left_out.items() if name not in served)


def _fitting(question: ServeQuestion, target: Target, cluster: Cluster) -> Iterator[ServePlan]:
    """Yield the plans that divide the model, stand in one machine and leave room for a sequence.

    Of n GPUs: layers shared by all; with experts also these in n parts, and attention either shared or in n replicas.
    """
    sizes = question.sizes
    most = target.count or max(cluster.node_of(target.gpu).gpu_count, 1)
    for tp in RANKS if question.tp is None else (question.tp,):
        divides = sizes.heads % tp == 0 and (tp <= sizes.kv_heads or tp % sizes.kv_heads == 0)
        if tp > most or not divides or (target.count is not None and target.count % tp):
            continue
        plans = [ServePlan(tp=tp)]
        if tp > 1 and sizes.experts % tp == 0 and sizes.experts:
            plans.append(ServePlan(tp=tp, ep=tp))
            # Replicas share out requests, which a file has in one order for all.
            plans += [ServePlan(dp=tp, ep=tp)] if question.tp is None and question.requests is None else []
        for plan in plans:
            if _capacity(question, target.gpu, plan).tokens > question.context:
                yield plan


def _why_none(question: ServeQuestion, target: Target) -> str:
    tp = question.tp or target.count or RANKS[-1]
    found = _capacity(question, target.gpu, ServePlan(tp=tp))
    if found.tokens > question.context:
        return f"no plan of {tp} GPUs divides the model and stands in one machine"
    needed, memory = found.weight_bytes + found.rest_bytes, found.memory_bytes * question.engine.memory_share
    return f"does not fit: {needed / 2**30:.1f} GiB per GPU at tp={tp}, {memory / 2**30:.1f} GiB may be used"


def _capacity(question: ServeQuestion, gpu: Gpu, plan: ServePlan) -> Capacity:
    engine = engine_on(question.engine, gpu, question.sizes, question.precision)
    return capacity_of(
        question.sizes,
        plan,
        question.precision,
        gpu,
        engine,
        cache_bytes=question.cache_bytes,
        context=question.context,
    )


def _row(
    question: ServeQuestion, tables: StepTables, column: int, target: Target, usd_per_hour: float | None, users: int
) -> ServeRow:
    gpu, plan = target.gpu, tables.plan
    engine = engine_on(question.engine, gpu, question.sizes, question.precision)
    capacity = _capacity(question, gpu, plan)
    instances = (target.count or plan.gpus) // plan.gpus
    if question.requests is not None:
        figures = forecast_load(tables, column, engine, capacity, question.requests)
    elif users:
        if plan.dp > 1 and users < instances * plan.dp:
            raise InputError("fewer users than replicas of attention")
        places = ceil(users / (instances * plan.dp))
        load = closed_load(places, question.prompt, question.output, question.seed)
        skips = min(places, len(load.prompts) * (WAVES - 1) // WAVES)
        figures = forecast_load(tables, column, engine, capacity, load, skips=skips)
        busy = users / (places * instances * plan.dp)
        figures = _shared_out(figures, busy, plan.gpus * tables.draws[column].idle_w)
    else:
        figures = _largest(question, tables, column, engine, capacity)
        if target.count is None and question.rate_per_s:
            instances = max(ceil(question.rate_per_s / figures.requests_per_s), 1)
        if question.rate_per_s:
            figures = _at_rate(question, tables, column, engine, capacity, question.rate_per_s / instances)
    return ServeRow(
        gpu=gpu.name,
        gpus=instances * plan.gpus,
        concurrency=users,
        plan=plan,
        instances=instances,
        note=tables.stack.fallback,
        capacity=capacity,
        figures=figures,
        rate_per_s=question.rate_per_s or figures.requests_per_s * instances,
        holds=_holds(question, figures) if question.limits else None,
        usd_per_hour=None if usd_per_hour is None else usd_per_hour * instances * plan.gpus,
    )


def _at_rate(
    question: ServeQuestion, tables: StepTables, column: int, engine: Engine, capacity: Capacity, rate: float
) -> LoadFigures:
    load = open_load(rate / tables.plan.dp, question.prompt, question.output, question.seed)
    return forecast_load(tables, column, engine, capacity, load)


def _largest(
    question: ServeQuestion, tables: StepTables, column: int, engine: Engine, capacity: Capacity
) -> LoadFigures:
    """Return the figures at the largest rate that an instance serves: by limits, and without a queue that grows.

    By bisection of the rate's logarithm, below what it serves with as many requests at once as it takes.
    """
    longest = (question.prompt + question.output) * 1.1
    places = int(max(min(engine.max_sequences, capacity.tokens / longest), 1))
    load = closed_load(places, question.prompt, question.output, question.seed)
    skips = min(places, len(load.prompts) // 2)
    full = forecast_load(tables, column, engine, capacity, load, skips=skips)
    # At a rate that the upper end of its steps can serve no queue grows.
    high = full.requests_per_s * exp(-full.step_half_width)
    low = high * LEAST_SHARE
    found = _at_rate(question, tables, column, engine, capacity, high)
    if _holds(question, found):
        return _with_rate(found, high)
    found = _at_rate(question, tables, column, engine, capacity, low)
    for _ in range(BISECTIONS):
        middle = (low * high) ** 0.5
        tried = _at_rate(question, tables, column, engine, capacity, middle)
        if _holds(question, tried):
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
        prompt_tokens_per_s=found.prompt_tokens_per_s * ratio,
    )


def _holds(question: ServeQuestion, figures: LoadFigures) -> bool:
    upper = {name: figures.latencies[name].within(question.measure)[2] for name in (FIRST, PER_TOKEN)}
    return all(upper[name] <= limit for name, limit in question.limits.items())


def _rank(question: ServeQuestion, row: ServeRow) -> tuple[bool, bool, float, int]:
    """Return what rows are sorted by: that hold the limits first, then by the price of a token, then by its GPUs."""
    usd = row.usd_per_million_output_tokens
    per_gpu = row.gpus / row.output_tokens_per_s
    if question.rate_per_s:
        return row.holds is False, row.usd_per_hour is None, row.usd_per_hour or float(row.gpus), row.gpus
    return row.holds is False, usd is None, usd if usd is not None else per_gpu, row.gpus
