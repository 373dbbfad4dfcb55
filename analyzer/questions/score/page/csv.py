"""The score as CSV: one row per group of measurements. The columns never change with the data."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from .....arrays import none_for_nan
from ....measurements.networks import PEERS
from ....page.table import FieldTable, build_fields, fields_of
from ..baselines import ANCHORED, BANDWIDTH_RATIO, FITTED_ROOFLINE, PEAK_RATIO, ROOFLINE, ROOFLINE_RATIO
from ..end_to_end import OP_SUM
from ..report import Score, ScoreRow

BASELINES: Final = (
    ROOFLINE,
    FITTED_ROOFLINE,
    BANDWIDTH_RATIO,
    ANCHORED,
    OP_SUM,
    *PEERS.values(),
    PEAK_RATIO,
    ROOFLINE_RATIO,
)
PLAIN: Final = tuple(item.name for item in fields(ScoreRow) if not item.name.startswith("baseline"))


def draw_score_csv(score: Score) -> str:
    """Write one row per group: errors as ratios, one column per baseline's MAPE and one for its rows."""
    return score_table(score).to_csv()


def score_table(score: Score) -> FieldTable:
    """Return one row per group of measurements."""
    header = (
        *fields_of(ScoreRow, PLAIN),
        *build_fields((f"mape_{kind}" for kind in BASELINES), float),
        *build_fields((f"rows_{kind}" for kind in BASELINES), int),
    )
    return FieldTable(fields=header, rows=tuple(map(_row, score.rows)))


def _row(row: ScoreRow) -> tuple[Any, ...]:
    errors = (row.baselines.get(kind) for kind in BASELINES)
    counts = (row.baseline_rows.get(kind, 0) for kind in BASELINES)
    values = (getattr(row, name) for name in PLAIN)
    return (*map(none_for_nan, values), *errors, *counts)
