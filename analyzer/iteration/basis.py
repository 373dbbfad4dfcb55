"""What an iteration is predicted from: kernels that were measured, or shapes alone on the timeline of a usual host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ...arrays import Floats
from ...errors import InputError
from ...formats.trace.tables import Trace
from ...specs.attention_kernels import AttentionKernel
from ...specs.cluster import USUAL, Cluster
from ...specs.gpu import Gpu
from ..graph.build import build_graph
from ..graph.graph import Graph
from ..host.costs import load_host_costs, unknown_host_half_width
from ..host.timeline import script_speed_of, synthesize_timeline
from ..models.library import Library
from ..prediction.predict import predict_measured, predict_shapes
from ..prediction.prediction import Prediction
from ..prediction.shared_error import iteration_kind
from ..prediction.workload import GpuWorkload, measured_workload, shape_workload
from ..recorded.compiled import find_compiled, names_tensors
from ..recorded.gaps import explain_nothing
from ..recorded.recording import RecordedIteration, choose_recording
from ..recorded.window import Window
from ..replay.causes import occupation
from ..replay.engine import measured_timing
from ..replay.iterations import iteration_position, iteration_spans
from ..replay.profiler_slowdown import ProfilerSlowdown, find_slowdown
from ..whatif.apply import add_casts
from ..whatif.change import Whatif

OTHER_HOST_HALF_WIDTH: Final = 0.15
"""Natural log: how far another machine's host may be from the recorded one. The two pairs of traces of one workload on
two machines differ by 6 and 11 % (benchmarks/check/replay_pairs.py), single processes by -10 to +16 %."""


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
    busy_ns = float(occupation(graph, timing, end_ns, start[at], end[at]).busy_ns[0])
    return Basis(
        trace=changed.trace,
        window=window,
        recorded_graph=graph,
        workload=workload,
        prediction=predict_measured(
            changed.trace,
            workload,
            origin,
            gpus,
            library,
            retimed=changed.trace is not trace,
            attention=attention,
            cluster=cluster,
        ),
        recorded_busy_ns=busy_ns * slowdown.stretch_ratio,
        slowdown=slowdown,
        host_half_width=np.where([gpu.name == origin.name for gpu in gpus], 0.0, OTHER_HOST_HALF_WIDTH),
    )


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
    trace = synthesize_timeline(
        shapes, load_host_costs(), script_speed_of(shapes.meta.host), is_compiled=is_merged and names_tensors(shapes)
    )
    workload = shape_workload(trace, window)
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
    )
