"""Collects the events of each kind, chunk after chunk: the one place that reads raw events."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from ...errors import TraceError
from ..recording.builder import RecordingBuilder
from ..recording.ranges import mark_rows, read_mark
from ..recording.rows import (
    CallRows,
    FlowRows,
    HostCollectiveRows,
    KernelRows,
    MemoryRows,
    ModuleRows,
    OpRows,
    SyncRows,
)
from ..trace.column import MISSING, Column, Interner
from ..trace.tables import KernelKind, SyncKind
from .accelerator import Evidence
from .communication import read_collectives
from .events import MEMORY_NAME, Arguments, Event, LightEvent, group_events
from .graph_annotations import GraphNotes
from .processes import ChosenProcess, Owner, choose_process, owner_of
from .signatures import SEPARATOR
from .values import Integers, check_range, read_floats, read_integers, read_microseconds, read_triples

NO_ARGUMENTS: Final = Arguments()
_BLANK: Final = Event()
MODULE_SPAN_PREFIX: Final = "wavecast.module: "
"""Begins the names of the spans that our tracer records around modules; the rest continues the enclosing one's path."""
_MODULE_PREFIX: Final = "nn.Module: "
_MODULE_PATH: Final = re.compile(r"\w+(?:\.\w+)*")
_HOST_BACKENDS: Final = ("gloo:", "mpi:", "ucc:")
"""Begin the names of torch's own annotations around collectives that threads of the host run."""
_KERNEL_KINDS: Final = {"kernel": KernelKind.KERNEL, "gpu_memcpy": KernelKind.MEMCPY, "gpu_memset": KernelKind.MEMSET}
_SYNC_KINDS: Final = {
    "Event Sync": SyncKind.EVENT, "Event Synchronize": SyncKind.EVENT,
    "Stream Wait Event": SyncKind.STREAM_WAIT_EVENT, "Stream Sync": SyncKind.STREAM,
    "Stream Synchronize": SyncKind.STREAM, "Context Sync": SyncKind.DEVICE, "Context Synchronize": SyncKind.DEVICE,
    "Device Sync": SyncKind.DEVICE, "Device Synchronize": SyncKind.DEVICE, "HOST_EVENT": SyncKind.EVENT,
    "HOST_FENCE": SyncKind.STREAM, "HOST_COMMAND_QUEUE": SyncKind.STREAM, "HOST_COMMAND_LIST": SyncKind.STREAM,
}  # fmt: skip
"""The last ones are Level Zero's, of Intel's GPUs."""
_GPU_BARRIERS: Final = ("GPU_BARRIER_EXECUTION", "GPU_BARRIER_MEMORY")
"""What Level Zero records beside them: nothing on the host waits for a barrier in a queue."""
_METRICS_PREFIX: Final = "metrics: "
"""Begins the name of a second event per kernel, with counters, where an XPU was sampled."""
_HOST_DEVICE_TYPE: Final = 0
_COLLECTIVE_NAME: Final = ("nccl", "rccl", "void nccl", "void rccl")
_MAX_INT16, _MAX_INT32, _MAX_INT64 = 2**15 - 1, 2**31 - 1, 2**63 - 1


