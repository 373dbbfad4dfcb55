"""Gives the kernels of a changed trace the durations that they would have had on the GPU of the recording.

t_changed = t_measured * model(changed op) / model(original op), both on the source GPU. The normal prediction then
moves the result to other GPUs.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from ....arrays import Floats, Rows, at_rows, group_rows, share_busy_time
from ....errors import InputError
from ....formats.trace.column import MAX_INTEGER, MISSING, row_count
from ....formats.trace.signature import Signature, TensorSpec
from ....formats.trace.tables import IterationTable, KernelKind, Trace
from ....records import dataclass, replace
from ....specs.fleet import Fleet, build_fleet
from ....specs.gpu import Gpu, Rate
from ...models.library import Library
from ...models.registry import assign_models
from ...prediction.bounds import KERNEL_OVERHEAD_NS, bound_ops
from ...prediction.op_models import model_times
from ...recorded.window import select_window
from ...work import VARYING_FAMILIES, Family, Work, work_of
from ...work.kernel_names import family_of_kernel, rate_of_work
from ...work.lookup import WorkLookup
from ...work.table import tabulate
from ..calls import short_name
from ..change import Casts, Whatif


class _Rule(IntEnum):
    """How a kernel's time follows its op's change."""

    UNKNOWN = 0
    """Nothing tells: it stays."""
    SAME = 1
    MODEL = 2
    """As the op's modelled time."""
    BYTES = 3
    """As the bytes that the op moves: kernels that only move data, and copies."""
    NOTHING = 4
    """The kernel is no longer needed."""


def retime(original: Trace, changed: Whatif, gpu: Gpu, library: Library) -> Whatif:
    """Return the changed trace with the kernel durations that its ops would have had on `gpu`, the recording's GPU.

    Kernels of matrix ops that only move data, and copies, follow the bytes of their op; kernels of ops without a
    formula keep their time and are counted in a warning. Conversions that autocast adds lengthen a kernel of the op
    that needs them: rows are preserved, so nothing is inserted. Starts move along, so that what overlapped still
    does and gaps stay. Nothing changes where the signatures are the same.
    """
    if changed.trace is original or not original.is_measured:
        return changed
    before, after = _Version(original, WorkLookup(original)), _Version(changed.trace, WorkLookup(changed.trace))
    fleet = build_fleet([gpu])
    factor, rule = _factors(before, after, fleet, library)
    measured = original.kernels.duration_ns.astype(np.float64)
    fixed = np.where(rule == _Rule.BYTES, np.minimum(measured, KERNEL_OVERHEAD_NS), 0.0)
    duration = fixed + (measured - fixed) * factor
    added, lost = _cast_additions(original, changed.casts, fleet, library)
    duration_ns = np.where((factor == 1.0) & (added == 0.0), measured, duration + added)
    # Raise InputError for a kernel that would take longer than a trace can say.
    endless = np.flatnonzero(~(duration_ns <= MAX_INTEGER))
    if len(endless):
        name = original.strings[int(original.kernels.name[endless[0]])]
        raise InputError(
            f"{name} (kernel {endless[0]}) would take {duration_ns[endless[0]] / 1e9:,.0f} s: nothing is known of "
            "kernels of that size; ask for a smaller change"
        )
    trace = shift_timeline(changed.trace, np.rint(duration_ns).astype(np.int64))
    warnings = (*changed.warnings, *_warnings(original, rule, lost))
    return replace(changed, trace=trace, warnings=warnings)


@dataclass(frozen=True, slots=True)
class _Version:
    """Hold the trace before or after the change, with the work of its ops."""

    trace: Trace
    lookup: WorkLookup

    def signature(self, row: int) -> Signature | None:
        """Return what an op was called with; None where that was not recorded."""
        number = int(self.trace.ops.signature[row])
        return self.trace.signatures[number] if number >= 0 else None

    def kernel_name(self, row: int) -> str:
        """Return the name of a kernel."""
        return self.trace.strings[int(self.trace.kernels.name[row])]


@dataclass(frozen=True, slots=True)
class _Pair:
    """Hold what one kind of kernel did and would do."""

    rule: _Rule
    before: Work | None = None
    after: Work | None = None
    rate_before: Rate = Rate.FP32
    rate_after: Rate = Rate.FP32


