"""A re-run beside recording and prediction, for programs; the layout is public and in docs/cli.md."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from ....arrays import none_for_nan
from ...page.encoding import attributes, encode_json
from .report import RERUN_FORMAT, RERUN_VERSION, FamilyRow, RerunOp, RerunReport

OP_FIELDS: Final = (*(item.name for item in fields(RerunOp)), "error_ratio", "is_covered")


def draw_rerun_json(report: RerunReport) -> str:
    """Write it as JSON: times in ns, shares and errors as ratios, null where nothing is known."""
    return encode_json(
        {
            "format": RERUN_FORMAT,
            "version": RERUN_VERSION,
            **attributes(report),
            "total": _family(report.total),
            "families": [_family(row) for row in report.families],
            "ops": [attributes(row, OP_FIELDS) for row in report.ops],
        }
    )


def _family(row: FamilyRow) -> dict[str, Any]:
    """Return one family's figures; coverage without intervals is null."""
    figures = None if row.figures is None else attributes(row.figures)
    return attributes(row) | {"figures": figures and {name: none_for_nan(value) for name, value in figures.items()}}
