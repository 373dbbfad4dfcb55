"""What there is to re-run of a trace, and its times joined with the recorded and the predicted ones."""

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from ....arrays import Floats, Rows, group_by, none_for_nan
from ....errors import UnknownGpuError
from ....formats.measured.rerun import Rerun
from ....formats.trace.tables import KernelKind, Trace
from ....records import dataclass
from ....specs.gpu import Catalog, Gpu
from ...iteration.analyze import run_analysis
from ...iteration.op_rows import op_module, op_shapes
from ...iteration.result import Analysis
from ...iteration.warnings import warn
from ...measurements.metrics import Figures, error_figures
from ...prediction.prediction import METHODS, Method
from ...prediction.workload import GpuWorkload, measured_workload, shape_workload
from ...recorded.devices import first_known_gpu
from ...recorded.recording import choose_recording
from ...recorded.window import Window, check_usable
from ..validate.comparison import count_covered
from .report import FamilyRow, Iteration, LeftOut, RerunOp, RerunReport

_HOST_COPY: Final = re.compile(r"htod|dtoh|host", re.IGNORECASE)
"""In the names of copies, `Memcpy HtoD (Pageable -> Device)` or `CopyHostToDevice`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Worklist:
    """Hold n kernels of one iteration (n ops, of a trace without GPU times) and the ops that explain them."""

    trace: Trace
    window: Window
    workload: GpuWorkload
    leaf: Rows
    """Innermost op of each; -1 where there is none to re-run, [n]."""
    item: Rows
    """Row of the trace's kernels, or of its ops, [n]."""
    row: Rows
    """Row of the workload, [n]."""
    excuse: tuple[str, ...]
    """Why there is none to re-run, else empty, [n]."""
    recorded_ns: Floats
    """NaN where not measured, [n]."""
    predicted_ns: Floats
    low_ns: Floats
    high_ns: Floats
    """Ends of the 90 % interval; NaN where there is none, [n]."""
    result: Analysis | None
    """The prediction for the local GPU; None where there is none."""
    gpu: Gpu | None
    source: Gpu | None
    is_same_gpu: bool
    warnings: tuple[str, ...]

    @property
    def is_measured(self) -> bool:
        """Say whether the items are kernels."""
        return len(self.window.kernel_rows) > 0

    @property
    def weights(self) -> Floats:
        """Return what each item counts in the iteration: its predicted time, else the recorded one, else its bytes."""
        known = np.where(np.isnan(self.predicted_ns), self.recorded_ns, self.predicted_ns)
        return np.where(np.isnan(known), self.workload.work.moved_bytes[self.row] + 1.0, known)


class _Predicted(NamedTuple):
    """Hold the predicted time of each item and the ends of its 90 % interval; NaN where there is none, [n]."""

    time_ns: Floats
    low_ns: Floats
    high_ns: Floats


def list_work(trace: Trace, catalog: Catalog, gpu: Gpu | None, *, source: Gpu | None = None) -> Worklist:
    """Return what there is to re-run on `gpu`, the local one (None: a CPU, or a GPU that is not catalogued).

    `source` overrides what the trace says of the GPU that it was recorded on. Raises InputError for a trace without
    ops.
    """
    result, doubts = _predict(trace, catalog, gpu, source)
    if result is not None:
        used, window, workload = result.trace, result.window, result.workload
    else:
        used, window = trace, choose_recording(trace).window
        check_usable(window)
        workload = (measured_workload if len(window.kernel_rows) else shape_workload)(used, window)
    item = window.kernel_rows if len(window.kernel_rows) else window.op_rows[workload.row_of[window.op_rows] >= 0]
    row = workload.row_of[item]
    leaf, excuse = _leaves(used, window, item)
    predicted = _predicted(result, workload, row, gpu)
    origin = source or (first_known_gpu(catalog, trace) if len(window.kernel_rows) else None)
    is_same = result is not None and origin is not None and gpu is not None and origin.name == gpu.name
    return Worklist(
        trace=used,
        window=window,
        workload=workload,
        leaf=leaf,
        item=item,
        row=row,
        excuse=excuse,
        recorded_ns=np.full(len(item), np.nan)
        if not len(window.kernel_rows)
        else used.kernels.duration_ns[item].astype(np.float64),
        predicted_ns=predicted.time_ns,
        low_ns=predicted.low_ns,
        high_ns=predicted.high_ns,
        result=result,
        gpu=gpu,
        source=origin,
        is_same_gpu=is_same,
        warnings=tuple(doubts) if result is None else (*warn(result), *doubts),
    )


