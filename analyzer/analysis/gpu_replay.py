"""A case looked at closely on one GPU: every node's time, the critical path, the timeline."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...arrays import Floats
from ...formats.perfetto import save_events
from ..graph.critical import CriticalPath
from ..prediction.workload import measured_workload
from ..recorded.window import Window, select_window
from ..replay.binding import durations_ns
from ..replay.engine import Timing, replay
from ..replay.forecast import kernel_rows, on_gpus
from ..replay.paths import measured_path, replayed_path
from ..timeline.build import build_timeline
from ..timeline.events import timeline_events
from ..timeline.notes import kernel_notes, op_notes
from ..timeline.sides import Side, measured_side, predicted_side
from ..timeline.slices import Timeline
from .result import Case


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Closeup:
    """Hold the replay of a case on one GPU, node by node."""

    column: int
    timing: Timing
    """Of this GPU alone."""
    end_ns: Floats
    """Of every node, [n]."""
    path: CriticalPath


def look_closely(case: Case, gpu_name: str) -> Closeup:
    """Replay a case on one of its GPUs again and keep every node's time."""
    column = next(at for at, gpu in enumerate(case.prediction.fleet.gpus) if gpu.name == gpu_name)
    timing = on_gpus(case.forecast.timing, slice(column, column + 1))
    end_ns = replay(case.graph, timing)[:, 0]
    path = replayed_path(case.trace, case.graph, timing, end_ns, (replayed_window(case).index, 0))
    return Closeup(column=column, timing=timing, end_ns=end_ns, path=path)


def replayed_window(case: Case) -> Window:
    """Return the iteration that is replayed: the recorded one, or the one on a synthetic timeline."""
    return case.window if case.origin is not None else select_window(case.trace)


def lay_out(case: Case, closeup: Closeup) -> Timeline:
    """Return the predicted timeline on one GPU, below the measured one where there is one."""
    sides = [_predicted(case, closeup)]
    if case.origin is not None:
        sides.insert(0, _measured(case, case.origin.name))
    return build_timeline(replayed_window(case), sides)


def save_timeline(case: Case, gpu_name: str, path: Path) -> None:
    """Write the timeline for ui.perfetto.dev and chrome://tracing; gzipped where the name ends in `.gz`."""
    save_events(timeline_events(lay_out(case, look_closely(case, gpu_name))), path)


def _measured(case: Case, gpu_name: str) -> Side:
    workload = measured_workload(case.recorded_trace, case.window)
    notes = op_notes(workload, kernel_rows(case.recorded_graph, case.recorded_trace, workload))
    path = measured_path(case.recorded_trace, case.recorded_graph, case.window.index)
    return measured_side(case.recorded_trace, case.recorded_graph, gpu_name, notes=notes, path=path)


def _predicted(case: Case, closeup: Closeup) -> Side:
    duration = durations_ns(case.graph, closeup.timing, 0)
    notes = kernel_notes(case.workload, case.prediction, closeup.column, closeup.timing.factor_row, duration)
    gpu = case.prediction.fleet.gpus[closeup.column].name
    return predicted_side(
        (case.trace, case.graph, notes),
        gpu,
        (closeup.end_ns, np.asarray(duration)),
        host_ratio=float(closeup.timing.host_ratio[0]),
        path=closeup.path,
    )