class Collector(RecordingBuilder):
    """Own what is gathered while a profiler's file is read."""

    def __init__(self, process: ChosenProcess | None = None) -> None:
        super().__init__()
        self.process = process
        self.hosts: dict[Owner, None] = {}
        """The processes of ops and calls, in order."""
        self.spent_us = Counter[Owner]()
        """GPU time of the processes whose names devices carry."""
        self.flows = Interner[Any]()
        self.is_whole_microseconds = True
        self.evidence = Evidence()
        self.graph_notes = GraphNotes()
        self.record_functions: list[Column] = []
        """Of ops in file order, for execution traces; part after part."""
        self.kernel_ops: list[Column] = []
        """Of kernels in file order, the number of the op that launched each; part after part."""

    def consume(self, events: Sequence[Event], path: str, first: int) -> None:
        """Add the events of a chunk; `path` and `first` say where it lies, for errors."""
        if self.process is not None:
            events = [event if self.process.keeps(event) else _BLANK for event in events]
        groups, has_old_names = group_events(events)
        self.lists_inner_first |= has_old_names
        self.evidence.note_categories(groups, READERS)
        self.evidence.note_forms(groups.get(None, ()))
        for category, read in READERS.items():
            if category not in groups:
                continue
            try:
                read(self, groups[category])
            except TraceError:
                _raise_located(groups[category], events, f"{path}[{{}}]", first)
                raise

    def choose_process(self) -> ChosenProcess | None:
        """Return the process to read of a file that holds several; None for a file of one."""
        return choose_process(
            list(self.hosts), self.spent_us, tuple(self.threads), self.parts(CallRows), self.parts(KernelRows)
        )

    def timed(self, events: Sequence[Event]) -> tuple[list[Event], Integers, Integers]:
        """Return the usable complete events with their starts and durations; the others are counted."""
        events = [event for event in events if event.ph == "X"]
        start = read_microseconds([event.ts for event in events])
        duration = read_microseconds([event.dur for event in events])
        usable = start.is_valid & duration.is_valid & (duration.ns >= 0)
        start_ns, duration_ns = start.ns, duration.ns
        if not usable.all():
            self.events_dropped += int((~usable).sum())
            events = [event for event, good in zip(events, usable.tolist(), strict=True) if good]
            start_ns, duration_ns = start_ns[usable], duration_ns[usable]
        self.note_resolution(start_ns)
        self.note_resolution(duration_ns)
        return events, start_ns, duration_ns

    def instants(self, events: Sequence[Event]) -> tuple[list[Event], Integers]:
        """Return the usable events of a moment with their times; the others are counted."""
        times = read_microseconds([event.ts for event in events])
        self.events_dropped += int((~times.is_valid).sum())
        kept = [event for event, good in zip(events, times.is_valid.tolist(), strict=True) if good]
        return kept, times.ns[times.is_valid]

    def host(self, events: Sequence[Event], start_ns: Column, duration_ns: Column) -> dict[str, Column]:
        """Return the columns that every span of a host thread has, but its name."""
        return {"thread": self.thread(events), "start_ns": start_ns, "duration_ns": duration_ns}

    def thread(self, events: Sequence[Event]) -> Integers:
        """Return the number of each event's thread."""
        return self.threads.number([(event.pid, event.tid) for event in events])


def _raise_located(group: Sequence[Event], events: Sequence[Event], path: str, first: int) -> None:
    """Raise the error of the first event that cannot be read on its own, saying which one it is."""
    for number, event in enumerate(events):
        if event.cat != group[0].cat:
            continue
        try:
            READERS[event.cat or ""](Collector(), [event])
        except TraceError as error:
            raise TraceError(f"{path.format(first + number)}{error}") from None


def _arguments(events: Sequence[Event]) -> list[Arguments]:
    return [event.args or NO_ARGUMENTS for event in events]


def _note_hosts(collector: Collector, events: Sequence[Event]) -> None:
    for pid in dict.fromkeys(event.pid for event in events):
        collector.hosts.setdefault(owner_of(pid))


def _read_ops(collector: Collector, events: Sequence[Event]) -> None:
    _note_hosts(collector, events)
    spans = [event for event in events if (event.name or "").startswith(MODULE_SPAN_PREFIX)]
    if spans:
        _add_modules(collector, spans, MODULE_SPAN_PREFIX)
        events = [event for event in events if not (event.name or "").startswith(MODULE_SPAN_PREFIX)]
    events, start, duration = collector.timed(events)
    arguments = _arguments(events)
    _read_collectives(collector, arguments, is_kernel=False, first=collector.length(OpRows))
    texts = [
        SEPARATOR.join((item.input_types, item.input_dims, item.input_strides, item.concrete_inputs))
        for item in arguments
    ]
    collector.record_functions.append(
        np.array([_plain_integer(item.record_function) for item in arguments], dtype=np.int64)
    )
    collector.add(
        OpRows(
            name=collector.names.number([event.name or "" for event in events]),
            **collector.host(events, start, duration),
            sequence=read_integers([item.sequence for item in arguments], "Sequence number"),
            forward_thread=read_integers([item.forward_thread for item in arguments], "Fwd thread id"),
            signature=collector.inputs.number(texts),
            external_id=np.array([_plain_integer(item.external_id) for item in arguments], dtype=np.int64),
        )
    )


def _plain_integer(value: object) -> int:
    return value if type(value) is int and 0 <= value <= _MAX_INT64 else MISSING


def _read_calls(collector: Collector, events: Sequence[Event]) -> None:
    _note_hosts(collector, events)
    events, start, duration = collector.timed(events)
    arguments = _arguments(events)
    collector.add(
        CallRows(
            name=collector.names.number([event.name or "" for event in events]),
            **collector.host(events, start, duration),
            correlation=read_integers([item.correlation for item in arguments], "correlation"),
            kernel=_kernel_names(collector, arguments),
            grid=read_triples([item.grid for item in arguments]),
            block=read_triples([item.block for item in arguments]),
            shared_memory_bytes=read_integers([item.shared_memory for item in arguments], "shared memory"),
        )
    )


