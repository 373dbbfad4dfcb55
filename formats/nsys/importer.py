"""Imports SQLite exports: Nsight Systems' here, rocprofv3's (rocpd) where the tables are its own.

Reads what the host did: calls of CUDA's runtime and driver, waits, and the ranges of NVTX.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from ...arrays import Mask, Rows, at_rows
from ...errors import TraceError
from ...records import dataclass
from ..files.database import NULL, Batch, Database, open_database
from ..files.source import ImportSource, ReadOptions
from ..recording.builder import RecordingBuilder
from ..recording.dtypes import assemble_ranges
from ..recording.nesting import last_before
from ..recording.ranges import RangeCollector
from ..recording.rows import MAX_INT32, CallRows, SpanRows, SyncRows, launching_calls, make_rows, up_to
from ..trace.column import MISSING
from ..trace.privacy import hide_private
from ..trace.tables import Device, SyncKind, Trace
from .gpu import GRAPHS, KERNELS, Activities, Strings, add_activities, process_of, read_activities, take, usable

CALLS: Final = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
WAITS: Final = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
EVENTS: Final = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
RANGES: Final = "NVTX_EVENTS"
_CALL_COLUMNS: Final = ("start", "end", "eventClass", "globalTid", "correlationId", "nameId")
_WAIT_COLUMNS: Final = ("start", "end", "contextId", "streamId", "correlationId", "globalPid", "syncType", "eventId")
_EVENT_COLUMNS: Final = ("contextId", "streamId", "correlationId", "globalPid", "eventId")
_RANGE_COLUMNS: Final = ("start", "end", "eventType", "textId", "globalTid", "endGlobalTid", "domainId")
_BACKTRACES: Final = range(67, 70)
"""Event classes of rows that repeat calls, for their stacks."""
_VERSION: Final = re.compile(r"(?:_pt[sd][zs])?_v\d{4,}\Z")
"""Ends the names of runtime calls: the version of CUDA that has the call of this form, 7000 for 7.0."""
_SYNC_KINDS: Final = {1: SyncKind.EVENT, 2: SyncKind.STREAM_WAIT_EVENT, 3: SyncKind.STREAM, 4: SyncKind.DEVICE}
"""By `syncType` (ENUM_CUPTI_SYNC_TYPE)."""
_PUSH_POP: Final = (59, 70)
_START_END: Final = (60, 71)
_DOMAIN: Final = 75
"""Event types (ENUM_NSYS_EVENT_TYPE): ranges of a thread, ranges that may end on another, the name of a domain."""
_LIBRARIES: Final = re.compile(
    r"(?:nccl|mpi|ucx|nvshmem|cublas|cudnn|cufft|curand|cusolver|cusparse|cutensor|cub\b|cccl|thrust|libcu|openacc|dali)",
    re.IGNORECASE,
)
"""Domains of libraries: their ranges lie inside ops and are no modules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCalls:
    """Hold the rows of calls, those of all processes."""

    columns: dict[str, Rows]

    @property
    def processes(self) -> Rows:
        """Return the process of each call."""
        return process_of(self.columns["globalTid"])


def read_calls(database: Database) -> RecordedCalls:
    """Read the calls of runtime and driver."""
    tables = [database.read_integers(table, _CALL_COLUMNS) for table in CALLS]
    columns = {name: np.concatenate([table[name] for table in tables]) for name in _CALL_COLUMNS}
    return RecordedCalls(columns=take(columns, ~np.isin(columns["eventClass"], _BACKTRACES)))


def add_calls(builder: RecordingBuilder, calls: RecordedCalls, chosen: Mask, strings: Strings) -> CallRows:
    """Give the builder the chosen calls, and return them."""
    good = usable(calls.columns)
    builder.events_dropped += int(np.sum(chosen & ~good))
    rows = take(calls.columns, chosen & good)
    numbers, which = np.unique(rows["nameId"], return_inverse=True)
    texts = [_VERSION.sub("", strings.get(number)) or "unknown call" for number in numbers.tolist()]
    found = make_rows(
        CallRows,
        len(which),
        name=builder.names.number(texts)[which],
        thread=number_threads(builder, rows["globalTid"]),
        start_ns=rows["start"],
        duration_ns=rows["end"] - rows["start"],
        correlation=rows["correlationId"],
    )
    builder.add(found)
    return found


def number_threads(builder: RecordingBuilder, identifier: Rows) -> Rows:
    """Return the number of each thread."""
    distinct, which = np.unique(identifier, return_inverse=True)
    return builder.threads.number(distinct.tolist())[which]


