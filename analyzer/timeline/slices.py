"""The timeline as columns: every slice of every track of every process."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from ...arrays import Mask, Rows
from ...formats.trace.tables import Trace
from ..graph.graph import EdgeKind
from .notes import KernelNotes


class TrackKind(IntEnum):
    """Say what a track shows; a process shows them in this order."""

    ITERATION = 0
    CRITICAL_PATH = 1
    HOST = 2
    STREAM = 3


class SliceKind(IntEnum):
    """Say what a slice is, and of which table `row` is a row."""

    ITERATION = 0
    """The iteration that the timeline is about; row of the iterations, -1 without one."""
    STEP = 1
    """A stretch of the critical path; node of the graph."""
    OP = 2
    CALL = 3
    KERNEL = 4
    MEMCPY = 5
    MEMSET = 6
    COLLECTIVE = 7


FIRST_GPU_SLICE = SliceKind.KERNEL


class ArrowKind(IntEnum):
    """Say what an arrow joins."""

    LAUNCH = 0
    """A call and the GPU activity that it launched."""
    BACKWARD = 1
    """A forward op and the op that differentiates it."""


STEP_NAMES = {
    EdgeKind.PROGRAM_ORDER: "host",
    EdgeKind.STREAM_ORDER: "gap on the stream",
    EdgeKind.LAUNCH: "launch latency",
    EdgeKind.EVENT: "wait for another stream",
    EdgeKind.SYNC: "return from the wait",
    EdgeKind.QUEUE: "launch queue full",
    EdgeKind.COLLECTIVE: "wait for communication",
    EdgeKind.OP_LAUNCH: "host",
    EdgeKind.DATA: "wait for data",
    EdgeKind.FORWARD_BACKWARD: "wait for forward",
    EdgeKind.RELEASE: "not recorded",
    EdgeKind.NESTING: "host",
}
"""What the critical path does between two nodes, by what holds the second."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Process:
    """Head the tracks of one GPU's replay, or of the recording."""

    trace: Trace
    """Whose rows the slices are; what-ifs change it."""
    notes: KernelNotes
    title: str
    gpu: str
    is_measured: bool
    start_ns: int
    """Where the iteration starts, the same for all processes; later than 0 where a host ran ahead."""
    end_ns: int

    @property
    def iteration_ns(self) -> int:
        """Return the length of the iteration."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """Name a row of slices. `number` is the host thread or the stream, -1 for neither."""

    process: int
    kind: TrackKind
    name: str
    device: int = -1
    number: int = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slices:
    """Hold s slices. Times are whole ns since 0, the earliest of the hosts' starts of the iteration."""

    track: Rows
    kind: npt.NDArray[np.int8]
    row: Rows
    node: Rows
    """Node of the graph; -1 for ops and for calls that are no nodes."""
    start_ns: Rows
    duration_ns: Rows
    name: Rows
    """Index into the timeline's names."""
    family: npt.NDArray[np.int8]
    """Index into `notes.FAMILIES` of a GPU activity; -1 where nothing tells."""
    edge: npt.NDArray[np.int8]
    """The `EdgeKind` that held a step of the critical path; -1 for other slices."""
    is_critical: Mask
    in_iteration: Mask
    """Whether it belongs to the iteration; the rest is what ran beside it, cut off at its ends."""

    @property
    def end_ns(self) -> Rows:
        """Return when each slice ends, [s]."""
        return self.start_ns + self.duration_ns

    @property
    def is_gpu(self) -> Mask:
        """Say which slices are GPU activities, [s]."""
        return np.asarray(self.kind >= FIRST_GPU_SLICE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrows:
    """Hold arrows between slices."""

    source: Rows
    target: Rows
    kind: npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """Hold processes above one another whose iterations start at one instant."""

    processes: tuple[Process, ...]
    tracks: tuple[Track, ...]
    names: tuple[str, ...]
    slices: Slices
    arrows: Arrows
