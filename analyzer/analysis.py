"""From a trace to the report: the one function behind `analyze`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..errors import InputError, UnknownGpuError
from ..formats.column import row_count
from ..formats.trace import Trace
from ..specs.gpu import Catalog, Gpu
from ..specs.match import match_device
from ..specs.prices import price_usd_per_hour
from .method import Method
from .models.library import Library, load_library
from .oplist import list_ops
from .predict import METHODS, Prediction, predict_measured, predict_shapes
from .report import GpuPrediction, Report, Source, TraceSummary
from .uncertainty import busy_interval_ns
from .window import Window, select_window
from .work import Family
from .workload import Workload, measured_workload, shape_workload


def analyze_trace(
    trace: Trace,
    catalog: Catalog,
    *,
    targets: Sequence[Gpu] = (),
    source: Gpu | None = None,
    ops_gpu: Gpu | None = None,
    op_limit: int | None = 10,
    library: Library | None = None,
) -> Report:
    """Predict the trace's iteration on `targets` (default: every single-device GPU of the catalogue).

    `source` overrides what the trace's device record says. `ops_gpu` is the GPU that the op list is about
    (default: the first target given, else the source, else the fastest), `op_limit` its length (None: all).
    `library` holds the op models (default: the ones that wavecast ships).
    Raises UnknownGpuError when the trace's GPU is not in the catalogue and InputError for a trace without ops.
    """
    window = select_window(trace)
    measured = bool(len(window.kernel_rows))
    if not measured and not len(window.op_rows):
        raise InputError("the trace holds no ops and no kernels: record at least one whole iteration")
    origin = (source or _source_gpu(trace, catalog, window)) if measured else None
    gpus = _with_source(targets or [gpu for gpu in catalog.gpus if not gpu.is_package], origin)
    models = load_library() if library is None else library
    if origin is not None:
        workload = measured_workload(trace, window)
        prediction = predict_measured(trace, workload, origin, gpus, models)
    else:
        workload = shape_workload(trace, window)
        prediction = predict_shapes(workload, gpus, models)
    ranked = _rank(trace, window, workload, prediction, origin)
    described = ops_gpu or (targets[0] if targets else origin)
    described_name = described.name if described is not None else ranked[0].gpu
    described_column = next(column for column, gpu in enumerate(gpus) if gpu.name == described_name)
    return Report(
        trace=_summary(trace, window),
        source=_source(window, origin, workload),
        predictions=ranked,
        ops_gpu=described_name,
        ops=list_ops(trace, workload, prediction, described_column, limit=op_limit),
        warnings=tuple(_warnings(trace, window, workload, prediction, origin)),
    )


def _source_gpu(trace: Trace, catalog: Catalog, window: Window) -> Gpu:
    device = next((item for item in trace.devices if item.index == window.device), None)
    if device is None:
        raise UnknownGpuError("the trace does not say which GPU it was recorded on: name it with --from")
    gpu = match_device(catalog, device.name, sm_count=device.sm_count, memory_bytes=device.memory_bytes)
    if gpu is None:
        raise UnknownGpuError(
            f"the trace was recorded on {device.name!r}, which the catalogue does not hold: "
            "name the closest entry with --from, or describe it in a file with --gpu-file"
        )
    return gpu


def _with_source(targets: Sequence[Gpu], origin: Gpu | None) -> list[Gpu]:
    if origin is None or any(gpu.name == origin.name for gpu in targets):
        return list(targets)
    return [*targets, origin]


def _summary(trace: Trace, window: Window) -> TraceSummary:
    meta = trace.meta
    return TraceSummary(
        name=meta.workload.name,
        source_format=meta.source_format,
        capture=meta.capture,
        framework=meta.framework,
        mode=meta.workload.mode,
        batch_size=meta.workload.batch_size,
        samples_per_iteration=meta.workload.samples_per_iteration,
        iteration_count=row_count(trace.iterations),
        iteration_index=window.index,
        op_count=len(window.op_rows),
        kernel_count=len(window.kernel_rows),
    )


def _source(window: Window, origin: Gpu | None, workload: Workload) -> Source:
    if origin is None:
        return Source()
    return Source(gpu=origin.name, iteration_ns=window.duration_ns, gpu_busy_ns=float(workload.busy_ns.sum()))


def _rank(
    trace: Trace, window: Window, workload: Workload, prediction: Prediction, origin: Gpu | None
) -> tuple[GpuPrediction, ...]:
    busy_ns = prediction.total_busy_ns()
    measured_ns = window.duration_ns if origin is not None else None
    idle_ns = max(0.0, measured_ns - float(workload.busy_ns.sum())) if measured_ns is not None else 0.0
    low_ns, high_ns = busy_interval_ns(prediction, workload.family)
    if origin is None:
        bound_ns = np.einsum("i,ij->j", workload.has_work * workload.count, prediction.bounds.lower_ns)
        low_ns = np.where(np.isnan(low_ns), bound_ns, low_ns)
    samples = trace.meta.workload.samples_per_iteration or trace.meta.workload.batch_size
    shares = _method_shares(prediction)
    ranked = []
    for column, gpu in enumerate(prediction.fleet.gpus):
        is_source = origin is not None and gpu.name == origin.name
        iteration_ns = float(idle_ns + busy_ns[column])
        price = price_usd_per_hour(gpu.name)
        ranked.append(
            GpuPrediction(
                gpu=gpu.name,
                vendor=gpu.vendor,
                is_source=is_source,
                iteration_ns=iteration_ns,
                iteration_low_ns=_end_ns(idle_ns + low_ns[column]),
                iteration_high_ns=_end_ns(idle_ns + high_ns[column]),
                gpu_busy_ns=float(busy_ns[column]),
                methods=shares[column],
                speedup=measured_ns / iteration_ns if measured_ns is not None and iteration_ns > 0 else None,
                samples_per_s=samples / iteration_ns * 1e9 if samples and iteration_ns > 0 else None,
                price_usd_per_hour=price.usd_per_hour if price else None,
                price_date=price.oldest_date if price else None,
            )
        )
    return tuple(sorted(ranked, key=lambda item: item.iteration_ns))


def _end_ns(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _method_shares(prediction: Prediction) -> list[dict[Method, float]]:
    """Return each GPU's busy time by method, as shares that sum to 1, largest first."""
    total = np.maximum(prediction.total_busy_ns(), np.finfo(float).tiny)
    by_method, chosen = np.zeros((len(METHODS), len(total))), np.empty_like(prediction.time_ns)
    for code in np.flatnonzero(np.bincount(prediction.method.ravel(), minlength=len(METHODS))):
        np.multiply(prediction.time_ns, prediction.method == code, out=chosen)
        by_method[code] = np.einsum("i,ij->j", prediction.weight, chosen) / total
    return [
        {METHODS[code]: float(shares[code]) for code in np.argsort(-shares, kind="stable").tolist() if shares[code] > 0}
        for shares in by_method.T
    ]


