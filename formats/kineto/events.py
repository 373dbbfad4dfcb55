"""The PyTorch profiler's JSON as typed records, whose fields are the allow-list; old events get today's names."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import UNSET, Raw, Struct, UnsetType, field

from ...arrays import group_by
from ..trace.column import MAX_INTEGER

ABSENT: Final = Raw()
"""The raw text of a value that the file does not hold."""
MEMORY_NAME: Final = "[memory]"
"""Names the allocator's events, which had no category at first."""
_OPERATOR: Final = "Operator"
_CATEGORIES: Final = {
    "Runtime": "cuda_runtime",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "forward_backward": "fwdbwd",
}
_OP_NAME: Final = re.compile(
    r"\w+(?:::\w+)+|autograd::engine::evaluate_function: \w+(?:::\w+)*|detach_?|record_param_comms"
)
"""Ops are called so; `ProfilerStep#3`, `enumerate(DataLoader)#…` and what a script annotates itself shared their
category, and a script's words stay out of traces."""


class LightArguments(Struct, gc=False):
    """Hold of an event's arguments what tells when it ran for whom."""

    sequence: object = field(default=None, name="Sequence number")
    correlation: object = None


class Arguments(LightArguments, gc=False):
    """Hold the arguments of an event.

    Raw values are converted from their digits or parsed once per distinct text. The others may be of any type,
    because user code can attach keywords of the same names to its own events: they are checked where they are used.
    """

    concrete_inputs: Raw = field(default=ABSENT, name="Concrete Inputs")
    input_types: Raw = field(default=ABSENT, name="Input type")
    input_strides: Raw = field(default=ABSENT, name="Input Strides")
    input_dims: Raw = field(default=ABSENT, name="Input Dims")
    first_input_dims: Raw = field(default=ABSENT, name="Input dims")
    """As PyTorch 1.8 spelled it."""
    forward_thread: object = field(default=None, name="Fwd thread id")
    external_id: object = field(default=None, name="External id")
    record_function: object = field(default=None, name="Record function id")
    """What an execution trace recorded beside calls `rf_id`; 0 where there is none."""

    device: object = None
    stream: object = None
    registers: object = field(default=None, name="registers per thread")
    shared_memory: object = field(default=None, name="shared memory")
    grid: Raw = ABSENT
    block: Raw = ABSENT
    occupancy: object = field(default=None, name="est. achieved occupancy %")
    size: object = field(default=None, name="bytes")
    kernel: object = None
    queue: object = field(default=None, name="sycl queue")
    """On Intel's GPUs, what is a stream on others."""
    graph: object = field(default=None, name="graph id")
    graph_node: object = field(default=None, name="graph node id")
    original_stream: object = None
    """Where it ran, of a kernel in a graph that is shown on another stream."""
    annotation: object = None
    label: object = field(default=None, name="name")
    old_label: object = field(default=None, name="str")
    module: object = field(default=None, name="module_fqn")
    autograd_phase: object = None

    sync_kind: object = field(default=None, name="cuda_sync_kind")
    level_zero_sync: object = field(default=None, name="Type")
    waited_stream: object = field(default=None, name="wait_on_stream")
    record_correlation: object = field(default=None, name="wait_on_cuda_event_record_corr_id")

    collective: object = field(default=None, name="Collective name")
    collective_dtype: object = field(default=None, name="dtype")
    in_elements: object = field(default=None, name="In msg nelems")
    out_elements: object = field(default=None, name="Out msg nelems")
    group_size: object = field(default=None, name="Group size")
    group_name: object = field(default=None, name="Process Group Name")
    group_id: object = field(default=None, name="Process Group ID")
    group_description: object = field(default=None, name="Process Group Description")
    group_ranks: object = field(default=None, name="Process Group Ranks")
    rank_start: object = field(default=None, name="Global rank start")
    rank_stride: object = field(default=None, name="Global rank stride")
    group_sequence: object = field(default=None, name="Seq")
    is_async: object = field(default=None, name="Is asynchronized op")
    peer_before: object = field(default=None, name="Src Rank")
    peer_after: object = field(default=None, name="Dst Rank")

    task_type: object = field(default=None, name="Task Type")
    begun: object = field(default=None, name="BeginNs")
    """Of other tools' files, which are not read."""

    device_type: object = field(default=None, name="Device Type")
    memory_device: object = field(default=None, name="Device Id")
    address: object = field(default=None, name="Addr")
    allocation: object = field(default=None, name="Bytes")
    total_allocated: object = field(default=None, name="Total Allocated")
    total_reserved: object = field(default=None, name="Total Reserved")


