"""Reads what GPUs did: kernels, copies, fills, and graphs of which no single kernel was recorded; and texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...arrays import Mask, Rows
from ...records import dataclass
from ..files.database import NULL, Database
from ..recording.builder import RecordingBuilder
from ..recording.kernel_names import copy_name, fill_name, is_collective, plain_template
from ..recording.rows import MAX_INT32, KernelRows, can_be_times, join_triples, make_rows, up_to
from ..trace.column import MAX_INTEGER, MISSING
from ..trace.tables import KernelKind

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
_MAX_DEVICE: Final = 2**15 - 1


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
    return Activities(tables={name: database.read_integers(name, (*_COMMON, *own)) for name, own in _OWN.items()})


def usable(columns: dict[str, Rows]) -> Mask:
    """Say which rows have a start and an end that can be."""
    return can_be_times(columns["start"], columns["end"])


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


def _rows(
    builder: RecordingBuilder, rows: dict[str, Rows], texts: Sequence[str], which: Rows, kind: object, **more: Rows
) -> KernelRows:
    """Return activities named by the texts of their numbers in `which`."""
    return make_rows(
        KernelRows,
        len(which),
        name=builder.names.number(texts)[which],
        kind=kind,
        start_ns=rows["start"],
        duration_ns=rows["end"] - rows["start"],
        correlation=rows["correlationId"],
        device=np.maximum(rows["deviceId"], 0),
        stream=up_to(rows["streamId"], MAX_INT32 - 1),
        **more,
    )


def _kernels(builder: RecordingBuilder, rows: dict[str, Rows], strings: Strings) -> KernelRows:
    text = next((rows[name] for name in ("demangledName", "shortName", "name") if np.any(rows[name] != NULL)), None)
    numbers = rows["shortName"] if text is None else np.where(text == NULL, rows["shortName"], text)
    numbers, which = np.unique(numbers, return_inverse=True)
    texts = [plain_template(strings.get(number)) or "unknown kernel" for number in numbers.tolist()]
    kinds = np.array([KernelKind.COLLECTIVE if is_collective(item) else KernelKind.KERNEL for item in texts])
    parts = [np.maximum(rows[name], 0) for name in ("staticSharedMemory", "dynamicSharedMemory")]
    is_told = (rows["staticSharedMemory"] != NULL) | (rows["dynamicSharedMemory"] != NULL)
    return _rows(
        builder,
        rows,
        texts,
        which,
        kinds[which],
        grid=join_triples(rows, ("gridX", "gridY", "gridZ")),
        block=join_triples(rows, ("blockX", "blockY", "blockZ")),
        registers=up_to(rows["registersPerThread"]),
        shared_memory_bytes=np.where(is_told, up_to(np.minimum(parts[0], MAX_INT32) + parts[1]), MISSING),
    )


def _copies(builder: RecordingBuilder, rows: dict[str, Rows], _: Strings) -> KernelRows:
    codes = np.stack(
        [_code(rows["copyKind"], _DIRECTIONS), *(_code(rows[n], _MEMORIES) for n in ("srcKind", "dstKind"))]
    )
    kinds, which = np.unique(codes, axis=1, return_inverse=True)
    texts = [copy_name(_DIRECTIONS[kind], _MEMORIES[left], _MEMORIES[right]) for kind, left, right in kinds.T.tolist()]
    size = up_to(rows["bytes"], MAX_INTEGER)
    return _rows(builder, rows, texts, which.reshape(-1), KernelKind.MEMCPY, size_bytes=size)


def _fills(builder: RecordingBuilder, rows: dict[str, Rows], _: Strings) -> KernelRows:
    kinds, which = np.unique(_code(rows["memKind"], _MEMORIES), return_inverse=True)
    texts = [fill_name(_MEMORIES[kind]) for kind in kinds.tolist()]
    size = up_to(rows["bytes"], MAX_INTEGER)
    return _rows(builder, rows, texts, which, KernelKind.MEMSET, size_bytes=size)


def _graphs(builder: RecordingBuilder, rows: dict[str, Rows], _: Strings) -> KernelRows:
    graphs, which = np.unique(np.maximum(rows["graphId"], 0), return_inverse=True)
    texts = [f"CUDA graph {graph}" for graph in graphs.tolist()]
    return _rows(builder, rows, texts, which, KernelKind.KERNEL)


def _code(values: Rows, names: Sequence[str]) -> Rows:
    """Return codes of names, that of the unknown one where a code is none."""
    return np.where((values >= 0) & (values < len(names)), values, names.index("Unknown"))


_READERS: Final = {KERNELS: _kernels, COPIES: _copies, FILLS: _fills, GRAPHS: _graphs}


class Strings:
    """Own the texts of some ids."""

    def __init__(self, database: Database, *wanted: Rows) -> None:
        self._texts = database.read_texts("StringIds", "id", "value", np.concatenate(wanted)) if wanted else {}

    def get(self, number: int) -> str:
        """Return the text of an id, an empty one where there is none."""
        return self._texts.get(number, "")
