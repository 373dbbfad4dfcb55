"""Edges from streams back to the host: synchronisations and blocking copies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...formats.column import MISSING, row_count
from ...formats.trace import SyncKind, Trace
from ..window import Rows
from .place import Links, Places, join_links
from .record import NodeKind
from .roles import Role, call_roles


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SyncLinks:
    """Hold the edges into synchronisations by what they wait for."""

    device: Links
    stream: Links
    event: Links
    copy: Links


def sync_links(trace: Trace, places: Places) -> SyncLinks:
    """Return what each synchronisation waits for: the last activity launched before it, per stream concerned.

    A device's covers all its streams; a stream's the recorded stream, else that of the thread's last launch; an
    event's the stream of the call that recorded it, else the same.
    """
    host = places.host
    roles = call_roles(trace.strings, trace.calls.name)
    nodes = np.flatnonzero(host.kind == NodeKind.SYNC)
    role = roles[host.row[nodes]] if len(nodes) else np.zeros(0, dtype=np.int8)
    copies = nodes[host.waits_for_copy[nodes]]
    lane, instant = _waited_lanes(trace, places, nodes)
    return SyncLinks(
        device=_device_links(places, nodes[role == Role.SYNC_DEVICE]),
        stream=_lane_links(places, nodes, role == Role.SYNC_STREAM, lane, instant),
        event=_lane_links(places, nodes, role == Role.SYNC_EVENT, lane, instant),
        copy=_copy_links(places, copies),
    )


def _copy_links(places: Places, nodes: Rows) -> Links:
    launch_of = places.node_of_call[places.host.row[nodes]]
    order = np.argsort(places.launch_node, kind="stable")
    at = np.searchsorted(places.launch_node[order], launch_of)
    return Links(source=order[at] + places.host_count, target=nodes)


def _device_links(places: Places, nodes: Rows) -> Links:
    parts = []
    for lane in range(len(places.gpu.streams)):
        found = places.last_launched(lane, places.host.start_ns[nodes])
        known = found != MISSING
        parts.append(Links(source=found[known] + places.host_count, target=nodes[known]))
    return join_links(parts)


def _lane_links(places: Places, nodes: Rows, chosen: np.ndarray, lane: Rows, instant: Rows) -> Links:
    parts = []
    for at in np.unique(lane[chosen & (lane != MISSING)]).tolist():
        mine = chosen & (lane == at)
        found = places.last_launched(at, instant[mine])
        known = found != MISSING
        parts.append(Links(source=found[known] + places.host_count, target=nodes[mine][known]))
    return join_links(parts)


def _waited_lanes(trace: Trace, places: Places, nodes: Rows) -> tuple[Rows, np.ndarray]:
    """Return the stream lane that each synchronisation concerns, and the instant until which launches count."""
    lane = _last_lane(places, nodes)
    instant = places.host.start_ns[nodes].copy()
    lane_of = {stream: at for at, (_, stream) in enumerate(places.gpu.streams)}
    if not row_count(trace.syncs):
        return lane, instant
    sync_of = np.full(row_count(trace.calls) + 1, MISSING, dtype=np.int64)
    sync_of[trace.syncs.call] = np.arange(row_count(trace.syncs))
    sync_of[-1] = MISSING
    record = sync_of[places.host.row[nodes]]
    for at in np.flatnonzero(record != MISSING).tolist():
        row = record[at]
        is_event = trace.syncs.kind[row] == SyncKind.EVENT
        stream = int(trace.syncs.waited_stream[row] if is_event else trace.syncs.stream[row])
        lane[at] = lane_of.get(stream, lane[at])
        if is_event and trace.syncs.record_call[row] != MISSING:
            instant[at] = trace.calls.start_ns[trace.syncs.record_call[row]]
    return lane, instant


def _last_lane(places: Places, nodes: Rows) -> Rows:
    """Return the stream of the last launch before each node on its thread; -1 where there is none."""
    host = places.host
    stream_of = np.full(places.host_count, MISSING, dtype=np.int64)
    linked = places.launch_node != MISSING
    stream_of[places.launch_node[linked]] = places.gpu.lane[linked]
    launches = np.flatnonzero((host.kind == NodeKind.LAUNCH) & (stream_of != MISSING))
    at = np.searchsorted(launches, nodes, side="left") - 1
    found = launches[np.maximum(at, 0)] if len(launches) else np.zeros(len(nodes), dtype=np.int64)
    same = (at >= 0) & (host.lane[found] == host.lane[nodes]) if len(launches) else np.zeros(len(nodes), dtype=bool)
    return np.where(same, stream_of[found], MISSING)
