"""Imports the PyTorch profiler's JSON (Kineto) as a Trace. See docs/kineto.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from ...errors import TraceError
from ..files.garbage import collection_paused
from ..files.source import ImportSource, ReadOptions
from ..recording.assemble import assemble
from ..recording.settle import Recording, finish
from ..trace.column import MISSING, Column, row_count
from ..trace.cut import find_window, nothing_in_window
from ..trace.tables import Meta, Precision, Trace
from .accelerator import count_unread, find_platform
from .autocast import find_autocast_dtype
from .collect import Collector
from .communication import listed_groups
from .events import drop_impossible
from .header import cuda_version, hip_version, plain_version, read_devices
from .host_collectives import time_host_collectives
from .part import PartRead, read_part
from .process_groups import build_group_collectives
from .read import Document, read_document
from .signatures import read_signatures
from .sparse import fill_stored


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


def read_kineto(
    source: ImportSource, *, options: ReadOptions, progress: Callable[[int, int], None] | None = None
) -> Callable[[], Trace]:
    """Read all events of a file, or the part of a large one that is asked for, and return what builds the trace."""
    with collection_paused():
        found = read_part(source, options, progress)
    if found is not None:
        source.release()
        return partial(_build_part, found, source, options)
    data = source.read()
    source.release()
    return begin_import(data, recover=options.recover, progress=progress)


def _build_part(found: PartRead, source: ImportSource, options: ReadOptions) -> Trace:
    """Return the trace of what was read of a part, which still holds what lies around it."""
    with collection_paused():
        recording = finish(found.collector)
        if options.window_ns is not None and not any(
            len(rows.start_ns) for rows in (recording.ops, recording.calls, recording.kernels)
        ):
            raise nothing_in_window(found.scan.last_ns)
        trace = _assemble(found.collector, found.document, recording)
    source.part = (
        found.part if options.window_ns is None else find_window(trace, options.window_ns, found.scan.first_ns)
    )
    return trace


def import_numbered(data: bytes) -> tuple[Trace, Column]:
    """Return what `import_kineto` does, and the profiler's own number of each op, [ops]; -1 where it has none.

    The numbers lead to what the running profiler still knows of its ops; a trace does not keep them.
    """
    with collection_paused():
        collector = Collector()
        document = read_document(data, collector.consume, recover=False, progress=None)
        recording = finish(collector)
        return _assemble(collector, document, recording), recording.ops.external_id


def import_joinable(
    data: bytes, *, recover: bool = False, progress: Callable[[int, int], None] | None = None
) -> tuple[Trace, Column, Column]:
    """Return what `import_numbered` does, and the number that an execution trace beside gives each op, [ops]."""
    with collection_paused():
        collector = Collector()
        document = read_document(data, collector.consume, recover=recover, progress=progress)
        recording = finish(collector)
        trace = _assemble(collector, document, recording)
        numbers = np.full(row_count(trace.ops), MISSING, dtype=np.int64)
        kept = recording.op_row_of != MISSING
        numbers[recording.op_row_of[kept]] = np.concatenate(collector.record_functions or [numbers])[kept]
        return trace, recording.ops.external_id, numbers


def _assemble(collector: Collector, document: Document, recording: Recording) -> Trace:
    if not any(len(rows.start_ns) for rows in (recording.ops, recording.calls, recording.kernels)):
        raise TraceError(
            f"$.traceEvents: found {document.event_count} events, none of them a usable op, call or kernel; "
            "expected a PyTorch-profiler trace"
        )
    drop_impossible(document.header)
    group = document.header.distributed
    uses = np.bincount(recording.ops.signature, minlength=len(collector.inputs))
    signatures, signature_of = read_signatures(tuple(collector.inputs), uses.tolist())
    trace = assemble(
        recording, signatures=signatures, signature_of=signature_of, group_ranks=listed_groups(document.header)
    )
    trace = collector.graph_notes.explain(trace, recording.kernel_row_of, recording.names)
    signatures = fill_stored(trace.ops, signatures, recording.names.texts)
    collectives = trace.collectives
    if not row_count(collectives):
        collectives = build_group_collectives(trace.ops, signatures, recording.names, group)
    collectives = time_host_collectives(collectives, trace.ops, recording)
    return replace(
        trace,
        meta=replace(
            _meta(trace.meta, collector, document, recording),
            precision=Precision(autocast_dtype=find_autocast_dtype(trace.ops, signatures)),
        ),
        devices=read_devices(document.header, np.unique(trace.kernels.device).tolist()),
        strings=tuple(recording.names.texts),
        signatures=signatures,
        collectives=collectives,
        quality=replace(
            trace.quality,
            device_events_unread=count_unread(collector),
            characters_repaired=document.characters_repaired,
            bytes_lost=document.bytes_lost,
            bytes_read=document.bytes_read if document.bytes_lost else 0,
        ),
    )


def _meta(found: Meta, collector: Collector, document: Document, recording: Recording) -> Meta:
    header, group = document.header, document.header.distributed
    platform = find_platform(collector, header, recording)
    without_kernels = "cpu" if platform is None else "host"
    return replace(
        found,
        producer="PyTorch profiler",
        source_format="kineto",
        capture="measured" if len(recording.kernels.start_ns) else without_kernels,
        accelerator=platform,
        cuda_version=cuda_version(header.cuda_runtime_version),
        hip_version=hip_version(header.hip_runtime_version),
        driver_version=cuda_version(header.cuda_driver_version) or hip_version(header.hip_driver_version),
        nccl_version=plain_version(group.nccl_version) if group else None,
        rank=group.rank if group else None,
        world_size=group.world_size if group else None,
    )
