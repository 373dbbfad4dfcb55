"""The timeline of a recording on the GPU that it was made on: as recorded, and as the replay's rules alone have it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...errors import InputError
from ...formats.trace.column import row_count
from ...formats.trace.tables import Trace
from ...specs.gpu import Gpu
from ..graph.build import build_graph
from ..graph.graph import Graph
from ..graph.steps import with_iterations
from ..prediction.workload import measured_workload
from ..recorded.window import Window, select_window
from ..replay.binding import durations_ns
from ..replay.engine import measured_timing, replay
from ..replay.forecast import kernel_rows
from ..timeline.build import build_timeline
from ..timeline.notes import KernelNotes, op_notes
from ..timeline.sides import TimelineSide, measured_side, predicted_side
from ..timeline.slices import Timeline

UNNAMED: str = "an unnamed GPU"


def lay_out_recording(trace: Trace, gpu: Gpu | None, *, iteration: int | None = None) -> Timeline:
    """Return the recorded timeline of an iteration: the given row, or the one of median length.

    Raises InputError for a trace without kernels.

    >>> [process.title for process in lay_out_recording(measured, a100).processes]
    ['recorded']
    """
    whole, window, graph = _recorded(trace, gpu, iteration)
    return build_timeline(window, [_as_recorded(whole, window, graph, gpu)])


def lay_out_rules(trace: Trace, gpu: Gpu | None, *, iteration: int | None = None) -> Timeline:
    """Return the recorded timeline of an iteration above its replay by the rules alone, no delay carried over.

    Raises InputError for a trace without kernels.

    >>> [process.iteration_ns for process in lay_out_rules(measured, a100).processes]
    [578000, 574700]
    """
    whole, window, graph = _recorded(trace, gpu, iteration)
    recorded = _as_recorded(whole, window, graph, gpu)
    timing = measured_timing(graph, np.zeros_like(graph.residual_ns))
    ruled = predicted_side(
        whole,
        graph,
        recorded.gpu,
        notes=recorded.notes,
        end_ns=replay(graph, timing)[:, 0],
        duration_ns=np.asarray(durations_ns(graph, timing)),
    )
    return build_timeline(window, [recorded, replace(ruled, title="by rules alone")])


def _recorded(trace: Trace, gpu: Gpu | None, iteration: int | None) -> tuple[Trace, Window, Graph]:
    if not row_count(trace.kernels):
        raise InputError("the trace holds no kernels: there is no timeline of a GPU")
    whole = with_iterations(trace)
    graph = build_graph(whole, architecture=gpu.architecture if gpu is not None else None)
    return whole, select_window(whole, iteration), graph


def _as_recorded(trace: Trace, window: Window, graph: Graph, gpu: Gpu | None) -> TimelineSide:
    name = gpu.name if gpu is not None else next((item.name for item in trace.devices), UNNAMED)
    return replace(measured_side(trace, graph, name, notes=_notes(trace, window, graph)), title="recorded")


def _notes(trace: Trace, window: Window, graph: Graph) -> KernelNotes:
    workload = measured_workload(trace, window)
    return op_notes(workload, kernel_rows(graph, trace, workload))
