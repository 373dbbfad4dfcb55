"""What there is to re-run of a trace: the ops that put work on the device, with their recorded and predicted times."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import numpy as np

from ....arrays import Floats, Rows
from ....errors import UnknownGpuError
from ....formats.trace.tables import KernelKind, Trace
from ....records import dataclass
from ....specs.gpu import Catalog, Gpu
from ...iteration.analyze import run_analysis
from ...iteration.result import Analysis
from ...iteration.warnings import warn
from ...prediction.prediction import METHODS, Method
from ...prediction.workload import GpuWorkload, measured_workload, shape_workload
from ...recorded.devices import first_known_gpu
from ...recorded.recording import choose_recording
from ...recorded.window import Window, check_usable

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
        recorded_ns=_recorded_ns(used, window, item),
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


def _recorded_ns(trace: Trace, window: Window, items: Rows) -> Floats:
    if not len(window.kernel_rows):
        return np.full(len(items), np.nan)
    return trace.kernels.duration_ns[items].astype(np.float64)


def _predicted(result: Analysis | None, workload: GpuWorkload, row: Rows, gpu: Gpu | None) -> _Predicted:
    """Return what is predicted of each item; what was measured is no prediction."""
    nothing = np.full(len(row), np.nan)
    if result is None or gpu is None:
        return _Predicted(nothing, nothing, nothing)
    prediction = result.prediction
    column = next(at for at, item in enumerate(prediction.fleet.gpus) if item.name == gpu.name)
    time, method = prediction.time_ns[row, column], prediction.method[row, column]
    is_measured = method == METHODS.index(Method.MEASURED)
    is_nothing = (method == METHODS.index(Method.UNMODELLED)) & ~workload.has_work[row] & (time == 0)
    time_ns = np.where(is_measured | is_nothing, np.nan, time)
    return _Predicted(
        time_ns=time_ns,
        low_ns=time_ns * (1.0 - prediction.fall(row, column)),
        high_ns=time_ns * np.exp(prediction.half_width[row, column]),
    )
