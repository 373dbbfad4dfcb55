"""What one iteration asks of a GPU: distinct kernels (or ops, where nothing was measured) with their work.

What the GPU moved between the last touch of an op's operands and the op says whether a cache may still hold them.
"""

from collections.abc import Sequence
from math import isnan
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...arrays import Floats, Mask, Rows, at_rows, distinct, group_rows, share_busy_time
from ...formats.trace.column import Column, row_count
from ...formats.trace.signature import DTYPE_BYTES
from ...formats.trace.tables import KernelKind, Meta, Trace
from ...records import dataclass, replace
from ...specs.gpu import Rate
from ..recorded.window import Window
from ..work import VARYING_FAMILIES, Family, Work
from ..work.collective import with_implementation
from ..work.communication import CollectiveDims
from ..work.kernel_names import family_of_kernel, rate_of_work, with_kernel
from ..work.lookup import WorkLookup, choose_explained
from ..work.table import WorkTable, tabulate

UNLISTED_ELEMENT_BYTES: Final = 4
LARGE_SHARE: Final = 0.5
"""Of the largest operand's bytes: the coldest operand from that size on counts, smaller ones cost little."""


def moved_since(trace: Trace, ops: Rows, moved_bytes: Floats, is_once: Mask, writes_last: Mask) -> Floats:
    """Return the bytes moved since its operands were touched, for each op in the order they run, [n].

    `moved_bytes`: what each moves itself. NaN where the recording does not tell tensors apart; there ops that `is_once`
    in an iteration, as an optimizer's, find what they touched an iteration ago. What the iteration was given, weights
    first of all, was last touched in the iteration before. An op goes through its operands from its beginning to its
    end, so that half of what it moves beyond the next one's own bytes lies between; those that are in `writes_last`
    (products, which add up first) write at their end.

    >>> ops, once = np.array([1]), np.array([True])
    >>> moved_since(measured, ops, np.array([5e6]), once, ~once)
    array([0.])
    """
    after = np.cumsum(moved_bytes)
    before, total = after - moved_bytes, float(after[-1]) if len(after) else 0.0
    unknown = np.where(is_once, np.maximum(total - moved_bytes, 0.0), np.nan)
    place = np.full(row_count(trace.ops), -1, dtype=np.int64)
    place[ops] = np.arange(len(ops))
    used = np.flatnonzero(place[trace.operands.op] >= 0)
    if not len(used):
        return unknown
    tensor = trace.operands.tensor[used]
    at, storage = place[trace.operands.op[used]], trace.tensors.storage[tensor].astype(np.int64)
    last = _last_touch(storage, at)
    is_read = ~trace.operands.is_output[used].astype(bool)
    use = storage * len(ops)
    written = distinct((use + at)[~is_read])
    is_late = writes_last[last] & (at_rows(written, np.searchsorted(written, use + last)) == use + last)
    between = np.where(is_late, 0.0, np.maximum(moved_bytes[last] - moved_bytes[at], 0.0) / 2)
    since = before[at] - after[last] + between
    since = np.where(last < at, since, since + total)
    return _of_large_ones(unknown, at[is_read], np.maximum(since, 0.0)[is_read], tensor_bytes(trace)[tensor][is_read])


def _last_touch(storage: Rows, at: Rows) -> Rows:
    """Return for each use where its storage was used before: the place of its last use of all where it was not."""
    order = np.lexsort((at, storage))
    ranked, places = storage[order], at[order]
    is_first_use = np.r_[True, (ranked[1:] != ranked[:-1]) | (places[1:] != places[:-1])]
    use = np.cumsum(is_first_use) - 1  # uses of one op in one place are one
    place_of, storage_of = places[is_first_use], ranked[is_first_use]
    begins = np.r_[True, storage_of[1:] != storage_of[:-1]]
    ends = np.flatnonzero(np.r_[begins[1:], True])
    previous = np.where(begins, place_of[ends[np.cumsum(begins) - 1]], np.r_[0, place_of[:-1]])
    found = np.empty(len(at), dtype=np.int64)
    found[order] = previous[use]
    return found


def _of_large_ones(unknown: Floats, at: Rows, since: Floats, size: Floats) -> Floats:
    """Return the largest `since` among the large operands of each op; `unknown` where it has none."""
    largest = np.zeros(len(unknown))
    np.maximum.at(largest, at, size)
    is_large = size >= LARGE_SHARE * largest[at]
    found = np.full(len(unknown), -1.0)
    np.maximum.at(found, at[is_large], since[is_large])
    return np.where(found >= 0.0, found, unknown)


def tensor_bytes(trace: Trace) -> Floats:
    """Return the bytes of each tensor."""
    element = np.array([DTYPE_BYTES.get(name, UNLISTED_ELEMENT_BYTES) for name in trace.strings], dtype=np.float64)
    return np.asarray(trace.tensors.element_count * element[trace.tensors.dtype])