def _kernel_names(collector: Collector, arguments: Sequence[Arguments]) -> Integers:
    """Number the names of the kernels that calls launch, which ROCm's calls tell; -1 where one does not."""
    found = np.full(len(arguments), MISSING, dtype=np.int64)
    rows = [row for row, item in enumerate(arguments) if isinstance(item.kernel, str) and item.kernel]
    found[rows] = collector.launched.number([str(arguments[row].kernel) for row in rows])
    return found


def _read_kernels(collector: Collector, events: Sequence[Event]) -> None:
    metrics = [event for event in events if is_counter(event)]
    if metrics:
        collector.evidence.unread_counts["xpu_scope_profiler"] += len(metrics)
        events = [event for event in events if not is_counter(event)]
    events, start, duration = collector.timed(events)
    arguments = _arguments(events)
    _read_collectives(collector, arguments, is_kernel=True, first=collector.length(KernelRows))
    occupancy = read_floats([item.occupancy for item in arguments])
    device = read_integers([item.device for item in arguments], "device", default=0)
    if events and isinstance(owner_of(events[0].pid), str):
        for event, spent in zip(events, duration.tolist(), strict=True):
            collector.spent_us[owner_of(event.pid)] += spent / 1e3
    collector.graph_notes.add(arguments, collector.length(KernelRows))
    collector.kernel_ops.append(np.array([_plain_integer(item.external_id) for item in arguments], dtype=np.int64))
    collector.add(
        KernelRows(
            name=collector.names.number([event.name or "" for event in events]),
            kind=_kernel_kinds(events, arguments),
            start_ns=start,
            duration_ns=duration,
            correlation=read_integers([item.correlation for item in arguments], "correlation"),
            device=check_range(device, "device", 0, _MAX_INT16),
            stream=read_integers([_stream(item) for item in arguments], "stream"),
            grid=read_triples([item.grid for item in arguments]),
            block=read_triples([item.block for item in arguments]),
            registers=_small(arguments, "registers", "registers per thread"),
            shared_memory_bytes=_small(arguments, "shared_memory", "shared memory"),
            size_bytes=read_integers([item.size for item in arguments], "bytes"),
            occupancy=np.where((occupancy >= 0) & (occupancy <= _MAX_INT16), np.rint(occupancy), MISSING),
        )
    )


def is_counter(event: Event | LightEvent) -> bool:
    """Say whether an event of a kernel's category holds counters of one."""
    is_named = (event.name or "").startswith(_METRICS_PREFIX)
    return is_named and (event.args is None or event.args.correlation is None)


def _stream(item: Arguments) -> object:
    """Return the stream that ran a kernel: not the one that the profiler's export moved it to, for show."""
    if item.original_stream is not None:
        return item.original_stream
    return item.queue if item.stream is None else item.stream


def _small(arguments: Sequence[Arguments], attribute: str, name: str) -> Integers:
    return check_range(read_integers([getattr(item, attribute) for item in arguments], name), name, -1, _MAX_INT32)


def _kernel_kinds(events: Sequence[Event], arguments: Sequence[Arguments]) -> Integers:
    kind = np.full(len(events), _KERNEL_KINDS[events[0].cat or ""] if events else 0, dtype=np.int64)
    if kind.any():
        return kind
    communicates = [
        item.collective is not None or (event.name or "").lower().startswith(_COLLECTIVE_NAME)
        for event, item in zip(events, arguments, strict=True)
    ]
    return np.where(np.array(communicates, dtype=bool), int(KernelKind.COLLECTIVE), kind)


def _read_collectives(collector: Collector, arguments: Sequence[Arguments], *, is_kernel: bool, first: int) -> None:
    texts, groups = collector.collective_texts, collector.groups
    rows = read_collectives(arguments, texts, groups, is_kernel=is_kernel, first=first)
    if rows is not None:
        collector.add(rows)


