"""Measured throughputs of whole networks as sheets: the worst models, and every family's error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from .....formats.trace.printable import clean_text
from ....page.columns import number_column, text_column, time_column
from ....page.quantity import ABSENT, MILLISECONDS, percent
from ....page.sheet import Sheet
from ..baselines import ANCHORED
from ..ledger import throughput_family
from ..report import Split, ThroughputRow
from .iterations import error_of

WORST_MODELS: Final = 10


def worst_model_sheet(rows: Sequence[ThroughputRow]) -> Sheet:
    """Return the worst models of each GPU, run eagerly: each once, where it is worst."""
    worst = [row for gpu in dict.fromkeys(row.gpu for row in rows) for row in _worst(rows, gpu)]
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


def family_sheet(rows: Sequence[ThroughputRow]) -> Sheet:
    """Return the mean signed error of each family of models, eagerly run, by GPU and layout, the worst first."""
    eager = [row for row in rows if not row.is_compiled]
    families = _by(eager, lambda row: row.family)
    names = sorted(families, key=lambda name: -abs(_mean(error_of(row) for row in families[name]) or 0.0))
    groups = sorted({(row.gpu, row.layout) for row in eager})
    columns = [
        text_column("family", map(clean_text, names)),
        number_column("models", (str(len({row.model for row in families[name]})) for name in names)),
    ]
    for gpu, layout in groups:
        mine = [[row for row in families[name] if (row.gpu, row.layout) == (gpu, layout)] for name in names]
        columns.append(
            number_column(f"{gpu}, {layout.upper()}", (percent(_mean(map(error_of, found))) for found in mine))
        )
        moved = (percent(_mean(error_of(row, ANCHORED) for row in found)) for found in mine)
        columns.append(number_column("as ratio", moved))
    return Sheet(title="Mean signed error by family", columns=tuple(columns))


def _worst(rows: Sequence[ThroughputRow], gpu: str) -> list[ThroughputRow]:
    mine = _by((row for row in rows if row.gpu == gpu and not row.is_compiled), lambda row: row.model)
    worst = [max(found, key=_distance) for found in mine.values()]
    return sorted(worst, key=_distance, reverse=True)[:WORST_MODELS]


def _distance(row: ThroughputRow) -> float:
    return abs(error_of(row) or 0.0)


def _by(rows: Iterable[ThroughputRow], label: Callable[[ThroughputRow], str]) -> Mapping[str, list[ThroughputRow]]:
    found: dict[str, list[ThroughputRow]] = {}
    for row in rows:
        found.setdefault(label(row), []).append(row)
    return found


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _way(row: ThroughputRow) -> str:
    return clean_text(throughput_family(row).removeprefix("timm inference, ")) or ABSENT
