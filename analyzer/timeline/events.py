"""From the timeline to the slices of a viewer's file, each with what is known of it."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...arrays import Rows, at_rows, none_for_nan
from ...formats.perfetto.timeline import EventArrows, EventFile, EventSlices, EventTrack
from ...formats.trace.signature import format_shapes
from ..graph.graph import EdgeKind
from ..prediction.bounds import Limit
from ..prediction.prediction import METHODS
from .slices import FAMILIES, ArrowKind, Process, SliceKind, Slices, Timeline

_CATEGORIES: Final = {
    SliceKind.ITERATION: "iteration",
    SliceKind.STEP: "critical_path",
    SliceKind.OP: "op",
    SliceKind.CALL: "call",
    SliceKind.KERNEL: "kernel",
    SliceKind.MEMCPY: "memcpy",
    SliceKind.MEMSET: "memset",
    SliceKind.COLLECTIVE: "collective",
}
_ARROWS: Final = {ArrowKind.LAUNCH: "launch", ArrowKind.BACKWARD: "backward"}


def timeline_events(timeline: Timeline, *, producer: str = "wavecast") -> EventFile:
    """Return the file that shows a timeline in ui.perfetto.dev or chrome://tracing.

    >>> from wavecast.analyzer.iteration.gpu_replay import lay_out, replay_on
    >>> timeline_events(lay_out(result, replay_on(result, a100.name))).processes
    ('predicted on A100 SXM4 80GB',)
    """
    slices, tables, order = timeline.slices, [], []
    process_of = np.array([track.process for track in timeline.tracks], dtype=np.int64)[slices.track]
    for number, process in enumerate(timeline.processes):
        said = _Arguments(process, slices)
        for kind, category in _CATEGORIES.items():
            rows = np.flatnonzero((slices.kind == kind) & (process_of == number))
            if len(rows):
                order.append(rows)
                tables.append(
                    EventSlices(
                        track=slices.track[rows],
                        start_ns=slices.start_ns[rows],
                        duration_ns=slices.duration_ns[rows],
                        name=slices.name[rows],
                        category=category,
                        args=said.of(kind, rows),
                    )
                )
    position = np.zeros(len(slices.track), dtype=np.int64)
    position[np.concatenate(order)] = np.arange(len(position))
    return EventFile(
        processes=tuple(process.title for process in timeline.processes),
        tracks=tuple(EventTrack(process=track.process, name=track.name) for track in timeline.tracks),
        names=timeline.names,
        slices=tuple(tables),
        arrows=tuple(_arrows(timeline, position)),
        about={"producer": producer},
    )


def _arrows(timeline: Timeline, position: Rows) -> Iterator[EventArrows]:
    arrows = timeline.arrows
    for kind, category in _ARROWS.items():
        mine = arrows.kind == kind
        yield EventArrows(source=position[arrows.source[mine]], target=position[arrows.target[mine]], category=category)


class _Arguments:
    """What is said about a process's slices; looks names, shapes and notes up by row."""

    def __init__(self, process: Process, slices: Slices) -> None:
        self._trace, self._notes, self._is_measured = process.trace, process.notes, process.is_measured
        self._slices = slices
        self._shapes = [format_shapes(signature) or None for signature in process.trace.signatures] + [None]
        self._strings = [*process.trace.strings, None]

    def of(self, kind: SliceKind, rows: Rows) -> dict[str, list[Any]]:
        """Return the arguments of some slices of one kind."""
        slices = self._slices
        critical = [item or None for item in slices.is_critical[rows].tolist()]
        inside = slices.in_iteration[rows].tolist()
        if kind is SliceKind.ITERATION:
            return {"iteration": slices.row[rows].tolist()}
        if kind is SliceKind.STEP:
            return {"held_by": [EdgeKind(code).name.lower() for code in slices.edge[rows].tolist()]}
        if kind is SliceKind.OP:
            return {"in_iteration": inside, **self._op(slices.row[rows])}
        if kind is SliceKind.CALL:
            return {"in_iteration": inside, "on_critical_path": critical}
        shown = {"in_iteration": inside, "on_critical_path": critical, **self._kernel(rows)}
        return shown if self._is_measured else {**shown, **self._predicted(rows)}

    def _op(self, ops: Rows) -> dict[str, list[Any]]:
        table = self._trace.ops
        return {
            "shapes": self._look_up(self._shapes, at_rows(table.signature, ops)),
            "module": self._look_up(self._strings, at_rows(table.module, ops)),
        }

    def _kernel(self, rows: Rows) -> dict[str, list[Any]]:
        """Return the op that explains each GPU slice: the notes' one, else the one around its launch."""
        kernels, notes = self._trace.kernels, self._notes
        noted = notes.op[self._slices.node[rows]]
        ops = np.where(noted >= 0, noted, kernels.op[self._slices.row[rows]])
        names = at_rows(self._trace.ops.name, ops)
        families = [*(family.value for family in FAMILIES), None]
        return {
            "op": self._look_up(self._strings, names),
            **self._op(ops),
            "family": self._look_up(families, self._slices.family[rows]),
        }

    def _predicted(self, rows: Rows) -> dict[str, list[Any]]:
        """Return how each time came about. Times in µs, as the viewers' own."""
        notes, node = self._notes, self._slices.node[rows]
        source_ns = self._trace.kernels.duration_ns[self._slices.row[rows]]
        return {
            "measured_us": (source_ns / 1000.0).tolist(),
            "method": self._look_up([*(method.value for method in METHODS), None], notes.method[node]),
            "reason": self._look_up([*notes.reasons, None], notes.reason[node]),
            "bound_us": _microseconds(notes.bound_ns[node]),
            "bound_by": self._look_up([*(limit.name.lower() for limit in Limit), None], notes.bound_by[node]),
            "low_us": _microseconds(notes.low_ns[node]),
            "high_us": _microseconds(notes.high_ns[node]),
        }

    @staticmethod
    def _look_up(values: list[Any], rows: npt.NDArray[np.signedinteger]) -> list[Any]:
        """Return the value of each row; the list's last one, None, for -1."""
        return [values[row] for row in rows.tolist()]


def _microseconds(values_ns: np.ndarray[Any, np.dtype[np.float64]]) -> list[float | None]:
    return [none_for_nan(round(value / 1000.0, 3)) for value in values_ns.tolist()]
