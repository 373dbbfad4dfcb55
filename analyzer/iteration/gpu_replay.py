"""A result looked at closely on one GPU, every node's time and the timeline; and the recording's own one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...arrays import Floats
from ...errors import InputError
from ...formats.trace.column import MAX_INTEGER, row_count
from ...records import dataclass, replace
from ...specs.gpu import Gpu
from ..graph.build import build_graph
from ..graph.critical import CriticalPath
from ..graph.graph import Graph
from ..prediction.workload import measured_workload
from ..recorded.recording import RecordedIteration, marked
from ..replay.causes import durations_ns
from ..replay.engine import Timing, measured_timing, on_gpus, replay
from ..replay.forecast import kernel_rows
from ..replay.iterations import runs_near
from ..replay.paths import measured_path, replayed_path
from .result import Analysis, arrange

if TYPE_CHECKING:
    from ..timeline.sides import TimelineSide
    from ..timeline.slices import Timeline


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GpuReplay:
    """Hold the replay of a result on one GPU, node by node."""

    column: int
    timing: Timing
    """Of this GPU alone."""
    end_ns: Floats
    """Of every node, [n]."""
    path: CriticalPath


def replay_on(result: Analysis, gpu_name: str, *, whole: bool = False) -> GpuReplay:
    """Replay a result on one of its GPUs again and keep every node's time.

    `whole`: later iterations than the one that is predicted are timed as well, for those who look at all of them; else
    what they alone need ends after everything.

    >>> round(float(replay_on(result, a100.name).end_ns.max()) / 1e6)  # ms
    11
    """
    column = result.column(gpu_name)
    timing = on_gpus(result.forecast.timing, slice(column, column + 1))
    runs = None
    if not whole:
        runs = runs_near(result.trace, result.graph, result.replayed_window.index)
    else:
        alone = replace(result, prediction=result.prediction.on_gpu(column))
        timing = arrange(alone, result.origin, result.scenario, result.library).timing
    end_ns = replay(result.graph, timing, runs=runs)[:, 0]
    path = replayed_path(result.trace, result.graph, timing, end_ns, result.replayed_window.index)
    return GpuReplay(column=column, timing=timing, end_ns=end_ns, path=path)


def lay_out(result: Analysis, replayed: GpuReplay) -> Timeline:
    """Return the predicted timeline on one GPU, below the measured one where there is one.

    Raises InputError where the prediction is too long to be drawn.

    >>> [process.title for process in lay_out(result, replay_on(result, a100.name)).processes]
    ['predicted on A100 SXM4 80GB']
    """
    from ..timeline.build import build_timeline
    from ..timeline.sides import predicted_side
    from ..timeline.slices import kernel_notes

    if not np.abs(replayed.end_ns).max(initial=0.0) <= MAX_INTEGER:  # NaN, too
        raise InputError(
            "the predicted iteration is longer than a timeline holds (104 days): the trace's shapes or times are of no "
            "real run"
        )
    duration_ns = np.asarray(durations_ns(result.graph, replayed.timing))
    notes = kernel_notes(result.workload, result.prediction, replayed.column, replayed.timing.factor_row, duration_ns)
    predicted = predicted_side(
        result.trace,
        result.graph,
        result.prediction.fleet.gpus[replayed.column].name,
        notes=notes,
        timing=replayed.timing,
        end_ns=replayed.end_ns,
        path=replayed.path,
    )
    measured = [] if result.origin is None else [_measured(result, result.origin.name)]
    return build_timeline(result.replayed_window, [*measured, predicted])


def save_timeline(result: Analysis, gpu_name: str, path: Path) -> None:
    """Write the timeline for ui.perfetto.dev and chrome://tracing; gzipped where the name ends in `.gz`.

    >>> save_timeline(result, a100.name, folder / "a100.json.gz")
    >>> (folder / "a100.json.gz").exists()
    True
    """
    from ...formats.perfetto.timeline import save_events
    from ..timeline.events import timeline_events

    save_events(timeline_events(lay_out(result, replay_on(result, gpu_name, whole=True))), path)


def _measured(result: Analysis, gpu_name: str) -> TimelineSide:
    from ..timeline.sides import measured_side
    from ..timeline.slices import op_notes

    workload = measured_workload(result.recorded.trace, result.window)
    notes = op_notes(workload, kernel_rows(result.recorded_graph, result.recorded.trace, workload))
    path = measured_path(result.recorded.trace, result.recorded_graph, result.window.index)
    return measured_side(result.recorded.trace, result.recorded_graph, gpu_name, notes=notes, path=path)


UNNAMED: str = "an unnamed GPU"


def lay_out_recording(recorded: RecordedIteration) -> Timeline:
    """Return the recorded timeline of an iteration.

    Raises InputError for a trace without kernels.

    >>> [process.title for process in lay_out_recording(recorded).processes]
    ['recorded']
    """
    from ..timeline.build import build_timeline

    whole, graph = _graph(recorded, None)
    return build_timeline(whole.window, [_as_recorded(whole, graph, None)])


def lay_out_rules(recorded: RecordedIteration, gpu: Gpu | None) -> Timeline:
    """Return the recorded timeline of an iteration above its replay by the rules alone, no delay carried over.

    Raises InputError for a trace without kernels.

    >>> [process.iteration_ns for process in lay_out_rules(recorded, a100).processes]
    [578000, 574700]
    """
    from ..timeline.build import build_timeline
    from ..timeline.sides import predicted_side

    whole, graph = _graph(recorded, gpu)
    measured = _as_recorded(whole, graph, gpu)
    timing = measured_timing(graph, np.zeros_like(graph.residual_ns))
    ruled = predicted_side(
        whole.trace, graph, measured.gpu, notes=measured.notes, timing=timing, end_ns=replay(graph, timing)[:, 0]
    )
    return build_timeline(whole.window, [measured, replace(ruled, title="by rules alone")])


def _graph(recorded: RecordedIteration, gpu: Gpu | None) -> tuple[RecordedIteration, Graph]:
    """Return the iteration with its bounds, and the graph of its trace."""
    if not row_count(recorded.trace.kernels):
        raise InputError("the trace holds no kernels: there is no timeline of a GPU")
    whole = marked(recorded)
    return whole, build_graph(whole.trace, architecture=gpu.architecture if gpu is not None else None)


def _as_recorded(recorded: RecordedIteration, graph: Graph, gpu: Gpu | None) -> TimelineSide:
    from ..timeline.sides import measured_side
    from ..timeline.slices import op_notes

    trace, workload = recorded.trace, measured_workload(recorded.trace, recorded.window)
    name = gpu.name if gpu is not None else next((item.name for item in trace.devices), UNNAMED)
    notes = op_notes(workload, kernel_rows(graph, trace, workload))
    return replace(measured_side(trace, graph, name, notes=notes), title="recorded")
