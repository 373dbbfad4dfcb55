"""How sure the ranking is, in words and columns."""

from collections.abc import Iterator
from operator import attrgetter
from typing import Final, NamedTuple

from .....formats.trace.printable import clean_text
from ....iteration.decision.chances import LEADERS, PAIRED, TOLD_APART
from ....iteration.decision.selection import choose_gpus
from ....iteration.report import AnalysisReport, GpuPrediction
from ....page.columns import number_column
from ....page.quantity import format_count, format_share
from ....page.sheet import SheetColumn

STANDS_OUT: Final = 0.5
"""A chance from which on a GPU is called the first."""
LEAST_NAMED: Final = 0.05
"""Chances under this are not named."""
LEAST_SHOWN: Final = 0.005


class _Criterion(NamedTuple):
    """Say how GPUs are compared, and where the chances stand."""

    first: str
    less: str
    where: str
    of_row: str
    of_pair: str
    predicted: str
    """Which of the choices is the first by its prediction."""


_CRITERIA: Final = (
    _Criterion("the fastest", "faster", "in time", "chance_fastest", "faster", "fastest"),
    _Criterion("the cheapest per iteration", "cheaper", "in cost", "chance_cheapest", "cheaper", "cheapest"),
)


def chance_sentences(report: AnalysisReport) -> Iterator[str]:
    """Yield how likely which GPU is the fastest and the cheapest, and which cannot be told apart.

    >>> list(chance_sentences(report))
    []
    """
    for criterion in _CRITERIA:
        ranked = _ranked(report, criterion)
        if len(ranked) >= 2:
            yield from (_pairs if len(report.predictions) <= PAIRED else _first)(report, criterion)


def chance_columns(rows: tuple[GpuPrediction, ...]) -> tuple[SheetColumn, ...]:
    """Return each GPU's chance to be the fastest and the cheapest."""
    return (
        number_column("fastest\nwith", (_cell(row.chance_fastest) for row in rows), rank=5),
        number_column("cheapest\nwith", (_cell(row.chance_cheapest) for row in rows), rank=5),
    )


def _cell(chance: float | None) -> str:
    """Write a chance; nothing where it is under half a percent."""
    return "" if chance is None or chance < LEAST_SHOWN else _surely(chance)


def _ranked(report: AnalysisReport, criterion: _Criterion) -> list[tuple[float, str]]:
    """Return the chances to be the first, the highest first, with the GPUs."""
    chance_of = attrgetter(criterion.of_row)
    known = [(chance_of(row), row.gpu) for row in report.predictions if chance_of(row) is not None]
    return sorted(known, key=lambda item: -item[0])


def _first(report: AnalysisReport, criterion: _Criterion) -> Iterator[str]:
    """Say which of many GPUs is the first, and which of the likeliest cannot be told apart; or that none stands out."""
    ranked = _ranked(report, criterion)
    best, name = ranked[0]
    if best < LEAST_NAMED:
        likely = sum(chance >= best / 2 for chance, _ in ranked)
        yield f"None stands out as {criterion.first}: {format_count(likely, 'GPU')} have about the same chance."
        return
    leaders = [item for item in ranked[:LEADERS] if item[0] >= LEAST_NAMED]
    others = ", ".join(f"{_label(report, other)} {format_share(chance)}" for chance, other in leaders[1:])
    then = f"; then {others}" if others else ""
    if best < STANDS_OUT:
        answer = getattr(choose_gpus(report), criterion.predicted)
        if answer is not None and answer not in [gpu for _, gpu in leaders]:
            mine = next((chance for chance, gpu in ranked if gpu == answer), 0.0)
            then += f"; {_label(report, answer)}, named above, with {format_share(mine)}"
        yield f"Not sure which is {criterion.first}: {_label(report, name)} with a chance of {_surely(best)}{then}."
        return
    alike = ", ".join(_alike(report, criterion, {gpu for _, gpu in leaders}))
    pairs = f"; cannot be told apart: {alike}" if alike else ""
    yield f"{_label(report, name)} is {criterion.first} with a chance of {_surely(best)}{then}{pairs}."


def _pairs(report: AnalysisReport, criterion: _Criterion) -> Iterator[str]:
    """Say of few GPUs which of two is better, or that the two cannot be told apart."""
    asked = [gpu for _, gpu in _ranked(report, criterion)]
    leader = asked[0]
    surer = [
        f"{_label(report, second)} ({_surely(chance)} sure)"
        for first, second, chance in _compared(report, criterion)
        if chance >= TOLD_APART and first == leader and second in asked
    ]
    if surer:
        yield f"{_label(report, leader)} is {criterion.less} than {', '.join(surer)}."
    alike = ", ".join(_alike(report, criterion, set(asked)))
    if alike:
        yield f"Cannot be told apart {criterion.where}: {alike}."


def _alike(report: AnalysisReport, criterion: _Criterion, among: set[str]) -> Iterator[str]:
    """Yield the pairs of some GPUs that cannot be told apart."""
    for first, second, chance in _compared(report, criterion):
        if chance < TOLD_APART and {first, second} <= among:
            yield f"{_label(report, first)} and {_label(report, second)} ({format_share(chance)})"


def _compared(report: AnalysisReport, criterion: _Criterion) -> Iterator[tuple[str, str, float]]:
    """Yield each pair with the likelier one first, and its chance."""
    chance_of = attrgetter(criterion.of_pair)
    for pair in report.rank_pairs:
        chance = chance_of(pair)
        if chance is not None:
            yield (pair.first, pair.second, chance) if chance >= 0.5 else (pair.second, pair.first, 1.0 - chance)


def _label(report: AnalysisReport, gpu: str) -> str:
    """Return a GPU's name, with what speaks against relying on its chance, or that nobody asked for it."""
    row = next(row for row in report.predictions if row.gpu == gpu)
    what = " (untested)" if row.untested is not None else " (the source)" if row.is_reference else ""
    return f"{clean_text(gpu)}{what}"


def _surely(chance: float) -> str:
    """Write a chance; none is said to be certain."""
    return "over 99 %" if chance >= 0.995 else format_share(chance)
