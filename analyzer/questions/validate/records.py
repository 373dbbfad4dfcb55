"""A prediction beside the measurement, for programs: JSON and CSV; the layout is public and in docs/cli.md."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from ....arrays import none_for_nan
from ...page.encoding import attributes, encode_json
from ...page.table import FieldTable, table_of
from .report import VALIDATION_FORMAT, VALIDATION_VERSION, FamilyComparison, OpComparison, Unmatched, Validation

OP_COLUMNS: Final = (*(item.name for item in fields(OpComparison)), "error_ratio", "is_covered")


def draw_validation_json(validation: Validation) -> str:
    """Write a validation as JSON: times in ns, errors and shares as ratios, null where nothing is known."""
    iteration = validation.iteration
    return encode_json(
        {
            "format": VALIDATION_FORMAT,
            "version": VALIDATION_VERSION,
            **attributes(validation),
            "source": attributes(validation.source) | {"matched_ratio": validation.source.matched_ratio},
            "target": attributes(validation.target) | {"matched_ratio": validation.target.matched_ratio},
            "scenario": {"cpu_speed": validation.scenario.cpu_speed},
            "iteration": attributes(iteration) | attributes(iteration, ("error_ratio", "is_covered")),
            "total": _family(validation.total),
            "families": [_family(row) for row in validation.families],
            "ops": [attributes(row, OP_COLUMNS) for row in validation.ops],
        }
    )


def compared_op_table(validation: Validation) -> FieldTable:
    """Return one row per op, the largest absolute error first."""
    return table_of(validation.ops, OpComparison, OP_COLUMNS)


def unmatched_table(validation: Validation) -> FieldTable:
    """Return one row per op that only one of the recordings has."""
    return table_of(validation.unmatched, Unmatched)


def _family(row: FamilyComparison) -> dict[str, Any]:
    """Return one family's figures; those of no op at all, and coverage without intervals, are null."""
    figures = {name: none_for_nan(value) for name, value in attributes(row.figures).items()}
    return attributes(row) | {"figures": figures}
