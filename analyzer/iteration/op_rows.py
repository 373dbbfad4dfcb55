"""The op list of the report: predicted time by op and signature, on one GPU."""

import sys
from typing import Final

import numpy as np

from ...arrays import Floats, Rows, group_rows
from ...formats.trace.signature import format_shapes
from ...formats.trace.tables import Trace
from ..prediction.bounds import limit_of
from ..prediction.prediction import METHODS, Method, Prediction
from .report import OpPrediction
from .run_rows import RunRows

UNRELIABLE_FACTOR: Final = 1.6
"""From here on a prediction orders GPUs at best; formats, ops and GPUs far from any measurement get there."""

BROKEN_BOUND: Final = "measured under its bound on the source, so that no bound is kept to"


def list_ops(
    trace: Trace, run: RunRows, gpu_column: int, *, limit: int | None, joules: Floats | None = None
) -> tuple[OpPrediction, ...]:
    """Return the ops by predicted time on one GPU, longest first; kernels without an op stand under their name.

    Merged kernels stand under the names of what they compute. The times add up to the GPU's busy time, but for kernels
    that run beside others.
    `joules`: of each row; without them energy is left out.
    """
    workload, prediction = run.workload, run.prediction
    busy = prediction.busy_ns(gpu_column)
    group = _op_groups(trace, run)
    totals = np.bincount(group, weights=busy, minlength=int(group.max(initial=-1)) + 1)
    present = np.bincount(group, weights=workload.count, minlength=len(totals)) > 0
    order = np.argsort(-totals, kind="stable")
    order = order[present[order]][:limit]
    whole = max(float(busy.sum()), sys.float_info.min)
    return tuple(
        _describe(trace, run, gpu_column, np.flatnonzero(group == chosen), whole, joules) for chosen in order.tolist()
    )


def row_name(trace: Trace, run: RunRows, row: int) -> str:
    """Return what a row is called: by the ops of a merged kernel, else its op, else its kernel.

    >>> row_name(result.trace, result.run, 0)
    'aten::arange'
    """
    op, label = int(run.workload.op[row]), run.label(row)
    if label is not None:
        return label
    return trace.strings[int(trace.ops.name[op] if op >= 0 else trace.kernels.name[run.workload.kernel[row]])]


def op_shapes(trace: Trace, op: int) -> str:
    """Return the shapes of an op's tensors as they are written; empty where there is no op (-1), or none recorded.

    >>> op_shapes(result.trace, 0)
    ''
    """
    signature = int(trace.ops.signature[op]) if op >= 0 else -1
    return format_shapes(trace.signatures[signature]) if signature >= 0 else ""


def op_module(trace: Trace, op: int) -> str | None:
    """Return the path of an op's module; None where there is no op (-1), or none recorded."""
    module = int(trace.ops.module[op]) if op >= 0 else -1
    return trace.strings[module] if module >= 0 else None


def _op_groups(trace: Trace, run: RunRows) -> Rows:
    """Return a group number per row: same op name and signature, or same kernel where no op is known; merged alike."""
    workload = run.workload
    known = workload.op >= 0
    names = trace.ops.name[workload.op[known]].astype(np.int64)
    signatures = trace.ops.signature[workload.op[known]].astype(np.int64)
    name, signature = np.full(len(known), -1), np.full(len(known), -1)
    name[known], signature[known] = names, signatures
    kernel_name = np.full(len(known), -1)
    kernel_name[~known] = trace.kernels.name[workload.kernel[~known]]
    label = np.full(len(known), -1)
    if run.labels:
        label[-len(run.labels) :] = np.unique(np.array(run.labels, dtype=object), return_inverse=True)[1]
        name[label >= 0] = -1
    return group_rows([name, signature, kernel_name, label])[1]


def _describe(
    trace: Trace, run: RunRows, gpu_column: int, rows: Rows, whole_ns: float, joules: Floats | None
) -> OpPrediction:
    workload, prediction = run.workload, run.prediction
    busy = prediction.busy_ns(gpu_column)[rows]
    main = int(rows[np.argmax(busy)])
    op = int(workload.op[main])
    worked = rows[workload.has_work[rows]]
    # The kernels of one call share its bound by their time, and with what overlaps them as they share the time.
    bound_ns = prediction.bounds.lower_ns[worked, gpu_column] * workload.op_share[worked] * prediction.weight[worked]
    family = workload.family[main]
    method = METHODS[prediction.method[main, gpu_column]]
    low_ns, high_ns = _interval_ns(busy, prediction.fall(rows, gpu_column), prediction.half_width[rows, gpu_column])
    is_broken = (prediction.bound_share[worked] == 0) & (workload.op_share[worked] > 0)
    return OpPrediction(
        op=row_name(trace, run, main),
        shapes=op_shapes(trace, op),
        module=op_module(trace, op),
        family=family.value if family is not None else None,
        count=int(workload.count[rows].sum()),
        source_ns=float(workload.busy_ns[rows].sum()) if workload.kernel[main] >= 0 else None,
        predicted_ns=float(busy.sum()),
        predicted_low_ns=low_ns,
        predicted_high_ns=high_ns,
        bound_ns=float(bound_ns.sum()) if len(worked) else None,
        bound_by=limit_of(workload.work, prediction.fleet, int(worked[0]), gpu_column).name.lower()
        if len(worked)
        else None,
        method=method,
        reason=_reason(prediction, main, gpu_column, method) + (f"; {BROKEN_BOUND}" if is_broken.any() else ""),
        share=float(busy.sum()) / whole_ns,
        energy_j=None if joules is None else float(joules[rows].sum()),
    )


def _reason(prediction: Prediction, row: int, gpu_column: int, method: Method) -> str:
    """Return why the method was chosen, and that the time is unreliable where its interval is very wide."""
    if method is Method.MEASURED:
        return "measured on this GPU"
    factor = float(np.exp(prediction.half_width[row, gpu_column]))
    doubt = f"; unreliable: 90 % interval a factor of {factor:.1f} either way" if factor > UNRELIABLE_FACTOR else ""
    return prediction.reason[row] + doubt


def _interval_ns(busy_ns: Floats, fall: Floats, half_width: Floats) -> tuple[float | None, float | None]:
    """Return the ends of the interval of calls whose errors go together; None where one has no interval."""
    if np.isnan(half_width).any():
        return None, None
    return float((busy_ns * (1.0 - fall)).sum()), float((busy_ns * np.exp(half_width)).sum())
