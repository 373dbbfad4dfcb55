"""Imports the PyTorch profiler's JSON (Kineto) as a Trace. See docs/kineto.md."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from ...errors import TraceError
from ..column import MISSING, Column, row_count
from ..iterations import NEVER_NS, iteration_table, whole_iteration
from ..trace import (
    CallTable,
    IterationTable,
    KernelTable,
    Meta,
    OpTable,
    Phase,
    Precision,
    Quality,
    Trace,
    Workload,
)
from .accelerator import count_unread, find_platform
from .autocast import find_autocast_dtype
from .collect import Collector
from .communication import build_groups
from .events import drop_impossible
from .gpu import (
    build_calls,
    build_collectives,
    build_kernels,
    build_memory,
    build_syncs,
    count_launches_without_kernel,
    keep_unrun_kernels,
)
from .header import cuda_version, hip_version, plain_version, read_devices
from .ops import build_ops
from .process_groups import build_group_collectives
from .read import Document, read_document
from .recording import Recording, finish
from .rows import MARK_STEP, MarkRows, take_rows
from .signatures import read_signatures
from .sparse import fill_stored
from .values import Integers

_WHOLE_MICROSECONDS_NS = 1000


def import_kineto(data: bytes, *, recover: bool = False, progress: Callable[[int, int], None] | None = None) -> Trace:
    """Return the trace that a PyTorch-profiler file (its decompressed JSON) holds.

    `progress` is called with bytes done and bytes in all. Raises TraceError where the file is no such trace or ends
    early; with `recover` a file that ends early is read as far as it goes, and the loss counted in `quality`.

    >>> import_kineto(profile).kernels.duration_ns
    array([500000,  26000])
    """
    return begin_import(data, recover=recover, progress=progress)()


def begin_import(
    data: bytes, *, recover: bool = False, progress: Callable[[int, int], None] | None = None
) -> Callable[[], Trace]:
    """Read all events of a file, as `import_kineto` does, and return what builds the trace of them.

    That needs `data` no more: a caller who lets go of it first needs less memory.
    """
    with collection_paused():
        collector = Collector()
        document = read_document(data, collector.consume, recover=recover, progress=progress)

    def build() -> Trace:
        with collection_paused():
            return _assemble(collector, document, finish(collector))

    return build


def import_numbered(data: bytes) -> tuple[Trace, Column]:
    """Return what `import_kineto` does, and the profiler's own number of each op, [ops]; -1 where it has none.

    The numbers lead to what the running profiler still knows of its ops; a trace does not keep them.
    """
    with collection_paused():
        collector = Collector()
        document = read_document(data, collector.consume, recover=False, progress=None)
        recording = finish(collector)
        return _assemble(collector, document, recording), recording.ops.external_id


@contextmanager
def collection_paused() -> Iterator[None]:
    """Keep the cyclic garbage collector from walking millions of fresh values that hold no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _assemble(collector: Collector, document: Document, recording: Recording) -> Trace:
    if not any(len(rows.start_ns) for rows in (recording.ops, recording.calls, recording.kernels)):
        raise TraceError(
            f"$.traceEvents: found {document.event_count} events, none of them a usable op, call or kernel; "
            "expected a PyTorch-profiler trace"
        )
    drop_impossible(document.header)
    uses = np.bincount(recording.ops.signature, minlength=len(collector.inputs))
    signatures, signature_of = read_signatures(tuple(collector.inputs), uses.tolist())
    ops = build_ops(recording, signature_of)
    signatures = fill_stored(ops.table, signatures, recording.names.texts)
    calls = build_calls(recording, ops)
    kernels = build_kernels(recording, calls)
    calls = keep_unrun_kernels(calls, recording, kernels)
    memory = build_memory(recording, ops)
    collectives, group = build_collectives(recording, kernels), document.header.distributed
    groups, members = build_groups(recording.groups, group, recording.names)
    if not row_count(collectives):
        collectives = build_group_collectives(ops.table, signatures, recording.names, group)
    return Trace(
        meta=replace(
            _meta(collector, document, recording, ops.table),
            precision=Precision(autocast_dtype=find_autocast_dtype(ops.table, signatures)),
        ),
        devices=read_devices(document.header, np.unique(kernels.device).tolist()),
        strings=tuple(recording.names.texts),
        signatures=signatures,
        iterations=_iterations(recording.marks, ops.table, calls, kernels),
        ops=ops.table,
        calls=calls,
        kernels=kernels,
        syncs=build_syncs(recording),
        collectives=collectives,
        groups=groups,
        members=members,
        memory=memory,
        quality=Quality(
            kernels_without_call=int(np.sum(kernels.call == MISSING)),
            kernels_without_op=int(np.sum((kernels.call != MISSING) & (kernels.op == MISSING))),
            launches_without_kernel=count_launches_without_kernel(recording),
            device_events_unread=count_unread(collector),
            ops_without_shapes=int(np.sum(ops.table.signature == MISSING)),
            ops_with_crossed_nesting=ops.nesting.crossed_count,
            events_dropped=collector.events_dropped + recording.far_count,
            characters_repaired=document.characters_repaired,
            bytes_lost=document.bytes_lost,
            bytes_read=document.bytes_read if document.bytes_lost else 0,
        ),
    )


