"""Measured throughputs of whole networks as sheets: the worst models, and every family's error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from ...accuracy.score.baselines import ANCHORED
from ...accuracy.score.ledger import throughput_family
from ...accuracy.score.report import Split, ThroughputRow
from ..page.quantity import ABSENT, MILLISECONDS, format_time, percent
from ..page.sheet import Sheet, SheetColumn, clean_text

WORST_MODELS: Final = 10


def worst_model_sheet(rows: Sequence[ThroughputRow]) -> Sheet:
    """Return the worst models of each GPU, run eagerly: each once, where it is worst."""
    worst = [row for gpu in dict.fromkeys(row.gpu for row in rows) for row in _worst(rows, gpu)]
    columns = (
        SheetColumn(title="model", cells=tuple(clean_text(row.model) for row in worst), is_text=True, min_width=24),
        SheetColumn(title="GPU", cells=tuple(_gpu_name(row) for row in worst), is_text=True),
        SheetColumn(title="measured as", cells=tuple(_way(row) for row in worst), is_text=True, rank=3),
        SheetColumn(title="batch", cells=tuple(str(row.batch) for row in worst), rank=4),
        SheetColumn(title="measured", cells=tuple(format_time(row.measured_ns, MILLISECONDS) for row in worst), rank=1),
        SheetColumn(
            title="predicted", cells=tuple(format_time(row.predicted_ns, MILLISECONDS) for row in worst), rank=1
        ),
        SheetColumn(title="error", cells=tuple(percent(error_of(row)) for row in worst)),
        SheetColumn(title="error as\nratio", cells=tuple(percent(error_of(row, ANCHORED)) for row in worst)),
    )
    return Sheet(title=f"The {WORST_MODELS} worst predicted timm models of each GPU", columns=columns)


def family_sheet(rows: Sequence[ThroughputRow]) -> Sheet:
    """Return the mean signed error of each family of models, eagerly run, by GPU and layout, the worst first."""
    eager = [row for row in rows if not row.is_compiled]
    families = _by(eager, lambda row: row.family)
    names = sorted(families, key=lambda name: -abs(_mean(error_of(row) for row in families[name]) or 0.0))
    groups = sorted({(row.gpu, row.layout) for row in eager})
    columns = [
        SheetColumn(title="family", cells=tuple(clean_text(name) for name in names), is_text=True),
        SheetColumn(title="models", cells=tuple(str(len({row.model for row in families[name]})) for name in names)),
    ]
    for gpu, layout in groups:
        mine = [[row for row in families[name] if (row.gpu, row.layout) == (gpu, layout)] for name in names]
        cells = tuple(percent(_mean(map(error_of, found))) for found in mine)
        columns.append(SheetColumn(title=f"{gpu}, {layout.upper()}", cells=cells))
        moved = tuple(percent(_mean(error_of(row, ANCHORED) for row in found)) for found in mine)
        columns.append(SheetColumn(title="as ratio", cells=moved))
    return Sheet(title="Mean signed error by family", columns=tuple(columns))


def error_of(row: ThroughputRow, kind: str | None = None) -> float | None:
    """Return predicted / measured - 1, or a baseline's; None where it says nothing."""
    value = row.predicted_ns if kind is None else row.baselines_ns.get(kind)
    return None if value is None else value / row.measured_ns - 1


def _worst(rows: Sequence[ThroughputRow], gpu: str) -> list[ThroughputRow]:
    mine = _by((row for row in rows if row.gpu == gpu and not row.is_compiled), lambda row: row.model)
    worst = [max(found, key=_size) for found in mine.values()]
    return sorted(worst, key=_size, reverse=True)[:WORST_MODELS]


def _size(row: ThroughputRow) -> float:
    return abs(row.predicted_ns / row.measured_ns - 1)


def _by(rows: Iterable[ThroughputRow], label: Callable[[ThroughputRow], str]) -> Mapping[str, list[ThroughputRow]]:
    found: dict[str, list[ThroughputRow]] = {}
    for row in rows:
        found.setdefault(label(row), []).append(row)
    return found


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _gpu_name(row: ThroughputRow) -> str:
    return clean_text(row.gpu) + (" (seen)" if row.split is Split.SEEN else "")


def _way(row: ThroughputRow) -> str:
    return clean_text(throughput_family(row).removeprefix("timm inference, ")) or ABSENT