def _predict(trace: Trace, catalog: Catalog, gpu: Gpu | None, source: Gpu | None) -> tuple[Analysis | None, list[str]]:
    if gpu is None:
        return None, []
    try:
        return run_analysis(trace, catalog, targets=[gpu], source=source), []
    except UnknownGpuError as error:
        return None, [f"nothing is predicted: {error}"]


def _leaves(trace: Trace, window: Window, items: Rows) -> tuple[Rows, tuple[str, ...]]:
    """Return the op of each kernel, and why some have none that could be re-run."""
    if not len(window.kernel_rows):
        return items, ("",) * len(items)
    kernels = trace.kernels
    excuse = [
        _excuse(int(kind), trace.strings[name], op)
        for kind, name, op in zip(
            kernels.kind[items].tolist(), kernels.name[items].tolist(), kernels.op[items].tolist(), strict=True
        )
    ]
    has_none = np.array([bool(text) for text in excuse], dtype=bool)
    return np.where(has_none, -1, kernels.op[items]).astype(np.int64), tuple(excuse)


def _excuse(kind: int, name: str, op: int) -> str:
    if kind == KernelKind.COLLECTIVE:
        return "communication between GPUs"
    if kind == KernelKind.MEMCPY and _HOST_COPY.search(name):
        return "copies between host and device"
    return "no op launched it" if op < 0 else ""


def _predicted(result: Analysis | None, workload: GpuWorkload, row: Rows, gpu: Gpu | None) -> _Predicted:
    """Return what is predicted of each item; what was measured is no prediction."""
    nothing = np.full(len(row), np.nan)
    if result is None or gpu is None:
        return _Predicted(nothing, nothing, nothing)
    prediction = result.prediction
    column = result.column(gpu.name)
    time, method = prediction.time_ns[row, column], prediction.method[row, column]
    is_measured = method == METHODS.index(Method.MEASURED)
    is_nothing = (method == METHODS.index(Method.UNMODELLED)) & ~workload.has_work[row] & (time == 0)
    time_ns = np.where(is_measured | is_nothing, np.nan, time)
    return _Predicted(
        time_ns=time_ns,
        low_ns=time_ns * (1.0 - prediction.fall(row, column)),
        high_ns=time_ns * np.exp(prediction.half_width[row, column]),
    )


OTHER: Final = "other"
CPU_CAPTURE: Final = "cpu"


class _Sums(NamedTuple):
    """Hold the summed times of each problem, NaN where none of its items has one, [p]."""

    recorded_ns: Floats
    predicted_ns: Floats
    low_ns: Floats
    high_ns: Floats


