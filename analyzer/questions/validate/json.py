"""A prediction beside the measurement, for programs: JSON and CSV; the layout is public and in docs/cli.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Final

from ....arrays import none_for_nan
from ...page.encoding import encode_json
from ...page.table import FieldTable, table_of
from ...replay.causes import IdleCause
from .report import (
    VALIDATION_FORMAT,
    VALIDATION_VERSION,
    FamilyComparison,
    IterationComparison,
    OpComparison,
    Side,
    Unmatched,
    Validation,
)

OP_COLUMNS: Final = (*(item.name for item in fields(OpComparison)), "error_ratio", "is_covered")


def draw_validation_json(validation: Validation) -> str:
    """Write a validation as JSON: times in ns, errors and shares as ratios, null where nothing is known."""
    return encode_json(
        {
            "format": VALIDATION_FORMAT,
            "version": VALIDATION_VERSION,
            "source": _side(validation.source),
            "target": _side(validation.target),
            "scenario": {"cpu_speed": validation.scenario.cpu_speed},
            "iteration": _iteration(validation.iteration),
            "total": _family(validation.total),
            "families": [_family(row) for row in validation.families],
            "intervals": asdict(validation.intervals),
            "op_count": validation.op_count,
            "ops": [{name: getattr(row, name) for name in OP_COLUMNS} for row in validation.ops],
            "unmatched": [asdict(row) for row in validation.unmatched],
            "warnings": list(validation.warnings),
        }
    )


def draw_validation_csv(validation: Validation) -> str:
    """Write one row per op, the largest absolute error first: times in ns, the error as a ratio."""
    return compared_op_table(validation).to_csv()


def compared_op_table(validation: Validation) -> FieldTable:
    """Return one row per op, the largest absolute error first."""
    return table_of(validation.ops, OpComparison, OP_COLUMNS)


def unmatched_table(validation: Validation) -> FieldTable:
    """Return one row per op that only one of the recordings has."""
    return table_of(validation.unmatched, Unmatched)


def _side(side: Side) -> dict[str, Any]:
    return {**asdict(side), "matched_ratio": side.matched_ratio}


def _iteration(iteration: IterationComparison) -> dict[str, Any]:
    return {
        **asdict(iteration),
        "predicted_idle_ns": _by_cause(iteration.predicted_idle_ns),
        "measured_idle_ns": _by_cause(iteration.measured_idle_ns),
        "error_ratio": iteration.error_ratio,
        "is_covered": iteration.is_covered,
    }


def _by_cause(idle_ns: Mapping[IdleCause, float]) -> dict[str, float]:
    return {cause.value: time for cause, time in idle_ns.items()}


def _family(row: FamilyComparison) -> dict[str, Any]:
    """Return one family's figures; those of no op at all, and coverage without intervals, are null."""
    figures = {name: none_for_nan(value) for name, value in asdict(row.figures).items()}
    return {**asdict(row), "figures": figures}