def add_waits(builder: RecordingBuilder, database: Database, process: int) -> None:
    """Give the builder the waits of a process; those of an unknown kind are counted."""
    columns = database.read_integers(WAITS, _WAIT_COLUMNS)
    chosen = _of_process(columns["globalPid"], process)
    kinds = np.full(len(chosen), MISSING, dtype=np.int64)
    for code, kind in _SYNC_KINDS.items():
        kinds[columns["syncType"] == code] = int(kind)
    good = usable(columns) & (kinds != MISSING)
    builder.events_dropped += int(np.sum(chosen & ~good))
    rows, kind = take(columns, chosen & good), kinds[chosen & good]
    waited_stream, recorded_by = _find_records(database, rows, process)
    builder.add(
        SyncRows(
            kind=kind,
            start_ns=rows["start"],
            duration_ns=rows["end"] - rows["start"],
            correlation=rows["correlationId"],
            stream=up_to(rows["streamId"], MAX_INT32 - 1),
            waited_stream=up_to(waited_stream, MAX_INT32 - 1),
            record_correlation=recorded_by,
        )
    )


def _find_records(database: Database, waits: dict[str, Rows], process: int) -> tuple[Rows, Rows]:
    """Return the stream that recorded the event of each wait, and the id of the call: the last one before the wait."""
    events = database.read_integers(EVENTS, _EVENT_COLUMNS)
    events = take(events, _of_process(events["globalPid"], process) & (events["eventId"] != NULL))
    keys = [np.stack([rows["contextId"], rows["eventId"]], axis=1) for rows in (events, waits)]
    _, group = np.unique(np.concatenate(keys), axis=0, return_inverse=True)
    group = group.reshape(-1)
    order = np.lexsort((events["correlationId"], group[: len(keys[0])]))
    at = last_before(
        group[: len(keys[0])][order], events["correlationId"][order], group[len(keys[0]) :], waits["correlationId"]
    )
    index = at_rows(order, at)
    stream, correlation = (at_rows(events[name], index) for name in ("streamId", "correlationId"))
    return stream, np.maximum(correlation, MISSING)


def add_ranges(builder: RecordingBuilder, database: Database, process: int, launches: SpanRows) -> None:
    """Give the builder the ops, modules and steps that the ranges of a process are."""
    collector = RangeCollector(builder)
    libraries = _library_domains(database, process)
    numbered = database.read_integers(RANGES, ("textId",))["textId"]
    strings = Strings(database, numbered)
    for batch in database.read(RANGES, _RANGE_COLUMNS, ("text",)):
        _add_batch(builder, collector, batch, strings, process, libraries)
    collector.finish(launches)


def _add_batch(
    builder: RecordingBuilder,
    collector: RangeCollector,
    batch: Batch,
    strings: Strings,
    process: int,
    libraries: frozenset[int],
) -> None:
    columns = batch.integers
    kind, end_thread = columns["eventType"], columns["endGlobalTid"]
    same_thread = (end_thread == NULL) | (end_thread == columns["globalTid"])
    is_range = (
        (process_of(columns["globalTid"]) == process)
        & (np.isin(kind, _PUSH_POP) | (np.isin(kind, _START_END) & same_thread) | ((kind == NULL) & same_thread))
        & ~np.isin(columns["domainId"], sorted(libraries))
    )
    good = usable(columns)
    builder.events_dropped += int(np.sum(is_range & ~good))
    index = np.flatnonzero(is_range & good)
    own, numbers = batch.texts["text"], columns["textId"].tolist()
    found = [own[row] or strings.get(numbers[row]) for row in index.tolist()]
    start = columns["start"][index]
    collector.add(found, number_threads(builder, columns["globalTid"][index]), start, columns["end"][index] - start)


def _library_domains(database: Database, process: int) -> frozenset[int]:
    found = set()
    for batch in database.read(RANGES, ("eventType", "globalTid", "domainId", "textId"), ("text",)):
        columns = batch.integers
        is_name = (columns["eventType"] == _DOMAIN) & (process_of(columns["globalTid"]) == process)
        for row in np.flatnonzero(is_name).tolist():
            if _LIBRARIES.match(batch.texts["text"][row] or ""):
                found.add(int(columns["domainId"][row]))
    return frozenset(found)


def _of_process(identifier: Rows, process: int) -> Mask:
    chosen: Mask = (identifier == NULL) | (process_of(identifier) == process)
    return chosen


_OWN_TABLES: Final = frozenset({KERNELS, GRAPHS, RANGES, *CALLS, "CUPTI_ACTIVITY_KIND_MEMCPY", "TARGET_INFO_GPU"})
_MOST_LISTED: Final = 5
TABLE: Final = "TARGET_INFO_GPU"
_COLUMNS: Final = (
    "id", "cuDevice", "totalMemory", "clockRate", "smCount", "maxShmemPerBlock", "maxShmemPerBlockOptin",
    "maxShmemPerSm", "maxRegistersPerSm", "threadsPerWarp", "maxWarpsPerSm", "maxThreadsPerBlock", "computeMajor",
    "computeMinor",
)  # fmt: skip
_LARGEST: Final = 2**53


