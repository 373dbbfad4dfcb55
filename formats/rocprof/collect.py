"""Turns the records of rocprofv3, whichever file they are from, into the rows of a recording; numbers its GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
from msgspec import Struct

from ...arrays import Mask, Rows
from ...records import dataclass
from ..files.database import NULL
from ..recording.builder import RecordingBuilder
from ..recording.dtypes import assemble_ranges
from ..recording.kernel_names import copy_name, is_collective
from ..recording.ranges import RangeCollector
from ..recording.rows import (
    MAX_INT32,
    CallRows,
    KernelRows,
    can_be_times,
    join_triples,
    launching_calls,
    make_rows,
    up_to,
)
from ..trace.column import MAX_INTEGER
from ..trace.privacy import hide_private
from ..trace.tables import Device, KernelKind, Trace

_DIRECTIONS: Final = {
    "HOST_TO_DEVICE": ("HtoD", "Host", "Device"),
    "DEVICE_TO_HOST": ("DtoH", "Device", "Host"),
    "DEVICE_TO_DEVICE": ("DtoD", "Device", "Device"),
    "HOST_TO_HOST": ("HtoH", "Host", "Host"),
}
_DIRECTION_PREFIX: Final = "MEMORY_COPY_"
_HOST_LOADED: Final = "DtoH"
Columns = Mapping[str, Rows]
KERNEL_COLUMNS: Final = (
    "start", "end", "agent", "queue", "stream", "correlation", "vgpr", "lds",
    "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z",
)  # fmt: skip
COPY_COLUMNS: Final = ("start", "end", "source", "target", "stream", "correlation", "size")
CALL_COLUMNS: Final = ("start", "end", "thread", "correlation")
CPU, GPU = 1, 2
"""`ROCPROFILER_AGENT_TYPE_CPU` and so on."""
_KIB: Final = 1024
_MHZ: Final = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Hold records of one kind: what is written on each, and columns of integers, NULL where there is none."""

    texts: Sequence[str]
    columns: Columns

    def take(self, chosen: Mask) -> Records:
        """Return some of the records."""
        rows = np.flatnonzero(chosen)
        return Records(
            texts=[self.texts[row] for row in rows.tolist()],
            columns={name: values[rows] for name, values in self.columns.items()},
        )


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
    """What the numbers of agents may be: `key`, or where files do not say which, `logical_node_id` and `node_id`."""
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
    texts, columns = _kept(builder, contents.ranges)
    collector = RangeCollector(builder)
    thread = builder.threads.number(columns["thread"].tolist())
    collector.add(texts, thread, columns["start"], columns["end"] - columns["start"])
    collector.finish(launching_calls(calls, launching))
    devices = read_devices(contents.agents, used)

    return partial(
        assemble_ranges,
        builder,
        nothing="found rocprofv3's output without a usable kernel, HIP call or range; record with "
        "`rocprofv3 --kernel-trace --hip-trace --memory-copy-trace --marker-trace`",
        devices=devices,
        quality={"processes_left_out": contents.processes_left_out},
        producer="rocprofv3",
        source_format="rocprofv3",
        accelerator="hip",
    )


def gpu_time_ns(columns: Columns) -> int:
    """Return how long kernels lasted in all, by which the busiest of several processes is known."""
    return int(np.clip(columns["end"] - columns["start"], 0, MAX_INT32)[_usable(columns)].sum())