class LightEvent(Struct, gc=False):
    """Hold of an event what tells when it ran, and for whom: enough to choose a part of a file, and quick to decode."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: Raw = ABSENT
    dur: Raw = ABSENT
    args: LightArguments | None = None


class Event(LightEvent, gc=False):
    """Hold one trace event. `ts` and `dur` stay text: a double has quarter-microsecond steps today."""

    args: Arguments | None = None
    id: int | str | float | None = None


class DeviceProperties(Struct):
    """Hold one entry of `deviceProperties`; AMD builds name some fields differently."""

    index: int = field(default=0, name="id")
    name: str = "unknown"
    memory_bytes: int | None = field(default=None, name="totalGlobalMem")
    compute_major: int | None = field(default=None, name="computeMajor")
    compute_minor: int | None = field(default=None, name="computeMinor")
    max_threads_per_block: int | None = field(default=None, name="maxThreadsPerBlock")
    max_threads_per_sm: int | None = field(default=None, name="maxThreadsPerMultiprocessor")
    registers_per_block: int | None = field(default=None, name="regsPerBlock")
    registers_per_sm: int | None = field(default=None, name="regsPerMultiprocessor")
    warp_size: int | None = field(default=None, name="warpSize")
    shared_memory_per_block: int | None = field(default=None, name="sharedMemPerBlock")
    shared_memory_per_block_optin: int | None = field(default=None, name="sharedMemPerBlockOptin")
    shared_memory_per_sm: int | None = field(default=None, name="sharedMemPerMultiprocessor")
    shared_memory_per_cu: int | None = field(default=None, name="maxSharedMemoryPerMultiProcessor")
    sm_count: int | None = field(default=None, name="numSms")
    max_work_group_size: int | None = field(default=None, name="maxWorkGroupSize")
    """As Intel's GPUs call threads per block; their `maxComputeUnits` counts vector engines, not cores."""
    local_memory: int | None = field(default=None, name="localMemSize")


class DistributedInfo(Struct):
    """Hold what is read of `distributedInfo`. The backend only tells whether a GPU was used."""

    backend: object = None
    rank: int | None = None
    world_size: int | None = None
    nccl_version: str | None = None
    group_count: int | None = field(default=None, name="pg_count")
    groups: object = field(default=None, name="pg_config")


class Header(Struct):
    """Hold what is kept of the top level, with the events that one decoding step sees."""

    devices: list[DeviceProperties] | None = field(default=None, name="deviceProperties")
    distributed: DistributedInfo | None = field(default=None, name="distributedInfo")
    cuda_runtime_version: int | None = None
    cuda_driver_version: int | None = None
    hip_runtime_version: int | None = None
    hip_driver_version: int | None = None
    events: list[Event] | UnsetType = field(default=UNSET, name="traceEvents")


def drop_impossible(header: Header) -> Header:
    """Take out of a header the numbers that no device and no group has: negative ones, and such that no file of ours
    holds."""
    for record in (header, header.distributed, *(header.devices or ())):
        for name in record.__struct_fields__ if record is not None else ():
            value = getattr(record, name)
            if type(value) is int and not 0 <= value <= MAX_INTEGER:
                setattr(record, name, 0 if name == "index" else None)
    return header


def merge_headers(first: Header, second: Header) -> Header:
    """Return what comes before the events and what comes after them as one, without the events."""
    merged = Header()
    for name in Header.__struct_fields__:
        if name != "events":
            after = getattr(second, name)
            setattr(merged, name, getattr(first, name) if after is None else after)
    return merged


def group_events(events: Sequence[Event]) -> tuple[Mapping[str | None, list[Event]], bool]:
    """Return the events by category, those of the old versions renamed in place, and whether there were any."""
    groups = group_by(events, lambda event: event.cat)
    old = [event for event in groups.get(None, ()) if event.name == MEMORY_NAME]
    for category in (_OPERATOR, *_CATEGORIES):
        old += groups.get(category, ())
    for event in old:
        _rename(event)
    return (group_by(events, lambda event: event.cat), True) if old else (groups, False)


def current_category(event: Event | LightEvent) -> str | None:
    """Return the category that an event has today."""
    if event.cat is None:
        return "cpu_instant_event" if event.name == MEMORY_NAME else None
    if event.cat == _OPERATOR:
        return "cpu_op" if _is_op(event) else "user_annotation"
    return _CATEGORIES.get(event.cat, event.cat)


def _rename(event: Event) -> None:
    if event.cat == _OPERATOR and event.args is not None and not bytes(event.args.input_dims):
        event.args.input_dims = event.args.first_input_dims
    event.cat = current_category(event)
    event.pid, event.tid = _plain_number(event.pid), _plain_number(event.tid)


def _is_op(event: Event | LightEvent) -> bool:
    """Say whether an operator event is an op: nodes of the autograd graph, whatever they are called, have a number."""
    has_number = event.args is not None and event.args.sequence is not None
    return has_number or _OP_NAME.fullmatch(event.name or "") is not None


def _plain_number(value: int | str | float | None) -> int | str | float | None:
    """Return the number that a text is: a thread was `"7"` on some events and `7` on others."""
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 20 else value
