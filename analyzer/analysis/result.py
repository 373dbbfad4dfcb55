"""One trace put to one question: everything that the report is made from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ...arrays import Floats
from ...errors import InputError, UnknownGpuError
from ...formats.column import row_count
from ...formats.trace import Phase, Trace
from ...specs.gpu import Catalog, Gpu
from ..graph.build import build_graph
from ..graph.graph import Graph
from ..graph.steps import with_iterations
from ..host.costs import load_host_costs, unknown_host_half_width
from ..host.timeline import synthesize_timeline
from ..memory.describe import describe_memory, explain_missing_memory
from ..memory.use import MemoryMethod, MemoryUse
from ..models.library import Library
from ..prediction.predict import Prediction, predict_measured, predict_shapes
from ..prediction.workload import Workload, measured_workload, shape_workload
from ..recorded.compiled import CompiledCode, CompiledOps, find_compiled
from ..recorded.devices import gpu_of_device
from ..recorded.untimed import without_times
from ..recorded.window import Window, select_window
from ..replay.causes import occupation
from ..replay.engine import measured_timing
from ..replay.forecast import Forecast, forecast, spread_of, target_timing
from ..replay.iterations import iteration_position, iteration_spans
from ..replay.profiler_slowdown import Calibration, apply_calibration, calibrate
from ..whatif.batch.walk import with_batch
from ..whatif.change import Casts, Whatif
from ..whatif.cuda_graph import with_cuda_graph
from ..whatif.fusion.fusion import Fusion, with_compiled_regions, with_fused_elementwise
from ..whatif.precision.precision import with_precision
from ..whatif.retime import cast_times_ns, retime
from ..whatif.scenario import Scenario

OTHER_HOST_HALF_WIDTH: Final = 0.15
"""Natural log: how far another machine's host may be from the recorded one. The two pairs of traces of one workload on
two machines differ by 6 and 11 % (benchmarks/check/replay_pairs.py), single processes by -10 to +16 %."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Analysis:
    """Hold a trace with its graph, the times predicted for its kernels, and its replay, on m GPUs."""

    trace: Trace
    """As asked: with what-ifs applied and, where it was recorded without times, on a synthetic timeline."""
    window: Window
    """Of the recorded trace; of one without GPU times, all that is left of it."""
    origin: Gpu | None
    """The GPU that was measured; None where none was."""
    scenario: Scenario
    graph: Graph
    recorded_trace: Trace
    recorded_graph: Graph
    """Before what-ifs; of a trace without times, on its synthetic timeline."""
    workload: Workload
    prediction: Prediction
    forecast: Forecast
    recorded_busy_ns: float
    """GPU-busy time of the recorded iteration, calibrated; 0 where none was measured."""
    calibration: Calibration
    """What brings the recording's replay to the measured time; no change where none was measured."""
    memory: MemoryUse | None
    memory_unknown: str | None
    """Why nothing can be said about memory."""
    compiled: CompiledCode | None = None
    """What was recorded eagerly and is predicted as compiled; None where nothing is."""
    warnings: tuple[str, ...] = ()
    """Of the what-ifs."""


def build_result(
    trace: Trace, origin: Gpu | None, gpus: Sequence[Gpu], library: Library, scenario: Scenario
) -> Analysis:
    """Predict a trace on `gpus` under a scenario. `origin` is the GPU that was measured, None where none was."""
    trace = with_iterations(trace) if origin is not None else without_times(trace, select_window(trace))
    window = select_window(trace)
    whatif = _apply_trace_whatifs(trace, origin, library, scenario)
    changed = whatif.trace
    if origin is not None:
        graph = build_graph(trace, architecture=origin.architecture)
        workload = measured_workload(changed, window)
        prediction = predict_measured(changed, workload, origin, gpus, library, retimed=whatif.trace is not trace)
    else:
        changed = _with_timeline(changed)
        graph = build_graph(changed)
        workload = shape_workload(changed, window)
        prediction = predict_shapes(workload, gpus, library)
        if len(whatif.casts.op):
            prediction = _with_casts(prediction, workload, whatif.casts, library)
    recorded = graph
    graph, base_ratio, compiled, merged = _apply_graph_whatifs(graph, changed, workload, scenario)
    timing = target_timing(graph, changed, workload, prediction, origin)
    calibration = calibrate(recorded, trace, window) if origin is not None else Calibration()
    timing = replace(
        timing, base_ns=timing.base_ns * base_ratio, host_ratio=timing.host_ratio / (scenario.cpu_speed or 1.0)
    )
    graph, timing = apply_calibration(graph, timing, calibration)
    spread = spread_of(prediction, workload, _host_half_width(gpus, origin, scenario))
    memory, memory_unknown = _describe_memory(changed, window, scenario)
    return Analysis(
        trace=changed,
        window=window,
        origin=origin,
        scenario=scenario,
        graph=graph,
        recorded_trace=trace,
        recorded_graph=recorded,
        workload=workload,
        prediction=prediction,
        forecast=forecast(changed, window, graph, timing, spread),
        recorded_busy_ns=_recorded_busy_ns(trace, window, recorded) * calibration.stretch_ratio
        if origin is not None
        else 0.0,
        calibration=calibration,
        memory=memory,
        memory_unknown=memory_unknown,
        compiled=compiled,
        warnings=(*whatif.warnings, *merged),
    )


