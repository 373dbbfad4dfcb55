"""The op graph as plain arrays: nodes on lanes, edges between lanes, and what replaying them needs."""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from ...arrays import Floats, Mask, Rows
from ...records import dataclass

Runs = npt.NDArray[np.int64]
"""Begin and end of stretches of lanes, [r, 2]."""
NEVER_NS = -1.0e18
"""A release time that never holds anything up."""


class NodeKind(IntEnum):
    """Say what happens at a node."""

    LAUNCH = 0
    """A runtime call that puts work on a stream."""
    SYNC = 1
    """A runtime call, or the waiting part of a copy, that holds the host until the GPU is done."""
    MARK = 2
    """The host's start or end of an iteration."""
    KERNEL = 3
    MEMCPY = 4
    MEMSET = 5
    COLLECTIVE = 6


class EdgeKind(IntEnum):
    """Say why one node waits for another."""

    PROGRAM_ORDER = 0
    """The thread runs one after the other."""
    STREAM_ORDER = 1
    """The stream runs one after the other."""
    LAUNCH = 2
    """A kernel starts after its launch."""
    EVENT = 3
    """A stream waits for an event of another stream."""
    SYNC = 4
    """The host waits for the GPU."""
    QUEUE = 5
    """The host waits until the launch queue has room."""
    COLLECTIVE = 6
    """A collective, or what waits for one on another stream."""
    OP_LAUNCH = 7
    """An op makes a call."""
    DATA = 8
    """An op reads what another wrote."""
    FORWARD_BACKWARD = 9
    """A backward op differentiates a forward op."""
    RELEASE = 10
    """Not held by a recorded node: a time that the recording gives (launched before the capture)."""
    NESTING = 11
    """An op calls another."""


FIRST_GPU_KIND = NodeKind.KERNEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Hold a host thread (or several that take turns), or a stream: its nodes are `begin` to `end`, in order."""

    is_host: bool
    begin: int
    end: int
    threads: tuple[int, ...] = ()
    device: int = -1
    stream: int = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Edges:
    """Hold the edges between lanes, e of them, sorted by target; the order within a lane is implied.

    A host target cannot end, a GPU target cannot start, before its source ends (starts, for a QUEUE edge)
    plus the latency that `term` names.
    """

    source: Rows
    target: Rows
    kind: npt.NDArray[np.int8]
    term: npt.NDArray[np.int8] | Rows
    """8 bits of one recording; of several joined, of which each has latencies of its own, more."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Nodes:
    """Hold the nodes, n of them, lane after lane, each lane in order of time."""

    kind: npt.NDArray[np.int8]
    row: Rows
    """Row of the trace's table: calls for LAUNCH and SYNC, kernels for GPU nodes, iterations for MARK."""
    lane: npt.NDArray[np.int32]
    start_ns: Floats
    """As measured."""
    end_ns: Floats
    lag_ns: Floats
    """Host time since the end of the node before on the lane; 0 for GPU nodes."""
    gap_term: npt.NDArray[np.int8]
    """The latency between the node before on a stream and this one; Term.NONE for host nodes and a stream's first."""
    cost_ns: Floats
    """Duration where nothing is waited for."""
    release_ns: Floats
    """No earlier than this, whatever the graph says; NEVER_NS where nothing holds it."""
    iteration: Rows
    """Row of the iteration that a GPU node's launch or a host node belongs to; -1 for none."""

    @property
    def is_gpu(self) -> Mask:
        """Say which nodes run on a GPU, [n]."""
        return np.asarray(self.kind >= FIRST_GPU_KIND)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphQuality:
    """Count what the graph had to guess or leave out. A gap is recorded, never hidden."""

    kernels_without_launch: int = 0
    """Launched before the capture: held by their stream, else by their measured start."""
    waits_named: int = 0
    """Edges from synchronisation records."""
    waits_inferred: int = 0
    """Edges guessed where event waits name no stream."""
    waits_rejected: int = 0
    """Candidates that the measured times contradict."""
    kernels_before_launch: int = 0
    """Kernels measured to start before their launch did: the clocks of host and GPU disagree."""
    edges_cut: int = 0
    """Edges left out because they closed a cycle."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graph:
    """Hold the graph of one capture, ready for replay."""

    lanes: tuple[Lane, ...]
    nodes: Nodes
    edges: Edges
    first_edge: Rows
    """Edges into node i are `first_edge[i]` to `first_edge[i + 1]`, [n + 1]."""
    latency_ns: Floats
    """Of each `Term`, as fitted to this trace."""
    runs: Runs
    """In an order that respects every edge."""
    residual_ns: Floats
    """Measured end of each node minus the end by rule from its measured predecessors, [n]."""
    lane_slack_ns: Floats
    """Measured end (start, for GPU nodes) minus the earliest by the order of the lane alone, [n]."""
    binding: Rows
    """The edge that holds each node as measured; -1: its lane's order, -2: its release time, [n]."""
    quality: GraphQuality