def _warnings(
    trace: Trace, window: Window, workload: Workload, prediction: Prediction, origin: Gpu | None
) -> Iterator[str]:
    if origin is not None:
        yield from _measured_warnings(trace, window, workload, origin)
    else:
        unmodelled = int(workload.count[~workload.has_work].sum())
        if unmodelled:
            names = sorted({trace.strings[trace.ops.name[row]] for row in workload.op[~workload.has_work].tolist()})
            shown = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
            yield f"{unmodelled} of {int(workload.count.sum())} ops have no formula and count 0: {shown}"
    packages = [gpu.name for gpu in prediction.fleet.gpus if gpu.is_package]
    if packages:
        yield f"{', '.join(packages)}: a package of several devices, predicted as if it were one"


def _measured_warnings(trace: Trace, window: Window, workload: Workload, origin: Gpu) -> Iterator[str]:
    busy_ns = float(workload.busy_ns.sum())
    if window.duration_ns and busy_ns < 0.5 * window.duration_ns:
        yield (
            f"the {origin.name} is idle {1 - busy_ns / window.duration_ns:.0%} of the iteration: "
            "a faster GPU shortens only the rest"
        )
    is_collective = np.array([family is Family.COLLECTIVE for family in workload.family], dtype=bool)
    collective_ns = float(workload.busy_ns[is_collective].sum())
    if collective_ns > 0.05 * busy_ns:
        yield f"{collective_ns / busy_ns:.0%} of the GPU time is communication, which includes waiting for other ranks"
    unshaped_ns = float(workload.busy_ns[~workload.has_work & ~is_collective & (workload.kind == 0)].sum())
    if unshaped_ns > 0.05 * busy_ns:
        yield (
            f"{unshaped_ns / busy_ns:.0%} of the GPU time is in kernels whose op has no recorded shapes or no "
            "formula: record with record_shapes=True for better predictions"
        )
    if window.other_device_kernel_count:
        yield f"{window.other_device_kernel_count} kernels on other devices of the file are left out"
    lost = trace.quality.events_dropped
    if lost or trace.quality.bytes_lost:
        yield f"the recording lost {lost} events and {trace.quality.bytes_lost} bytes: times may be too short"