def read_sqlite(source: ImportSource, *, options: ReadOptions) -> Callable[[], Trace]:
    """Read an SQLite export, whose tables tell which tool wrote it, and return what builds its trace."""
    from ..rocprof.rocpd import is_rocpd, read_rocpd

    del options  # the whole file is read
    source.read()
    with source.on_disk() as path, open_database(path) as database:
        source.release()
        if is_rocpd(database):
            return read_rocpd(database)
        if _OWN_TABLES.isdisjoint(database.tables):
            raise TraceError(_describe_others(database))
        return _read_nsys(database)


def _describe_others(database: Database) -> str:
    listed = [name for name in database.tables if name.isidentifier()][:_MOST_LISTED]
    tables = f"its tables: {', '.join(listed)}" if listed else "it has no tables"
    return (
        "found an SQLite database that is neither an Nsight Systems export (`nsys export --type sqlite`) nor one of "
        f"rocprofv3's ({tables})"
    )


def _read_nsys(database: Database) -> Callable[[], Trace]:
    if KERNELS in database.tables and "StringIds" not in database.tables:
        raise TraceError("the export lacks the table StringIds, which names kernels and calls: export it again")
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
    launching = [columns["correlationId"][chosen[table]] for table, columns in activities.tables.items()]
    add_ranges(builder, database, process, launching_calls(rows, np.concatenate(launching)))
    used = [activities.tables[table]["deviceId"][rows] for table, rows in chosen.items()]
    devices = read_devices(database, frozenset(np.maximum(np.concatenate(used), 0).tolist()))
    graph_count = int(np.sum(chosen[GRAPHS]))

    return partial(
        assemble_ranges,
        builder,
        nothing="found an Nsight Systems export without a usable kernel, CUDA call or op; record with "
        "`nsys profile --trace=cuda,nvtx`",
        devices=devices,
        quality={"graphs_without_kernels": graph_count, "processes_left_out": other_count},
        producer="Nsight Systems",
        source_format="nsys",
        accelerator="cuda",
    )


def _is_of(processes: Rows, process: int) -> Mask:
    chosen: Mask = (processes == process) | (processes == NULL)
    return chosen


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


def read_devices(database: Database, used: frozenset[int]) -> tuple[Device, ...]:
    """Return the GPUs that ran something, by the number that CUDA gives them; the only one listed where none did.

    Kernels carry CUDA's number (`cuDevice`), which differs from the tool's own (`id`) where devices were chosen.
    """
    rows: list[dict[str, int | None]] = []
    names: list[str] = []
    for batch in database.read(TABLE, _COLUMNS, ("name",)):
        for row, name in enumerate(batch.texts["name"]):
            rows.append({column: _known(int(batch.integers[column][row])) for column in _COLUMNS})
            names.append(hide_private(name or "unknown GPU"))
    numbers = [row["cuDevice"] for row in rows]
    key = "cuDevice" if None not in numbers and len(set(numbers)) == len(numbers) else "id"
    found = {row[key]: _device(row, name, row[key] or 0) for row, name in zip(rows, names, strict=True)}
    chosen = [found[number] for number in sorted(used) if number in found]
    if not chosen and len(found) == 1:
        number = min(used, default=0) if len(used) == 1 else rows[0][key] or 0
        return (_device(rows[0], names[0], number),)
    return tuple(chosen)


def _known(value: int) -> int | None:
    return None if value == NULL or not 0 <= value <= _LARGEST else value


def _device(row: dict[str, int | None], name: str, index: int) -> Device:
    major, minor = row["computeMajor"], row["computeMinor"]
    warps, width = row["maxWarpsPerSm"], row["threadsPerWarp"]
    return Device(
        index=index,
        name=name,
        compute_capability=None if major is None or minor is None else f"{major}.{minor}",
        sm_count=row["smCount"] or None,
        memory_bytes=row["totalMemory"] or None,
        warp_size=width or None,
        max_threads_per_block=row["maxThreadsPerBlock"] or None,
        max_threads_per_sm=_known(warps * width) if warps and width else None,
        registers_per_sm=row["maxRegistersPerSm"] or None,
        shared_memory_per_sm_bytes=row["maxShmemPerSm"] or None,
        shared_memory_per_block_bytes=row["maxShmemPerBlockOptin"] or row["maxShmemPerBlock"] or None,
        sm_clock_hz=float(row["clockRate"]) if row["clockRate"] else None,
    )
