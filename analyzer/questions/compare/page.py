"""A comparison of two traces in words and sheets, as JSON and as tables."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Final

from ....formats.trace.printable import clean_text
from ...iteration.decision.electricity import JobEnergy
from ...page.columns import change_column, number_column, text_column, time_column
from ...page.encoding import Field, FieldTable, attributes, build_fields, encode_json, fields_of, join_tables, table_of
from ...page.energy import energy_note, energy_record, energy_table
from ...page.page import Page, build_page, facts, notes, opening, warnings
from ...page.quantity import (
    common_time_unit,
    format_bytes,
    format_change,
    format_count,
    format_money,
    format_number,
    signed_time,
)
from ...page.sheet import Sheet, SheetColumn, drop_empty_columns
from .report import LEAST_CHANGE, ChangeGroup, Comparison, GpuChange, Verdict

CAUSES: int = 6
"""Named in words; the table and JSON hold more."""


def describe_comparison(
    comparison: Comparison,
    *,
    old_name: str,
    new_name: str,
    max_slowdown: float | None = None,
    mark: str = "",
    top: int | None = 20,
) -> Page:
    """Put a comparison into words; the names are those of the two files, `mark` says what a gate makes of it."""
    sheets = (_gpu_sheet(comparison, max_slowdown), _group_sheet(comparison, top))
    worst = max(comparison.gpus, key=lambda gpu: gpu.change)
    said = f"{abs(worst.change):.1%} {'slower' if worst.change > 0 else 'faster'}".replace("%", " %")
    said = f"{said}, not certain," if worst.may_be_none else said
    said = said if abs(worst.change) >= LEAST_CHANGE else "as fast as before"
    lost = [gpu.gpu for gpu in comparison.gpus if gpu.no_longer_fits and not gpu.is_tight]
    doubtful = [gpu.gpu for gpu in comparison.gpus if gpu.no_longer_fits and gpu.is_tight]
    fits = f"; no longer fits {', '.join(lost)}" if lost else ""
    may_fit = f"; may no longer fit {', '.join(doubtful)}" if doubtful else ""
    return build_page(
        opening([f"{mark}{said} on {worst.gpu}{fits}{may_fit}"]),
        facts(_facts(comparison, clean_text(old_name), clean_text(new_name))),
        *(sheet for sheet in sheets if sheet.row_count),
        notes(_notes(comparison)),
        warnings(comparison.warnings),
    )


def _facts(comparison: Comparison, old_name: str, new_name: str) -> Iterator[tuple[str, str]]:
    yield "old", f"{old_name}, {format_count(comparison.old_count, 'op')}"
    yield "new", f"{new_name}, {format_count(comparison.new_count, 'op')}, {comparison.same_count:,} of them unchanged"
    if not comparison.groups:
        yield "changed", "nothing: the same ops on the same sizes"
    for group in comparison.groups[:CAUSES]:
        yield "changed", clean_text(group.cause)
    if comparison.old_peak_bytes is not None and comparison.new_peak_bytes is not None:
        peaks = f"{format_bytes(comparison.old_peak_bytes)} → {format_bytes(comparison.new_peak_bytes)}"
        yield "peak memory", f"{peaks} ({format_change(comparison.memory_growth)})"


def _gpu_sheet(comparison: Comparison, limit: float | None) -> Sheet:
    rows = comparison.gpus
    unit = common_time_unit(row.old_ns for row in rows)
    ends = (
        "unknown"
        if row.change_low is None or row.change_high is None
        else f"{format_change(row.change_low)} to {format_change(row.change_high)}"
        for row in rows
    )
    columns = (
        text_column("GPU", (row.gpu for row in rows)),
        time_column("old", (row.old_ns for row in rows), unit),
        time_column("new", (row.new_ns for row in rows), unit),
        change_column("change", (row.change for row in rows)),
        number_column("90 % interval", ends),
        *_energy_columns(comparison),
        text_column("basis", map(_basis, rows)),
        text_column("fits", map(_fits, rows)),
        text_column("verdict", (_verdict(row, limit) for row in rows)),
    )
    return drop_empty_columns(Sheet(title="Iteration", columns=columns))


def _energy_columns(comparison: Comparison) -> Iterator[SheetColumn]:
    """Yield what iterations take, and what that costs in a day, where electricity is asked about."""
    if comparison.electricity is None:
        return
    rows = comparison.gpus
    for which in ("old", "new"):
        energies = [getattr(row, f"{which}_energy") for row in rows]
        yield number_column(f"{which}\nJ", (format_number(item.billed_j) for item in energies))
    yield change_column("energy", (row.energy_change for row in rows))
    if comparison.electricity.usd_per_kwh is not None:
        changes = [_usd_per_1000(row.new_energy) - _usd_per_1000(row.old_energy) for row in rows]
        cells = (f"{'+' if item >= 0 else '−'}{format_money(abs(item))}" for item in changes)
        yield number_column("power of\n1,000 it.", cells, rank=1)


def _usd_per_1000(energy: JobEnergy) -> float:
    return 1000.0 * (energy.electricity_usd or 0.0)


def _basis(row: GpuChange) -> str:
    words = ["measured" if flag else "predicted" for flag in (row.old_measured, row.new_measured)]
    return words[0] if words[0] == words[1] else " / ".join(words)


def _fits(row: GpuChange) -> str:
    words = {True: "yes", False: "no", None: "?"}
    one, other = words[row.old_fits], words[row.new_fits]
    return (one if one == other else f"{one} → {other}") + (" (tight)" if row.is_tight else "")


def _verdict(row: GpuChange, limit: float | None) -> str:
    if limit is None:
        return ""
    words = {Verdict.PASSED: "✓", Verdict.UNCERTAIN: "may be slower, not certain", Verdict.FAILED: "✗ slower"}
    return words[row.verdict(limit)]


def _group_sheet(comparison: Comparison, top: int | None) -> Sheet:
    rows = comparison.groups[:top]
    gpu = comparison.gpus[0]
    unit = common_time_unit(max(row.old_ns[0], row.new_ns[0]) for row in rows)
    columns = (
        text_column("what changed", (clean_text(row.cause) for row in rows), wraps=True, min_width=24),
        number_column("ops", (f"{row.old_count:,} → {row.new_count:,}" for row in rows)),
        time_column("old", (row.old_ns[0] for row in rows), unit),
        time_column("new", (row.new_ns[0] for row in rows), unit),
        change_column("of the\niteration", ((row.new_ns[0] - row.old_ns[0]) / gpu.old_ns for row in rows)),
        text_column("modules", (clean_text(", ".join(row.modules[:2])) for row in rows), rank=2),
    )
    return Sheet(title=f"Kernel time by cause on {gpu.gpu}", columns=columns, folded=True)


def _notes(comparison: Comparison) -> Iterator[str]:
    gpu = comparison.gpus[0]
    same = gpu.same_new_ns - gpu.same_old_ns
    yield (
        f"Unexplained on {gpu.gpu}: ops that did not change take {signed_time(same)} (clocks, noise); waits, launches "
        f"and overlap make {signed_time(gpu.rest_ns)}."
    )
    yield "The interval is that of new over old: errors that both predictions share cancel (docs/reference/compare.md)."
    if comparison.electricity is not None:
        yield energy_note(comparison.electricity)


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
    head = {"format": "wavecast.comparison", "version": "1.0", "exit_status": exit_status}
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
