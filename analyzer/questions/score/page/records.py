"""The score for programs: JSON, and a table; the layout is public and documented in docs/reference/json.md."""

from dataclasses import asdict, fields
from typing import Any, Final

from .....arrays import none_for_nan
from ....measurements.networks import PEERS
from ....page.encoding import FieldTable, encode_json, join_tables, table_of, table_of_keys
from ..end_to_end import OP_SUM
from ..report import SCORE_FORMAT, SCORE_VERSION, Score, ScoreRow
from ..rows import ANCHORED, BANDWIDTH_RATIO, FITTED_ROOFLINE, PEAK_RATIO, ROOFLINE, ROOFLINE_RATIO

BASELINES: Final = (
    ROOFLINE, FITTED_ROOFLINE, BANDWIDTH_RATIO, ANCHORED, OP_SUM, *PEERS.values(), PEAK_RATIO, ROOFLINE_RATIO,
)  # fmt: skip
PLAIN: Final = tuple(item.name for item in fields(ScoreRow) if not item.name.startswith("baseline"))
DIGITS: Final = 5
"""Significant digits of ratios and times: what more would claim measurements do not hold."""


def draw_score_json(score: Score) -> str:
    """Write a score as JSON: errors as ratios, times in ns, null where nothing is known."""
    return encode_json({"format": SCORE_FORMAT, "version": SCORE_VERSION, **_rounded(asdict(score))})


def score_table(score: Score) -> FieldTable:
    """Return one row per group of measurements: errors as ratios, two columns per baseline."""
    plain = table_of(score.rows, ScoreRow, PLAIN)
    return join_tables(
        FieldTable(fields=plain.fields, rows=tuple(tuple(map(none_for_nan, row)) for row in plain.rows)),
        table_of_keys((row.baselines for row in score.rows), {f"mape_{kind}": kind for kind in BASELINES}, absent=None),
        table_of_keys(
            (row.baseline_rows for row in score.rows), {f"rows_{kind}": kind for kind in BASELINES}, kind=int, absent=0
        ),
    )


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value
