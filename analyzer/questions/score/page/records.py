"""The score for programs: JSON, and back, and a table; the layout is public: docs/reference/json.md has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Final, TypeVar

from .....arrays import none_for_nan
from .....errors import InputError
from ....measurements.networks import PEERS
from ....page.encoding import FieldTable, encode_json, join_tables, table_of, table_of_keys
from ..end_to_end import OP_SUM
from ..report import (
    SCORE_FORMAT,
    SCORE_VERSION,
    DecisionRow,
    IterationScore,
    NetworkRow,
    OwnFamilyRow,
    OwnNetworkRow,
    Score,
    ScoreRow,
    ServingRow,
    Size,
    Split,
    ThroughputRow,
    TraceRow,
    WorstRow,
)
from ..rows import ANCHORED, BANDWIDTH_RATIO, FITTED_ROOFLINE, PEAK_RATIO, ROOFLINE, ROOFLINE_RATIO

BASELINES: Final = (
    ROOFLINE, FITTED_ROOFLINE, BANDWIDTH_RATIO, ANCHORED, OP_SUM, *PEERS.values(), PEAK_RATIO, ROOFLINE_RATIO,
)  # fmt: skip
PLAIN: Final = tuple(item.name for item in fields(ScoreRow) if not item.name.startswith("baseline"))
DIGITS: Final = 5
"""Significant digits of ratios and times: what more would claim measurements do not hold."""
RecordT = TypeVar(
    "RecordT",
    ScoreRow,
    WorstRow,
    NetworkRow,
    ThroughputRow,
    IterationScore,
    DecisionRow,
    TraceRow,
    OwnFamilyRow,
    ServingRow,
    OwnNetworkRow,
)


def draw_score_json(score: Score) -> str:
    """Write a score as JSON: errors as ratios, times in ns, null where nothing is known."""
    return encode_json({"format": SCORE_FORMAT, "version": SCORE_VERSION, **_rounded(asdict(score))})


def read_score_json(document: Mapping[str, Any]) -> Score:
    """Return the score that a JSON document holds.

    Raises InputError where it is no score of a version that is known.
    """
    if document.get("format") != SCORE_FORMAT or str(document.get("version")).split(".")[0] != SCORE_VERSION[0]:
        found = f"{document.get('format')!r} {document.get('version')!r}"
        raise InputError(f"$.format: found {found}, expected {SCORE_FORMAT!r} {SCORE_VERSION!r}")
    try:
        return Score(
            weights=document["weights"],
            left_out=document.get("left_out", ""),
            rows=_records(ScoreRow, document["rows"]),
            worst=_records(WorstRow, document["worst"]),
            networks=_records(NetworkRow, document["networks"]),
            throughput=_records(ThroughputRow, document.get("throughput", [])),
            iterations=_records(IterationScore, document.get("iterations", [])),
            recommenders=_records(IterationScore, document.get("recommenders", [])),
            decisions=_records(DecisionRow, document["decisions"]),
            traces=_records(TraceRow, document["traces"]),
            serving=_records(ServingRow, document.get("serving", [])),
            own_families=_records(OwnFamilyRow, document.get("own_families", [])),
            own_networks=_records(OwnNetworkRow, document.get("own_networks", [])),
            notes=tuple(document["notes"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"$: no score of version {SCORE_VERSION} ({error})") from error


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


def _records(kind: type[RecordT], rows: list[dict[str, Any]]) -> tuple[RecordT, ...]:
    names = {item.name for item in fields(kind)}
    return tuple(kind(**{name: _typed(name, value) for name, value in row.items() if name in names}) for row in rows)


def _typed(name: str, value: Any) -> Any:
    if name in _TYPES:
        return _TYPES[name](value)
    return float("nan") if value is None and name not in _OPTIONAL else value


_TYPES: Final = {"split": Split, "size": Size}
_OPTIONAL: Final = frozenset(
    {"low_ns", "high_ns", "kendall_tau", "source", "moved_ns", "moved_iteration_ns"}
    | {"joules", "moved_joules", "moved_low_joules", "moved_high_joules"}
)
"""Fields that may be None; elsewhere null is NaN."""


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value
