"""A comparison as rows: of GPUs, and of changes on each."""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from ...page.energy import energy_cells, energy_fields
from ...page.table import Field, FieldTable, build_fields, fields_of, table_of
from .report import ChangeGroup, Comparison, GpuChange

GPU_FIELDS: Final = tuple(item.name for item in fields(GpuChange) if not item.name.endswith("_energy"))
"""Attributes of a GPU's change that are plain values."""


def changed_gpu_table(comparison: Comparison) -> FieldTable:
    """Return one row per GPU: times in ns, changes as ratios."""
    table = table_of(comparison.gpus, GpuChange, [*GPU_FIELDS, "change", "no_longer_fits", "energy_change"])
    both = [Field(name=f"{which}_{item.name}", kind=item.kind) for which in ("old", "new") for item in energy_fields()]
    rows = (
        (*row, *energy_cells(gpu.old_energy), *energy_cells(gpu.new_energy))
        for row, gpu in zip(table.rows, comparison.gpus, strict=True)
    )
    return FieldTable(fields=(*table.fields, *both), rows=tuple(rows))


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
