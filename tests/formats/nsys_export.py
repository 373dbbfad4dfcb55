"""Writes what a PyTorch-profiler file holds as Nsight Systems would have exported it, with ranges of `emit_nvtx`.

Tables and columns are those of Nsight Systems 2024.5 (schema 3.13.2); ranges are written as torch 2.13 writes them.
So one workload stands in two files, and both must be predicted alike.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

Event = Mapping[str, Any]

PROCESS: Final = 0x1011997A5000000
"""A serialized process: machine and process in the upper 40 bits, no thread."""
SCHEMA: Final = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "TARGET_INFO_GPU": (
        "vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, totalMemory INTEGER, clockRate INTEGER, "
        "smCount INTEGER, cuDevice INTEGER, maxShmemPerBlock INTEGER, maxShmemPerBlockOptin INTEGER, "
        "maxShmemPerSm INTEGER, maxRegistersPerSm INTEGER, threadsPerWarp INTEGER, maxWarpsPerSm INTEGER, "
        "maxThreadsPerBlock INTEGER, computeMajor INTEGER, computeMinor INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
        "greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
        "demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER, "
        "cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, "
        "gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL, "
        "staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL, "
        "localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL, "
        "sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
        "greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
        "bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, deprecatedSrcId INTEGER, srcKind INTEGER, "
        "dstKind INTEGER, graphNodeId INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
        "greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
        "value INTEGER NOT NULL, bytes INTEGER NOT NULL, graphNodeId INTEGER, memKind INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
        "greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
        "graphId INTEGER NOT NULL, graphExecId INTEGER NOT NULL"
    ),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
        "greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
        "syncType INTEGER NOT NULL, eventId INTEGER NOT NULL"
    ),
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": (
        "deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, "
        "correlationId INTEGER, globalPid INTEGER, eventId INTEGER NOT NULL"
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER, "
        "correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER"
    ),
    "NVTX_EVENTS": (
        "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER, "
        "color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER"
    ),
}
_DIRECTIONS: Final = ("Unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
_MEMORIES: Final = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")
_SYNC_TYPES: Final = {
    "Event Sync": 1, "Event Synchronize": 1, "Stream Wait Event": 2, "Stream Sync": 3, "Stream Synchronize": 3,
    "Context Sync": 4, "Context Synchronize": 4, "Device Sync": 4,
}  # fmt: skip
_ENGINE: Final = "autograd::engine::evaluate_function"


class Export:
    """Own a database that is written; rows are records by column, of what is not given 0 where it must be."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path)
        self._strings: dict[str, int] = {}
        for table, columns in SCHEMA.items():
            self._connection.execute(f"CREATE TABLE {table} ({columns})")

    def string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings) + 1)

    def add(self, table: str, **values: object) -> None:
        for column in SCHEMA[table].split(", "):
            name = column.split()[0]
            if "NOT NULL" in column and name not in values:
                values[name] = 0
        names = ", ".join(values)
        places = ", ".join("?" * len(values))
        statement = f"INSERT INTO {table} ({names}) VALUES ({places})"  # noqa: S608 - names of SCHEMA
        self._connection.execute(statement, list(values.values()))

    def close(self) -> None:
        rows = [(number, text) for text, number in self._strings.items()]
        self._connection.executemany("INSERT INTO StringIds VALUES (?, ?)", rows)
        self._connection.commit()
        self._connection.close()


