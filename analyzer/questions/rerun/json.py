"""A re-run beside recording and prediction, for programs; the layout is public and in docs/cli.md."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any, Final

from ....arrays import none_for_nan
from ...page.encoding import encode_json
from .report import RERUN_FORMAT, RERUN_VERSION, FamilyRow, RerunOp, RerunReport

OP_FIELDS: Final = (*(item.name for item in fields(RerunOp)), "error_ratio", "is_covered")


def draw_rerun_json(report: RerunReport) -> str:
    """Write it as JSON: times in ns, shares and errors as ratios, null where nothing is known."""
    return encode_json(
        {
            "format": RERUN_FORMAT,
            "version": RERUN_VERSION,
            "device": report.device,
            "is_gpu": report.is_gpu,
            "gpu": report.gpu,
            "framework": report.framework,
            "source": report.source,
            "capture": report.capture,
            "is_same_gpu": report.is_same_gpu,
            "weighed_by": report.weighed_by,
            "call_count": report.call_count,
            "rerun_call_count": report.rerun_call_count,
            "rerun_ratio": report.rerun_ratio,
            "iteration": asdict(report.iteration),
            "total": _family(report.total),
            "families": [_family(row) for row in report.families],
            "intervals": asdict(report.intervals),
            "ops": [{name: getattr(row, name) for name in OP_FIELDS} for row in report.ops],
            "left_out": [asdict(row) for row in report.left_out],
            "warnings": list(report.warnings),
        }
    )


def _family(row: FamilyRow) -> dict[str, Any]:
    """Return one family's figures; coverage without intervals is null."""
    if row.figures is None:
        return asdict(row)
    figures = {name: none_for_nan(value) for name, value in asdict(row.figures).items()}
    return {**asdict(row), "figures": figures}
