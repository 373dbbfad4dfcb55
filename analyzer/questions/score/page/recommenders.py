"""Measured iterations of recommenders as a sheet: errors by model, GPU and machines, and what the spread changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from .....formats.trace.printable import clean_text
from ....page.columns import count_column, number_column, text_column
from ....page.quantity import percent
from ....page.sheet import Sheet, drop_empty_columns
from ....work.indices import USUAL
from ..baselines import ANCHORED
from ..report import IterationScore
from .iterations import error_of

RECOMMENDER_LINES: Final = (
    "From `distributed/recommenders.parquet`: MLPerf training's logs of DLRM and DLRM-DCNv2. Each is written as what "
    "its busiest GPU runs, from its sizes, the sharding that the row or its configuration names, and the library of "
    f"its round; then replayed ([recommenders.md](recommenders.md)). Lookups are spread by {USUAL}, chosen before any "
    "row was looked at; the last columns are the errors with other spreads. Measured times of DLRM on one machine are "
    "corrected for what their logs take for the size of the data set.",
    "*Anchored* is wavecast given the first row of the same model, GPU and implementation, which has none itself.",
)


def recommender_sheet(rows: Sequence[IterationScore]) -> Sheet:
    """Return the errors of all rows, then by model, GPU, and whether they left one machine."""
    groups = list(_groups(rows))
    found = [item for _, item in groups]
    spreads = [name for name in dict.fromkeys(name for row in rows for name in row.baselines_ns) if name != ANCHORED]
    columns = [
        text_column("recommenders", (clean_text(name) for name, _ in groups), min_width=24),
        count_column("rows", map(len, found)),
        number_column("MAPE", (percent(_mean(item)) for item in found)),
        number_column("bias", (percent(float(np.mean(_errors(item)))) for item in found)),
        number_column("worst", (percent(max(_errors(item), key=abs)) for item in found)),
        number_column("in 90 %\ninterval", (percent(_held(item)) for item in found)),
        number_column("anchored", (percent(_mean(item, ANCHORED)) for item in found)),
        *(number_column(f"MAPE\n{name}", (percent(_mean(item, name)) for item in found), rank=2) for name in spreads),
    ]
    title = "Recommenders on many GPUs"
    return drop_empty_columns(Sheet(title=title, columns=tuple(columns), marked_rows=frozenset({0})))


def _groups(rows: Sequence[IterationScore]) -> Iterator[tuple[str, Sequence[IterationScore]]]:
    yield "all", rows
    labels: tuple[Callable[[IterationScore], str], ...] = (
        lambda row: row.model,
        lambda row: f"{row.model}, {row.gpu}",
        lambda row: f"{row.model}, {'up to 8 GPUs' if row.gpus <= 8 else 'more than 8'}",
        lambda row: f"{row.model}, {row.plan}",
    )
    for label in labels:
        for name in sorted({label(row) for row in rows}):
            yield name, [row for row in rows if label(row) == name]


def _errors(rows: Sequence[IterationScore], kind: str | None = None) -> list[float]:
    return [error for row in rows if (error := error_of(row, kind)) is not None]


def _mean(rows: Sequence[IterationScore], kind: str | None = None) -> float | None:
    errors = _errors(rows, kind)
    return float(np.mean(np.abs(errors))) if errors else None


def _held(rows: Sequence[IterationScore]) -> float | None:
    known = [row for row in rows if row.low_ns is not None and row.high_ns is not None]
    held = [(row.low_ns or 0.0) <= row.measured_ns <= (row.high_ns or 0.0) for row in known]
    return float(np.mean(held)) if held else None