def _factors(before: _Version, after: _Version, fleet: Fleet, library: Library) -> tuple[Floats, npt.NDArray[np.int8]]:
    """Return the factor on each kernel's duration, and the rule that it comes from."""
    original, changed, owners = before.trace, after.trace, _owners(before)
    columns = (original.ops.name, original.ops.signature, changed.ops.signature)
    keys = [at_rows(column, owners) for column in columns]
    keys += [original.kernels.name, changed.kernels.name, original.kernels.kind]
    first, group = group_rows([np.asarray(key, dtype=np.int64) for key in keys])
    pairs = [_pair(before, after, int(owners[row]), row) for row in first.tolist()]
    rule = np.array([pair.rule for pair in pairs], dtype=np.int8)
    factor = np.where(rule == _Rule.NOTHING, 0.0, 1.0)
    modelled = [pair for pair in pairs if pair.rule is _Rule.MODEL]
    if modelled:
        works = [pair.before for pair in modelled] + [pair.after for pair in modelled]
        rates = [pair.rate_before for pair in modelled] + [pair.rate_after for pair in modelled]
        then, now = op_times_ns(works, rates, fleet, library)[:, 0].reshape(2, -1)
        factor[rule == _Rule.MODEL] = now / then
    for row, pair in enumerate(pairs):
        if pair.rule is _Rule.BYTES:
            moved, moves = (work.moved_bytes if work else 0.0 for work in (pair.before, pair.after))
            factor[row] = moves / moved if moved > 0 else 1.0
    broken = ~np.isfinite(factor)
    factor[broken], rule[broken] = 1.0, _Rule.UNKNOWN
    return factor[group], rule[group]


def _owners(version: _Version) -> Rows:
    """Return the innermost op with a formula around each kernel's launch; -1 where there is none."""
    ops = version.trace.ops
    first, group = group_rows([ops.name.astype(np.int64), ops.signature.astype(np.int64)])
    known = np.array([version.lookup.work(row) is not None for row in first.tolist()], dtype=bool)
    has_work = known[group] if len(group) else np.zeros(0, dtype=bool)
    owner = version.trace.kernels.op.astype(np.int64)
    while True:
        climbing = owner >= 0
        climbing[climbing] = ~has_work[owner[climbing]]
        if not climbing.any():
            return owner
        owner[climbing] = ops.parent[owner[climbing]]


def _pair(before: _Version, after: _Version, owner: int, kernel: int) -> _Pair:
    if owner < 0:
        return _Pair(_Rule.UNKNOWN)
    kind, name, new_name = int(before.trace.kernels.kind[kernel]), before.kernel_name(kernel), after.kernel_name(kernel)
    is_same = before.signature(owner) == after.signature(owner) and name == new_name
    if kind == KernelKind.COLLECTIVE or is_same:
        return _Pair(_Rule.SAME)
    work, new_work = before.lookup.work(owner), after.lookup.work(owner)
    if work is None or new_work is None:
        return _Pair(_Rule.UNKNOWN)
    if _is_pointless(before, owner) is False and _is_pointless(after, owner):
        return _Pair(_Rule.NOTHING)
    moves = kind != KernelKind.KERNEL or family_of_kernel(name) is Family.ELEMENTWISE
    if moves and (kind != KernelKind.KERNEL or work.family in VARYING_FAMILIES):
        return _Pair(_Rule.BYTES, work, new_work)
    rate = rate_of_work(name, work, before.trace.meta) or Rate.FP32
    return _Pair(_Rule.MODEL, work, new_work, rate, rate_of_work(new_name, new_work, after.trace.meta) or Rate.FP32)


def _is_pointless(version: _Version, row: int) -> bool | None:
    """Say whether a copy converts a tensor to the type that it has; None for other ops."""
    signature = version.signature(row)
    name = version.trace.strings[version.trace.ops.name[row]]
    if signature is None or short_name(name) not in ("copy", "_to_copy"):
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
    times = cast_times_ns(casts, fleet, library)[:, 0]
    np.add.at(added, kernel[kernel >= 0], times[kernel >= 0])
    return added, int((kernel < 0).sum())


_CAST_DTYPES: Final = {4.0: "float32", 2.0: "bfloat16", 1.0: "float8_e4m3fn", 0.5: "int4"}


def cast_times_ns(casts: Casts, fleet: Fleet, library: Library) -> Floats:
    """Return the time of each conversion on each GPU, [n, m]: that of a copy kernel, by its op model."""
    if not len(casts.op):
        return np.zeros((0, len(fleet.gpus)))
    widths = [(2 * column).astype(np.int64) for column in (casts.read_bytes, casts.written_bytes)]
    keys = [casts.element_count, *widths]
    first, group = group_rows(keys)
    works = []
    for row in first.tolist():
        shape = (int(casts.element_count[row]),)
        before, after = (_CAST_DTYPES[float(column[row])] for column in (casts.read_bytes, casts.written_bytes))
        works.append(work_of("aten::_to_copy", Signature((TensorSpec(before, shape),), (TensorSpec(after, shape),))))
    return np.asarray(op_times_ns(works, [Rate.FP32] * len(works), fleet, library)[group])


def op_times_ns(works: Sequence[Work | None], rates: Sequence[Rate], fleet: Fleet, library: Library) -> Floats:
    """Return the time of each op on each GPU, [n, m]: its op model, else its roofline."""
    table = tabulate(works, rates)
    bounds = bound_ops(table, fleet)
    modelled = model_times(assign_models(works, table.rate, library.fitted), len(works), fleet, library)
    covered = modelled.is_covered[:, None]
    return np.asarray(np.where(covered, np.maximum(modelled.time_ns, bounds.lower_ns), bounds.roofline_ns))


