"""Prompts and written tokens on GPUs of their own: each kind is searched by itself, for the same rate.

Prompts are a load of one token each, held to the limit of TTFT. What writes gets them computed, after the time that
their cache takes from one machine to another, and is held to the limit of TPOT. Both come at random (Poisson).
"""

from collections.abc import Sequence

from ....errors import InputError, parameter
from ....records import replace
from ....specs.cluster import USUAL, Cluster
from ....specs.gpu import Catalog
from ....specs.prices.book import PriceBook, prices_of
from ...models.library import Library
from .forecast import END_TO_END, FIRST, PER_TOKEN
from .report import ServeQuestion, ServeReport, ServeRow, Target
from .search import answer, rank_of


def report_serving(
    question: ServeQuestion,
    targets: Sequence[Target],
    library: Library,
    prices: PriceBook | None,
    cluster: Cluster,
    catalog: Catalog,
) -> ServeReport:
    """Return the answer to a question. Raises InputError where no GPU can serve the model."""
    find = _answer_apart if question.is_separate else answer
    rows, left_out = find(question, targets, library, prices or prices_of(catalog), cluster)
    if not rows:
        first = "; ".join(f"{name}: {why}" for name, why in left_out[:3])
        raise InputError(f"no GPU that was asked for serves {question.sizes.name}: {first}")
    return ServeReport(question=question, rows=rows, left_out=left_out)


def _answer_apart(
    question: ServeQuestion, targets: Sequence[Target], library: Library, prices: PriceBook, cluster: Cluster = USUAL
) -> tuple[tuple[ServeRow, ...], tuple[tuple[str, str], ...]]:
    """Return the best pair of plans of each GPU type. Raises InputError for what has no such parts."""
    if not question.rate_per_s or question.output < 2 or any(target.count for target in targets):
        raise InputError(
            f"{parameter('separate_prefill')}: expected a rate, two written tokens or more, and GPUs without a number"
        )
    halves = {FIRST: replace(question, output=1), PER_TOKEN: replace(question, is_computed=True)}
    found: dict[str, dict[str, ServeRow]] = {}
    left_out: dict[str, str] = {}
    for name, half in halves.items():
        limits = {key: limit for key, limit in question.limits.items() if key == name}
        rows, without = answer(replace(half, limits=limits), targets, library, prices, cluster)
        found[name] = {row.gpu: row for row in rows}
        left_out |= dict(without)
    prompts, written = found[FIRST], found[PER_TOKEN]
    joined = [_joined(question, prompts[gpu], written[gpu]) for gpu in prompts if gpu in written]
    return tuple(sorted(joined, key=lambda row: rank_of(question, row))), tuple(left_out.items())


def _joined(question: ServeQuestion, prompts: ServeRow, written: ServeRow) -> ServeRow:
    """Return a row of both; a percentile of the whole is taken as the sum of its parts'."""
    first, each = prompts.figures.latencies[FIRST], written.figures.latencies[PER_TOKEN]
    whole = {name: first.values[name] + value * (question.output - 1) for name, value in each.values.items()}
    pairs = zip(prompts.figures.joules_per_token, written.figures.joules_per_token, strict=True)
    joule, low, high = (one / question.output + other for one, other in pairs)
    gpus = prompts.gpus + written.gpus
    figures = replace(
        written.figures,
        latencies={FIRST: first, PER_TOKEN: each, END_TO_END: replace(each, values=whole)},
        joules_per_token=(joule, low, high),
        board_w=(prompts.gpus * prompts.figures.board_w + written.gpus * written.figures.board_w) / gpus,
    )
    usd = (prompts.usd_per_hour, written.usd_per_hour)
    return replace(
        written,
        gpus=gpus,
        figures=figures,
        holds=None if prompts.holds is written.holds is None else False not in (prompts.holds, written.holds),
        usd_per_hour=None if usd[0] is None or usd[1] is None else usd[0] + usd[1],
        prefill=prompts,
    )
