"""Where everything stands: the nodes of host and GPU numbered together, and how to look them up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...formats.column import MISSING, row_count
from ...formats.trace import Trace
from ..fleet import Floats
from ..window import Rows
from .hosts import HostNodes
from .record import NEVER_NS, NodeKind
from .streams import StreamNodes


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
    node_of_call: Rows
    """The launch or synchronisation that a call is; -1 for calls that are no nodes."""

    @property
    def host_count(self) -> int:
        """Return the number of host nodes."""
        return len(self.host.row)

    def last_launched(self, stream_lane: int, before_ns: Floats) -> Rows:
        """Return for each instant the last GPU node of a stream launched before it, counted from 0; -1: none."""
        begin, end = int(self.lane_begin[stream_lane]), int(self.lane_begin[stream_lane + 1])
        latest = np.maximum.accumulate(self.launched_ns[begin:end])
        at = np.searchsorted(latest, before_ns, side="left") - 1
        return np.where(at < 0, MISSING, begin + at)


def place_nodes(trace: Trace, host: HostNodes, gpu: StreamNodes) -> Places:
    """Number the nodes and link each GPU node to its launch."""
    node_of_call = np.full(row_count(trace.calls) + 1, MISSING, dtype=np.int64)
    for kind in (NodeKind.SYNC, NodeKind.LAUNCH):
        nodes = np.flatnonzero(host.kind == kind)
        node_of_call[host.row[nodes]] = nodes
    call = trace.kernels.call[gpu.row]
    launched = np.append(trace.calls.start_ns.astype(np.float64), NEVER_NS)[call]
    counts = np.bincount(gpu.lane, minlength=len(gpu.streams)) if len(gpu.row) else np.zeros(0, dtype=np.int64)
    return Places(
        host=host,
        gpu=gpu,
        launch_node=node_of_call[call],
        launched_ns=launched,
        lane_begin=np.append(0, np.cumsum(counts)),
        node_of_call=node_of_call[:-1],
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Links:
    """Hold some edges of one kind, by node number; `lag_ns` is filled in later."""

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
