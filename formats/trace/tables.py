"""The trace: one recorded iteration (or several) as frozen columnar tables. See docs/reference/trace-format.md."""

from collections.abc import Iterator
from enum import IntEnum

import numpy as np

from ...records import dataclass, field, fields, replace
from .column import MISSING, Column, Table, build_table, column, optional, row_count, tables_equal
from .meta import Device, HostTimes, Meta, Precision, Quality, Workload
from .signature import Signature

__all__ = ["Device", "HostTimes", "Meta", "Precision", "Quality", "Workload"]
"""Beside what is defined here."""

FORMAT_NAME = "wavecast.trace"
FORMAT_VERSION = "1.3"


class Phase(IntEnum):
    """Say which part of the iteration an op belongs to."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2
    OTHER = 3


class KernelKind(IntEnum):
    """Say what a GPU activity is."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    COLLECTIVE = 3


class ServingKind(IntEnum):
    """Say what a server did in an iteration."""

    UNTOLD = 0
    PREFILL = 1
    DECODE = 2
    MIXED = 3


class SyncKind(IntEnum):
    """Say what a synchronisation waits for."""

    EVENT = 0
    """The host waits for an event (cudaEventSynchronize)."""
    STREAM_WAIT_EVENT = 1
    """A stream waits for an event (cudaStreamWaitEvent)."""
    STREAM = 2
    """The host waits for a stream."""
    DEVICE = 3
    """The host waits for the device (the context)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IterationTable(Table):
    """Measured iterations. A profiled one holds ops and kernels; the others were timed without the profiler."""

    start_ns: Column = column("int64", "first instant, ns; negative before the start of capture")
    end_ns: Column = column("int64", "last instant, ns")
    profiled: Column = column("bool", "whether this iteration is the captured kind", default=1)
    cpu_start_ns: Column = column("int64", "start of the host-side step, ns; -1 where not recorded", default=MISSING)
    cpu_end_ns: Column = column("int64", "end of the host-side step, ns; -1 where not recorded", default=MISSING)
    loading_ns: Column = optional(
        "int64", "how long the script waited for its data loader in that step, ns; -1 where not recorded; since 1.3"
    )
    compiling_ns: Column = optional(
        "int64", "how long code was compiled in that step, ns; -1 where not recorded; since 1.3"
    )
    kind: Column = column(
        "int8",
        "what a server did: 0 not told, 1 prefill, 2 decode, 3 both; since 1.3",
        default=0,
        minimum=0,
        maximum=max(ServingKind),
    )
    annotation: Column = optional("int32", "what a server called it; since 1.3", refers_to="strings")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpTable(Table):
    """Framework ops (cpu_op) in order of start; nested ones too, each with its parent."""

    name: Column = column("int32", "op name, e.g. aten::addmm", refers_to="strings")
    signature: Column = optional("int32", "what it was called with", refers_to="signatures")
    thread: Column = column("int32", "host thread, numbered from 0", default=0, minimum=0)
    start_ns: Column = column("int64", "start, ns since the start of capture", default=MISSING)
    duration_ns: Column = optional("int64", "host duration, ns")
    parent: Column = optional("int32", "innermost enclosing op on the same thread", refers_to="ops")
    phase: Column = column(
        "int8", "0 forward, 1 backward, 2 optimizer, 3 other", default=Phase.OTHER, minimum=0, maximum=max(Phase)
    )
    sequence: Column = optional("int64", "autograd sequence number")
    forward: Column = optional("int32", "forward op that a backward op differentiates", refers_to="ops")
    module: Column = optional("int32", "module path, outermost first", refers_to="strings")
    stream: Column = column("int32", "stream that shapes were issued to, 0: default; since 1.2", default=0, minimum=0)
    lead_ns: Column = optional(
        "int64",
        "time of the script's own Python since the op before, ns, on the host of `meta.host`; -1 where not recorded, "
        "or, after walks, where C++ issued the op by itself; since 1.3",
    )
    loading_ns: Column = optional("int64", "of it what loaded data, ns; -1 where not recorded; since 1.3")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TensorTable(Table):
    """Distinct tensors, where the recording identified them."""

    storage: Column = column("int32", "storage, numbered from 0; views share it", minimum=0)
    dtype: Column = column("int32", "torch dtype name", refers_to="strings")
    element_count: Column = column("int64", "number of elements", minimum=0)
    device: Column = column("int16", "device index, -1 for the host", default=0, minimum=MISSING)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OperandTable(Table):
    """Which tensors an op reads and writes, one row per use, in order of op."""

    op: Column = column("int32", "the op", refers_to="ops")
    tensor: Column = column("int32", "the tensor", refers_to="tensors")
    is_output: Column = column("bool", "whether the op returns it", default=0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CallTable(Table):
    """CUDA or HIP runtime and driver calls in order of start: launches, copies, event and sync calls."""

    name: Column = column("int32", "API name, e.g. cudaLaunchKernel", refers_to="strings")
    thread: Column = column("int32", "host thread, numbered from 0", default=0, minimum=0)
    start_ns: Column = column("int64", "start, ns")
    duration_ns: Column = column("int64", "host duration, ns", minimum=0)
    op: Column = optional("int32", "innermost enclosing op on the same thread", refers_to="ops")
    kernel: Column = optional(
        "int32",
        "name of what it launches, where the call says so and no kernel of it ran, as in a graph capture; since 1.2",
        refers_to="strings",
    )
    grid: Column = column(
        "int32", "blocks of that kernel in x, y, z; 0 where not recorded", default=0, minimum=0, width=3
    )
    block: Column = column(
        "int32", "threads of that kernel in x, y, z; 0 where not recorded", default=0, minimum=0, width=3
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelTable(Table):
    """GPU activities (kernels, copies, fills, collectives) in order of start."""

    name: Column = column("int32", "kernel name, or the profiler's name of the copy", refers_to="strings")
    kind: Column = column(
        "int8", "0 kernel, 1 memcpy, 2 memset, 3 collective", default=0, minimum=0, maximum=max(KernelKind)
    )
    device: Column = column("int16", "device index", default=0, minimum=0)
    stream: Column = column("int64", "stream number", default=0, minimum=MISSING)
    start_ns: Column = column("int64", "start, ns")
    duration_ns: Column = column("int64", "duration, ns", minimum=0)
    call: Column = optional("int32", "the call that launched it; a graph launch has many", refers_to="calls")
    op: Column = optional("int32", "innermost op enclosing the launch", refers_to="ops")
    grid: Column = column("int32", "blocks in x, y, z; 0 where not recorded", default=0, minimum=0, width=3)
    block: Column = column("int32", "threads in x, y, z; 0 where not recorded", default=0, minimum=0, width=3)
    registers: Column = optional("int32", "registers per thread")
    shared_memory_bytes: Column = optional("int32", "shared memory per block, static and dynamic")
    size_bytes: Column = optional("int64", "bytes copied or filled")
    recorded_occupancy_percent: Column = optional("int16", "the profiler's own estimate (often 0 or wrong: compute it)")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SyncTable(Table):
    """Synchronisations, where the recording has them."""

    kind: Column = column("int8", "0 event, 1 stream wait event, 2 stream, 3 device", minimum=0, maximum=max(SyncKind))
    call: Column = optional("int32", "the call that waits", refers_to="calls")
    start_ns: Column = column("int64", "start, ns")
    duration_ns: Column = column("int64", "duration, ns", minimum=0)
    stream: Column = optional("int64", "stream that waits, or is waited for by the host")
    waited_stream: Column = optional("int64", "stream whose event is waited for")
    record_call: Column = optional("int32", "the call that recorded the waited event", refers_to="calls")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveTable(Table):
    """Communication ops, with what the process group reported."""

    op: Column = optional("int32", "the op that issued it", refers_to="ops")
    name: Column = column("int32", "collective, e.g. allreduce", refers_to="strings")
    dtype: Column = optional("int32", "torch dtype name", refers_to="strings")
    in_element_count: Column = optional("int64", "elements sent per rank")
    out_element_count: Column = optional("int64", "elements received per rank")
    group_size: Column = optional("int32", "ranks in the group")
    group: Column = optional("int32", "process group, numbered from 0: its row of `groups`, where that has rows")
    kernel: Column = optional("int32", "the kernel that moves it, where measured; since 1.2", refers_to="kernels")
    sequence: Column = optional(
        "int64", "number among the group's collectives, or from one rank to another; the same on all ranks; since 1.2"
    )
    is_async: Column = column(
        "bool", "whether the issuing stream goes on, until `wait_tensor`, `c10d::wait` or a use; since 1.2", default=0
    )
    peer: Column = optional("int32", "rank it is sent to or received from; since 1.2")
    host_start_ns: Column = optional(
        "int64", "when a thread of a CPU backend (gloo) began it, ns; -1: none did; since 1.2"
    )
    host_duration_ns: Column = optional("int64", "how long that thread took, waiting included, ns; since 1.2")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupTable(Table):
    """Process groups that the recorded rank belongs to; since 1.2."""

    size: Column = column("int32", "ranks in the group", minimum=1)
    name: Column = optional(
        "int32", "what its ranks share: the mesh dimension's or the group's own name", refers_to="strings"
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemberTable(Table):
    """Ranks of process groups, in the group's order; since 1.2."""

    group: Column = column("int32", "the group", refers_to="groups")
    rank: Column = column("int32", "rank in the world", minimum=0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryTable(Table):
    """Allocator events in order of time; without times, what an op returns or the last reference to which goes."""

    time_ns: Column = column("int64", "instant, ns; -1 in all rows where nothing is timed")
    device: Column = column("int16", "device index, -1 for the host", default=0, minimum=MISSING)
    block: Column = optional("int32", "allocation address, renumbered from 0; the storage where nothing is timed")
    size_bytes: Column = column("int64", "bytes allocated; negative when freed")
    allocated_bytes: Column = optional("int64", "total allocated afterwards")
    reserved_bytes: Column = optional("int64", "total reserved afterwards")
    op: Column = optional(
        "int32", "innermost enclosing op; the last one before, where nothing is timed", refers_to="ops"
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LookupTable(Table):
    """How often an embedding op looked up the rows of its tables: a histogram, never the indices; since 1.3."""

    op: Column = column("int32", "the op", refers_to="ops")
    table_index: Column = column("int32", "which of the op's tables, from 0", default=0, minimum=0)
    least_count: Column = column(
        "int64", "rows counted here were looked up so often at least, and less than twice as often", minimum=1
    )
    distinct_rows: Column = column("int64", "distinct rows of the table that were", minimum=1)
    lookup_count: Column = column("int64", "lookups of these rows altogether", minimum=1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Trace:
    """Hold one recording. Times are ns since the start of capture; ids are row numbers."""

    meta: Meta = field(default_factory=Meta)
    devices: tuple[Device, ...] = ()
    strings: tuple[str, ...] = ()
    signatures: tuple[Signature, ...] = ()
    iterations: IterationTable = field(default_factory=lambda: build_table(IterationTable, 0))
    ops: OpTable = field(default_factory=lambda: build_table(OpTable, 0))
    tensors: TensorTable = field(default_factory=lambda: build_table(TensorTable, 0))
    operands: OperandTable = field(default_factory=lambda: build_table(OperandTable, 0))
    calls: CallTable = field(default_factory=lambda: build_table(CallTable, 0))
    kernels: KernelTable = field(default_factory=lambda: build_table(KernelTable, 0))
    syncs: SyncTable = field(default_factory=lambda: build_table(SyncTable, 0))
    collectives: CollectiveTable = field(default_factory=lambda: build_table(CollectiveTable, 0))
    groups: GroupTable = field(default_factory=lambda: build_table(GroupTable, 0))
    members: MemberTable = field(default_factory=lambda: build_table(MemberTable, 0))
    memory: MemoryTable = field(default_factory=lambda: build_table(MemoryTable, 0))
    lookups: LookupTable = field(default_factory=lambda: build_table(LookupTable, 0))
    quality: Quality = field(default_factory=Quality)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trace):
            return NotImplemented
        return all(_equal(getattr(self, item.name), getattr(other, item.name)) for item in fields(self))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        counts = {name: row_count(getattr(self, name)) for name in ("ops", "kernels", "iterations")}
        name = f"{self.meta.workload.name!r}, " if self.meta.workload.name else ""
        found = ", ".join(f"{count} {table}" for table, count in counts.items())
        return f"<Trace {name}{self.meta.capture}: {found}>"

    @property
    def is_measured(self) -> bool:
        """Say whether the trace holds GPU timings."""
        return row_count(self.kernels) > 0


TABLES: dict[str, type[Table]] = {
    "iterations": IterationTable, "ops": OpTable, "tensors": TensorTable, "operands": OperandTable, "calls": CallTable,
    "kernels": KernelTable, "syncs": SyncTable, "collectives": CollectiveTable, "groups": GroupTable,
    "members": MemberTable, "memory": MemoryTable, "lookups": LookupTable,
}  # fmt: skip
"""The tables of a trace, in file order."""


def as_shapes(trace: Trace) -> Trace:
    """Return a trace with nothing that was timed: its ops, without when they ran."""
    missing = np.full(row_count(trace.ops), MISSING, dtype=np.int64)
    timed = {name: build_table(TABLES[name], 0) for name in ("iterations", "calls", "kernels", "syncs")}
    return replace(trace, ops=replace(trace.ops, start_ns=missing, duration_ns=missing), **timed)  # type: ignore[arg-type]


def distinct_calls(trace: Trace, chosen: Column | None = None) -> Iterator[tuple[str, Signature, int]]:
    """Yield each distinct call of the chosen ops, a mask or rows, or of all: its name, signature, and how often it is
    made. Ops without a signature are left out.

    >>> [(name, count) for name, _, count in distinct_calls(trace)][:2]
    [('aten::arange', 1), ('aten::embedding', 1)]
    """
    names, numbers = trace.ops.name, trace.ops.signature
    if chosen is not None:
        names, numbers = names[chosen], numbers[chosen]
    known = numbers != MISSING
    pairs, counts = np.unique(np.stack([names[known], numbers[known]], axis=1), axis=0, return_counts=True)
    for (name, number), count in zip(pairs.tolist(), counts.tolist(), strict=True):
        yield trace.strings[name], trace.signatures[number], count


def _equal(left: object, right: object) -> bool:
    if isinstance(left, Table) and isinstance(right, Table):
        return tables_equal(left, right)
    return left == right
