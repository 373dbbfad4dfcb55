"""One GPU of a pair of traces predicted from the other."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Final

from ....errors import InputError
from ....formats.files.open import load_trace
from ....formats.trace.tables import Trace
from ....specs.catalog import load_catalog
from ....specs.match import find_gpu
from ...iteration.analyze import analyze_trace
from ...iteration.report import GpuPrediction, Source
from .report import TraceRow
from .weights import Weights

ENDINGS: Final = (".json", ".json.gz")


def score_traces(folder: Path, weights: Weights) -> tuple[tuple[TraceRow, ...], tuple[str, ...]]:
    """Predict each trace of a workload from each other one; return that, and what could not be used and why.

    Files are named `<gpu>_<workload>.json.gz`; those of equal workload are the same step on different GPUs.
    """
    workloads: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*_*")) if folder.is_dir() else ():
        if path.name.endswith(ENDINGS):
            workloads.setdefault(_stem(path).split("_", 1)[1], []).append(path)
    rows: list[TraceRow] = []
    notes = []
    for name, paths in workloads.items():
        try:
            rows += _score_workload(name, paths, weights) if len(paths) > 1 else ()
        except InputError as error:
            notes.append(f"traces of {name} left out: {error}")
    return tuple(rows), tuple(notes)


def _score_workload(workload: str, paths: list[Path], weights: Weights) -> list[TraceRow]:
    traces = {path: load_trace(path) for path in paths}
    measured = {path: analyze_trace(trace, load_catalog(), op_limit=0).source for path, trace in traces.items()}
    rows = []
    for source, target in permutations(paths, 2):
        there, here = measured[target], measured[source]
        if there.gpu is not None and here.gpu not in (None, there.gpu):
            rows.append(_row(workload, source, target, _predict(traces[source], there.gpu, weights), there))
    return rows


def _predict(trace: Trace, gpu_name: str, weights: Weights) -> GpuPrediction:
    gpu = find_gpu(load_catalog(), gpu_name)
    report = analyze_trace(trace, load_catalog(), targets=[gpu], op_limit=0, library=weights.library_for(gpu))
    return next(row for row in report.predictions if row.gpu == gpu.name)


def _row(workload: str, source: Path, target: Path, predicted: GpuPrediction, measured: Source) -> TraceRow:
    return TraceRow(
        workload=workload,
        source=_stem(source),
        target=_stem(target),
        predicted_busy_ns=predicted.gpu_busy_ns,
        measured_busy_ns=float(measured.gpu_busy_ns or 0.0),
        predicted_iteration_ns=predicted.iteration_ns,
        measured_iteration_ns=float(measured.iteration_ns or 0.0),
    )


def _stem(path: Path) -> str:
    return path.name.split(".json", 1)[0]
