"""The timeline of a recording on the GPU that it was made on: as recorded, and as the replay's rules alone have it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...errors import InputError
from ...formats.trace.column import row_count
from ...specs.gpu import Gpu
from ..graph.build import build_graph
from ..graph.graph import Graph
from ..prediction.workload import measured_workload
from ..recorded.recording import RecordedIteration, marked
from ..replay.engine import measured_timing, replay
from ..replay.forecast import kernel_rows
from ..timeline.build import build_timeline
from ..timeline.notes import op_notes
from ..timeline.sides import TimelineSide, measured_side, predicted_side
from ..timeline.slices import Timeline

UNNAMED: str = "an unnamed GPU"


def lay_out_recording(recorded: RecordedIteration, gpu: Gpu | None) -> Timeline:
    """Return the recorded timeline of an iteration.

    Raises InputError for a trace without kernels.

    >>> [process.title for process in lay_out_recording(recorded, a100).processes]
    ['recorded']
    """
    whole, graph = _graph(recorded, gpu)
    return build_timeline(whole.window, [_as_recorded(whole, graph, gpu)])


def lay_out_rules(recorded: RecordedIteration, gpu: Gpu | None) -> Timeline:
    """Return the recorded timeline of an iteration above its replay by the rules alone, no delay carried over.

    Raises InputError for a trace without kernels.

    >>> [process.iteration_ns for process in lay_out_rules(recorded, a100).processes]
    [578000, 574700]
    """
    whole, graph = _graph(recorded, gpu)
    measured = _as_recorded(whole, graph, gpu)
    timing = measured_timing(graph, np.zeros_like(graph.residual_ns))
    ruled = predicted_side(
        whole.trace,
        graph,
        measured.gpu,
        notes=measured.notes,
        timing=timing,
        end_ns=replay(graph, timing)[:, 0],
    )
    return build_timeline(whole.window, [measured, replace(ruled, title="by rules alone")])


def _graph(recorded: RecordedIteration, gpu: Gpu | None) -> tuple[RecordedIteration, Graph]:
    """Return the iteration with its bounds, and the graph of its trace."""
    if not row_count(recorded.trace.kernels):
        raise InputError("the trace holds no kernels: there is no timeline of a GPU")
    whole = marked(recorded)
    return whole, build_graph(whole.trace, architecture=gpu.architecture if gpu is not None else None)


def _as_recorded(recorded: RecordedIteration, graph: Graph, gpu: Gpu | None) -> TimelineSide:
    trace, workload = recorded.trace, measured_workload(recorded.trace, recorded.window)
    name = gpu.name if gpu is not None else next((item.name for item in trace.devices), UNNAMED)
    notes = op_notes(workload, kernel_rows(graph, trace, workload))
    return replace(measured_side(trace, graph, name, notes=notes), title="recorded")
