"""Imports SQLite exports: Nsight Systems' here, rocprofv3's (rocpd) where the tables are its own."""

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from ...arrays import Mask, Rows
from ...errors import TraceError
from ..files.database import NULL, Database, open_database
from ..files.source import ImportSource, ReadOptions
from ..recording.builder import RecordingBuilder
from ..recording.dtypes import assemble_ranges
from ..recording.rows import launching_calls
from ..trace.privacy import hide_private
from ..trace.tables import Device, Trace
from .gpu import GRAPHS, KERNELS, Activities, Strings, add_activities, process_of, read_activities
from .host import CALLS, RANGES, RecordedCalls, add_calls, add_ranges, add_waits, read_calls

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