def median_by_group(values: Floats, group: Rows, count: int) -> Floats:
    """Return the median of the known values of each group, [count]; NaN where none is known."""
    known = np.flatnonzero(~np.isnan(values))
    order = known[np.lexsort((values[known], group[known]))]
    found, begin, size = np.unique(group[order], return_index=True, return_counts=True)
    result = np.full(count, np.nan)
    result[found] = values[order][begin + (size - 1) // 2]
    return result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GpuWorkload:
    """Hold the distinct kernels of one iteration, n rows; rows of equal launch and equal op are one.

    A row may stand for kernels of other iterations alone: its `count` and `busy_ns` are 0.
    In a trace without GPU timings a row is a distinct op call, `duration_ns` is NaN and `busy_ns` 0.
    """

    kernel: Rows
    """First kernel of the group as a row of the trace's table; -1 without timings."""
    op: Rows
    """The op that explains it: the innermost one with a formula around the launch, else the innermost; -1: none."""
    count: Rows
    """Kernels (or ops) of the group in the iteration."""
    duration_ns: Floats
    """Mean duration of the group's kernels, those of other iterations too."""
    busy_ns: Floats
    """Time of the group's kernels together, overlap with other kernels shared out in equal parts."""
    op_share: Floats
    """The kernel's mean share of its op's GPU time."""
    kind: npt.NDArray[np.int8]
    family: tuple[Family | None, ...]
    is_varying: Mask
    has_work: Mask
    works: tuple[Work | None, ...]
    """Of the whole op; None where `has_work` is false."""
    work: WorkTable
    """Work of the whole op; zeros where `has_work` is false, the rate then guessed from the kernel's name."""
    rate_known: Mask
    row_of: Rows
    """Row of each kernel of the trace (of each op, where nothing was measured); -1 for those left out."""

    def is_family(self, family: Family) -> Mask:
        """Return which rows are of a family, [n]."""
        return np.array([item is family for item in self.family], dtype=bool)


def measured_workload(trace: Trace, window: Window) -> GpuWorkload:
    """Group the kernels of the window by launch, name, and explaining op.

    >>> measured_workload(measured, recorded.window).duration_ns
    array([500000.,  26000.])
    """
    # A recording has thousands of kernels and few that differ. Rows are groups of kernels with equal launch, name and
    # explaining op (with what ran around it, since that decides what L2 holds), so that everything later costs rows x
    # GPUs. Mean times come from all iterations, counts and busy shares from the window alone. A kernel's family comes
    # from its name, else from its op; kernels that only help an op (a cast, a fill) do not carry the op's work.
    kernels, rows = trace.kernels, np.flatnonzero(trace.kernels.device == window.device)
    counts = np.isin(rows, window.kernel_rows)
    lookup = WorkLookup(trace)
    owners = at_rows(lookup.owners(), kernels.op[rows])
    first, group = group_rows([*_group_keys(trace, rows, owners), at_rows(lookup.context, owners)])
    size = np.bincount(group, minlength=len(first))
    duration = kernels.duration_ns[rows].astype(np.float64)
    busy = share_busy_time(kernels.start_ns[rows[counts]], kernels.duration_ns[rows[counts]])
    row_of = np.full(row_count(kernels), -1, dtype=np.int64)
    row_of[rows] = group
    # Per kernel the GPU time of all kernels of its op call; its own where no op explains it.
    _, position = np.unique(owners, return_inverse=True)
    total = np.bincount(position, weights=duration)[position] if len(owners) else duration
    op_time = np.maximum(np.where(owners >= 0, total, duration), 1.0)
    names = [trace.strings[name] for name in kernels.name[rows[first]].tolist()]
    owner, kind = owners[first], kernels.kind[rows[first]]
    works = [lookup.work(row) if row >= 0 else None for row in owner.tolist()]
    families = [
        _family(name, work.family if work else lookup.family(row) if row >= 0 else None, code)
        for name, work, row, code in zip(names, works, owner.tolist(), kind.tolist(), strict=True)
    ]
    works = [
        _of_kernel(None if _is_helper(work, family) else work, name, code)
        for work, family, name, code in zip(works, families, names, kind.tolist(), strict=True)
    ]
    order = np.argsort(kernels.start_ns[rows], kind="stable")
    return _with_work(
        _with_reuse(trace, works, families, owners[order[counts[order]]], group[order[counts[order]]]),
        families,
        names,
        trace.meta,
        kernel=rows[first],
        op=owner,
        count=np.bincount(group[counts], minlength=len(first)),
        duration_ns=np.bincount(group, weights=duration, minlength=len(first)) / size,
        busy_ns=np.bincount(group[counts], weights=busy, minlength=len(first)).astype(np.float64),
        op_share=np.bincount(group, weights=duration / op_time, minlength=len(first)) / size,
        kind=kind,
        row_of=row_of,
    )


def shape_workload(trace: Trace, window: Window | None = None, lookup: WorkLookup | None = None) -> GpuWorkload:
    """Group the ops of the window, by default all, by name and signature; the innermost with a formula counts.

    `lookup` knows the works of these ops where they were asked for.

    >>> len(window.op_rows), len(shape_workload(trace, window).op)
    (381, 13)
    """
    lookup = lookup or WorkLookup(trace)
    op_rows = np.arange(row_count(trace.ops)) if window is None else window.op_rows
    rows = choose_explained(trace, op_rows, lookup)
    keys = [trace.ops.name[rows].astype(np.int64), trace.ops.signature[rows].astype(np.int64), lookup.context[rows]]
    first, group = group_rows(keys)
    owner = rows[first]
    row_of = np.full(row_count(trace.ops), -1, dtype=np.int64)
    row_of[rows] = group
    works = [lookup.work(row) for row in owner.tolist()]
    families = [work.family if work else lookup.family(row) for work, row in zip(works, owner.tolist(), strict=True)]
    return _with_work(
        _with_reuse(trace, works, families, rows, group),
        families,
        [""] * len(first),
        trace.meta,
        kernel=np.full(len(first), -1),
        op=owner,
        count=np.bincount(group, minlength=len(first)),
        duration_ns=np.full(len(first), np.nan),
        busy_ns=np.zeros(len(first)),
        op_share=np.ones(len(first)),
        kind=np.zeros(len(first), dtype=np.int8),
        row_of=row_of,
    )


def _with_work(
    works: Sequence[Work | None], families: Sequence[Family | None], names: Sequence[str], meta: Meta, **columns: Any
) -> GpuWorkload:
    """Return the other columns with what follows from each row's work, family and kernel name ("": an op)."""
    works = [
        None if work is None else with_implementation(with_kernel(work, name, meta.framework), name)
        for name, work in zip(names, works, strict=True)
    ]
    rates = [rate_of_work(name, work, meta) for name, work in zip(names, works, strict=True)]
    return GpuWorkload(
        family=tuple(families),
        is_varying=np.array([family in VARYING_FAMILIES for family in families], dtype=bool),
        has_work=np.array([work is not None for work in works], dtype=bool),
        works=tuple(works),
        work=tabulate(works, [rate or Rate.FP32 for rate in rates]),
        rate_known=np.array([rate is not None for rate in rates], dtype=bool),
        **columns,
    )


def _with_reuse(
    trace: Trace, works: Sequence[Work | None], families: Sequence[Family | None], calls: Rows, group: Rows
) -> list[Work | None]:
    """Return the works with what was moved since their operands were touched, the lower median over calls of a group.

    It is at least a byte: another kernel ran, if only the one that made them.

    `calls`: the op of each kernel (or op) in the order they run, -1 for none; `group`: its work.
    """
    known = np.flatnonzero(calls >= 0)
    _, first = np.unique(calls[known], return_index=True)
    chosen = known[np.sort(first)]
    moved = np.array([work.moved_bytes if work else 0.0 for work in works])
    is_once = np.array([family is Family.OPTIMIZER for family in families], dtype=bool)
    late = np.array([family in VARYING_FAMILIES for family in families], dtype=bool)
    of = group[chosen]
    since = moved_since(trace, calls[chosen], moved[of], is_once[of], late[of])
    medians = median_by_group(since, of, len(works)).tolist()
    return [
        work if work is None or isnan(bytes_) else replace(work, moved_since_bytes=max(bytes_, 1.0))
        for work, bytes_ in zip(works, medians, strict=True)
    ]


def _group_keys(trace: Trace, rows: Rows, owners: Rows) -> list[Column]:
    kernels, ops = trace.kernels, trace.ops
    of_owner = (at_rows(column, owners) for column in (ops.name, ops.signature))
    launch = [kernels.grid[rows][:, axis] for axis in range(3)] + [kernels.block[rows][:, axis] for axis in range(3)]
    plain = [kernels.name, kernels.kind, kernels.registers, kernels.shared_memory_bytes, kernels.size_bytes]
    return [*of_owner, *(column[rows] for column in plain), *launch]


def _family(name: str, by_op: Family | None, kind: int) -> Family | None:
    """Choose the family: a library kernel's name decides over its op, the op over a name that tells nothing."""
    if kind == KernelKind.COLLECTIVE:
        return Family.COLLECTIVE
    if kind != KernelKind.KERNEL:
        return Family.COPY
    by_name = family_of_kernel(name)
    if by_name is Family.COLLECTIVE or by_op is None:
        return by_name
    if by_op in VARYING_FAMILIES:
        return by_name if by_name is Family.ELEMENTWISE else by_op
    return by_name if by_name in VARYING_FAMILIES else by_op


def _of_kernel(work: Work | None, name: str, kind: int) -> Work | None:
    """Return a collective's work without its sizes for kernels that only copy beside it."""
    if work is None or not isinstance(work.dims, CollectiveDims):
        return work
    moves = kind == KernelKind.COLLECTIVE or family_of_kernel(name) is Family.COLLECTIVE
    return work if moves else replace(work, dims=None)


def _is_helper(work: Work | None, family: Family | None) -> bool:
    """Say whether a kernel of a matrix op is none itself: a layout change, a split reduction."""
    return work is not None and work.family in VARYING_FAMILIES and family not in VARYING_FAMILIES