def compare_rerun(work: Worklist, rerun: Rerun) -> RerunReport:
    """Return what the re-run of a work list says, op by op, by family and as a whole."""
    sums = _sum_up(work, rerun)
    ops = tuple(sorted(_list_ops(work, rerun, sums), key=lambda item: -item.weight_ns))
    excused = _list_excused(work)
    timed = [item for item in ops if item.rerun_ns is not None]
    call_count = sum(item.count for item in ops) + sum(item.count for item in excused)
    basis = _basis(work, sums)
    every_ns = sum(item.weight_ns for item in ops) + sum(item.time_ns for item in excused)
    whole_ns = every_ns if basis is not None else 0.0
    rerun_calls = sum(item.count for item in timed)
    rows = [_family_row(name, items) for name, items in group_by(timed, lambda op: op.family or OTHER).items()]
    return RerunReport(
        device=rerun.device.name,
        is_gpu=rerun.is_gpu,
        gpu=work.gpu.name if work.gpu is not None else None,
        framework=rerun.framework,
        source=work.source.name if work.source is not None else None,
        capture=work.trace.meta.capture,
        is_same_gpu=work.is_same_gpu,
        weighed_by=basis,
        call_count=call_count,
        rerun_call_count=rerun_calls,
        rerun_ratio=sum(item.weight_ns for item in timed) / whole_ns
        if whole_ns > 0
        else rerun_calls / max(call_count, 1),
        total=_family_row(None, timed),
        families=tuple(sorted(rows, key=lambda row: -row.rerun_ns)),
        intervals=count_covered((item.rerun_ns or 0.0, item.is_covered) for item in timed),
        ops=ops,
        left_out=_list_left_out(ops, excused),
        iteration=_iteration(work, rerun, sums),
        warnings=work.warnings,
    )


def _basis(work: Worklist, sums: _Sums) -> str | None:
    if not np.isnan(work.predicted_ns).all():
        return "predicted"
    return None if np.isnan(sums.recorded_ns).all() else "recorded"


def _sum_up(work: Worklist, rerun: Rerun) -> _Sums:
    count = len(rerun.op)
    known = rerun.call_of_leaf >= 0
    problem = rerun.problem_of_call[rerun.call_of_leaf[known]]

    def total(values: Floats) -> Floats:
        """Sum over each problem; NaN where all parts are unknown."""
        parts = values[known]
        is_known = ~np.isnan(parts)
        sums = np.bincount(problem[is_known], weights=parts[is_known], minlength=count).astype(np.float64)
        counts = np.bincount(problem[is_known], minlength=count)
        return np.where(counts > 0, sums, np.nan)

    def total_of_all(values: Floats) -> Floats:
        """Sum over each problem; NaN where any part that has a prediction is unknown."""
        is_lacking = np.isnan(values) & ~np.isnan(work.predicted_ns)
        lacks = np.bincount(problem[is_lacking[known]], minlength=count) > 0
        return np.where(lacks, np.nan, total(values))

    recorded = total(work.recorded_ns)
    if work.trace.meta.capture == CPU_CAPTURE and not rerun.is_gpu:
        durations = work.trace.ops.duration_ns[rerun.op_of_call].astype(np.float64)
        recorded = np.bincount(rerun.problem_of_call, weights=durations, minlength=count).astype(np.float64)
        recorded[recorded <= 0] = np.nan
    return _Sums(recorded, total(work.predicted_ns), total_of_all(work.low_ns), total_of_all(work.high_ns))


def _list_ops(work: Worklist, rerun: Rerun, sums: _Sums) -> Iterator[RerunOp]:
    trace, count = work.trace, len(rerun.op)
    calls = np.bincount(rerun.problem_of_call, minlength=count)
    families = _families(work, rerun)
    for at, op in enumerate(rerun.op.tolist()):
        yield RerunOp(
            op=trace.strings[trace.ops.name[op]],
            shapes=op_shapes(trace, op),
            module=op_module(trace, op),
            family=families[at],
            count=int(calls[at]),
            recorded_ns=none_for_nan(float(sums.recorded_ns[at])),
            predicted_ns=none_for_nan(float(sums.predicted_ns[at])),
            predicted_low_ns=none_for_nan(float(sums.low_ns[at])),
            predicted_high_ns=none_for_nan(float(sums.high_ns[at])),
            rerun_ns=none_for_nan(float(rerun.time_ns[at] * calls[at])),
            timing=rerun.timing[at],
            reason=rerun.reason[at],
        )


