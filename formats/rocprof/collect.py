"""Turns the records of rocprofv3, whichever file they are from, into the rows of a recording."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ...arrays import Mask, Rows
from ...errors import TraceError
from ..files.database import NULL
from ..recording.activity import copy_name, is_collective
from ..recording.assemble import assemble
from ..recording.builder import RecordingBuilder
from ..recording.dtypes import infer_dtypes
from ..recording.ranges import RangeCollector
from ..recording.rows import CallRows, KernelRows, SpanRows, row_count
from ..recording.settle import finish
from ..recording.sizes import read_sizes
from ..trace.column import MISSING
from ..trace.limits import MAX_INTEGER
from ..trace.tables import KernelKind, Trace
from .agents import Agent, gpu_indices, read_devices

_DIRECTIONS: Final = {
    "HOST_TO_DEVICE": ("HtoD", "Host", "Device"),
    "DEVICE_TO_HOST": ("DtoH", "Device", "Host"),
    "DEVICE_TO_DEVICE": ("DtoD", "Device", "Device"),
    "HOST_TO_HOST": ("HtoH", "Host", "Host"),
}
_DIRECTION_PREFIX: Final = "MEMORY_COPY_"
_HOST_LOADED: Final = "DtoH"
_LATEST_NS: Final = 2**61
_MAX_INT32: Final = 2**31 - 1
Columns = Mapping[str, Rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Hold records of one kind: what is written on each, and columns of integers, NULL where there is none."""

    texts: Sequence[str]
    columns: Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Hold what one process's files say.

    Kernels have `start`, `end`, `agent`, `queue`, `stream`, `correlation`, `vgpr`, `lds`, `grid_x` and so on (in work
    items) and `block_x`; copies `source`, `target`, `size` and no launch; calls and ranges `thread` and `correlation`.
    """

    kernels: Records
    copies: Records
    calls: Records
    ranges: Records
    agents: Sequence[Agent]
    agent_keys: Sequence[str]
    """What the numbers of agents may be: `key`, or where files do not say which, `logical` and `node`."""
    events_dropped: int = 0
    processes_left_out: int = 0


def build_trace(contents: Contents) -> Callable[[], Trace]:
    """Return what builds the trace of a process's records."""
    builder = RecordingBuilder()
    builder.events_dropped = contents.events_dropped
    kernels, copies = contents.kernels, contents.copies
    indices = gpu_indices(contents.agents, kernels.columns["agent"], contents.agent_keys)
    streams = "stream" if np.any(kernels.columns["stream"] > 0) else "queue"
    used = _add_kernels(builder, kernels, indices, streams) + _add_copies(builder, copies, indices)
    calls = _add_calls(builder, contents.calls)
    launching = np.concatenate([kernels.columns["correlation"], copies.columns["correlation"]])
    _add_ranges(builder, contents.ranges, _launches(calls, launching))
    devices = read_devices(contents.agents, used)

    def build() -> Trace:
        recording = finish(builder)
        if not any(map(row_count, (recording.ops, recording.calls, recording.kernels))):
            raise TraceError(
                "found rocprofv3's output without a usable kernel, HIP call or range; record with "
                "`rocprofv3 --kernel-trace --hip-trace --memory-copy-trace --marker-trace`"
            )
        signatures, signature_of = read_sizes(tuple(builder.inputs))
        trace = assemble(recording, signatures=signatures, signature_of=signature_of)
        trace = infer_dtypes(replace(trace, strings=tuple(recording.names.texts)))
        return replace(
            trace,
            meta=replace(
                trace.meta,
                producer="rocprofv3",
                source_format="rocprofv3",
                capture="measured" if row_count(recording.kernels) else "host",
                accelerator="hip",
            ),
            devices=devices,
            quality=replace(trace.quality, processes_left_out=contents.processes_left_out),
        )

    return build


def gpu_time_ns(columns: Columns) -> int:
    """Return how long kernels lasted in all, by which the busiest of several processes is known."""
    return int(np.clip(columns["end"] - columns["start"], 0, _MAX_INT32)[_usable(columns)].sum())


def _usable(columns: Columns) -> Mask:
    start, end = columns["start"], columns["end"]
    return (start > -_LATEST_NS) & (end < _LATEST_NS) & (end >= start)


def _kept(builder: RecordingBuilder, records: Records) -> tuple[list[str], dict[str, Rows]]:
    """Return the texts and columns of the records that can be used; the others are counted."""
    good = _usable(records.columns)
    builder.events_dropped += int(np.sum(~good))
    texts = [records.texts[row] for row in np.flatnonzero(good).tolist()]
    return texts, {name: values[good] for name, values in records.columns.items()}


