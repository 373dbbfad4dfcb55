"""The timeline as columns: every slice of every track of every process, and what is noted of kernels."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from ...arrays import Floats, Mask, Rows, at_rows
from ...formats.trace.tables import Trace
from ...records import dataclass, replace
from ..graph.graph import EdgeKind
from ..prediction.bounds import LAUNCH_FLOOR_NS, rate_matrix
from ..prediction.prediction import Prediction
from ..prediction.workload import GpuWorkload
from ..work import Family


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
class SliceColumns:
    """Hold s slices. Times are whole ns since 0, the earliest of the hosts' starts of the iteration."""

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slices(SliceColumns):
    """Hold slices with the track that each is drawn on."""

    track: Rows

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


FAMILIES: Final = tuple(Family)
_CODE: Final = {family: code for code, family in enumerate(FAMILIES)}
NOTHING: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelNotes:
    """Hold what is known of each of a graph's n nodes; -1 and NaN where nothing is, as for host nodes."""

    op: Rows
    """Row of the op that explains it."""
    family: npt.NDArray[np.int8]
    """Index into `FAMILIES`."""
    method: npt.NDArray[np.int8]
    """Index into `prediction.METHODS`."""
    reason: Rows
    """Index into `reasons`."""
    reasons: tuple[str, ...]
    bound_ns: Floats
    """Physical lower bound of the kernel's share of its op."""
    bound_by: npt.NDArray[np.int8]
    """`bounds.Limit`."""
    low_ns: Floats
    """Ends of the 90 % interval."""
    high_ns: Floats


def no_notes(count: int) -> KernelNotes:
    """Return notes that say nothing, for a graph of `count` nodes."""
    codes, rows, times = np.full(count, NOTHING, dtype=np.int8), np.full(count, NOTHING), np.full(count, np.nan)
    return KernelNotes(
        op=rows,
        family=codes,
        method=codes,
        reason=rows,
        reasons=(),
        bound_ns=times,
        bound_by=codes,
        low_ns=times,
        high_ns=times,
    )


def op_notes(workload: GpuWorkload, rows: Rows) -> KernelNotes:
    """Say of each node only which op and family it belongs to, as of a recording.

    `rows` holds the workload row of each node, [n]: negative or past the last where none stands for it.
    """
    at = _known_rows(workload, rows)
    family = np.array([NOTHING if item is None else _CODE[item] for item in workload.family], dtype=np.int8)
    return replace(
        no_notes(len(rows)), op=at_rows(workload.op, at, NOTHING), family=np.append(family, np.int8(NOTHING))[at]
    )


def kernel_notes(
    workload: GpuWorkload, prediction: Prediction, column: int, rows: Rows, duration_ns: Floats
) -> KernelNotes:
    """Say of each node what the prediction for one GPU says of its workload row.

    `rows` as in `op_notes`; `duration_ns` is the replayed duration of each node, [n].
    """
    at = _known_rows(workload, rows)
    width = at_rows(prediction.half_width[:, column], at, np.nan)
    fall = at_rows(prediction.fall(column=column), at, np.nan)
    bound = np.where(workload.has_work, prediction.bounds.lower_ns[:, column] * workload.op_share, np.nan)
    return replace(
        op_notes(workload, rows),
        method=np.append(prediction.method[:, column], np.int8(NOTHING))[at],
        reason=at,
        reasons=prediction.reason,
        bound_ns=at_rows(bound, at, np.nan),
        bound_by=np.append(_limits(workload, prediction, column), np.int8(NOTHING))[at],
        low_ns=duration_ns * (1.0 - fall),
        high_ns=duration_ns * np.exp(width),
    )


def _known_rows(workload: GpuWorkload, rows: Rows) -> Rows:
    return np.where((rows >= 0) & (rows < len(workload.op)), rows, NOTHING)


def _limits(workload: GpuWorkload, prediction: Prediction, column: int) -> npt.NDArray[np.int8]:
    """Return what the roofline of each row is made of; -1 without a formula."""
    work, fleet = workload.work, prediction.fleet
    compute = work.flops / rate_matrix(work.rate, fleet)[:, column] * 1e9
    memory = work.moved_bytes / fleet.bandwidth_bytes_per_s[column] * 1e9
    limit = np.argmax(np.stack([compute, memory, np.full_like(compute, LAUNCH_FLOOR_NS)]), axis=0)
    return np.where(workload.has_work, limit, NOTHING).astype(np.int8)