def _families(work: Worklist, rerun: Rerun) -> list[str | None]:
    """Return the family of the heaviest item of each problem."""
    known = np.flatnonzero(rerun.call_of_leaf >= 0)
    problem = rerun.problem_of_call[rerun.call_of_leaf[known]]
    order = np.lexsort((work.weights[known], problem))
    last = np.append(problem[order][1:] != problem[order][:-1], True)[: len(order)]
    found: list[str | None] = [None] * len(rerun.op)
    for at in order[last].tolist():
        family = work.workload.family[int(work.row[known[at]])]
        found[int(problem[at])] = family.value if family is not None else None
    return found


def _list_excused(work: Worklist) -> tuple[LeftOut, ...]:
    """Return the items that no op could be re-run for, by op, or by kernel where there is no op."""
    trace = work.trace

    def called(at: int) -> tuple[str, str]:
        kernel = int(work.item[at])
        op = int(trace.kernels.op[kernel])
        return trace.strings[trace.ops.name[op] if op >= 0 else trace.kernels.name[kernel]], work.excuse[at]

    found = group_by(np.flatnonzero(work.leaf < 0).tolist(), called)
    known = np.where(np.isnan(work.predicted_ns), work.recorded_ns, work.predicted_ns)
    times = np.asarray(np.nan_to_num(known, nan=0.0))
    return tuple(
        LeftOut(op=name, reason=reason, count=len(rows), time_ns=float(times[rows].sum()))
        for (name, reason), rows in found.items()
    )


def _list_left_out(ops: Sequence[RerunOp], excused: Sequence[LeftOut]) -> tuple[LeftOut, ...]:
    """Return all that was not re-run, ops of one name and reason as one."""
    found = group_by((item for item in ops if item.rerun_ns is None), lambda item: (item.op, item.reason))
    merged = [
        LeftOut(
            op=name,
            reason=reason,
            count=sum(item.count for item in items),
            time_ns=sum(item.weight_ns for item in items),
        )
        for (name, reason), items in found.items()
    ]
    return tuple(sorted([*merged, *excused], key=lambda item: (-item.time_ns, -item.count)))


def _family_row(name: str | None, timed: Sequence[RerunOp]) -> FamilyRow:
    """Sum up ops that were re-run; a prediction or a recording that not all of them have is left out."""
    return FamilyRow(
        family=name,
        op_count=len(timed),
        call_count=sum(item.count for item in timed),
        recorded_ns=_sum_if_all([item.recorded_ns for item in timed]),
        predicted_ns=_sum_if_all([item.predicted_ns for item in timed]),
        rerun_ns=sum(item.rerun_ns or 0.0 for item in timed),
        figures=_figures([item for item in timed if item.predicted_ns and item.rerun_ns]),
    )


def _figures(ops: Sequence[RerunOp]) -> Figures | None:
    if not ops:
        return None
    values = [
        (item.rerun_ns, item.predicted_ns, item.predicted_low_ns, item.predicted_high_ns)
        for item in ops
    ]  # fmt: skip
    return error_figures(*np.array(values, dtype=np.float64).T)


def _sum_if_all(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _iteration(work: Worklist, rerun: Rerun, sums: _Sums) -> Iteration:
    result, recorded_ns = work.result, None
    is_cpu_capture = work.trace.meta.capture == CPU_CAPTURE
    if work.is_measured or (is_cpu_capture and not rerun.is_gpu):
        recorded_ns = work.window.duration_ns
    recorded = work.recorded_ns if work.is_measured else sums.recorded_ns
    predicted_ns = None
    if result is not None and work.gpu is not None and not work.is_same_gpu:
        predicted_ns = float(result.forecast.iteration_ns[result.column(work.gpu.name)])
    return Iteration(
        recorded_ns=recorded_ns,
        recorded_kernels_ns=_sum_known(recorded),
        predicted_ns=predicted_ns,
        predicted_kernels_ns=_sum_known(work.predicted_ns),
        whole=rerun.whole,
    )


def _sum_known(values: Floats | Rows) -> float | None:
    return None if np.isnan(values).all() else float(np.nansum(values))
