"""Builds the tables of calls, kernels, syncs and collectives, and links each to what caused it."""

import re
from dataclasses import replace
from typing import Final

import numpy as np

from ...arrays import Mask, Rows, at_rows
from ..trace.column import MISSING, Column, Interner, build_table
from ..trace.tables import CallTable, CollectiveTable, KernelKind, KernelTable, MemoryTable, SyncTable
from .builder import Names
from .nesting import enclosing_rows
from .ops import Ops
from .rows import CallRows, CollectiveRows, take_rows
from .settle import Recording

_LAUNCH: Final = re.compile(r"Launch(?!HostFunc)")
"""Calls after which kernels run: cudaLaunchKernel, cuLaunchKernelEx, hipModuleLaunchKernel, cudaGraphLaunch."""
_THREAD_GRIDS: Final = frozenset({"hipExtModuleLaunchKernel", "hipHccModuleLaunchKernel"})
"""Calls whose grid counts threads, not blocks (HIP's documentation: global work size); libraries of ROCm launch so."""
LAUNCH_WORDS: Final = ("launch", "memcpy", "memset")
_NO_STREAM: Final = 2**31 - 1
"""Stream numbers from here on are unsigned stand-ins for "none"."""
_COLLECTIVE_DTYPES: Final = {
    "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64", "Bool": "bool",
    "Half": "float16", "Float": "float32", "Double": "float64", "BFloat16": "bfloat16",
    "Float8_e4m3fn": "float8_e4m3fn", "Float8_e5m2": "float8_e5m2",
    "Float8_e4m3fnuz": "float8_e4m3fnuz", "Float8_e5m2fnuz": "float8_e5m2fnuz",
    "ComplexHalf": "complex32", "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip
"""torch dtype by the scalar type that process groups print."""


def build_calls(recording: Recording, ops: Ops) -> CallTable:
    """Build the table of runtime and driver calls, each in the innermost op that encloses all of it."""
    rows = recording.calls
    return build_table(
        CallTable,
        len(rows.name),
        name=rows.name,
        thread=rows.thread,
        start_ns=rows.start_ns,
        duration_ns=rows.duration_ns,
        op=enclosing_rows(ops.nesting, rows.thread, rows.start_ns, rows.end_ns),
    )


def build_kernels(recording: Recording, calls: CallTable) -> KernelTable:
    """Build the table of GPU activities, linked by correlation; ROCm keeps launch configurations on the calls.

    Where no call is recorded, the profiler's own number leads to the op.
    """
    rows = recording.kernels
    call = _find_calls(recording.calls, rows.correlation, tuple(recording.names.texts))
    grid, block = (
        _or_of_call(getattr(rows, name), getattr(recording.calls, name), call, 0) for name in ("grid", "block")
    )
    is_found = call != MISSING
    counts_threads = is_found & _counts_threads(recording)[np.where(is_found, call, 0)] if len(calls.name) else is_found
    shared = np.clip(recording.calls.shared_memory_bytes, MISSING, np.iinfo(np.int32).max)
    return build_table(
        KernelTable,
        len(call),
        name=rows.name,
        kind=rows.kind,
        device=rows.device,
        stream=_streams(rows.stream),
        start_ns=rows.start_ns,
        duration_ns=rows.duration_ns,
        call=call,
        op=np.where(is_found, _at(calls.op, call), _find_ops(recording.ops.external_id, rows.external_id)),
        grid=_in_blocks(grid, block, counts_threads),
        block=block,
        registers=rows.registers,
        shared_memory_bytes=_or_of_call(rows.shared_memory_bytes, shared, call, MISSING),
        size_bytes=np.maximum(rows.size_bytes, MISSING),
        recorded_occupancy_percent=rows.occupancy,
    )


def keep_unrun_kernels(calls: CallTable, recording: Recording, kernels: KernelTable) -> CallTable:
    """Return the calls with what they say of a kernel that did not run: where one did, its own row tells."""
    rows = recording.calls
    is_run = np.zeros(len(rows.name) + 1, dtype=bool)
    is_run[kernels.call] = True
    unrun = (rows.kernel != MISSING) & ~is_run[:-1]
    name = calls.kernel.copy()
    name[unrun] = [recording.names[recording.launched_names[text]] for text in rows.kernel[unrun].tolist()]
    return replace(
        calls,
        kernel=name,
        grid=np.where(unrun[:, None], _in_blocks(rows.grid, rows.block, _counts_threads(recording)), 0).astype(
            calls.grid.dtype
        ),
        block=np.where(unrun[:, None], rows.block, 0).astype(calls.block.dtype),
    )


def _counts_threads(recording: Recording) -> Mask:
    """Say of which calls the grid counts threads."""
    by_name = np.array([name in _THREAD_GRIDS for name in recording.names.texts], dtype=bool)
    return np.asarray(by_name[recording.calls.name])


def _in_blocks(grid: Column, block: Column, counts_threads: Mask) -> Column:
    """Return grids in blocks, those too that count threads."""
    return np.where(counts_threads[:, None], -(-grid // np.maximum(block, 1)), grid).astype(grid.dtype)


def count_launches_without_kernel(recording: Recording) -> int:
    """Count the launches of which no kernel was recorded; a runtime and a driver call of one number are one launch."""
    launches = np.array([_LAUNCH.search(name) is not None for name in recording.names.texts], dtype=bool)
    calls = recording.calls
    numbers = np.unique(calls.correlation[launches[calls.name] & (calls.correlation > 0)])
    return int((~np.isin(numbers, recording.kernels.correlation)).sum())


def build_syncs(recording: Recording) -> SyncTable:
    """Build the table of synchronisations."""
    rows = recording.syncs
    names = tuple(recording.names.texts)
    return build_table(
        SyncTable,
        len(rows.kind),
        kind=rows.kind,
        call=_find_calls(recording.calls, rows.correlation, names),
        start_ns=rows.start_ns,
        duration_ns=rows.duration_ns,
        stream=_streams(rows.stream),
        waited_stream=_streams(rows.waited_stream),
        record_call=_find_calls(recording.calls, rows.record_correlation, names),
    )


def build_collectives(recording: Recording, kernels: KernelTable) -> CollectiveTable:
    """Build the table of collectives: from ops, and from kernels whose op reports nothing itself."""
    rows = recording.collectives
    is_kernel = rows.is_kernel.astype(bool)
    row = np.empty(len(rows.row), dtype=np.int64)
    row[is_kernel] = recording.kernel_row_of[rows.row[is_kernel]]
    row[~is_kernel] = recording.op_row_of[rows.row[~is_kernel]]
    op = np.where(is_kernel, _at(kernels.op, np.where(is_kernel, row, MISSING)), row)
    told = is_kernel & (op != MISSING) & np.isin(op, op[~is_kernel])
    kept = np.flatnonzero((row != MISSING) & ~told)
    order = kept[np.argsort(op[kept], kind="stable")]
    kernel = np.where(is_kernel, row, _first_collective_kernels(kernels, op))
    found = take_rows(rows, order)
    return _collective_table(found, op[order], kernel[order], recording.collective_texts, recording.names)


def build_memory(recording: Recording, ops: Ops) -> MemoryTable:
    """Build the table of allocator events; addresses, where recorded, become numbers in order of first appearance."""
    rows = recording.memory
    places = list(zip(rows.device.tolist(), rows.address.tolist(), strict=True))
    has_addresses = bool((rows.address != MISSING).any())
    blocks = Interner[tuple[int, int]]().number(places) if has_addresses else rows.address
    return build_table(
        MemoryTable,
        len(blocks),
        time_ns=rows.start_ns,
        device=rows.device,
        block=blocks,
        size_bytes=rows.size_bytes,
        allocated_bytes=np.maximum(rows.allocated_bytes, MISSING),
        reserved_bytes=np.maximum(rows.reserved_bytes, MISSING),
        op=enclosing_rows(ops.nesting, rows.thread, rows.start_ns, rows.end_ns),
    )


def _find_calls(calls: CallRows, correlation: Column, names: tuple[str, ...]) -> Rows:
    """Return the call with each correlation id, -1 where none has it.

    Ids start at 1. Where a runtime call and the driver call inside it share one, a launch or copy goes first, then
    the outer one: it lasts as long as the host is held.
    """
    launches = np.array([any(word in name.lower() for word in LAUNCH_WORDS) for name in names], dtype=bool)
    order = np.lexsort((~launches[calls.name], calls.correlation))
    order = order[calls.correlation[order] > 0]
    known, first = np.unique(calls.correlation[order], return_index=True)
    at = np.searchsorted(known, correlation)
    hit = at_rows(known, at) == correlation
    found = at_rows(order[first], at)
    return np.where(hit & (correlation > 0), found, MISSING)


def _find_ops(known: Column, wanted: Column) -> Rows:
    """Return the op of each number, -1 where none has it; 0 numbers none."""
    numbers, first = np.unique(known, return_index=True)
    at = np.searchsorted(numbers, wanted)
    return np.where((at_rows(numbers, at) == wanted) & (wanted > 0), at_rows(first, at), MISSING)


def _at(values: Column, index: Column) -> Column:
    """Return the values at `index`, -1 where that is -1."""
    found: Column = at_rows(values, index)
    return found


def _or_of_call(values: Column, of_call: Column, call: Rows, missing: int) -> Column:
    """Return the values, those missing from the launch."""
    is_missing = values == missing if values.ndim == 1 else (values == missing).all(axis=1)
    linked = (call != MISSING) & is_missing
    filled = values.copy()
    filled[linked] = of_call[call[linked]]
    return filled


def _streams(values: Column) -> Column:
    return np.where((values < 0) | (values >= _NO_STREAM), MISSING, values)


def _first_collective_kernels(kernels: KernelTable, op: Rows) -> Rows:
    """Return the first kernel that communicates for each op, -1 where there is none."""
    moving = np.flatnonzero((kernels.kind == KernelKind.COLLECTIVE) & (kernels.op != MISSING))
    known, first = np.unique(kernels.op[moving], return_index=True)
    at = np.searchsorted(known, op)
    hit = (at_rows(known, at) == op) & (op != MISSING)
    return np.where(hit, at_rows(moving[first], at), MISSING)


def _collective_table(
    rows: CollectiveRows, op: Rows, kernel: Rows, texts: tuple[str, ...], names: Names
) -> CollectiveTable:
    name_of = np.array([names[text or "unknown"] for text in texts], dtype=np.int64) if len(rows.name) else rows.name
    dtypes = [_COLLECTIVE_DTYPES.get(text) for text in texts]
    dtype_of = np.array([MISSING if dtype is None else names[dtype] for dtype in dtypes], dtype=np.int64)
    return build_table(
        CollectiveTable,
        len(op),
        op=op,
        name=name_of[rows.name] if len(rows.name) else rows.name,
        dtype=dtype_of[rows.dtype] if len(rows.name) else rows.dtype,
        in_element_count=np.maximum(rows.in_elements, MISSING),
        out_element_count=np.maximum(rows.out_elements, MISSING),
        group_size=rows.group_size,
        group=rows.group,
        kernel=kernel,
        sequence=rows.sequence,
        is_async=rows.is_async,
        peer=rows.peer,
    )