def _usable(columns: Columns) -> Mask:
    return can_be_times(columns["start"], columns["end"])


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
    block = join_triples(columns, ("block_x", "block_y", "block_z"))
    device = _devices(columns["agent"], indices)
    builder.add(
        make_rows(
            KernelRows,
            len(texts),
            name=builder.names.number(texts),
            kind=[KernelKind.COLLECTIVE if is_collective(text) else KernelKind.KERNEL for text in texts],
            **_times(columns),
            device=device,
            stream=up_to(columns[streams], MAX_INT32 - 1),
            grid=-(-join_triples(columns, ("grid_x", "grid_y", "grid_z")) // np.maximum(block, 1)),
            block=block,
            registers=up_to(columns["vgpr"], MAX_INT32 - 1),
            shared_memory_bytes=up_to(columns["lds"], MAX_INT32 - 1),
        )
    )
    return tuple(np.unique(device).tolist())


def _add_copies(builder: RecordingBuilder, records: Records, indices: Mapping[int, int]) -> tuple[int, ...]:
    texts, columns = _kept(builder, records)
    ways = [_DIRECTIONS.get(text.removeprefix(_DIRECTION_PREFIX), ("Unknown", "Unknown", "Unknown")) for text in texts]
    leaves = np.array([way[0] == _HOST_LOADED for way in ways], dtype=bool)
    device = _devices(np.where(leaves, columns["source"], columns["target"]), indices)
    builder.add(
        make_rows(
            KernelRows,
            len(texts),
            name=builder.names.number([copy_name(*way) for way in ways]),
            kind=KernelKind.MEMCPY,
            **_times(columns),
            device=device,
            stream=up_to(columns["stream"], MAX_INT32 - 1),
            size_bytes=up_to(columns["size"], MAX_INTEGER),
        )
    )
    return tuple(np.unique(device).tolist())


def _add_calls(builder: RecordingBuilder, records: Records) -> CallRows:
    texts, columns = _kept(builder, records)
    rows = make_rows(
        CallRows,
        len(texts),
        name=builder.names.number([text or "unknown call" for text in texts]),
        thread=builder.threads.number(columns["thread"].tolist()),
        **_times(columns),
    )
    builder.add(rows)
    return rows


def _times(columns: Columns) -> dict[str, Rows]:
    return {
        "start_ns": columns["start"],
        "duration_ns": columns["end"] - columns["start"],
        "correlation": columns["correlation"],
    }


def _devices(agent: Rows, indices: Mapping[int, int]) -> Rows:
    """Return the index of each GPU; an agent that no record tells of counts as the first one."""
    numbers, which = np.unique(agent, return_inverse=True)
    return np.array([indices.get(number, 0) for number in numbers.tolist()], dtype=np.int64)[which]


def no_records(columns: Sequence[str]) -> Records:
    """Return no records of a kind."""
    return Records(texts=(), columns={name: np.empty(0, dtype=np.int64) for name in columns})


def unknown(count: int) -> Rows:
    """Return a column of which nothing is told."""
    return np.full(count, NULL, dtype=np.int64)


class Handle(Struct, frozen=True):
    """Hold the number by which records mean something else."""

    handle: int = -1


class MemoryBank(Struct, frozen=True):
    """Hold the size of an agent's memory."""

    size_in_bytes: int = 0


class Agent(Struct, frozen=True):
    """Describe a processor by rocprofv3's own names: `node_id` counts all, `logical_node_id` those in the process."""

    id: Handle = Handle()
    type: int = 0
    node_id: int = -1
    logical_node_id: int = -1
    name: str = ""
    """The architecture, `gfx942`."""
    product_name: str = ""
    cu_count: int = 0
    wave_front_size: int = 0
    max_waves_per_cu: int = 0
    lds_size_in_kb: int = 0
    workgroup_max_size: int = 0
    max_engine_clk_fcompute: int = 0
    """MHz."""
    mem_banks: list[MemoryBank] = []

    @property
    def key(self) -> int:
        """Return the number by which other records mean it, in JSON and SQLite."""
        return self.id.handle


def _gpus(agents: Sequence[Agent]) -> list[Agent]:
    return sorted((agent for agent in agents if agent.type == GPU), key=lambda agent: (agent.node_id, agent.key))


def gpu_indices(agents: Sequence[Agent], used: Rows, keys: Sequence[str]) -> Mapping[int, int]:
    """Return the index of each GPU among them by the number that records give it.

    `keys` names what that number may be: the first is taken under which all that ran kernels are GPUs.
    Without a list, or where none fits, those used are numbered.
    """
    gpus = _gpus(agents)
    for key in keys:
        found = {int(getattr(agent, key)): index for index, agent in enumerate(gpus)}
        if len(found) == len(gpus) and set(used.tolist()) <= found.keys():
            return found
    return {number: index for index, number in enumerate(np.unique(used).tolist())}


def read_devices(agents: Sequence[Agent], used: Sequence[int]) -> tuple[Device, ...]:
    """Return the GPUs that ran something, by their index; the first one where none did."""
    found = [_device(agent, index) for index, agent in enumerate(_gpus(agents)) if index in used or not used]
    return tuple(found if used else found[:1])


def _device(agent: Agent, index: int) -> Device:
    return Device(
        index=index,
        name=hide_private(agent.product_name or agent.name or "unknown GPU"),
        compute_capability=agent.name if agent.name.startswith("gfx") and agent.name.isalnum() else None,
        sm_count=_possible(agent.cu_count),
        memory_bytes=_possible(max((bank.size_in_bytes for bank in agent.mem_banks), default=0)),
        warp_size=_possible(agent.wave_front_size),
        max_threads_per_block=_possible(agent.workgroup_max_size),
        max_threads_per_sm=_possible(max(agent.max_waves_per_cu, 0) * max(agent.wave_front_size, 0)),
        shared_memory_per_sm_bytes=_possible(agent.lds_size_in_kb * _KIB),
        sm_clock_hz=(_possible(agent.max_engine_clk_fcompute) or 0) * _MHZ or None,
    )


def _possible(value: int) -> int | None:
    """Return what a trace can hold; 0 stands for what is not known."""
    return value if 0 < value <= MAX_INTEGER else None
