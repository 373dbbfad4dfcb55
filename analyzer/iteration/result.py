"""One trace put to one question: what it rests on, and everything that the report is made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...arrays import Floats
from ...errors import InputError
from ...formats.trace.column import row_count
from ...formats.trace.tables import Trace
from ...records import dataclass, field, replace
from ...specs.attention_kernels import AttentionKernel
from ...specs.cluster import USUAL, Cluster
from ...specs.fleet import build_fleet
from ...specs.gpu import Gpu
from ...specs.prices.book import PriceBook, shipped_prices
from ..graph.build import build_graph
from ..graph.graph import Graph, Runs
from ..host.costs import known_host_half_width, load_host_costs, unknown_host_half_width
from ..host.timeline import leads_of, script_time, synthesize_timeline
from ..memory.describe import describe_memory, explain_missing_memory
from ..memory.sizes import check_sizes
from ..memory.use import MemoryMethod, MemoryUse
from ..models.embedding.recorded import with_recorded
from ..models.library import Library
from ..prediction.attention import explain_attention
from ..prediction.lookups import explain_lookups, explain_tables
from ..prediction.predict import predict_measured, predict_shapes
from ..prediction.prediction import Prediction
from ..prediction.shared_error import iteration_kind
from ..prediction.workload import GpuWorkload, measured_workload, shape_workload
from ..recorded.compiled import CompiledCode, find_compiled, names_tensors
from ..recorded.recording import RecordedIteration, choose_recording, explain_nothing
from ..recorded.window import Window, lengths_log_width, timed_iterations
from ..replay.causes import occupation
from ..replay.engine import Timing, measured_timing
from ..replay.forecast import Forecast, forecast, kernel_rows, spread_of
from ..replay.iterations import iteration_position, iteration_spans, runs_near
from ..replay.overlap import collective_slowing, learn_slowing, slowed_timing, with_learned
from ..replay.profiler_slowdown import ProfilerSlowdown, find_slowdown, without_profiler
from ..whatif.apply import add_casts, change_graph, change_trace, changed_timing
from ..whatif.change import ChangedGraph, Whatif
from ..whatif.scenario import Scenario
from ..work.lookup import WorkLookup
from .run_rows import RunRows, find_run_rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Analysis:
    """Hold a trace with its graph, the times predicted for its kernels, and its replay, on m GPUs."""

    trace: Trace
    """As asked: with what-ifs applied and, where it was recorded without times, on a synthetic timeline."""
    replayed_window: Window
    """Of this trace; `window` is that of the recorded one."""
    recorded: RecordedIteration
    """Before what-ifs."""
    scenario: Scenario
    library: Library
    """The op models that predicted."""
    graph: Graph
    recorded_graph: Graph
    """Before what-ifs; of a trace without times, on its synthetic timeline."""
    workload: GpuWorkload
    prediction: Prediction
    run: RunRows
    """Rows of what is replayed: merged kernels in place of their parts."""
    forecast: Forecast
    host_half_width: Floats
    """How far the host's times may be off beside each GPU, natural log, [m]."""
    script_log_width: float
    """Of it by the script's own Python, whatever the host."""
    recorded_busy_ns: float
    """GPU-busy time of the recorded iteration without the profiler; 0 where none was measured."""
    slowdown: ProfilerSlowdown
    """What brings the recording's replay to the measured time; no change where none was measured."""
    memory: MemoryUse | None
    memory_unknown: str | None
    """Why nothing can be said about memory."""
    compiled: CompiledCode | None = None
    """What was recorded eagerly and is predicted as compiled; None where nothing is."""
    warnings: tuple[str, ...] = ()
    """Of the what-ifs."""
    prices: PriceBook = field(default_factory=shipped_prices)
    """What the GPUs cost."""

    @property
    def window(self) -> Window:
        """Return the rows of the recorded iteration; of one without GPU times, all that is left of it."""
        return self.recorded.window

    @property
    def origin(self) -> Gpu | None:
        """Return the GPU that was measured; None where none was."""
        return self.recorded.gpu

    def column(self, gpu_name: str) -> int:
        """Return the place of a GPU among those that are predicted."""
        return next(at for at, gpu in enumerate(self.prediction.fleet.gpus) if gpu.name == gpu_name)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrangement:
    """Hold what is replayed: the graph with what-ifs applied, and how long its nodes take on m GPUs."""

    graph: Graph
    timing: Timing
    changed: ChangedGraph
    """The graph before times were given to it."""
    near: Runs
    """What runs beside the iteration or before: the rest of the graph has its kernels' times as if alone."""


