"""Measured iterations on many GPUs, recommenders' and single networks', as sheets: errors by group, the worst rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from .....arrays import group_by
from .....formats.trace.printable import clean_text
from ....page.columns import count_column, number_column, text_column, time_column
from ....page.quantity import ABSENT, MILLISECONDS, SECONDS, percent
from ....page.sheet import Sheet, drop_empty_columns
from ..distributed.scoring import CARRIED_GPU, CARRIED_PLAN, FIXED_MFU, PERFECT_SCALING, SCALED
from ..ledger import throughput_family
from ..report import IterationScore, NetworkRow, Split, ThroughputRow
from ..rows import ANCHORED

WORST: Final = 15
TITLES: Final = {
    ANCHORED: "anchored",
    SCALED: "from own\nsmallest",
    FIXED_MFU: "MFU\n40 %",
    CARRIED_GPU: "MFU of\nother GPU",
    CARRIED_PLAN: "MFU of\nother plan",
    PERFECT_SCALING: "perfect\nscaling",
}
LEAST_OF_SOURCE: Final = 10
"""Rows below which a source is not compared with guesses."""
WORST_MODELS: Final = 10
SIZES: Final = ((8, "up to 8 GPUs"), (64, "9 to 64"), (512, "65 to 512"), (10**9, "more than 512"))

Label = Callable[[IterationScore], str]
WholeRow = IterationScore | NetworkRow | ThroughputRow


def iteration_sheet(rows: Sequence[IterationScore]) -> Sheet:
    """Return the errors of all rows, then by source, GPU, size of the plan, precision, and with experts."""
    given, rows = [row for row in rows if row.given_gpus], [row for row in rows if not row.given_gpus]
    groups: list[tuple[str, list[IterationScore]]] = [("all", list(rows))]
    labels: tuple[Label, ...] = (
        _source,
        lambda row: row.gpu,
        lambda row: next(name for most, name in SIZES if row.gpus <= most),
        lambda row: row.precision,
        lambda row: "with experts" if row.has_experts else "without experts",
    )
    for label in labels:
        groups += _grouped(rows, label)
    groups += _grouped(given, lambda row: f"from fewer GPUs: {_source(row)}, {row.model}")
    return _error_sheet("Iterations on many GPUs", "iterations", groups, TITLES, has_median=True)


def guess_lines(rows: Sequence[IterationScore]) -> Iterator[str]:
    """Say in which sources a fixed or carried utilisation comes nearer than wavecast, on the rows that have one."""
    measured = (row for row in rows if not row.given_gpus)
    found = group_by(measured, lambda row: _source(row) + (", experts" if row.has_experts else ""))
    sources = {name: mine for name, mine in sorted(found.items()) if len(mine) >= LEAST_OF_SOURCE}
    lost = []
    for name, mine in sources.items():
        for kind in (FIXED_MFU, CARRIED_GPU, CARRIED_PLAN):
            known = [row for row in mine if kind in row.baselines_ns]
            errors = [mean_error(known, by) for by in (kind, None, ANCHORED)]
            if known and (errors[0] or 0.0) <= (errors[1] or 0.0):
                given, own, anchored = map(percent, errors)
                lost.append(
                    f"{clean_text(name)}: {' '.join(TITLES[kind].split())} {given} % off, wavecast {own} (anchored "
                    f"{anchored}; {len(known)} rows)"
                )
    if sources:
        yield (
            f"Of {len(sources)} sources of {LEAST_OF_SOURCE} iterations or more (dense models and experts apart), a "
            f"fixed or carried utilisation comes nearer than wavecast in: {'; '.join(lost) or 'none'}."
        )


def recommender_sheet(rows: Sequence[IterationScore]) -> Sheet:
    """Return the errors of all rows, then by model, GPU, machines and plan, and with other spreads of lookups."""
    labels: tuple[Label, ...] = (
        lambda row: row.model,
        lambda row: f"{row.model}, {row.gpu}",
        lambda row: f"{row.model}, {'up to 8 GPUs' if row.gpus <= 8 else 'more than 8'}",
        lambda row: f"{row.model}, {row.plan}",
    )
    groups = [("all", list(rows)), *(group for label in labels for group in _grouped(rows, label, fewest=1))]
    spreads = [name for name in dict.fromkeys(name for row in rows for name in row.baselines_ns) if name != ANCHORED]
    titles = {ANCHORED: "anchored", **{name: f"MAPE\n{name}" for name in spreads}}
    return _error_sheet("Recommenders on many GPUs", "recommenders", groups, titles, has_median=False)


def _error_sheet(
    title: str,
    noun: str,
    groups: Sequence[tuple[str, list[IterationScore]]],
    titles: Mapping[str, str],
    *,
    has_median: bool,
) -> Sheet:
    """Return the errors of groups of rows, and those of what `titles` names; the first group is all rows."""
    found = [item for _, item in groups]
    errors = [_errors(item) for item in found]
    mean_of = [mean_error(item) for item in found]
    columns = [
        text_column(noun, (clean_text(name) for name, _ in groups), min_width=24),
        count_column("rows", map(len, found)),
        number_column("MAPE", map(percent, mean_of)),
        *(
            [number_column("median", (percent(float(np.median(np.abs(item))) if item else None) for item in errors))]
            * has_median
        ),
        number_column("bias", (percent(float(np.mean(item)) if item else None) for item in errors)),
        number_column("worst", (percent(max(item, key=abs, default=None)) for item in errors)),
        number_column("in 90 %\ninterval", (percent(_held(item)) for item in found)),
        *(
            number_column(
                words,
                (percent(mean_error(item, kind)) for item in found),
                rank=0 if kind == ANCHORED and not has_median else 2,
            )
            for kind, words in titles.items()
        ),
    ]
    return drop_empty_columns(Sheet(title=title, columns=tuple(columns), marked_rows=frozenset({0})))


def worst_iteration_sheet(rows: Sequence[IterationScore]) -> Sheet:
    """Return the worst rows: of each source and model one."""
    worst: dict[tuple[str, str, str], IterationScore] = {}
    for row in sorted(rows, key=lambda row: -abs(error_of(row) or 0.0)):
        worst.setdefault((row.source, row.model, row.precision), row)
    chosen = list(worst.values())[:WORST]
    columns = (
        text_column("model", (clean_text(row.model) for row in chosen), min_width=16),
        text_column("source", (clean_text(row.source) for row in chosen)),
        text_column("GPUs", (f"{row.gpus:,} x {clean_text(row.gpu)}" for row in chosen)),
        text_column("plan", (clean_text(row.plan) for row in chosen), min_width=20),
        time_column("measured", (row.measured_ns for row in chosen), SECONDS, rank=1),
        time_column("predicted", (row.predicted_ns for row in chosen), SECONDS, rank=1),
        number_column("error", (percent(error_of(row)) for row in chosen)),
    )
    return Sheet(title="The worst predicted iterations, one of each source, model and precision", columns=columns)


def error_of(row: WholeRow, kind: str | None = None) -> float | None:
    """Return predicted / measured - 1, or a baseline's; None where it says nothing."""
    value = row.predicted_ns if kind is None else row.baselines_ns.get(kind)
    return None if value is None else value / row.measured_ns - 1


