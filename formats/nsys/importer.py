"""Imports SQLite exports: Nsight Systems' here, rocprofv3's (rocpd) where the tables are its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ...arrays import Mask, Rows
from ...errors import TraceError
from ..files.database import NULL, Database, open_database
from ..files.source import ImportSource, ReadOptions
from ..recording.assemble import assemble
from ..recording.builder import RecordingBuilder
from ..recording.dtypes import infer_dtypes
from ..recording.rows import CallRows, SpanRows, row_count
from ..recording.settle import Recording, finish
from ..recording.sizes import read_sizes
from ..trace.tables import Device, Trace
from .devices import read_devices
from .gpu import GRAPHS, KERNELS, Activities, add_activities, process_of, read_activities
from .host import CALLS, RANGES, RecordedCalls, add_calls, add_ranges, add_waits, read_calls
from .strings import Strings

_OWN_TABLES: Final = frozenset({KERNELS, GRAPHS, RANGES, *CALLS, "CUPTI_ACTIVITY_KIND_MEMCPY", "TARGET_INFO_GPU"})
_MOST_LISTED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Hold what was read of a file."""

    builder: RecordingBuilder
    devices: tuple[Device, ...]
    graph_count: int
    processes_left_out: int


def read_sqlite(
    source: ImportSource, *, options: ReadOptions, progress: Callable[[int, int], None] | None = None
) -> Callable[[], Trace]:
    """Read an SQLite export, whose tables tell which tool wrote it, and return what builds its trace."""
    from ..rocprof.rocpd import is_rocpd, read_rocpd

    del options  # the whole file is read
    size = len(source.read())
    with source.on_disk() as path, open_database(path) as database:
        source.release()
        if is_rocpd(database):
            build = read_rocpd(database)
        elif _OWN_TABLES.isdisjoint(database.tables):
            raise TraceError(_describe_others(database))
        else:
            build = _read_nsys(database)
    if progress is not None:
        progress(size, size)
    return build


def _describe_others(database: Database) -> str:
    listed = [name for name in database.tables if name.isidentifier()][:_MOST_LISTED]
    tables = f"its tables: {', '.join(listed)}" if listed else "it has no tables"
    return (
        "found an SQLite database that is neither an Nsight Systems export (`nsys export --type sqlite`) nor one of "
        f"rocprofv3's ({tables})"
    )


def _read_nsys(database: Database) -> Callable[[], Trace]:
    found = _collect(database)

    def build() -> Trace:
        return _assemble(found, finish(found.builder))

    return build


def _collect(database: Database) -> _Found:
    builder = RecordingBuilder()
    activities, calls = read_activities(database), read_calls(database)
    process, other_count = _choose_process(activities, calls, database)
    chosen = {table: _is_of(activities.processes(table), process) for table in activities.tables}
    chosen_calls = _is_of(calls.processes, process)
    kernels = activities.tables[KERNELS]
    names = [kernels[name][chosen[KERNELS]] for name in ("demangledName", "shortName", "name")]
    strings = Strings(database, calls.columns["nameId"][chosen_calls], *names)
    add_activities(builder, activities, chosen, strings)
    rows = add_calls(builder, calls, chosen_calls, strings)
    add_waits(builder, database, process)
    add_ranges(builder, database, process, _launches(rows, activities, chosen))
    used = frozenset(int(number) for table in chosen for number in _devices_of(activities, table, chosen[table]))
    return _Found(
        builder=builder,
        devices=read_devices(database, used),
        graph_count=int(np.sum(chosen[GRAPHS])),
        processes_left_out=other_count,
    )


def _is_of(processes: Rows, process: int) -> Mask:
    chosen: Mask = (processes == process) | (processes == NULL)
    return chosen


def _devices_of(activities: Activities, table: str, chosen: Mask) -> Rows:
    return np.maximum(np.unique(activities.tables[table]["deviceId"][chosen]), 0)


def _choose_process(activities: Activities, calls: RecordedCalls, database: Database) -> tuple[int, int]:
    """Return the process whose work on GPUs lasts longest, and how many others worked on GPUs.

    A report of several ranks is one of several processes; a trace is one rank's. Without work on GPUs it is the process
    with most calls, without calls the one with most ranges.
    """
    totals: dict[int, float] = {}
    for table, columns in activities.tables.items():
        processes = activities.processes(table)
        spans = np.clip(columns["end"].astype(np.float64) - columns["start"], 0, 2.0**61)
        distinct, which = np.unique(processes, return_inverse=True)
        for process, total in zip(distinct.tolist(), np.bincount(which, weights=spans).tolist(), strict=True):
            totals[process] = totals.get(process, 0.0) + total
    totals.pop(NULL, None)
    if totals:
        return max(totals, key=lambda process: (totals[process], -process)), len(totals) - 1
    processes = calls.processes
    if not len(processes):
        processes = process_of(database.read_integers(RANGES, ("globalTid",))["globalTid"])
    distinct, counts = np.unique(processes[processes != NULL], return_counts=True)
    return (int(distinct[counts.argmax()]) if len(distinct) else 0), 0


def _launches(calls: CallRows, activities: Activities, chosen: dict[str, Mask]) -> SpanRows:
    """Return the calls that made a GPU work."""
    numbers = [columns["correlationId"][chosen[table]] for table, columns in activities.tables.items()]
    index = np.flatnonzero(np.isin(calls.correlation, np.unique(np.concatenate(numbers))) & (calls.correlation > 0))
    return SpanRows(
        name=calls.name[index],
        thread=calls.thread[index],
        start_ns=calls.start_ns[index],
        duration_ns=calls.duration_ns[index],
    )


def _assemble(found: _Found, recording: Recording) -> Trace:
    if not any(map(row_count, (recording.ops, recording.calls, recording.kernels))):
        raise TraceError(
            "found an Nsight Systems export without a usable kernel, CUDA call or op; record with "
            "`nsys profile --trace=cuda,nvtx`"
        )
    signatures, signature_of = read_sizes(tuple(found.builder.inputs))
    trace = assemble(recording, signatures=signatures, signature_of=signature_of)
    trace = infer_dtypes(replace(trace, strings=tuple(recording.names.texts)))
    return replace(
        trace,
        meta=replace(
            trace.meta,
            producer="Nsight Systems",
            source_format="nsys",
            capture="measured" if row_count(recording.kernels) else "host",
            accelerator="cuda",
        ),
        devices=found.devices,
        quality=replace(
            trace.quality,
            graphs_without_kernels=found.graph_count,
            processes_left_out=found.processes_left_out,
        ),
    )
