"""A comparison as rows: of GPUs, and of changes on each."""

from __future__ import annotations

from dataclasses import fields

from ...analysis.compare.report import ChangeGroup, Comparison, GpuChange
from ..page.table import Field, FieldTable, build_fields, fields_of, table_of


def changed_gpu_table(comparison: Comparison) -> FieldTable:
    """Return one row per GPU: times in ns, changes as ratios."""
    names = [item.name for item in fields(GpuChange)]
    return table_of(comparison.gpus, GpuChange, [*names, "change", "no_longer_fits"])


def change_table(comparison: Comparison) -> FieldTable:
    """Return one row per change and GPU, largest effect first: times in ns."""
    plain = fields_of(ChangeGroup, ("kind", "cause", "old_count", "new_count", "modules"))
    rows = (
        (*(getattr(group, item.name) for item in plain), change.gpu, old_ns, new_ns)
        for group in comparison.groups
        for change, old_ns, new_ns in zip(comparison.gpus, group.old_ns, group.new_ns, strict=True)
    )
    times = build_fields(("old_ns", "new_ns"), float)
    return FieldTable(fields=(*plain, Field(name="gpu", kind=str), *times), rows=tuple(rows))