def convert(profile: Mapping[str, Any], path: Path, *, with_shapes: bool = True) -> None:
    """Write a profiler's document as an export."""
    export = Export(path)
    export.add("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="3.13.2")
    for device in profile.get("deviceProperties", ()):
        _add_device(export, device)
    threads: dict[Any, int] = {}
    for number, event in enumerate(profile["traceEvents"]):
        if event.get("ph") == "X" and "dur" in event:
            thread = threads.setdefault((event.get("pid"), event.get("tid")), len(threads) + 1)
            _add_event(export, event, PROCESS + thread, number + 1, with_shapes=with_shapes)
    export.close()


def _add_device(export: Export, device: Mapping[str, Any]) -> None:
    width = device["warpSize"]
    export.add(
        "TARGET_INFO_GPU",
        id=device["id"],
        cuDevice=device["id"],
        name=device["name"],
        totalMemory=device["totalGlobalMem"],
        smCount=device["numSms"],
        maxShmemPerBlock=device["sharedMemPerBlock"],
        maxShmemPerBlockOptin=device.get("sharedMemPerBlockOptin"),
        maxShmemPerSm=device.get("sharedMemPerMultiprocessor"),
        maxRegistersPerSm=device.get("regsPerMultiprocessor"),
        threadsPerWarp=width,
        maxWarpsPerSm=device["maxThreadsPerMultiprocessor"] // width,
        maxThreadsPerBlock=device["maxThreadsPerBlock"],
        computeMajor=device["computeMajor"],
        computeMinor=device["computeMinor"],
    )


def _add_event(export: Export, event: Event, thread: int, number: int, *, with_shapes: bool) -> None:
    category, args = event.get("cat"), event.get("args", {})
    start = int(Decimal(str(event["ts"])) * 1000)
    span = {"start": start, "end": start + int(Decimal(str(event["dur"])) * 1000)}
    if category == "cpu_op":
        text = _range(event["name"], args, number, with_shapes=with_shapes)
        export.add("NVTX_EVENTS", **span, eventType=59, text=text, globalTid=thread, domainId=0)
    elif category == "user_annotation":
        text = f"{event['name']}, op_id = {number}"
        export.add("NVTX_EVENTS", **span, eventType=59, text=text, globalTid=thread, domainId=0)
    elif category == "python_function" and event["name"].startswith("nn.Module: "):
        text = event["name"].removeprefix("nn.Module: ")
        export.add("NVTX_EVENTS", **span, eventType=59, text=text, globalTid=thread, domainId=0)
    elif category in ("cuda_runtime", "cuda_driver"):
        name = event["name"] + ("_v7000" if category == "cuda_runtime" else "")
        export.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            **span,
            eventClass=int(category == "cuda_driver"),
            globalTid=thread,
            correlationId=args.get("correlation"),
            nameId=export.string(name),
        )
    elif category in ("kernel", "gpu_memcpy", "gpu_memset"):
        _add_activity(export, event, category, args, span)
    elif category == "cuda_sync":
        export.add(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            **span,
            streamId=int(args.get("stream", 4294967295)),
            correlationId=args.get("correlation"),
            globalPid=PROCESS,
            syncType=_SYNC_TYPES.get(args.get("cuda_sync_kind") or event["name"], 0),
            eventId=args.get("wait_on_cuda_event_id", 4294967295),
        )


def _add_activity(
    export: Export, event: Event, category: str, args: Mapping[str, Any], span: Mapping[str, int]
) -> None:
    place = {
        "deviceId": args.get("device", 0),
        "contextId": args.get("context", 1),
        "streamId": args.get("stream", 0),
        "correlationId": args.get("correlation"),
        "globalPid": PROCESS,
    }
    if category == "kernel":
        export.add(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            **span,
            **place,
            demangledName=export.string(event["name"]),
            shortName=export.string(event["name"].partition("<")[0]),
            registersPerThread=args.get("registers per thread", 0),
            **{f"{name}{axis}": args[name][at] for name in ("grid", "block") for at, axis in enumerate("XYZ")},
            dynamicSharedMemory=args.get("shared memory", 0),
        )
    elif category == "gpu_memcpy":
        direction, source, target = _copy(event["name"])
        export.add(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            **span,
            **place,
            bytes=args.get("bytes", 0),
            copyKind=direction,
            srcKind=source,
            dstKind=target,
        )
    else:
        memory = event["name"].removeprefix("Memset (").removesuffix(")")
        kind = _MEMORIES.index(memory) if memory in _MEMORIES else 7
        export.add("CUPTI_ACTIVITY_KIND_MEMSET", **span, **place, bytes=args.get("bytes", 0), memKind=kind)


def _copy(name: str) -> tuple[int, int, int]:
    """Return the numbers of direction, source and target in a name like `Memcpy HtoD (Pageable -> Device)`."""
    _, direction, memories = name.split(" ", 2)
    source, _, target = memories.strip("()").partition(" -> ")
    numbers = (_MEMORIES.index(memory) if memory in _MEMORIES else 7 for memory in (source, target))
    return (_DIRECTIONS.index(direction) if direction in _DIRECTIONS else 0, *numbers)  # type: ignore[return-value]


def _range(name: str, args: Mapping[str, Any], number: int, *, with_shapes: bool) -> str:
    """Return what torch writes on the range of an op."""
    sequence = args.get("Sequence number", -1)
    text = name
    if sequence is not None and sequence >= 0 and not name.startswith(_ENGINE):
        text += f", seq = {sequence}"
    text += f", op_id = {number}"
    shapes = list(_flatten(args.get("Input Dims") or ()))
    return f"{text}, sizes = {shapes}" if shapes and with_shapes else text


def _flatten(shapes: Iterable[Any]) -> Iterable[list[int]]:
    """Yield the shape of each argument; those of a list's tensors stand where the list's would."""
    for shape in shapes:
        if shape and isinstance(shape[0], list):
            yield from shape
        else:
            yield list(shape)