def _grouped(rows: Sequence[IterationScore], label: Label, fewest: int = 2) -> list[tuple[str, list[IterationScore]]]:
    """Return rows by what they are called; nothing where these are fewer than a comparison needs."""
    found = group_by(rows, label)
    return sorted(found.items()) if len(found) >= fewest else []


def _source(row: IterationScore) -> str:
    return "MLPerf training" if row.source.startswith("mlperf") else row.source


def _errors(rows: Sequence[WholeRow], kind: str | None = None) -> list[float]:
    return [error for row in rows if (error := error_of(row, kind)) is not None]


def mean_error(rows: Sequence[WholeRow], kind: str | None = None) -> float | None:
    """Return the mean absolute error of whole runs, or of a baseline over those that have it; None of none."""
    errors = _errors(rows, kind)
    return float(np.mean(np.abs(errors))) if errors else None


def _held(rows: Sequence[IterationScore]) -> float | None:
    known = [row for row in rows if row.low_ns is not None and row.high_ns is not None]
    held = [(row.low_ns or 0.0) <= row.measured_ns <= (row.high_ns or 0.0) for row in known]
    return float(np.mean(held)) if held else None


def worst_model_sheet(rows: Sequence[ThroughputRow]) -> Sheet:
    """Return the worst models of each GPU, run eagerly: each once, where it is worst."""
    worst = [row for gpu in dict.fromkeys(row.gpu for row in rows) for row in _worst_of(rows, gpu)]
    columns = (
        text_column("model", (clean_text(row.model) for row in worst), min_width=24),
        text_column("GPU", (clean_text(row.gpu) + (" (seen)" if row.split is Split.SEEN else "") for row in worst)),
        text_column("measured as", map(_way, worst), rank=3),
        number_column("batch", (str(row.batch) for row in worst), rank=4),
        time_column("measured", (row.measured_ns for row in worst), MILLISECONDS, rank=1),
        time_column("predicted", (row.predicted_ns for row in worst), MILLISECONDS, rank=1),
        number_column("error", (percent(error_of(row)) for row in worst)),
        number_column("error as\nratio", (percent(error_of(row, ANCHORED)) for row in worst)),
    )
    return Sheet(title=f"The {WORST_MODELS} worst predicted timm models of each GPU", columns=columns)


def _worst_of(rows: Sequence[ThroughputRow], gpu: str) -> list[ThroughputRow]:
    mine = group_by((row for row in rows if row.gpu == gpu and not row.is_compiled), lambda row: row.model)
    worst = [max(found, key=_distance) for found in mine.values()]
    return sorted(worst, key=_distance, reverse=True)[:WORST_MODELS]


def _distance(row: ThroughputRow) -> float:
    return abs(error_of(row) or 0.0)


def _way(row: ThroughputRow) -> str:
    return clean_text(throughput_family(row).removeprefix("timm inference, ")) or ABSENT