def _read_syncs(collector: Collector, events: Sequence[Event]) -> None:
    events = [event for event in events if event.args is None or event.args.level_zero_sync not in _GPU_BARRIERS]
    events, start, duration = collector.timed(events)
    arguments = _arguments(events)
    named = [
        next((kind for kind in (item.sync_kind, item.level_zero_sync) if isinstance(kind, str)), event.name)
        for event, item in zip(events, arguments, strict=True)
    ]
    kinds = np.array([_SYNC_KINDS.get(name or "", MISSING) for name in named], dtype=np.int64)
    known = kinds != MISSING
    collector.events_dropped += int((~known).sum())
    columns: dict[str, Any] = {
        "kind": kinds,
        "start_ns": start,
        "duration_ns": duration,
        "correlation": read_integers([item.correlation for item in arguments], "correlation"),
        "stream": read_integers([item.stream for item in arguments], "stream"),
        "waited_stream": read_integers([item.waited_stream for item in arguments], "wait_on_stream"),
        "record_correlation": read_integers(
            [item.record_correlation for item in arguments], "wait_on_cuda_event_record_corr_id"
        ),
    }
    collector.add(SyncRows(**{name: values[known] for name, values in columns.items()}))


def _read_marks(collector: Collector, events: Sequence[Event]) -> None:
    collector.evidence.note_annotations(events)
    marks, start, duration = collector.timed([event for event in events if read_mark(event.name or "")])
    collector.add(mark_rows(collector, [event.name or "" for event in marks], collector.host(marks, start, duration)))
    events = [event for event in events if (event.name or "").startswith(_HOST_BACKENDS)]
    if events:
        events, start, duration = collector.timed(events)
        name = collector.collective_texts.number([event.name or "" for event in events])
        collector.add(HostCollectiveRows(name=name, start_ns=start, duration_ns=duration))


def _read_modules(collector: Collector, events: Sequence[Event]) -> None:
    collector.has_stacks |= bool(events)
    modules = [event for event in events if (event.name or "").startswith(_MODULE_PREFIX)]
    _add_modules(collector, modules, _MODULE_PREFIX)


def _add_modules(collector: Collector, modules: Sequence[Event], prefix: str) -> None:
    """Add the calls of modules; what is not a path of plain names is left out: it may be anything."""
    modules = [event for event in modules if _MODULE_PATH.fullmatch((event.name or "")[len(prefix) :])]
    modules, start, duration = collector.timed(modules)
    name = collector.modules.number([(event.name or "")[len(prefix) :] for event in modules])
    collector.add(ModuleRows(name=name, **collector.host(modules, start, duration)))


def _read_memory(collector: Collector, events: Sequence[Event]) -> None:
    events, time = collector.instants([event for event in events if event.name == MEMORY_NAME])
    collector.has_memory |= bool(events)
    arguments = _arguments(events)
    kind = read_integers([item.device_type for item in arguments], "Device Type")
    collector.evidence.note_device_types(kind)
    device = read_integers([item.memory_device for item in arguments], "Device Id")
    device = np.where(kind == _HOST_DEVICE_TYPE, MISSING, device)
    collector.add(
        MemoryRows(
            start_ns=time,
            duration_ns=np.zeros_like(time),
            thread=collector.thread(events),
            device=check_range(device, "Device Id", MISSING, _MAX_INT16),
            address=read_integers([item.address for item in arguments], "Addr", largest=_MAX_INT64),
            size_bytes=read_integers([item.allocation for item in arguments], "Bytes", default=0),
            allocated_bytes=read_integers([item.total_allocated for item in arguments], "Total Allocated"),
            reserved_bytes=read_integers([item.total_reserved for item in arguments], "Total Reserved"),
        )
    )


def _read_flows(collector: Collector, events: Sequence[Event]) -> None:
    events, time = collector.instants([event for event in events if event.ph in ("s", "f")])
    collector.add(
        FlowRows(
            start_ns=time,
            duration_ns=np.zeros_like(time),
            thread=collector.thread(events),
            flow=collector.flows.number([event.id for event in events]),
            is_end=np.array([event.ph == "f" for event in events], dtype=bool),
        )
    )


READERS: Final[dict[str | None, Callable[[Collector, Sequence[Event]], None]]] = {
    "cpu_op": _read_ops, "cuda_runtime": _read_calls, "cuda_driver": _read_calls, "hip_runtime": _read_calls,
    "hip_driver": _read_calls, "xpu_runtime": _read_calls, "xpu_driver": _read_calls, "kernel": _read_kernels,
    "gpu_memcpy": _read_kernels, "gpu_memset": _read_kernels, "cuda_sync": _read_syncs, "xpu_sync": _read_syncs,
    "user_annotation": _read_marks, "python_function": _read_modules, "cpu_instant_event": _read_memory,
    "fwdbwd": _read_flows,
}  # fmt: skip
"""How the events of each category become columns; all other categories are ignored."""
