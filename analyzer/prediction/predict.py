"""Predict the time of every kernel on every GPU: measured ones moved, others from their shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...arrays import Floats, Mask
from ...formats.trace import KernelKind, Trace
from ...specs.attention_kernels import AttentionKernel
from ...specs.fleet import Fleet, build_fleet
from ...specs.gpu import Gpu
from ..models.frame.intervals import separations
from ..models.library import Library, carried_factor
from .attention import as_asked, as_recorded, attention_rows
from .bounds import bound_ops
from .method import Method
from .op_models import ModelTimes, assign_rows, covered_rows, model_times
from .prediction import METHODS, Prediction
from .ratios import BLOCK_ROWS, RULE_OF, Move, move_by_ratios, ratio_half_widths
from .workload import GpuWorkload

KERNEL_OVERHEAD_NS: Final = 1250.0
"""The part of a kernel's time that no faster memory or arithmetic shortens: the shortest kernel of the V100 traces;
H100's shortest is 1,500, B200's 1,980. Scaling it as well would promise times that no GPU reaches."""


def predict_measured(
    trace: Trace,
    workload: GpuWorkload,
    source: Gpu,
    targets: Sequence[Gpu],
    library: Library,
    *,
    retimed: bool = False,
    attention: AttentionKernel | None = None,
) -> Prediction:
    """Move measured kernels from `source` to every target.

    t_target = overhead + (t_source - overhead) * factor, with the factor of the row's rule; never under the physical
    bound where the source kept to it as well. On the source itself the measured time stands, unless the times are
    `retimed`: a what-if's, predicted there as well. `attention` is the kernel that is asked for, on the source too.

    >>> (predict_measured(measured, kernels, a100, [a100, h100], library).time_ns / 1e3).round(-1)  # µs
    array([[500., 150.],
           [ 30.,  10.]])
    """
    fleet, origin = build_fleet(targets), build_fleet([source])
    bounds, source_bounds = bound_ops(workload.work, fleet), bound_ops(workload.work, origin)
    assignments, count = assign_rows(as_asked(workload, attention), library), len(workload.op)
    recorded = assign_rows(as_recorded(workload), library)
    modelled = covered_rows(assignments, count) & (workload.kind == KernelKind.KERNEL)
    move = Move(trace=trace, workload=workload, origin=origin, origin_bounds=source_bounds, fleet=fleet, bounds=bounds)
    ratios = move_by_ratios(move, modelled)
    time, method, width, measured = ratios.factor, ratios.method, ratios.half_width, workload.duration_ns
    fixed = np.minimum(measured, KERNEL_OVERHEAD_NS)
    time *= (measured - fixed)[:, None]
    time += fixed[:, None]
    if modelled.any():
        target_model = model_times(assignments, count, fleet, library)
        source_model = model_times(recorded, count, origin, library)
        apart = separations(fleet, origin)
        time[modelled] = _anchored_ns(workload, target_model, source_model, modelled, apart)
        width[modelled] = _anchored_width(workload, target_model, modelled, fleet, origin)
    obeys = workload.has_work & (measured >= source_bounds.lower_ns[:, 0] * workload.op_share)
    share = workload.op_share * obeys
    for begin in range(0, len(time), BLOCK_ROWS):
        block = slice(begin, begin + BLOCK_ROWS)
        np.maximum(time[block], bounds.lower_ns[block] * share[block, None], out=time[block])
    is_source = np.array([gpu.name == source.name for gpu in targets], dtype=bool)
    stands = ~attention_rows(workload) if attention is not None else np.ones(count, dtype=bool)
    kept = stands[:, None] & is_source
    time = np.where(kept, measured[:, None], time)
    if not retimed:
        method[kept], width[kept] = METHODS.index(Method.MEASURED), 0.0
    return Prediction(
        fleet=fleet,
        time_ns=time,
        weight=np.divide(workload.busy_ns, measured, out=np.zeros_like(measured), where=measured > 0),
        method=method,
        reason=ratios.reason,
        half_width=width,
        bounds=bounds,
        bound_share=share,
    )


def _anchored_ns(workload: GpuWorkload, target: ModelTimes, source: ModelTimes, rows: Mask, apart: Floats) -> Floats:
    """Return the times [rows, m] of measured kernels, moved by their op's model.

    t_target = model_target * carried_factor of the source's deviation from the model, in the kernel's share of its op.
    """
    share = workload.op_share[rows][:, None]
    measured_ns = np.divide(workload.duration_ns[rows][:, None], share, out=np.ones_like(share), where=share > 0)
    source_ns, width = source.time_ns[rows], source.half_width[rows]
    carried = carried_factor(measured_ns, source_ns, source.anchor[rows][:, None], width, apart)
    return np.asarray(target.time_ns[rows] * carried * share)


def _anchored_width(workload: GpuWorkload, target: ModelTimes, rows: Mask, fleet: Fleet, origin: Fleet) -> Floats:
    """Return the half widths [rows, m] of anchored times.

    Between vendors no anchored prediction was ever compared with a measurement in training: there they are no narrower
    than those of a plain ratio.
    """
    width = target.anchored_half_width[rows]
    foreign = np.array([gpu.vendor != origin.gpus[0].vendor for gpu in fleet.gpus], dtype=bool)
    if not foreign.any():
        return width
    chosen, is_varying = np.flatnonzero(rows), workload.is_varying[rows]
    for rule, mine in ((RULE_OF["bound"], is_varying), (RULE_OF["wave"], ~is_varying)):
        families = [workload.family[row] for row in chosen[mine].tolist()]
        factor = np.ones((len(families), len(fleet.gpus)))
        plain = ratio_half_widths(rule, families, workload.duration_ns[chosen[mine]], factor, fleet, origin)
        width[mine] = np.where(foreign, np.fmax(width[mine], plain), width[mine])
    return width


_SHAPE_METHODS: Final = (
    (Method.UNMODELLED, "no formula for this op, or its shapes are missing"),
    (Method.ROOFLINE, "no op model for this family: roofline"),
    (Method.OP_MODEL, "nothing was measured: op model of its family, from the shapes"),
)
"""With a reason each: for ops without a formula, with one, and with an op model as well."""


def predict_shapes(
    workload: GpuWorkload, targets: Sequence[Gpu], library: Library, attention: AttentionKernel | None = None
) -> Prediction:
    """Give every op the time of its op model; its roofline where no model covers it, 0 where it has no formula.

    `attention` is the kernel that is asked for; default: each GPU's own choice.

    >>> prediction = predict_shapes(workload, [h100, a100], library)
    >>> (workload.count @ prediction.time_ns / 1e6).round()  # ms on each GPU
    array([3., 8.])
    """
    fleet = build_fleet(targets)
    assignments = assign_rows(as_asked(workload, attention), library)
    bounds, modelled = bound_ops(workload.work, fleet), model_times(assignments, len(workload.op), fleet, library)
    known, covered = workload.has_work[:, None], modelled.is_covered[:, None]
    time = np.where(covered, np.maximum(modelled.time_ns, bounds.lower_ns), np.where(known, bounds.roofline_ns, 0.0))
    case = np.where(modelled.is_covered, 2, workload.has_work.astype(np.int64))
    method = np.array([METHODS.index(method) for method, _ in _SHAPE_METHODS], dtype=np.int8)[case]
    return Prediction(
        fleet=fleet,
        time_ns=time,
        weight=workload.count.astype(np.float64),
        method=np.repeat(method[:, None], len(fleet.gpus), axis=1),
        reason=tuple(_SHAPE_METHODS[item][1] for item in case.tolist()),
        half_width=modelled.half_width,
        bounds=bounds,
        bound_share=workload.has_work.astype(np.float64),
    )
