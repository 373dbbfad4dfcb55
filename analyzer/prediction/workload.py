"""What one iteration asks of a GPU: distinct kernels (or ops, where nothing was measured) with their work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ...arrays import Floats, Rows, group_rows, share_busy_time
from ...formats.column import Column, row_count
from ...formats.trace import KernelKind, Meta, Trace
from ...specs.gpu import Rate
from ..recorded.window import Window
from ..work import Family, Work, family_of, work_of
from ..work.kernel_names import family_of_kernel, rate_of_kernel
from ..work.table import WorkTable

VARYING_FAMILIES: Final = frozenset({Family.MATMUL, Family.CONVOLUTION, Family.ATTENTION, Family.RECURRENT})
"""Families whose kernels libraries choose per GPU: Habitat's kernel-varying ops."""

_MATRIX_RATES: Final = {
    "float64": Rate.MATRIX_FP64,
    "float16": Rate.MATRIX_FP16,
    "bfloat16": Rate.MATRIX_BF16,
    "float4_e2m1fn_x2": Rate.MATRIX_FP4,
    "int8": Rate.MATRIX_INT8,
    "uint8": Rate.MATRIX_INT8,
    "complex128": Rate.MATRIX_FP64,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
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
    is_varying: npt.NDArray[np.bool_]
    has_work: npt.NDArray[np.bool_]
    works: tuple[Work | None, ...]
    """Of the whole op; None where `has_work` is false."""
    work: WorkTable
    """Work of the whole op; zeros where `has_work` is false, the rate then guessed from the kernel's name."""
    rate_known: npt.NDArray[np.bool_]
    row_of: Rows
    """Row of each kernel of the trace (of each op, where nothing was measured); -1 for those left out."""


class _Resolver:
    """Look up the work of ops once per name and signature, and the op that explains a kernel."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._names, self._signatures = trace.ops.name.tolist(), trace.ops.signature.tolist()
        self._parents = trace.ops.parent.tolist()
        self._work: dict[tuple[int, int], Work | None] = {}

    def work(self, row: int) -> Work | None:
        """Return the work of an op; None for views and where no formula fits."""
        key = (self._names[row], self._signatures[row])
        try:
            return self._work[key]
        except KeyError:
            signature = self._trace.signatures[key[1]] if key[1] >= 0 else None
            found = work_of(self._trace.strings[key[0]], signature)
            self._work[key] = kept = None if found is not None and found.family is Family.VIEW else found
            return kept

    def family(self, row: int) -> Family | None:
        """Return the family of an op by its name alone."""
        found = family_of(self._trace.strings[self._names[row]])
        return None if found is Family.VIEW else found

    def owner(self, row: int) -> int:
        """Return the innermost op at or around `row` whose work is known, else whose family is, else `row`."""
        if self.work(row) is not None:
            return row
        chain = list(self._ancestors(row))
        return next(
            (item for item in chain if self.work(item) is not None),
            next((item for item in chain if self.family(item) is not None), row),
        )

    def _ancestors(self, row: int) -> Iterator[int]:
        while row >= 0:
            yield row
            row = self._parents[row]


def measured_workload(trace: Trace, window: Window) -> Workload:
    """Group the kernels of the window by launch, name, and explaining op."""
    kernels, rows = trace.kernels, np.flatnonzero(trace.kernels.device == window.device)
    counts = np.isin(rows, window.kernel_rows)
    resolver = _Resolver(trace)
    owners_of = {row: resolver.owner(row) if row >= 0 else -1 for row in np.unique(kernels.op[rows]).tolist()}
    owners = np.array([owners_of[row] for row in kernels.op[rows].tolist()], dtype=np.int64)
    first, group = group_rows(_group_keys(trace, rows, owners))
    size = np.bincount(group, minlength=len(first))
    duration = kernels.duration_ns[rows].astype(np.float64)
    busy = share_busy_time(kernels.start_ns[rows[counts]], kernels.duration_ns[rows[counts]])
    row_of = np.full(row_count(kernels), -1, dtype=np.int64)
    row_of[rows] = group
    op_time = _op_time(owners, duration)
    names = [trace.strings[name] for name in kernels.name[rows[first]].tolist()]
    owner = owners[first]
    works = [resolver.work(row) if row >= 0 else None for row in owner.tolist()]
    kind = kernels.kind[rows[first]]
    families = tuple(
        _family(name, work, resolver.family(row) if row >= 0 and work is None else None, code)
        for name, work, row, code in zip(names, works, owner.tolist(), kind.tolist(), strict=True)
    )
    works = [_own_work(work, family) for work, family in zip(works, families, strict=True)]
    rates = [rate_of_work(name, work, trace.meta) for name, work in zip(names, works, strict=True)]
    return Workload(
        kernel=rows[first],
        op=owner,
        count=np.bincount(group[counts], minlength=len(first)),
        duration_ns=np.bincount(group, weights=duration, minlength=len(first)) / size,
        busy_ns=np.bincount(group[counts], weights=busy, minlength=len(first)).astype(np.float64),
        op_share=np.bincount(group, weights=duration / op_time, minlength=len(first)) / size,
        kind=kind,
        family=families,
        is_varying=np.array([family in VARYING_FAMILIES for family in families], dtype=bool),
        has_work=np.array([work is not None for work in works], dtype=bool),
        works=tuple(works),
        work=_work_table(works, [rate or Rate.FP32 for rate in rates]),
        rate_known=np.array([rate is not None for rate in rates], dtype=bool),
        row_of=row_of,
    )


def shape_workload(trace: Trace, window: Window) -> Workload:
    """Group the ops of the window by name and signature; of nested ops the innermost with a formula counts."""
    resolver = _Resolver(trace)
    rows = _explained_ops(trace, window.op_rows, resolver)
    first, group = group_rows([trace.ops.name[rows].astype(np.int64), trace.ops.signature[rows].astype(np.int64)])
    owner = rows[first]
    row_of = np.full(row_count(trace.ops), -1, dtype=np.int64)
    row_of[rows] = group
    works = [resolver.work(row) for row in owner.tolist()]
    families = tuple(
        work.family if work else resolver.family(row) for work, row in zip(works, owner.tolist(), strict=True)
    )
    rates = [rate_of_work("", work, trace.meta) for work in works]
    return Workload(
        kernel=np.full(len(first), -1),
        op=owner,
        count=np.bincount(group, minlength=len(first)),
        duration_ns=np.full(len(first), np.nan),
        busy_ns=np.zeros(len(first)),
        op_share=np.ones(len(first)),
        kind=np.zeros(len(first), dtype=np.int8),
        family=families,
        is_varying=np.array([family in VARYING_FAMILIES for family in families], dtype=bool),
        has_work=np.array([work is not None for work in works], dtype=bool),
        works=tuple(works),
        work=_work_table(works, [rate or Rate.FP32 for rate in rates]),
        rate_known=np.array([rate is not None for rate in rates], dtype=bool),
        row_of=row_of,
    )


def _group_keys(trace: Trace, rows: Rows, owners: Rows) -> list[Column]:
    kernels, ops = trace.kernels, trace.ops
    known = owners >= 0
    owner_name = np.where(known, _rows_or_zeros(ops.name, owners), -1)
    owner_signature = np.where(known, _rows_or_zeros(ops.signature, owners), -1)
    launch = [kernels.grid[rows][:, axis] for axis in range(3)] + [kernels.block[rows][:, axis] for axis in range(3)]
    plain = [kernels.name, kernels.kind, kernels.registers, kernels.shared_memory_bytes, kernels.size_bytes]
    return [owner_name, owner_signature, *(column[rows] for column in plain), *launch]


def _rows_or_zeros(values: Column, rows: Rows) -> Column:
    return values[rows] if len(values) else np.zeros(len(rows), dtype=np.int64)


def _op_time(owners: Rows, duration: Floats) -> Floats:
    """Return per kernel the GPU time of all kernels of its op call; its own where no op explains it."""
    _, position = np.unique(owners, return_inverse=True)
    total = np.bincount(position, weights=duration)[position] if len(owners) else duration
    return np.maximum(np.where(owners >= 0, total, duration), 1.0)


def _family(name: str, work: Work | None, op_family: Family | None, kind: int) -> Family | None:
    """Choose the family: a library kernel's name decides over its op, the op over a name that tells nothing."""
    if kind == KernelKind.COLLECTIVE:
        return Family.COLLECTIVE
    if kind != KernelKind.KERNEL:
        return Family.COPY
    by_name, by_op = family_of_kernel(name), work.family if work is not None else op_family
    if by_name is Family.COLLECTIVE or by_op is None:
        return by_name
    if by_op in VARYING_FAMILIES:
        return by_name if by_name is Family.ELEMENTWISE else by_op
    return by_name if by_name in VARYING_FAMILIES else by_op


def _own_work(work: Work | None, family: Family | None) -> Work | None:
    """Return the op's work unless the kernel is a helper (layout change, split reduction) of a matrix op."""
    if work is not None and work.family in VARYING_FAMILIES and family not in VARYING_FAMILIES:
        return None
    return work


def rate_of_work(name: str, work: Work | None, meta: Meta) -> Rate | None:
    """Return the unit that a kernel of this name (or an op, without a name) runs on; None where nothing tells."""
    by_name = rate_of_kernel(name) if name else None
    if work is None:
        return by_name
    if not work.is_matrix:
        return Rate.FP64 if work.dtype in ("float64", "complex128") else Rate.FP32
    if work.dtype.startswith("float8"):
        return Rate.MATRIX_FP8
    if work.dtype in ("float32", "complex64"):
        return _float32_rate(name, by_name, work, meta)
    return _MATRIX_RATES.get(work.dtype, Rate.FP32)


def _float32_rate(name: str, by_name: Rate | None, work: Work, meta: Meta) -> Rate:
    if name:
        return Rate.MATRIX_TF32 if by_name is Rate.MATRIX_TF32 else Rate.MATRIX_FP32
    precision = meta.precision
    allowed = precision.matmul_tf32 if work.family is Family.MATMUL else precision.cudnn_tf32
    return Rate.MATRIX_TF32 if allowed else Rate.MATRIX_FP32


def _work_table(works: list[Work | None], rates: list[Rate]) -> WorkTable:
    rate = np.empty(len(rates), dtype=object)
    rate[:] = rates
    return WorkTable(
        flops=np.array([work.least_flops if work else 0.0 for work in works], dtype=np.float64),
        moved_bytes=np.array([work.moved_bytes if work else 0.0 for work in works], dtype=np.float64),
        rate=rate,
    )


def explained_ops(trace: Trace) -> Rows:
    """Return the ops that stand for GPU work where no kernel was recorded, as `shape_workload` counts them."""
    return _explained_ops(trace, np.arange(row_count(trace.ops)), _Resolver(trace))


def _explained_ops(trace: Trace, op_rows: Rows, resolver: _Resolver) -> Rows:
    """Return the innermost ops with a formula, and ops without one that enclose none and are inside none.

    A matrix op that encloses none of its kind counts itself, not the helpers in it (the bias of a miopen convolution).
    """
    rows = op_rows.tolist()
    parents, count = trace.ops.parent.tolist(), row_count(trace.ops)
    has_child, works_below, multiplies_below = (np.zeros(count, dtype=bool) for _ in range(3))
    for row in reversed(rows):
        parent, work = parents[row], resolver.work(row)
        if parent >= 0:
            has_child[parent] = True
            works_below[parent] |= works_below[row] or work is not None
            multiplies_below[parent] |= multiplies_below[row] or (work is not None and work.is_matrix)

    def explains(row: int) -> bool:
        work = resolver.work(row)
        return work is not None and not (multiplies_below[row] if work.is_matrix else works_below[row])

    inside = np.zeros(count, dtype=bool)
    chosen = []
    for row in rows:
        parent = parents[row]
        inside[row] = parent >= 0 and (inside[parent] or explains(parent))
        if inside[row] or (works_below[row] and not explains(row)):
            continue
        is_view = family_of(trace.strings[trace.ops.name[row]]) is Family.VIEW
        if resolver.work(row) is not None or (not has_child[row] and not is_view):
            chosen.append(row)
    return np.array(chosen, dtype=np.int64)
