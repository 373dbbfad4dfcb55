"""Where everything stands: the nodes of host and GPU numbered together, and how to look them up."""

from typing import Final

import numpy as np

from ...arrays import Floats, Rows, at_rows
from ...formats.trace.column import MISSING, row_count
from ...formats.trace.tables import Trace
from ...records import dataclass
from .graph import NEVER_NS, NodeKind
from .hosts import HostNodes
from .segments import SIDES, accumulate_segments, search_segments
from .streams import StreamNodes

MOST_STREAMS: Final = 64
"""Streams that a wait or a device's synchronisation which names none is held against, the busiest ones: no recording
seen has as many, and a file with a million must end, too."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Places:
    """Number the host's nodes from 0 and the GPU's after them."""

    host: HostNodes
    gpu: StreamNodes
    launch_node: Rows
    """The node that launches each GPU node; -1 where its launch was not recorded, [k]."""
    launched_ns: Floats
    """Measured start of the launch call of each GPU node; NEVER_NS without one, [k]."""
    lane_begin: Rows
    """First GPU node of each stream, and their number at the end, counted from 0."""
    latest_ns: Floats
    """The latest of `launched_ns` on the stream so far, [k]."""
    latest_end_ns: Floats
    """The latest measured end on the stream so far, [k]."""
    node_of_call: Rows
    """The launch or synchronisation that a call is; -1 for calls that are no nodes."""

    @property
    def host_count(self) -> int:
        """Return the number of host nodes."""
        return len(self.host.row)

    def last_launched(self, stream_lane: Rows, before_ns: Floats) -> Rows:
        """Return for each instant the last GPU node of its stream launched before it, counted from 0; -1: none."""
        begin = self.lane_begin[stream_lane]
        at = search_segments(self.latest_ns, begin, self.lane_begin[stream_lane + 1], before_ns) - 1
        return np.where(at < begin, MISSING, at)

    def next_launched(self, stream_lane: Rows, after_ns: Floats) -> Rows:
        """Return for each instant the first GPU node of its stream launched from it on, counted from 0; -1: none."""
        end = self.lane_begin[stream_lane + 1]
        at = search_segments(self.latest_ns, self.lane_begin[stream_lane], end, after_ns)
        return np.where(at < end, at, MISSING)

    def busiest_streams(self) -> list[int]:
        """Return the lanes of the streams that ran most, `MOST_STREAMS` at most, in order."""
        counts = np.diff(self.lane_begin)
        busiest: list[int] = np.sort(np.argsort(-counts, kind="stable")[:MOST_STREAMS]).tolist()
        return busiest

    def last_stream_lanes(self, thread_lane: Rows, before_ns: Floats) -> Rows:
        """Return the stream of the last launch before each instant on a host lane; -1: none."""
        stream_of = np.full(self.host_count, MISSING, dtype=np.int64)
        linked = self.launch_node != MISSING
        stream_of[self.launch_node[linked]] = self.gpu.lane[linked]
        launches = np.flatnonzero(stream_of != MISSING)
        lanes = self.host.lane[launches]
        begin, end = (np.searchsorted(lanes, thread_lane, side=side) for side in SIDES)
        at = search_segments(self.host.start_ns[launches], begin, end, before_ns) - 1
        return np.where(at < begin, MISSING, at_rows(stream_of[launches], at))

    def find_stream_lanes(self, stream: Rows, near_lane: Rows) -> Rows:
        """Return the lane of each stream number: on the device of a lane near it where there is one, else on any.

        -1 where nothing ran on such a stream. Several devices number their streams alike.
        """
        device_of = at_rows([device for device, _ in self.gpu.streams], near_lane)
        exact = {key: lane for lane, key in enumerate(self.gpu.streams)}
        anywhere = {number: lane for lane, (_, number) in reversed(list(enumerate(self.gpu.streams)))}
        found = [
            exact.get((device, number), anywhere.get(number, MISSING))
            for device, number in zip(device_of.tolist(), stream.tolist(), strict=True)
        ]
        return np.array(found, dtype=np.int64)


def place_nodes(trace: Trace, host: HostNodes, gpu: StreamNodes) -> Places:
    """Number the nodes and link each GPU node to its launch."""
    node_of_call = np.full(row_count(trace.calls) + 1, MISSING, dtype=np.int64)
    for kind in (NodeKind.SYNC, NodeKind.LAUNCH):
        nodes = np.flatnonzero(host.kind == kind)
        node_of_call[host.row[nodes]] = nodes
    call = trace.kernels.call[gpu.row]
    launched = at_rows(trace.calls.start_ns.astype(np.float64), call, NEVER_NS)
    counts = np.bincount(gpu.lane, minlength=len(gpu.streams)) if len(gpu.row) else np.zeros(0, dtype=np.int64)
    lane_begin = np.append(0, np.cumsum(counts))
    return Places(
        host=host,
        gpu=gpu,
        launch_node=node_of_call[call],
        launched_ns=launched,
        lane_begin=lane_begin,
        latest_ns=accumulate_segments(launched, lane_begin),
        latest_end_ns=accumulate_segments(gpu.end_ns, lane_begin),
        node_of_call=node_of_call[:-1],
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Links:
    """Hold some edges of one kind, by node number."""

    source: Rows
    target: Rows


def no_links() -> Links:
    """Return no edges."""
    return Links(source=np.zeros(0, dtype=np.int64), target=np.zeros(0, dtype=np.int64))


def join_links(parts: list[Links]) -> Links:
    """Return the edges of several lists, in order."""
    if not parts:
        return no_links()
    return Links(
        source=np.concatenate([part.source for part in parts]).astype(np.int64),
        target=np.concatenate([part.target for part in parts]).astype(np.int64),
    )