def _meta(collector: Collector, document: Document, recording: Recording, ops: OpTable) -> Meta:
    header, group = document.header, document.header.distributed
    platform = find_platform(collector, header, recording)
    without_kernels = "cpu" if platform is None else "host"
    driver = cuda_version(header.cuda_driver_version) or hip_version(header.hip_driver_version)
    is_training = bool(np.any(ops.phase == Phase.BACKWARD))
    return Meta(
        producer="PyTorch profiler",
        source_format="kineto",
        capture="measured" if len(recording.kernels.start_ns) else without_kernels,
        accelerator=platform,
        cuda_version=cuda_version(header.cuda_runtime_version),
        hip_version=hip_version(header.hip_runtime_version),
        driver_version=driver,
        nccl_version=plain_version(group.nccl_version) if group else None,
        clock_resolution_ns=_WHOLE_MICROSECONDS_NS if collector.is_whole_microseconds else 1,
        rank=group.rank if group else None,
        world_size=group.world_size if group else None,
        has_shapes=bool(np.any(ops.signature != MISSING)),
        has_stacks=collector.has_stacks,
        has_memory=collector.has_memory,
        workload=Workload(mode="training" if is_training else None),
    )


def _iterations(marks: MarkRows, ops: OpTable, calls: CallTable, kernels: KernelTable) -> IterationTable:
    start, end = _host_steps(marks)
    launch = np.append(calls.start_ns, NEVER_NS)[kernels.call]
    finish = kernels.start_ns + kernels.duration_ns
    if len(start):
        return iteration_table(start, end, launch_ns=launch, kernel_end_ns=finish)
    starts = np.concatenate((ops.start_ns, kernels.start_ns, launch[launch != NEVER_NS]))
    return whole_iteration(starts, np.concatenate((ops.start_ns + ops.duration_ns, finish)))


def _host_steps(marks: MarkRows) -> tuple[Integers, Column]:
    """Return the steps of the thread that has the most; one that lies within the step before it is left out."""
    steps = take_rows(marks, np.flatnonzero(marks.name == MARK_STEP))
    if len(steps.thread):
        steps = take_rows(steps, np.flatnonzero(steps.thread == np.bincount(steps.thread).argmax()))
    latest = np.maximum.accumulate(steps.end_ns)
    steps = take_rows(steps, np.flatnonzero(np.append(True, steps.end_ns[1:] > latest[:-1])[: len(latest)]))
    until_next = np.append(steps.start_ns[1:], steps.end_ns[-1:])
    return steps.start_ns, np.minimum(steps.end_ns, until_next)