def _kernel_of_op(trace: Trace) -> Rows:
    """Return the longest kernel launched inside each op; -1 where there is none."""
    order = np.argsort(trace.kernels.duration_ns, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    longest = np.full(row_count(trace.ops), -1, dtype=np.int64)
    op, kernel = trace.kernels.op.astype(np.int64), np.arange(len(order))
    while len(op):
        op, kernel = op[op >= 0], kernel[op >= 0]
        np.maximum.at(longest, op, rank[kernel])
        op = trace.ops.parent[op].astype(np.int64)
    return at_rows(order, longest)


def _warnings(trace: Trace, rule: npt.NDArray[np.int8], lost: int) -> Iterator[str]:
    unknown = (rule == _Rule.UNKNOWN) & (trace.kernels.kind != KernelKind.COLLECTIVE)
    if unknown.any():
        share = trace.kernels.duration_ns[unknown].sum() / max(trace.kernels.duration_ns.sum(), 1)
        yield (
            f"{int(unknown.sum())} kernels ({share:.0%} of the GPU time) belong to ops without recorded shapes or "
            "formula and keep their time"
        )
    if lost:
        yield f"{lost} conversions belong to ops without a kernel and are left out"


def shift_timeline(trace: Trace, duration_ns: Rows) -> Trace:
    """Return the trace with new kernel durations, stretched where kernels ran and left alone where none did.

    Where several kernels overlap, time stretches by the mean of their ratios. The host's times stay: what the host
    did decides the replay, which starts from the recorded timeline.
    """
    kernels = trace.kernels
    if np.array_equal(kernels.duration_ns, duration_ns):
        return trace
    instants, warped = _warp(kernels.start_ns, kernels.duration_ns, duration_ns)
    start_ns = np.rint(_moved(kernels.start_ns, instants, warped)).astype(np.int64)
    moved = replace(trace, kernels=replace(kernels, start_ns=start_ns, duration_ns=duration_ns))
    return replace(moved, iterations=_iterations(trace, moved, instants, warped))


def _warp(start_ns: Rows, before_ns: Rows, after_ns: Rows) -> tuple[Floats, Floats]:
    """Return the instants at which kernels start or end, in order, and where they move to."""
    ratio = np.divide(after_ns, before_ns, out=np.ones(len(before_ns)), where=before_ns > 0)
    instants = np.concatenate([start_ns, start_ns + before_ns])
    order = np.argsort(instants, kind="stable")
    sorted_ns = instants[order].astype(np.float64)
    steps = np.concatenate([np.ones(len(start_ns)), -np.ones(len(start_ns))])
    active = np.cumsum(steps[order])[:-1]
    stretched = np.cumsum((steps * np.concatenate([ratio, ratio]))[order])[:-1]
    speed = np.divide(stretched, active, out=np.ones_like(active), where=active > 0)
    warped = sorted_ns[0] + np.concatenate([[0.0], np.cumsum(np.diff(sorted_ns) * speed)])
    return sorted_ns, warped


def _moved(times_ns: Rows, instants: Floats, warped: Floats) -> Floats:
    moved = np.interp(times_ns, instants, warped)
    beyond = times_ns > instants[-1]
    moved = np.where(beyond, times_ns - instants[-1] + warped[-1], moved)
    return np.asarray(np.where(times_ns < instants[0], times_ns, moved))


def _iterations(before: Trace, after: Trace, instants: Floats, warped: Floats) -> IterationTable:
    """Move the profiled iterations with their kernels; lengthen the others by the change in GPU-busy time."""
    table = before.iterations
    if not row_count(table):
        return table
    start_ns, end_ns = table.start_ns.copy(), table.end_ns.copy()
    profiled = table.profiled.astype(bool)
    unrecorded = profiled & (table.cpu_end_ns == MISSING)
    cpu_start_ns = np.where(unrecorded, table.start_ns, table.cpu_start_ns)
    cpu_end_ns = np.where(unrecorded, table.end_ns, table.cpu_end_ns)
    for column in (start_ns, end_ns):
        column[profiled] = np.rint(_moved(column[profiled], instants, warped)).astype(np.int64)
    if (~profiled).any():
        rows = select_window(before).kernel_rows
        change_ns = _busy_ns(after, rows) - _busy_ns(before, rows)
        length = np.maximum(end_ns - start_ns + round(change_ns), 1)[~profiled]
        last_ns = int(end_ns[~profiled].max())
        edges = last_ns - np.cumsum([0, *length[::-1].tolist()])[::-1]
        start_ns[~profiled], end_ns[~profiled] = edges[:-1], edges[1:]
    return replace(table, start_ns=start_ns, end_ns=end_ns, cpu_start_ns=cpu_start_ns, cpu_end_ns=cpu_end_ns)


def _busy_ns(trace: Trace, rows: Rows) -> float:
    return float(share_busy_time(trace.kernels.start_ns[rows], trace.kernels.duration_ns[rows]).sum())
