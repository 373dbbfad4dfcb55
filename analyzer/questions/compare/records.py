"""A comparison for programs: JSON, and rows of GPUs and of changes on each; docs/compare.md documents them."""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from ...page.encoding import attributes, encode_json
from ...page.energy import energy_record, energy_table
from ...page.table import Field, FieldTable, build_fields, fields_of, join_tables, table_of
from .report import COMPARISON_FORMAT, COMPARISON_VERSION, ChangeGroup, Comparison, GpuChange

GPU_FIELDS: Final = tuple(item.name for item in fields(GpuChange) if not item.name.endswith("_energy"))
"""Attributes of a GPU's change that are plain values."""


def draw_comparison_json(comparison: Comparison, *, max_slowdown: float | None, exit_status: int) -> str:
    """Write a comparison as JSON: times in ns, changes as ratios, null where nothing is known."""
    gpus = [
        {
            **attributes(gpu, (*GPU_FIELDS, "change")),
            "verdict": None if max_slowdown is None else gpu.verdict(max_slowdown),
            "old_energy": energy_record(gpu.old_energy),
            "new_energy": energy_record(gpu.new_energy),
            "energy_change": gpu.energy_change,
        }
        for gpu in comparison.gpus
    ]
    head = {"format": COMPARISON_FORMAT, "version": COMPARISON_VERSION, "exit_status": exit_status}
    return encode_json({**head, **attributes(comparison), "gpus": gpus, "memory_growth": comparison.memory_growth})


def changed_gpu_table(comparison: Comparison) -> FieldTable:
    """Return one row per GPU: times in ns, changes as ratios."""
    gpus = comparison.gpus
    return join_tables(
        table_of(gpus, GpuChange, [*GPU_FIELDS, "change", "no_longer_fits", "energy_change"]),
        energy_table((gpu.old_energy for gpu in gpus), "old_"),
        energy_table((gpu.new_energy for gpu in gpus), "new_"),
    )


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