def _add_kernels(
    builder: RecordingBuilder, records: Records, indices: Mapping[int, int], streams: str
) -> tuple[int, ...]:
    texts, columns = _kept(builder, records)
    texts = [text.removesuffix(".kd") or "unknown kernel" for text in texts]
    block = _triples(columns, "block")
    device = _devices(columns["agent"], indices)
    builder.add(
        KernelRows(
            name=builder.names.number(texts),
            kind=np.array(
                [KernelKind.COLLECTIVE if is_collective(text) else KernelKind.KERNEL for text in texts], dtype=np.int64
            ),
            start_ns=columns["start"],
            duration_ns=columns["end"] - columns["start"],
            correlation=columns["correlation"],
            device=device,
            stream=_small(columns[streams]),
            grid=-(-_triples(columns, "grid") // np.maximum(block, 1)),
            block=block,
            registers=_small(columns["vgpr"]),
            shared_memory_bytes=_small(columns["lds"]),
            size_bytes=np.full(len(texts), MISSING, dtype=np.int64),
            occupancy=np.full(len(texts), MISSING, dtype=np.int64),
        )
    )
    return tuple(np.unique(device).tolist())


def _add_copies(builder: RecordingBuilder, records: Records, indices: Mapping[int, int]) -> tuple[int, ...]:
    texts, columns = _kept(builder, records)
    ways = [_DIRECTIONS.get(text.removeprefix(_DIRECTION_PREFIX), ("Unknown", "Unknown", "Unknown")) for text in texts]
    leaves = np.array([way[0] == _HOST_LOADED for way in ways], dtype=bool)
    device = _devices(np.where(leaves, columns["source"], columns["target"]), indices)
    nothing = np.zeros((len(texts), 3), dtype=np.int64)
    missing = np.full(len(texts), MISSING, dtype=np.int64)
    builder.add(
        KernelRows(
            name=builder.names.number([copy_name(*way) for way in ways]),
            kind=np.full(len(texts), int(KernelKind.MEMCPY), dtype=np.int64),
            start_ns=columns["start"],
            duration_ns=columns["end"] - columns["start"],
            correlation=columns["correlation"],
            device=device,
            stream=_small(columns["stream"]),
            grid=nothing,
            block=nothing,
            registers=missing,
            shared_memory_bytes=missing,
            size_bytes=np.where(np.abs(columns["size"]) <= MAX_INTEGER, np.maximum(columns["size"], MISSING), MISSING),
            occupancy=missing,
        )
    )
    return tuple(np.unique(device).tolist())


def _add_calls(builder: RecordingBuilder, records: Records) -> CallRows:
    texts, columns = _kept(builder, records)
    nothing = np.zeros((len(texts), 3), dtype=np.int64)
    missing = np.full(len(texts), MISSING, dtype=np.int64)
    rows = CallRows(
        name=builder.names.number([text or "unknown call" for text in texts]),
        thread=builder.threads.number(columns["thread"].tolist()),
        start_ns=columns["start"],
        duration_ns=columns["end"] - columns["start"],
        correlation=columns["correlation"],
        kernel=missing,
        grid=nothing,
        block=nothing,
        shared_memory_bytes=missing,
    )
    builder.add(rows)
    return rows


def _add_ranges(builder: RecordingBuilder, records: Records, launches: SpanRows) -> None:
    texts, columns = _kept(builder, records)
    collector = RangeCollector(builder)
    thread = builder.threads.number(columns["thread"].tolist())
    collector.add(texts, thread, columns["start"], columns["end"] - columns["start"])
    collector.finish(launches)


def _launches(calls: CallRows, launching: Rows) -> SpanRows:
    """Return the calls that made a GPU work."""
    index = np.flatnonzero(np.isin(calls.correlation, np.unique(launching)) & (calls.correlation > 0))
    return SpanRows(
        name=calls.name[index],
        thread=calls.thread[index],
        start_ns=calls.start_ns[index],
        duration_ns=calls.duration_ns[index],
    )


def _devices(agent: Rows, indices: Mapping[int, int]) -> Rows:
    """Return the index of each GPU; an agent that no record tells of counts as the first one."""
    numbers, which = np.unique(agent, return_inverse=True)
    return np.array([indices.get(number, 0) for number in numbers.tolist()], dtype=np.int64)[which]


def _triples(columns: Columns, name: str) -> Rows:
    triples = np.stack([columns[f"{name}_{axis}"] for axis in "xyz"], axis=1)
    is_good = np.all((triples >= 0) & (triples <= _MAX_INT32), axis=1)
    return np.where(is_good[:, None], triples, 0)


def _small(values: Rows) -> Rows:
    return np.where((values >= 0) & (values < _MAX_INT32), values, MISSING)


def no_records(columns: Sequence[str]) -> Records:
    """Return no records of a kind."""
    return Records(texts=(), columns={name: np.empty(0, dtype=np.int64) for name in columns})


def unknown(count: int) -> Rows:
    """Return a column of which nothing is told."""
    return np.full(count, NULL, dtype=np.int64)


KERNEL_COLUMNS: Final = (
    "start", "end", "agent", "queue", "stream", "correlation", "vgpr", "lds",
    "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z",
)  # fmt: skip
COPY_COLUMNS: Final = ("start", "end", "source", "target", "stream", "correlation", "size")
CALL_COLUMNS: Final = ("start", "end", "thread", "correlation")