def build_result(
    recorded: RecordedIteration, gpus: Sequence[Gpu], library: Library, scenario: Scenario, cluster: Cluster = USUAL
) -> Analysis:
    """Predict an iteration on `gpus`, which stand in the machines of `cluster`, under a scenario."""
    window, origin = recorded.window, recorded.gpu
    library = with_recorded(library, recorded.trace, window.op_rows)
    # A what-if rewrites the ops of all iterations.
    op_rows = np.arange(row_count(recorded.trace.ops)) if scenario.changes_work else window.op_rows
    check_sizes(recorded.trace, op_rows, gpus)
    changed = change_trace(recorded.trace, origin, library, scenario, gpus)
    attention = None if scenario.attention is None else AttentionKernel[scenario.attention.name]
    if origin is not None:
        basis = measured_basis(recorded, changed, origin, gpus, library, attention, cluster)
    else:
        basis = shapes_basis(window, changed, gpus, library, attention, cluster, is_merged=scenario.fuse_elementwise)
    arranged = arrange(basis, origin, scenario, library, window)
    graph, timing = arranged.graph, arranged.timing
    told = np.full(len(gpus), max(scenario.host_half_width, basis.known_host_half_width))
    host_half_width = np.hypot(basis.host_half_width if scenario.cpu_speed is None else told, basis.script_log_width)
    spread = spread_of(basis.prediction, basis.workload, host_half_width)
    memory, memory_unknown = _describe_memory(basis.trace, window, scenario)
    return Analysis(
        trace=basis.trace,
        replayed_window=basis.window,
        recorded=recorded,
        scenario=scenario,
        library=library,
        graph=graph,
        recorded_graph=basis.recorded_graph,
        workload=basis.workload,
        prediction=basis.prediction,
        run=find_run_rows(
            basis.trace, window, basis.recorded_graph, basis.workload, basis.prediction, arranged.changed, library
        ),
        forecast=forecast(
            basis.trace,
            window,
            graph,
            timing,
            spread,
            near=arranged.near,
            # Of a host that a file tells, the recorded one's moments say nothing.
            loop_host_ratio=1.0 if scenario.host_half_width else basis.slowdown.loop_host_ratio,
        ),
        host_half_width=host_half_width,
        script_log_width=basis.script_log_width,
        recorded_busy_ns=basis.recorded_busy_ns,
        slowdown=basis.slowdown,
        memory=memory,
        memory_unknown=memory_unknown,
        compiled=arranged.changed.compiled,
        warnings=(
            *changed.warnings,
            *explain_attention(basis.workload, gpus, attention),
            *explain_lookups(basis.workload, library.indices, row_count(basis.trace.lookups)),
            *explain_tables(basis.trace, basis.workload),
            *arranged.changed.warnings,
        ),
    )


def arrange(
    found: Basis | Analysis, origin: Gpu | None, scenario: Scenario, library: Library, window: Window | None = None
) -> Arrangement:
    """Return graph and times to replay: with what the scenario changes of the graph and the host, on all GPUs.

    `window`: only what its iteration needs has the times of kernels that others run beside; default: all.

    What it changes of the trace is in what was found already.
    """
    fewer = change_graph(found.recorded_graph, found.trace, found.workload, scenario)
    timing = changed_timing(fewer, found.trace, found.workload, found.prediction, origin, library)
    timing = replace(timing, host_ratio=timing.host_ratio / (scenario.cpu_speed or 1.0))
    graph, timing = without_profiler(fewer.graph, timing, found.slowdown)
    fleets, recorded = [found.prediction.fleet], None
    if origin is not None:
        fleets.append(build_fleet([origin]))
    domains = np.concatenate([fleet.fabric.domain_gpu_count for fleet in fleets])
    slowing = collective_slowing(graph, found.trace, domains)
    if origin is not None:
        slowing, recorded = slowing[:, :-1], slowing[:, -1]
        learned = learn_slowing(graph, kernel_rows(graph, found.trace, found.workload), recorded)
        slowing, recorded = with_learned(slowing, recorded, learned)
    near = graph.runs if window is None else runs_near(found.trace, graph, window.index)
    timing = slowed_timing(graph, timing, slowing, recorded, runs=near)
    return Arrangement(graph=graph, timing=timing, changed=fewer, near=near)


def _describe_memory(trace: Trace, window: Window, scenario: Scenario) -> tuple[MemoryUse | None, str | None]:
    """Return the memory that the iteration takes, or why it is not known."""
    use = describe_memory(trace, window)
    if use is None:
        return None, explain_missing_memory(trace, window)
    if scenario.changes_sizes and use.method is MemoryMethod.ALLOCATION_EVENTS:
        return None, "the recorded allocations are those of the sizes and the precision that ran"
    return use, None


