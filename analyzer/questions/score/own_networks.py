"""Our own recordings of whole networks: their ops from shapes alone, their GPUs exchanged, their joules.

`own/iterations.parquet` names a recording each (`own/traces`) with what the clock and the board's meter said of the
same loop. Every op that launched kernels is predicted from its shapes on the GPU that ran it and compared with the sum
of these kernels; and each recording is moved to the other GPU on which the same network was recorded.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ....arrays import Floats, at_rows, group_by
from ....errors import InputError
from ....formats.files.open import load_trace
from ....formats.trace.tables import Trace
from ....records import dataclass
from ....specs.catalog import load_catalog
from ....specs.gpu import Gpu
from ....specs.match import find_gpu
from ...iteration.analyze import analyze_trace
from ...iteration.report import GpuPrediction
from ...measurements.samples import read_table, records_of
from ...models.library import Library
from ...prediction.predict import predict_shapes
from ...prediction.shared_error import IterationKind, iteration_kind
from ...prediction.sum_interval import busy_interval_ns
from ...prediction.workload import shape_workload
from ...recorded.recording import take_recording
from ...work.lookup import WorkLookup
from .report import OwnFamilyRow, OwnNetworkRow
from .weights import Weights

TABLE: Final = "own/iterations.parquet"
TRACES: Final = "own/traces"
COLUMNS: Final = ("gpu", "workload", "compiled", "ms", "event_ms", "joules", "trace")
UNKNOWN: Final = "no formula"
"""Stands for the family of ops whose shapes tell nothing; what they take is in no prediction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnOps:
    """Hold the ops of one recording that launched kernels, n rows; predictions from shapes alone."""

    family: tuple[str, ...]
    measured_ns: Floats
    predicted_ns: Floats
    half_width: Floats
    kind: IterationKind
    low: float
    """Ends of the interval of their sum over it, with the errors that ops share; NaN where too little is known."""
    high: float
    unknown_ns: float
    """Measured time of kernels that no formula explains."""
    roofline_ns: float
    """Sum of the ops' rooflines."""


def score_own(data: Path, weights: Weights) -> tuple[tuple[OwnFamilyRow, ...], tuple[OwnNetworkRow, ...]]:
    """Return the errors by family over all recordings, and those of each network; nothing without the table."""
    by_family: dict[str, list[tuple[Floats, Floats, Floats]]] = defaultdict(list)
    networks, by_workload = [], group_by(_rows_of(data), lambda row: row["workload"])
    for row, _, ops in recorded_ops(data, weights):
        codes = np.array(ops.family, dtype=object)
        for family in dict.fromkeys(ops.family):
            mine = codes == family
            by_family[family].append((ops.measured_ns[mine], ops.predicted_ns[mine], ops.half_width[mine]))
        peer = next((other for other in by_workload[row["workload"]] if other["gpu"] != row["gpu"]), None)
        gpu = find_gpu(load_catalog(), row["gpu"])
        moved = None if peer is None else _analyzed(data, peer, gpu, weights)
        alone = _analyzed(data, row, gpu, weights)
        measured_joules, predicted = row["joules"], float(ops.predicted_ns.sum())
        networks.append(
            OwnNetworkRow(
                network=str(row["workload"]),
                gpu=str(row["gpu"]),
                split=weights.split_of(gpu, tuple(weights.library_for(gpu).fitted)),
                measured_ns=float(ops.measured_ns.sum()),
                predicted_ns=predicted,
                low_ns=predicted * ops.low if np.isfinite(ops.low) else None,
                high_ns=predicted * ops.high if np.isfinite(ops.high) else None,
                unknown_ns=ops.unknown_ns,
                roofline_ns=ops.roofline_ns,
                moved_ns=None if moved is None else moved.gpu_busy_ns,
                iteration_ns=float(row["ms"]) * 1e6,
                again_ns=float(row["event_ms"]) * 1e6,
                moved_iteration_ns=None if moved is None else moved.loop_ns or moved.iteration_ns,
                moved_low_ns=None if moved is None else moved.loop_low_ns or moved.iteration_low_ns,
                moved_high_ns=None if moved is None else moved.loop_high_ns or moved.iteration_high_ns,
                loop_ns=None if alone is None else alone.loop_ns or alone.iteration_ns,
                busy_ns=None if alone is None else alone.gpu_busy_ns,
                joules=None if measured_joules is None or np.isnan(measured_joules) else float(measured_joules),
                moved_joules=None if moved is None else moved.energy_j,
                moved_low_joules=None if moved is None else moved.energy_low_j,
                moved_high_joules=None if moved is None else moved.energy_high_j,
            )
        )
    return tuple(_family_rows(by_family)), tuple(networks)


