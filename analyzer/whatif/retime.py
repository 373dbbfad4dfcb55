"""Gives the kernels of a changed trace the durations that they would have had on the GPU of the recording.

t_changed = t_measured * model(changed op) / model(original op), both on the source GPU. The normal prediction then
moves the result to other GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from ...arrays import Rows, group_rows
from ...formats.column import row_count
from ...formats.signature import Signature, TensorSpec
from ...formats.trace import KernelKind, Trace
from ...specs.fleet import Fleet, build_fleet
from ...specs.gpu import Gpu, Rate
from ..models.assignment import assign_models
from ..models.library import Library
from ..prediction.bounds import bound_ops
from ..prediction.op_models import model_times
from ..prediction.predict import KERNEL_OVERHEAD_NS
from ..work import VARYING_FAMILIES, Family, Work, work_of
from ..work.kernel_names import family_of_kernel
from ..work.rates import rate_of_work
from ..work.table import tabulate
from .calls import short_name
from .change import Casts, Floats, Whatif
from .timeline import shift_timeline

_UNKNOWN, _SAME, _MODEL, _BYTES, _NOTHING = range(5)
_CAST_DTYPES: Final = {4.0: "float32", 2.0: "bfloat16", 1.0: "float8_e4m3fn"}


def retime(original: Trace, changed: Whatif, gpu: Gpu, library: Library) -> Whatif:
    """Return the changed trace with the kernel durations that its ops would have had on `gpu`, the recording's GPU.

    Kernels of matrix ops that only move data, and copies, follow the bytes of their op; kernels of ops without a
    formula keep their time and are counted in a warning. Conversions that autocast adds lengthen a kernel of the op
    that needs them: rows are preserved, so nothing is inserted. Starts move along, so that what overlapped still
    does and gaps stay. Nothing changes where the signatures are the same.
    """
    if changed.trace is original or not original.is_measured:
        return changed
    owners = _owners(original)
    fleet = build_fleet([gpu])
    factor, rule = _factors(original, changed.trace, owners, fleet, library)
    measured = original.kernels.duration_ns.astype(np.float64)
    fixed = np.where(rule == _BYTES, np.minimum(measured, KERNEL_OVERHEAD_NS), 0.0)
    duration = fixed + (measured - fixed) * factor
    added, lost = _cast_additions(original, changed.casts, fleet, library)
    duration_ns = np.where((factor == 1.0) & (added == 0.0), measured, duration + added)
    trace = shift_timeline(changed.trace, np.rint(duration_ns).astype(np.int64))
    warnings = (*changed.warnings, *_warnings(original, rule, lost))
    return replace(changed, trace=trace, warnings=warnings)


def cast_times_ns(casts: Casts, gpus: Sequence[Gpu], library: Library) -> Floats:
    """Return the time of each conversion on each GPU, [n, m]: that of a copy kernel, by its op model."""
    return _cast_times_ns(casts, build_fleet(gpus), library)


def _cast_times_ns(casts: Casts, fleet: Fleet, library: Library) -> Floats:
    if not len(casts.op):
        return np.zeros((0, len(fleet.gpus)))
    keys = [casts.element_count, casts.read_bytes.astype(np.int64), casts.written_bytes.astype(np.int64)]
    first, group = group_rows(keys)
    works = [_cast_work(casts, row) for row in first.tolist()]
    return np.asarray(_op_times_ns(works, [Rate.FP32] * len(works), fleet, library)[group])


def _cast_work(casts: Casts, row: int) -> Work | None:
    shape = (int(casts.element_count[row]),)
    before, after = (_CAST_DTYPES[float(column[row])] for column in (casts.read_bytes, casts.written_bytes))
    return work_of("aten::_to_copy", Signature((TensorSpec(before, shape),), (TensorSpec(after, shape),)))


def _op_times_ns(works: Sequence[Work | None], rates: Sequence[Rate], fleet: Fleet, library: Library) -> Floats:
    """Return the time of each op on each GPU, [n, m]: its op model, else its roofline."""
    table = tabulate(works, rates)
    bounds = bound_ops(table, fleet)
    modelled = model_times(assign_models(works, table.rate, library.fitted), len(works), fleet, library)
    covered = modelled.is_covered[:, None]
    return np.asarray(np.where(covered, np.maximum(modelled.time_ns, bounds.lower_ns), bounds.roofline_ns))


def _owners(trace: Trace) -> Rows:
    """Return the innermost op with a formula around each kernel's launch; -1 where there is none."""
    ops = trace.ops
    first, group = group_rows([ops.name.astype(np.int64), ops.signature.astype(np.int64)])
    known = np.array([_work(trace, row) is not None for row in first.tolist()], dtype=bool)
    has_work = known[group] if len(group) else np.zeros(0, dtype=bool)
    owner = trace.kernels.op.astype(np.int64)
    while True:
        climbing = owner >= 0
        climbing[climbing] = ~has_work[owner[climbing]]
        if not climbing.any():
            return owner
        owner[climbing] = ops.parent[owner[climbing]]


def _work(trace: Trace, row: int) -> Work | None:
    number = int(trace.ops.signature[row])
    signature = trace.signatures[number] if number >= 0 else None
    found = work_of(trace.strings[trace.ops.name[row]], signature)
    return None if found is not None and found.family is Family.VIEW else found


@dataclass(frozen=True, slots=True)
class _Pair:
    """Hold what one kind of kernel did and would do."""

    rule: int
    works: tuple[Work | None, Work | None]
    rates: tuple[Rate, Rate]


