"""Reads what GPUs did: kernels, copies, fills, and graphs of which no single kernel was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ...arrays import Mask, Rows
from ..files.database import NULL, Database
from ..recording.activity import copy_name, fill_name, is_collective, plain_template
from ..recording.builder import RecordingBuilder
from ..recording.rows import KernelRows
from ..trace.column import MISSING
from ..trace.limits import MAX_INTEGER
from ..trace.tables import KernelKind
from .strings import Strings

KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
FILLS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_COMMON: Final = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
_OWN: Final = {
    KERNELS: (
        "demangledName", "shortName", "name", "registersPerThread", "gridX", "gridY", "gridZ", "blockX", "blockY",
        "blockZ", "staticSharedMemory", "dynamicSharedMemory",
    ),
    COPIES: ("bytes", "copyKind", "srcKind", "dstKind"),
    FILLS: ("bytes", "memKind"),
    GRAPHS: ("graphId",),
}  # fmt: skip
_DIRECTIONS: Final = (
    "Unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP",
    "HtoD (Unified)", "DtoH (Unified)", "DtoD (Unified)",
)  # fmt: skip
"""By `copyKind` (ENUM_CUDA_MEMCPY_OPER)."""
_MEMORIES: Final = (
    "Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown"
)  # fmt: skip
"""By `srcKind`, `dstKind` and `memKind` (ENUM_CUDA_MEM_KIND)."""
_LATEST_NS: Final = 2**61
_MAX_DEVICE, _MAX_INT32 = 2**15 - 1, 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Activities:
    """Hold what GPUs did, by table, and the process of each row."""

    tables: dict[str, dict[str, Rows]]

    def processes(self, table: str) -> Rows:
        """Return the process that each row of a table belongs to, NULL where it is not told."""
        return process_of(self.tables[table]["globalPid"])


def process_of(identifier: Rows) -> Rows:
    """Return the processes of serialized ids: their lowest 24 bits tell the thread."""
    return np.where(identifier == NULL, NULL, identifier >> 24)


def read_activities(database: Database) -> Activities:
    """Read the tables of all that GPUs did."""
    return Activities(
        tables={name: database.read_integers(name, (*_COMMON, *own)) for name, own in _OWN.items()},
    )


def usable(columns: dict[str, Rows]) -> Mask:
    """Say which rows have a start and an end that can be."""
    start, end = columns["start"], columns["end"]
    return (start > -_LATEST_NS) & (end < _LATEST_NS) & (end >= start)


def take(columns: dict[str, Rows], chosen: Mask) -> dict[str, Rows]:
    """Return the chosen rows."""
    return {name: values[chosen] for name, values in columns.items()}


def add_activities(
    builder: RecordingBuilder, activities: Activities, chosen: dict[str, Mask], strings: Strings
) -> None:
    """Give the builder the chosen rows of each table; those that cannot be used are counted."""
    for table, columns in activities.tables.items():
        good = usable(columns) & (columns["deviceId"] <= _MAX_DEVICE)
        builder.events_dropped += int(np.sum(chosen[table] & ~good))
        rows = take(columns, chosen[table] & good)
        if len(rows["start"]):
            builder.add(_READERS[table](builder, rows, strings))


def _common(rows: dict[str, Rows]) -> dict[str, Rows]:
    stream = rows["streamId"]
    return {
        "start_ns": rows["start"],
        "duration_ns": rows["end"] - rows["start"],
        "correlation": rows["correlationId"],
        "device": np.maximum(rows["deviceId"], 0),
        "stream": np.where((stream >= 0) & (stream < _MAX_INT32), stream, MISSING),
    }


def _without_launch(count: int) -> dict[str, Rows]:
    """Return the columns that kernels alone have."""
    missing = np.full(count, MISSING, dtype=np.int64)
    nothing = np.zeros((count, 3), dtype=np.int64)
    return {
        "grid": nothing,
        "block": nothing,
        "registers": missing,
        "shared_memory_bytes": missing,
        "size_bytes": missing,
        "occupancy": missing,
    }


def _kernels(builder: RecordingBuilder, rows: dict[str, Rows], strings: Strings) -> KernelRows:
    text = next((rows[name] for name in ("demangledName", "shortName", "name") if np.any(rows[name] != NULL)), None)
    numbers = rows["shortName"] if text is None else np.where(text == NULL, rows["shortName"], text)
    numbers, which = np.unique(numbers, return_inverse=True)
    texts = [plain_template(strings.get(number)) or "unknown kernel" for number in numbers.tolist()]
    kinds = np.array([KernelKind.COLLECTIVE if is_collective(item) else KernelKind.KERNEL for item in texts])
    parts = [np.maximum(rows[name], 0) for name in ("staticSharedMemory", "dynamicSharedMemory")]
    is_told = (rows["staticSharedMemory"] != NULL) | (rows["dynamicSharedMemory"] != NULL)
    columns = _without_launch(len(which))
    columns |= {
        "grid": _triples(rows, "grid"),
        "block": _triples(rows, "block"),
        "registers": _small(rows["registersPerThread"]),
        "shared_memory_bytes": np.where(is_told, _small(np.minimum(parts[0], _MAX_INT32) + parts[1]), MISSING),
    }
    return KernelRows(name=builder.names.number(texts)[which], kind=kinds[which], **_common(rows), **columns)


def _copies(builder: RecordingBuilder, rows: dict[str, Rows], _: Strings) -> KernelRows:
    codes = np.stack(
        [_code(rows["copyKind"], _DIRECTIONS), *(_code(rows[n], _MEMORIES) for n in ("srcKind", "dstKind"))]
    )
    kinds, which = np.unique(codes, axis=1, return_inverse=True)
    texts = [copy_name(_DIRECTIONS[kind], _MEMORIES[left], _MEMORIES[right]) for kind, left, right in kinds.T.tolist()]
    return _transfers(builder, rows, texts, which.reshape(-1), KernelKind.MEMCPY)


def _fills(builder: RecordingBuilder, rows: dict[str, Rows], _: Strings) -> KernelRows:
    kinds, which = np.unique(_code(rows["memKind"], _MEMORIES), return_inverse=True)
    texts = [fill_name(_MEMORIES[kind]) for kind in kinds.tolist()]
    return _transfers(builder, rows, texts, which, KernelKind.MEMSET)


def _transfers(
    builder: RecordingBuilder, rows: dict[str, Rows], texts: Sequence[str], which: Rows, kind: KernelKind
) -> KernelRows:
    columns = _without_launch(len(which)) | {"size_bytes": _sizes(rows["bytes"])}
    kinds = np.full(len(which), int(kind), dtype=np.int64)
    return KernelRows(name=builder.names.number(texts)[which], kind=kinds, **_common(rows), **columns)


def _graphs(builder: RecordingBuilder, rows: dict[str, Rows], _: Strings) -> KernelRows:
    graphs, which = np.unique(np.maximum(rows["graphId"], 0), return_inverse=True)
    texts = [f"CUDA graph {graph}" for graph in graphs.tolist()]
    kinds = np.full(len(which), int(KernelKind.KERNEL), dtype=np.int64)
    columns = _without_launch(len(which))
    return KernelRows(name=builder.names.number(texts)[which], kind=kinds, **_common(rows), **columns)


def _code(values: Rows, names: Sequence[str]) -> Rows:
    """Return codes of names, that of the unknown one where a code is none."""
    return np.where((values >= 0) & (values < len(names)), values, names.index("Unknown"))


def _triples(rows: dict[str, Rows], name: str) -> Rows:
    """Return three counts per row, zeros where one is missing or cannot be."""
    triples = np.stack([rows[f"{name}{axis}"] for axis in "XYZ"], axis=1)
    is_good = np.all((triples >= 0) & (triples <= _MAX_INT32), axis=1)
    return np.where(is_good[:, None], triples, 0)


def _sizes(values: Rows) -> Rows:
    """Return sizes in bytes, those that no trace can hold as missing."""
    return np.where((values >= 0) & (values <= MAX_INTEGER), values, MISSING)


def _small(values: Rows) -> Rows:
    return np.where((values >= 0) & (values <= _MAX_INT32), values, MISSING)


_READERS: Final = {KERNELS: _kernels, COPIES: _copies, FILLS: _fills, GRAPHS: _graphs}