def _apply_trace_whatifs(trace: Trace, origin: Gpu | None, library: Library, scenario: Scenario) -> Whatif:
    """Return the trace at the scenario's batch size and precision, measured kernels re-timed on their own GPU.

    Batch first: the conversions that a precision adds count elements.
    """
    found = Whatif(trace=trace)
    for change in _trace_changes(scenario):
        before = found.trace
        changed = change(before)
        if origin is not None:
            changed = retime(before, changed, origin, library)
        found = replace(changed, warnings=(*found.warnings, *changed.warnings))
    return found


def _trace_changes(scenario: Scenario) -> Iterator[Callable[[Trace], Whatif]]:
    precision, batch_size = scenario.precision, scenario.batch_size
    if batch_size is not None:
        yield lambda trace: with_batch(trace, batch_size, from_batch=scenario.recorded_batch_size)
    if precision is not None:
        yield lambda trace: with_precision(trace, precision)


def _with_casts(prediction: Prediction, workload: Workload, casts: Casts, library: Library) -> Prediction:
    """Add the time of the conversions that a what-if inserts to the ops that ask for them, on average per call."""
    row = workload.row_of[casts.op]
    known = row >= 0
    added = np.zeros_like(prediction.time_ns)
    np.add.at(added, row[known], cast_times_ns(casts, prediction.fleet.gpus, library)[known])
    return replace(prediction, time_ns=prediction.time_ns + added / np.maximum(workload.count, 1)[:, None])


def _with_timeline(trace: Trace) -> Trace:
    """Return a trace without times on the timeline that a usual host would give it."""
    return synthesize_timeline(trace, load_host_costs())


def _host_half_width(gpus: Sequence[Gpu], origin: Gpu | None, scenario: Scenario) -> Floats:
    """Return the half width of the host's times beside each GPU, natural log, [m]."""
    if scenario.cpu_speed is not None:
        return np.zeros(len(gpus))
    if origin is None:
        return np.full(len(gpus), unknown_host_half_width())
    return np.where([gpu.name == origin.name for gpu in gpus], 0.0, OTHER_HOST_HALF_WIDTH)


def _recorded_busy_ns(trace: Trace, window: Window, graph: Graph) -> float:
    """Return how long the GPU was busy in the recorded iteration."""
    timing = measured_timing(graph, graph.residual_ns)
    start, end = iteration_spans(trace, graph, graph.nodes.end_ns[:, None])
    at = iteration_position(trace, window.index)
    return occupation(graph, timing, graph.nodes.end_ns, (float(start[at, 0]), float(end[at, 0])), 0).busy_ns


def _apply_graph_whatifs(
    graph: Graph, trace: Trace, workload: Workload, scenario: Scenario
) -> tuple[Graph, Floats, CompiledCode | None, tuple[str, ...]]:
    """Return the graph with fewer kernels or launches, what each node's duration is multiplied with, what of it was
    to be compiled anyway, and warnings."""
    ratio, warnings = np.ones(len(graph.nodes.row)), list[str]()
    compiled, code = find_compiled(trace), None
    if scenario.fuse_elementwise or compiled.region_count:
        fusion = _fuse(graph, trace, workload, compiled, everything=scenario.fuse_elementwise)
        graph, ratio = fusion.graph, fusion.base_ratio
        if scenario.fuse_elementwise and not fusion.kernels_merged:
            warnings.append("--fuse-elementwise: no chain of pointwise kernels was found")
        if compiled.region_count:
            code = CompiledCode(region_count=compiled.region_count, kernels_merged=fusion.kernels_merged)
    if scenario.cuda_graph:
        graph = with_cuda_graph(graph, trace)
    return graph, ratio, code, tuple(warnings)


def _fuse(graph: Graph, trace: Trace, workload: Workload, compiled: CompiledOps, *, everything: bool) -> Fusion:
    """Merge what a compiler would: in compiled regions, or in each phase but the optimizer's as if it were one."""
    region = compiled.region
    if everything:
        if trace.meta.capture != "shapes" or not row_count(trace.operands):
            return with_fused_elementwise(graph, trace, workload)
        phase = trace.ops.phase.astype(np.int64)
        region = np.where((region < 0) & (phase != Phase.OPTIMIZER), len(region) + phase, region)
    return with_compiled_regions(graph, trace, workload, region)


def _describe_memory(trace: Trace, window: Window, scenario: Scenario) -> tuple[MemoryUse | None, str | None]:
    """Return the memory that the iteration takes, or why it is not known."""
    use = describe_memory(trace, window)
    if use is None:
        return None, explain_missing_memory(trace, window)
    asks_for_other_sizes = scenario.batch_size is not None or scenario.precision is not None
    if asks_for_other_sizes and use.method is MemoryMethod.ALLOCATION_EVENTS:
        return None, "the recorded allocations are those of the batch and the precision that ran"
    return use, None


def source_gpu(trace: Trace, catalog: Catalog, window: Window) -> Gpu:
    """Return the catalogue's entry of the GPU that was measured. Raises UnknownGpuError where there is none."""
    device = next((item for item in trace.devices if item.index == window.device), None)
    if device is None:
        raise UnknownGpuError("the trace does not say which GPU it was recorded on: name it with --from")
    gpu = gpu_of_device(catalog, device)
    if gpu is None:
        raise UnknownGpuError(
            f"the trace was recorded on {device.name!r}, which the catalogue does not hold: "
            "name the closest entry with --from, or describe it in a file with --gpu-file"
        )
    return gpu


def check_usable(window: Window) -> None:
    """Raise InputError for an iteration without ops and kernels."""
    if not len(window.kernel_rows) and not len(window.op_rows):
        raise InputError("the trace holds no ops and no kernels: record at least one whole iteration")