OTHER_HOST_HALF_WIDTH: Final = 0.5
"""Natural log: how far another machine's host may be from the recorded one. Of our recordings of one network on an H100
and an H200 machine, 44 moves have the GPU wait for the host for over a fifth of the plain loop. Nine of ten lie within
0.44 of it, and the host's part, which alone gets this width, is smaller (`wavecast score`). Two public pairs differ by
6 and 11 %."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Basis:
    """Hold what an iteration is replayed from, on m GPUs."""

    trace: Trace
    """With what-ifs applied."""
    window: Window
    """Of this trace: the iteration that is replayed."""
    recorded_graph: Graph
    """Before what-ifs; of a trace without times, on its synthetic timeline."""
    workload: GpuWorkload
    prediction: Prediction
    recorded_busy_ns: float
    """GPU-busy time of the recorded iteration without the profiler; 0 where none was measured."""
    slowdown: ProfilerSlowdown
    host_half_width: Floats
    """Of the host's times beside each GPU, natural log, [m]."""
    script_log_width: float = 0.0
    """How much longer they may be by the script's own Python, which was measured too rarely."""
    known_host_half_width: float = 0.0
    """Of the host's times on a host whose speed is known."""


def measured_basis(
    recorded: RecordedIteration,
    changed: Whatif,
    origin: Gpu,
    gpus: Sequence[Gpu],
    library: Library,
    attention: AttentionKernel | None = None,
    cluster: Cluster = USUAL,
) -> Basis:
    """Return the kernels of a changed recording moved from the GPU that was measured."""
    trace, window = recorded.trace, recorded.window
    graph = build_graph(trace, architecture=origin.architecture)
    workload = measured_workload(changed.trace, window)
    slowdown = find_slowdown(graph, trace, window)
    end_ns, at = graph.nodes.end_ns[:, None], iteration_position(trace, window.index)
    start, end = iteration_spans(trace, graph, end_ns)
    timing = measured_timing(graph, graph.residual_ns)
    has_host = row_count(trace.calls) > 0 or row_count(trace.ops) > 0
    busy_ns = float(occupation(graph, timing, end_ns, start[at], end[at]).busy_ns[0])
    return Basis(
        trace=changed.trace,
        window=window,
        recorded_graph=graph,
        workload=workload,
        prediction=predict_measured(
            changed.trace,
            workload,
            build_fleet([origin], cluster.nodes_of([origin])),
            build_fleet(gpus, cluster.nodes_of(gpus)),
            library,
            retimed=changed.trace is not trace,
            attention=attention,
        ),
        recorded_busy_ns=busy_ns * slowdown.stretch_ratio,
        slowdown=slowdown,
        host_half_width=np.where(
            [gpu.name == origin.name or not has_host for gpu in gpus], 0.0, _other_host_half_width(trace)
        ),
    )


def _other_host_half_width(trace: Trace) -> float:
    """Return how far the host beside another GPU may be from what was recorded, natural log.

    Hosts differ, and what was recorded of this one is as far off as its timed iterations are from each other.
    """
    timed = timed_iterations(trace)
    return float(np.hypot(OTHER_HOST_HALF_WIDTH, lengths_log_width(trace, timed) if len(timed) > 1 else 0.0))


def shapes_basis(
    window: Window,
    changed: Whatif,
    gpus: Sequence[Gpu],
    library: Library,
    attention: AttentionKernel | None = None,
    cluster: Cluster = USUAL,
    *,
    is_merged: bool = False,
) -> Basis:
    """Return the ops of a changed recording of shapes, on the timeline that a usual host would give them.

    `is_merged`: a scenario has a compiler merge pointwise ops, wherever tensors are named as compiled code does it.
    Raises InputError where none of them has any GPU time: all GPUs would be alike.
    """
    shapes, is_compiled = changed.trace, is_merged or bool(find_compiled(changed.trace).is_region.any())
    lookup, is_everywhere = WorkLookup(shapes), is_merged and names_tensors(shapes)
    costs = load_host_costs()
    trace = synthesize_timeline(shapes, costs, is_compiled=is_everywhere, lookup=lookup)
    script = script_time(shapes, leads_of(shapes, costs), costs)
    workload = shape_workload(trace, window, lookup)
    kind = iteration_kind(workload, trace.meta, is_compiled=is_compiled)
    prediction = predict_shapes(workload, gpus, library, kind, attention=attention, nodes=cluster.nodes_of(gpus))
    if not np.any(prediction.time_ns > 0):
        raise InputError(explain_nothing(changed.trace, window))
    return Basis(
        trace=trace,
        window=choose_recording(trace).window,
        recorded_graph=build_graph(trace),
        workload=workload,
        prediction=add_casts(prediction, workload, changed.casts, library) if len(changed.casts.op) else prediction,
        recorded_busy_ns=0.0,
        slowdown=ProfilerSlowdown(),
        host_half_width=np.full(len(gpus), unknown_host_half_width()),
        script_log_width=script.log_width(float(trace.iterations.end_ns[0])),
        known_host_half_width=known_host_half_width(),
    )
