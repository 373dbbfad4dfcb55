"""Imports the PyTorch profiler's JSON (Kineto) as a Trace, with what its header tells. See docs/reference/files.md.

Joins kernels to ops in files without launches: newer profilers write at each kernel the number of its op, too.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from ...errors import TraceError
from ..files.importers import collection_paused
from ..files.source import ImportSource, ReadOptions
from ..recording.assemble import assemble
from ..recording.rows import LAUNCH_NAME, CallRows, KernelRows, OpRows, join_rows, make_rows
from ..recording.settle import Recording, finish
from ..trace.column import MISSING, Column, row_count
from ..trace.cut import find_window, nothing_in_window
from ..trace.privacy import hide_private
from ..trace.signature import Argument, Signature, TensorSpec, flatten_tensors
from ..trace.tables import Device, Meta, OpTable, Precision, Trace
from .accelerator import count_unread, find_platform
from .collect import Collector
from .communication import build_group_collectives, listed_groups, time_host_collectives
from .events import DeviceProperties, Header, drop_impossible
from .part import PartRead, read_part
from .read import Document, read_document
from .signatures import read_signatures

_WIDE: Final = "float32"
_LOWER: Final = frozenset({"bfloat16", "float16"})
_VERSION: Final = re.compile(r"\d+(?:\.\d+){0,3}")
_MAKER: Final = "aten::_sparse_coo_tensor_with_dims_and_tensors"
_SIZES, _VALUES = 2, 4
"""Where its arguments are."""
_Key = tuple[str, tuple[int, ...]]


def import_kineto(data: bytes, *, recover: bool = False) -> Trace:
    """Return the trace that a PyTorch-profiler file (its decompressed JSON) holds.

    Raises TraceError where the file is no such trace or ends early; with `recover` a file that ends early is read as
    far as it goes, and the loss counted in `quality`.

    >>> import_kineto(profile).kernels.duration_ns
    array([500000,  26000])
    """
    return begin_import(data, recover=recover)()


def begin_import(data: bytes, *, recover: bool = False) -> Callable[[], Trace]:
    """Read all events of a file, as `import_kineto` does, and return what builds the trace of them.

    That needs `data` no more: a caller who lets go of it first needs less memory.
    """
    with collection_paused():
        collector, document = _read(data, recover=recover)

    def build() -> Trace:
        with collection_paused():
            return _assemble(collector, document, settle(collector))

    return build


def _read(data: bytes, *, recover: bool) -> tuple[Collector, Document]:
    """Read all events; of a file that several processes share once more those of one."""
    collector = Collector()
    document = read_document(data, collector.consume, recover=recover)
    process = collector.choose_process()
    if process is None:
        return collector, document
    collector = Collector(process)
    return collector, read_document(data, collector.consume, recover=recover)


def read_kineto(source: ImportSource, *, options: ReadOptions) -> Callable[[], Trace]:
    """Read all events of a file, or the part of a large one that is asked for, and return what builds the trace."""
    with collection_paused():
        found = read_part(source, options)
    if found is not None:
        source.release()
        return partial(_build_part, found, source, options)
    data = source.read()
    source.release()
    return begin_import(data, recover=options.recover)


def _build_part(found: PartRead, source: ImportSource, options: ReadOptions) -> Trace:
    """Return the trace of what was read of a part, which still holds what lies around it."""
    with collection_paused():
        recording = settle(found.collector)
        if options.window_ns is not None and not any(
            len(rows.start_ns) for rows in (recording.ops, recording.calls, recording.kernels)
        ):
            raise nothing_in_window(found.scan.last_ns)
        trace = _assemble(found.collector, found.document, recording)
    begun_ns = found.scan.first_ns, found.scan.last_ns
    source.part = found.part if options.window_ns is None else find_window(trace, options.window_ns, begun_ns)
    return trace


def import_numbered(data: bytes) -> tuple[Trace, Column]:
    """Return what `import_kineto` does, and the profiler's own number of each op, [ops]; -1 where it has none.

    The numbers lead to what the running profiler still knows of its ops; a trace does not keep them.
    """
    trace, numbers, _ = import_joinable(data)
    return trace, numbers


def import_joinable(data: bytes, *, recover: bool = False) -> tuple[Trace, Column, Column]:
    """Return what `import_numbered` does, and the number that an execution trace beside gives each op, [ops]."""
    with collection_paused():
        collector, document = _read(data, recover=recover)
        recording = settle(collector)
        trace = _assemble(collector, document, recording)
        numbers = np.full(row_count(trace.ops), MISSING, dtype=np.int64)
        kept = recording.op_row_of != MISSING
        numbers[recording.op_row_of[kept]] = np.concatenate(collector.record_functions or [numbers])[kept]
        return trace, recording.ops.external_id, numbers


def _assemble(collector: Collector, document: Document, recording: Recording) -> Trace:
    if collector.evidence.form is not None and not len(recording.kernels.start_ns):
        raise TraceError(f"$.traceEvents: this is {collector.evidence.form}")
    if not any(len(rows.start_ns) for rows in (recording.ops, recording.calls, recording.kernels)):
        raise TraceError(
            f"$.traceEvents: found {document.event_count} events, none of them a usable op, call or kernel; "
            "expected what torch.profiler exports (export_chrome_trace, with record_shapes=True)"
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
            device_events_unread=count_unread(collector.evidence),
            characters_repaired=document.characters_repaired,
            events_dropped=trace.quality.events_dropped + document.events_dropped,
            bytes_lost=document.bytes_lost,
            bytes_read=document.bytes_read if document.bytes_lost else 0,
        ),
    )


def _meta(found: Meta, collector: Collector, document: Document, recording: Recording) -> Meta:
    header, group = document.header, document.header.distributed
    platform = find_platform(collector.evidence, collector.inputs, header, recording)
    without_kernels = "cpu" if platform is None else "host"
    return replace(
        found,
        producer="PyTorch profiler",
        source_format="kineto",
        left_out=None if collector.process is None else collector.process.left_out,
        capture="measured" if len(recording.kernels.start_ns) else without_kernels,
        accelerator=platform,
        cuda_version=cuda_version(header.cuda_runtime_version),
        hip_version=hip_version(header.hip_runtime_version),
        driver_version=cuda_version(header.cuda_driver_version) or hip_version(header.hip_driver_version),
        nccl_version=plain_version(group.nccl_version) if group else None,
        rank=group.rank if group else None,
        world_size=group.world_size if group else None,
    )


def find_autocast_dtype(ops: OpTable, signatures: Sequence[Signature]) -> str | None:
    """Return the dtype that ops were cast to; None where none was, or several, or the file has no shapes.

    Autocast shows as an op right inside an op of the same name whose float32 tensors have become half ones of the same
    shape. Ops whose inputs were in half precision already tell nothing.
    """
    inner = np.flatnonzero(ops.parent != MISSING)
    outer = ops.parent[inner]
    before, after = ops.signature[outer], ops.signature[inner]
    again = (ops.name[outer] == ops.name[inner]) & (before != after) & (before != MISSING) & (after != MISSING)
    pairs = np.unique(np.stack([before[again], after[again]], axis=1), axis=0)
    found = {_cast(signatures[left], signatures[right]) for left, right in pairs.tolist()} - {None}
    return found.pop() if len(found) == 1 else None


def _cast(before: Signature, after: Signature) -> str | None:
    """Return the dtype that some tensors of a call were cast to while nothing else changed."""
    left, right = flatten_tensors(before.arguments), flatten_tensors(after.arguments)
    if [item.shape for item in left] != [item.shape for item in right]:
        return None
    changed = {(old.dtype, new.dtype) for old, new in zip(left, right, strict=True) if old.dtype != new.dtype}
    if len(changed) != 1:
        return None
    ((old, new),) = changed
    return new if old == _WIDE and new in _LOWER else None


def read_devices(header: Header, used: Sequence[int]) -> tuple[Device, ...]:
    """Return the devices that ran kernels, or the first one listed.

    A file may list the one visible device as number 0 while kernels carry its physical number: then that one is meant.
    """
    listed = header.devices or []
    found = [_device(item, item.index) for item in listed if item.index in used]
    if found or not listed:
        return tuple(found)
    return (_device(listed[0], used[0] if len(used) == 1 else listed[0].index),)


def _device(item: DeviceProperties, index: int) -> Device:
    capability = None
    if item.compute_major is not None and item.compute_minor is not None:
        capability = f"{item.compute_major}.{item.compute_minor}"
    return Device(
        index=index,
        name=hide_private(item.name),
        compute_capability=capability,
        sm_count=item.sm_count,
        memory_bytes=item.memory_bytes,
        warp_size=item.warp_size,
        max_threads_per_block=item.max_threads_per_block or item.max_work_group_size,
        max_threads_per_sm=item.max_threads_per_sm,
        registers_per_sm=item.registers_per_sm or item.registers_per_block,
        shared_memory_per_sm_bytes=item.shared_memory_per_sm or item.shared_memory_per_cu,
        shared_memory_per_block_bytes=(
            item.shared_memory_per_block_optin or item.shared_memory_per_block or item.local_memory
        ),
    )


def cuda_version(number: int | None) -> str | None:
    """Return `12.4` for 12040, as CUDA numbers its runtime and driver."""
    return None if number is None else f"{number // 1000}.{number % 1000 // 10}"


def hip_version(number: int | None) -> str | None:
    """Return `6.4` for 60443483, as HIP numbers itself (major · 10⁷ + minor · 10⁵ + patch)."""
    return None if number is None else f"{number // 10_000_000}.{number % 10_000_000 // 100_000}"


def plain_version(text: str | None) -> str | None:
    """Return `text` if it is nothing but a version number."""
    return text if text is not None and _VERSION.fullmatch(text) else None


def fill_stored(ops: OpTable, signatures: tuple[Signature, ...], names: Sequence[str]) -> tuple[Signature, ...]:
    """Return the signatures with what their sparse tensors store.

    Of several tensors of the same sizes and dtype, which one an op is given is not known: each stores as many values
    as they do on average.
    """
    if _MAKER not in names or not any(
        tensor.shape and tensor.strides is not None for item in signatures for tensor in item.tensors()
    ):
        return signatures
    rows = np.flatnonzero(ops.name == names.index(_MAKER))
    numbers = [number for number in ops.signature[rows].tolist() if number >= 0]
    found: defaultdict[_Key, list[tuple[int, ...]]] = defaultdict(list)
    for maker in (signatures[number] for number in numbers):
        sizes, values = (maker.arguments[at] if at < len(maker.arguments) else None for at in (_SIZES, _VALUES))
        if isinstance(sizes, tuple) and isinstance(values, TensorSpec) and values.shape:
            found[values.dtype, tuple(int(size) for size in sizes if isinstance(size, int))].append(values.shape)
    stored = {
        key: (round(sum(shape[0] for shape in shapes) / len(shapes)), *shapes[0][1:]) for key, shapes in found.items()
    }
    return tuple(
        Signature(*(tuple(_fill(one, stored) for one in side) for side in (item.arguments, item.results)))
        for item in signatures
    )


def _fill(argument: Argument, stored: Mapping[_Key, tuple[int, ...]]) -> Argument:
    if isinstance(argument, TensorSpec):
        if not argument.shape or argument.strides is not None:
            return argument
        return replace(argument, stored=stored.get((argument.dtype, argument.shape)))
    if isinstance(argument, tuple) and argument and isinstance(argument[0], TensorSpec):
        return tuple(_fill(item, stored) for item in argument)  # type: ignore[return-value]
    return argument


def settle(collector: Collector) -> Recording:
    """Return the recording of what was collected, with launches of no length where the file holds no call at all."""
    if not collector.length(CallRows) and collector.length(OpRows) and collector.length(KernelRows):
        collector.add(_launches(collector))
    return finish(collector)


def _launches(collector: Collector) -> CallRows:
    """Return a launch of what names its op, a kernel or a graph, made as that op begins: when in it, nothing tells.

    Older profilers write a kernel's correlation in the place of its op's number.
    """
    ops, kernels = join_rows(collector.parts(OpRows)), join_rows(collector.parts(KernelRows))
    numbers, first = np.unique(ops.external_id, return_index=True)
    wanted = np.concatenate(collector.kernel_ops)
    place = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
    op = first[place]
    is_told = (numbers[place] == wanted) & (wanted > 0) & (kernels.correlation != MISSING)
    is_told &= kernels.start_ns >= ops.start_ns[op]
    told = np.flatnonzero(is_told & (not np.array_equal(wanted, kernels.correlation)))
    told = told[np.unique((kernels.correlation[told], op[told]), axis=1, return_index=True)[1]]
    _, first, often = np.unique(kernels.correlation[told], return_index=True, return_counts=True)
    told = told[first[often == 1]]  # a graph's kernels have one launch, in one op
    op = op[told]
    return make_rows(
        CallRows,
        len(told),
        name=collector.names.number([LAUNCH_NAME] * len(told)),
        thread=ops.thread[op],
        start_ns=ops.start_ns[op],
        duration_ns=0,
        correlation=kernels.correlation[told],
    )
