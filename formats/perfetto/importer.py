"""Imports `.pftrace` files of torch's profiler: the same events as its JSON, in Perfetto's packets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec

from ...errors import TraceError
from ..files.importers import Progress
from ..files.source import ImportSource, ReadOptions
from ..kineto import begin_import
from ..trace.tables import Trace
from .packets import Event, PacketReader


def read_perfetto(
    source: ImportSource,
    *,
    options: ReadOptions,  # noqa: ARG001 (what is left of a damaged file of packets is not read)
    progress: Progress | None = None,
) -> Callable[[], Trace]:
    """Read all packets and return what builds the trace, as every importer does.

    Raises TraceError where the file is cut off, or holds nothing that torch's profiler writes.
    """
    reader = PacketReader()
    reader.read(source.read())
    source.release()
    events = [event for event in reader.events if event.get("cat")]
    if not events:
        raise TraceError(
            "the Perfetto trace holds no ops, calls or kernels as torch's profiler writes them: export JSON instead, "
            "to a path that ends in .json or .json.gz"
        )
    build = begin_import(_as_json(events), progress=progress)
    unended = reader.unended_count

    def assemble() -> Trace:
        trace = build()
        quality = replace(trace.quality, events_dropped=trace.quality.events_dropped + unended)
        return replace(trace, quality=quality, meta=replace(trace.meta, source_format="perfetto"))

    return assemble


def _as_json(events: list[Event]) -> bytes:
    """Return the events as the profiler's JSON holds them, times in µs since the first, by their digits."""
    first = min(event["start_ns"] for event in events)
    for event in events:
        event["ts"] = _microseconds(event.pop("start_ns") - first)
        event["dur"] = _microseconds(event.pop("lasting_ns"))
    return msgspec.json.encode({"traceEvents": events})


def _microseconds(time_ns: int) -> str:
    sign = "-" if time_ns < 0 else ""
    return f"{sign}{abs(time_ns) // 1000}.{abs(time_ns) % 1000:03d}"
