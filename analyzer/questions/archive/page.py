"""An archive in words and sheets, as JSON and as CSV."""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import asdict

from ....formats.archive.entry import Entry
from ....formats.archive.verify import Verification
from ....formats.trace.printable import clean_text
from ...page.columns import number_column, text_column, time_column
from ...page.encoding import encode_csv, encode_json
from ...page.page import Page, build_page, facts, opening, warnings
from ...page.quantity import common_time_unit, format_bytes, format_count, format_time
from ...page.sheet import Sheet, drop_empty_columns

ARCHIVE_FORMAT: Final = "wavecast.archive"
ARCHIVE_VERSION: Final = "1.0"
_DAY: Final = len("2026-10-31")


def describe_entries(entries: Sequence[Entry]) -> Page:
    """Put entries into a table, in their own order."""
    if not entries:
        return build_page(opening(["No trace: the archive holds none that is asked for."]))
    unit = common_time_unit(entry.iteration_ns for entry in entries if entry.iteration_ns)
    columns = (
        text_column("id", (entry.short_id for entry in entries)),
        text_column("workload", (_text(entry.workload or entry.model) for entry in entries), min_width=12),
        text_column("mode", (_text(entry.mode) for entry in entries), rank=3),
        text_column("GPU", (clean_text(entry.gpu) if entry.gpu else f"({entry.capture})" for entry in entries), rank=1),
        number_column(
            "batch", ("" if (size := entry.batch_size) is None else f"{size:,}" for entry in entries), rank=2
        ),
        text_column("precision", (_text(entry.precision) for entry in entries), rank=3),
        time_column("iteration", (entry.iteration_ns for entry in entries), unit, rank=1),
        text_column("date", (entry.date[:_DAY] for entry in entries), rank=2),
        text_column("tags", (clean_text(" ".join(entry.tags)) for entry in entries)),
    )
    return build_page(drop_empty_columns(Sheet(title="", columns=columns)))


def describe_entry(entry: Entry) -> Page:
    """Put all that an archive knows of one trace into words."""
    return build_page(facts((label, clean_text(text)) for label, text in _entry_facts(entry)))


def describe_verification(found: Verification, location: str, seconds: float) -> Page:
    """Say what a check read, and what is wrong."""
    rate = f", {format_bytes(found.unpacked_bytes / seconds)} of content a second" if seconds > 0 else ""
    size = format_bytes(found.packed_bytes)
    lead = f"{clean_text(location)}: {format_count(found.trace_count, 'trace')} checked, {size}"
    verdict = "all whole." if found.is_sound else "NOT ALL WHOLE."
    lines = [f"{item.fault.value}: {clean_text(item.name)}: {clean_text(item.text)}" for item in found.findings]
    return build_page(opening([f"{lead}{rate}: {verdict}"]), warnings(lines))


def draw_entries_json(entries: Sequence[Entry]) -> str:
    """Write entries as JSON, times in ns, sizes in bytes."""
    document = {"format": ARCHIVE_FORMAT, "version": ARCHIVE_VERSION, "entries": [asdict(entry) for entry in entries]}
    return encode_json(document)


def draw_verification_json(found: Verification) -> str:
    """Write what a check found as JSON, sizes in bytes."""
    items = [{"fault": item.fault.value, "name": item.name, "text": item.text} for item in found.findings]
    counts = {"trace_count": found.trace_count, "packed_bytes": found.packed_bytes, "is_sound": found.is_sound}
    return encode_json(
        {"format": "wavecast.archive_verification", "version": ARCHIVE_VERSION, **counts, "findings": items}
    )


def draw_entries_csv(entries: Sequence[Entry]) -> str:
    """Write one row per entry."""
    names = Entry.__struct_fields__
    cells = ([getattr(entry, name) for name in names] for entry in entries)
    return encode_csv(names, ([" ".join(cell) if isinstance(cell, tuple) else cell for cell in row] for row in cells))


def _text(value: str | None) -> str:
    return clean_text(value or "")


def _entry_facts(entry: Entry) -> Iterator[tuple[str, str]]:
    yield "id", entry.id
    known = {
        "workload": entry.workload,
        "model": entry.model if entry.model != entry.workload else None,
        "mode": entry.mode,
        "GPU": entry.gpu,
        "recording": entry.capture,
        "framework": entry.framework,
        "recorded": entry.recorded,
        "added": f"{entry.added} by {entry.tool}",
        "precision": entry.precision,
        "tags": " ".join(entry.tags),
        "note": entry.note,
    }
    yield from ((label, text) for label, text in known.items() if text)
    if entry.iteration_ns:
        yield "iteration", f"{format_time(entry.iteration_ns)}, median of {entry.iteration_count}"
    counts = {"batch": entry.batch_size, "sequence length": entry.sequence_length, "rank": entry.rank}
    yield from ((label, f"{count:,}") for label, count in counts.items() if count is not None)
    if entry.world_size:
        yield "ranks", f"{entry.world_size:,}"
    yield "holds", f"{format_count(entry.op_count, 'op')}, {format_count(entry.kernel_count, 'kernel')}"
    yield "size", f"{format_bytes(entry.packed_bytes)} packed, {format_bytes(entry.unpacked_bytes)} unpacked"
    name = f"{entry.source_name}, " if entry.source_name else ""
    digest = f", sha256 {entry.source_sha256}" if entry.source_sha256 else ""
    yield "source", f"{name}{entry.source_format}{digest}"