def _factors(
    original: Trace, changed: Trace, owners: Rows, fleet: Fleet, library: Library
) -> tuple[Floats, npt.NDArray[np.int8]]:
    """Return the factor on each kernel's duration, and the rule that it comes from."""
    kernels, known = original.kernels, owners >= 0
    keys = [
        np.where(known, np.take(column, np.maximum(owners, 0)) if row_count(original.ops) else -1, -1)
        for column in (original.ops.name, original.ops.signature, changed.ops.signature)
    ]
    keys = [*keys, kernels.name, changed.kernels.name, kernels.kind]
    first, group = group_rows([np.asarray(key, dtype=np.int64) for key in keys])
    pairs = [_pair(original, changed, int(owners[row]), row) for row in first.tolist()]
    rule = np.array([pair.rule for pair in pairs], dtype=np.int8)
    factor = np.where(rule == _NOTHING, 0.0, 1.0)
    rows = np.flatnonzero(rule == _MODEL).tolist()
    works = [pairs[row].works[side] for side in (0, 1) for row in rows]
    rates = [pairs[row].rates[side] for side in (0, 1) for row in rows]
    times = _op_times_ns(works, rates, fleet, library)[:, 0] if rows else np.zeros(0)
    factor[rows] = times[len(rows) :] / times[: len(rows)]
    for row in np.flatnonzero(rule == _BYTES).tolist():
        before, after = (work.moved_bytes if work else 0.0 for work in pairs[row].works)
        factor[row] = after / before if before > 0 else 1.0
    broken = ~np.isfinite(factor)
    factor[broken], rule[broken] = 1.0, _UNKNOWN
    return factor[group], rule[group]


def _pair(original: Trace, changed: Trace, owner: int, kernel: int) -> _Pair:
    nothing = _Pair(_UNKNOWN, (None, None), (Rate.FP32, Rate.FP32))
    kind = int(original.kernels.kind[kernel])
    if owner < 0:
        return nothing
    before, after = _work(original, owner), _work(changed, owner)
    names = [trace.strings[trace.kernels.name[kernel]] for trace in (original, changed)]
    same_call = _signature(original, owner) == _signature(changed, owner)
    if kind == KernelKind.COLLECTIVE or (same_call and names[0] == names[1]):
        return replace(nothing, rule=_SAME)
    if before is None or after is None:
        return nothing
    if _is_pointless(original, owner) is False and _is_pointless(changed, owner):
        return replace(nothing, rule=_NOTHING)
    moves = kind != KernelKind.KERNEL or family_of_kernel(names[0]) is Family.ELEMENTWISE
    if moves and (kind != KernelKind.KERNEL or before.family in VARYING_FAMILIES):
        return _Pair(_BYTES, (before, after), (Rate.FP32, Rate.FP32))
    rates = tuple(
        rate_of_work(name, work, trace.meta) or Rate.FP32
        for name, work, trace in zip(names, (before, after), (original, changed), strict=True)
    )
    return _Pair(_MODEL, (before, after), (rates[0], rates[1]))


def _signature(trace: Trace, row: int) -> Signature | None:
    number = int(trace.ops.signature[row])
    return trace.signatures[number] if number >= 0 else None


def _is_pointless(trace: Trace, row: int) -> bool | None:
    """Say whether a copy converts a tensor to the type that it has; None for other ops."""
    signature = _signature(trace, row)
    if signature is None or short_name(trace.strings[trace.ops.name[row]]) not in ("copy", "_to_copy"):
        return None
    arguments = (*signature.arguments[:2], *signature.results)
    tensors = [item for item in arguments if isinstance(item, TensorSpec)]
    return len(tensors) > 1 and tensors[0].dtype == tensors[1].dtype


def _cast_additions(trace: Trace, casts: Casts, fleet: Fleet, library: Library) -> tuple[Floats, int]:
    """Return the conversion time to add to each kernel, ns, and the number of conversions without a kernel."""
    added = np.zeros(row_count(trace.kernels))
    if not len(casts.op):
        return added, 0
    kernel = _kernel_of_op(trace)[casts.op]
    times = _cast_times_ns(casts, fleet, library)[:, 0]
    np.add.at(added, kernel[kernel >= 0], times[kernel >= 0])
    return added, int((kernel < 0).sum())


def _kernel_of_op(trace: Trace) -> Rows:
    """Return the longest kernel launched inside each op; -1 where there is none."""
    found = np.full(row_count(trace.ops), -1, dtype=np.int64)
    order = np.argsort(trace.kernels.duration_ns, kind="stable")
    op, kernel = trace.kernels.op[order].astype(np.int64), order
    longest = np.full(row_count(trace.ops), -1, dtype=np.int64)
    while len(op):
        op, kernel = op[op >= 0], kernel[op >= 0]
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        np.maximum.at(longest, op, rank[kernel])
        op = trace.ops.parent[op].astype(np.int64)
    found[longest >= 0] = order[longest[longest >= 0]]
    return found


def _warnings(trace: Trace, rule: npt.NDArray[np.int8], lost: int) -> Iterator[str]:
    unknown = (rule == _UNKNOWN) & (trace.kernels.kind != KernelKind.COLLECTIVE)
    if unknown.any():
        share = trace.kernels.duration_ns[unknown].sum() / max(trace.kernels.duration_ns.sum(), 1)
        yield (
            f"{int(unknown.sum())} kernels ({share:.0%} of the GPU time) belong to ops without recorded shapes or "
            "formula and keep their time"
        )
    if lost:
        yield f"{lost} conversions belong to ops without a kernel and are left out"