def recorded_ops(data: Path, weights: Weights) -> Iterator[tuple[Mapping[str, Any], Gpu, OwnOps]]:
    """Yield the row of each recording that holds no compiled code, its GPU, and its ops as these weights predict them.

    Nothing without the table.
    """
    for row in _rows_of(data):
        trace, gpu = load_trace(data / TRACES / row["trace"]), find_gpu(load_catalog(), row["gpu"])
        yield row, gpu, ops_of(trace, gpu, weights.library_for(gpu))


def _rows_of(data: Path) -> list[Mapping[str, Any]]:
    path = data / TABLE
    if not path.exists():
        return []
    table = read_table(path, COLUMNS, may_lack=("joules",))
    return [row for row in records_of(table) if not row["compiled"]]


def ops_of(trace: Trace, gpu: Gpu, library: Library) -> OwnOps:
    """Return the ops of a recording's iteration that launched kernels, predicted from their shapes on a GPU."""
    recorded = take_recording(trace, load_catalog())
    window, lookup = recorded.window, WorkLookup(trace)
    workload = shape_workload(trace, window, lookup)
    kind = iteration_kind(workload, trace.meta, is_compiled=False)
    prediction = predict_shapes(workload, [gpu], library, kind)
    chosen = workload.row_of >= 0
    kernels = np.asarray(window.kernel_rows)
    owner = _around(at_rows(lookup.owners(), trace.kernels.op[kernels]), np.asarray(trace.ops.parent), chosen)
    duration = trace.kernels.duration_ns[kernels].astype(np.float64)
    known = owner >= 0
    launched, group = np.unique(owner[known], return_inverse=True)
    measured = np.bincount(group, weights=duration[known], minlength=len(launched))
    rows = workload.row_of[launched]
    has_work = workload.has_work[rows]
    unknown = float(duration[~known].sum() + measured[~has_work].sum())
    low, high = busy_interval_ns(prediction, workload.family)
    total = max(float(prediction.total_busy_ns()[0]), 1.0)
    return OwnOps(
        family=tuple(str(family.value) if (family := workload.family[row]) else UNKNOWN for row in rows[has_work]),
        measured_ns=measured[has_work],
        predicted_ns=prediction.time_ns[rows[has_work], 0],
        half_width=prediction.half_width[rows[has_work], 0],
        kind=kind,
        low=float(low[0] / total),
        high=float(high[0] / total),
        unknown_ns=unknown,
        roofline_ns=float(prediction.bounds.roofline_ns[rows[has_work], 0].sum()),
    )


def _around(owner: Any, parent: Any, chosen: Any) -> Any:
    """Return for each op the nearest one at or around it that is chosen; -1 where none is."""
    found = owner.copy()
    while True:
        lost = (found >= 0) & ~chosen[np.maximum(found, 0)]
        if not lost.any():
            return found
        found[lost] = parent[found[lost]]


def _family_rows(groups: Mapping[str, Sequence[tuple[Floats, Floats, Floats]]]) -> Iterator[OwnFamilyRow]:
    """Yield the families by their measured time."""
    for family, parts in sorted(groups.items(), key=lambda item: -sum(part[0].sum() for part in item[1])):
        measured, predicted, half_width = (np.concatenate(column) for column in zip(*parts, strict=True))
        both = (measured > 0) & (predicted > 0)
        ratio = np.log(predicted[both] / measured[both])
        yield OwnFamilyRow(
            family=family,
            networks=len(parts),
            ops=len(measured),
            measured_ns=float(measured.sum()),
            predicted_ns=float(predicted.sum()),
            error=_mean(np.abs(ratio)),
            bias=_mean(ratio),
            coverage_90=_mean((np.abs(ratio) <= half_width[both]).astype(np.float64)),
        )


def _analyzed(data: Path, row: Mapping[str, Any], gpu: Gpu, weights: Weights) -> GpuPrediction | None:
    """Return what a recording says of a GPU; None where nothing can be said."""
    trace = load_trace(data / TRACES / row["trace"])
    try:
        return predict_on(trace, gpu, weights)
    except InputError:
        return None


def predict_on(trace: Trace, gpu: Gpu, weights: Weights) -> GpuPrediction:
    """Return what a trace says of a GPU, by models that did not train on it."""
    report = analyze_trace(trace, load_catalog(), targets=[gpu], op_limit=0, library=weights.library_for(gpu))
    return next(item for item in report.predictions if item.gpu == gpu.name)


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else float("nan")
