"""Edges from streams back to the host: synchronisations and blocking copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ...arrays import Floats, Mask, Rows
from ...formats.trace.column import MISSING, row_count
from ...formats.trace.tables import SyncKind, Trace
from .graph import NodeKind
from .place import Links, Places, join_links, no_links
from .roles import Role, call_roles
from .segments import search_segments

_CONTRADICTION_NS: Final = 10_000.0
"""What ended this long after a synchronisation returned was not waited for."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SyncLinks:
    """Hold the edges into synchronisations by what they wait for."""

    device: Links
    stream: Links
    event: Links
    copy: Links


def sync_links(trace: Trace, places: Places) -> SyncLinks:
    """Return what each synchronisation waits for: the last activity launched before it, per stream concerned.

    A device's covers the streams of the device that the thread launched on last; a stream's the recorded stream, else
    that of the thread's last launch; an event's the stream of the call that recorded it, else the same. What ended
    after the return was not waited for: its launch may not have been recorded.
    """
    host = places.host
    roles = call_roles(trace.strings, trace.calls.name)
    nodes = np.flatnonzero(host.kind == NodeKind.SYNC)
    role = roles[host.row[nodes]] if len(nodes) else np.zeros(0, dtype=np.int8)
    last = places.last_stream_lanes(host.lane[nodes], host.start_ns[nodes])
    lane, instant = _waited_lanes(trace, places, nodes, last)
    return SyncLinks(
        device=_device_links(places, nodes, role == Role.SYNC_DEVICE, last),
        stream=_lane_links(places, nodes, role == Role.SYNC_STREAM, lane, instant),
        event=_lane_links(places, nodes, role == Role.SYNC_EVENT, lane, instant),
        copy=_copy_links(places, nodes[host.waits_for_copy[nodes]]),
    )


def _copy_links(places: Places, nodes: Rows) -> Links:
    launch_of = places.node_of_call[places.host.row[nodes]]
    order = np.argsort(places.launch_node, kind="stable")
    at = np.searchsorted(places.launch_node[order], launch_of)
    return Links(source=order[at] + places.host_count, target=nodes)


def _device_links(places: Places, nodes: Rows, chosen: Mask, last_lane: Rows) -> Links:
    devices = np.append([device for device, _ in places.gpu.streams], MISSING).astype(np.int64)
    parts = []
    for lane in places.busiest_streams():
        mine = nodes[chosen & ((last_lane == MISSING) | (devices[last_lane] == devices[lane]))]
        parts.append(_links_from(places, np.full(len(mine), lane), mine, places.host.start_ns[mine]))
    return join_links(parts)


def _lane_links(places: Places, nodes: Rows, chosen: Mask, lane: Rows, instant: Floats) -> Links:
    mine = np.flatnonzero(chosen & (lane != MISSING))
    mine = mine[np.argsort(lane[mine], kind="stable")]
    return _links_from(places, lane[mine], nodes[mine], instant[mine])


def _links_from(places: Places, lane: Rows, nodes: Rows, instant: Floats) -> Links:
    """Return an edge to each node from the last activity of its stream launched before an instant."""
    if not len(nodes):
        return no_links()
    begin, end = places.lane_begin[lane], places.lane_begin[lane + 1]
    returned_ns = places.host.end_ns[nodes] + _CONTRADICTION_NS
    returned = search_segments(places.latest_end_ns, begin, end, returned_ns, "right") - 1
    found = np.minimum(places.last_launched(lane, instant), returned)
    known = (found != MISSING) & (returned >= begin)
    return Links(source=found[known] + places.host_count, target=nodes[known])


def _waited_lanes(trace: Trace, places: Places, nodes: Rows, last_lane: Rows) -> tuple[Rows, Floats]:
    """Return the stream lane that each synchronisation concerns, and the instant until which launches count."""
    lane, instant = last_lane.copy(), places.host.start_ns[nodes].copy()
    table = trace.syncs
    if not row_count(table) or not len(nodes):
        return lane, instant
    sync_of = np.full(row_count(trace.calls) + 1, MISSING, dtype=np.int64)
    sync_of[table.call] = np.arange(row_count(table))
    sync_of[-1] = MISSING
    at = np.flatnonzero(sync_of[places.host.row[nodes]] != MISSING)
    row = sync_of[places.host.row[nodes[at]]]
    is_event = table.kind[row] == SyncKind.EVENT
    stream = np.where(is_event, table.waited_stream[row], table.stream[row])
    lane[at] = np.where(stream == MISSING, lane[at], places.find_stream_lanes(stream, last_lane[at]))
    recorded = is_event & (table.record_call[row] != MISSING)
    instant[at[recorded]] = trace.calls.start_ns[table.record_call[row[recorded]]]
    return lane, instant
