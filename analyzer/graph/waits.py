"""Edges between streams, which event waits make, and edges to the host, which synchronisation makes."""

from typing import Final

import numpy as np

from ...arrays import Floats, Mask, Rows, at_rows
from ...formats.trace.column import MISSING, row_count
from ...formats.trace.tables import SyncKind, Trace
from ...records import dataclass
from .graph import NodeKind
from .place import Links, Places, join_links, no_links
from .roles import Role, call_roles
from .segments import SIDES, search_segments

CONTRADICTION_NS: Final = 0.0
"""A kernel that started this long before its supposed source ended did not wait for it."""
_SYNC_CONTRADICTION_NS: Final = 10_000.0
"""What ended this long after a synchronisation returned was not waited for."""
NEAR_NS: Final = 12_000.0
"""A wait shows as a start within this of another stream's end; on HIP `NEAR_HIP_NS`."""
NEAR_HIP_NS: Final = 40_000.0
LATE_NS: Final = 10_000.0
"""Only starts later than this past every known reason are searched for a wait that the order of calls missed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WaitLinks:
    """Hold the edges between streams and how they were found."""

    links: Links
    named_count: int
    inferred_count: int
    rejected_count: int


def wait_links(trace: Trace, places: Places) -> WaitLinks:
    """Return the edges that event waits make: as recorded where the trace says, else inferred from the call order.

    Inferred: the first kernel that a thread launches after a wait waits for the last kernel launched before the wait
    on each other stream (of many: the busiest), unless an earlier wait implies that or the times contradict it.
    """
    if len(places.gpu.streams) < 2:
        return WaitLinks(links=no_links(), named_count=0, inferred_count=0, rejected_count=0)
    roles = call_roles(trace.strings, trace.calls.name)
    waits = np.flatnonzero(roles == Role.WAIT_EVENT)
    named, told = _named_pairs(trace, places)
    inferred = _call_order_pairs(trace, places, waits[~np.isin(waits, told)])
    pairs = sorted(set(named) | set(inferred), key=lambda pair: (pair[1], pair[0]))
    kept, rejected = _consistent(places, pairs)
    shift = places.host_count
    known = set(named)
    named_count = sum(pair in known for pair in kept)
    return WaitLinks(
        links=Links(
            source=np.array([source + shift for source, _ in kept], dtype=np.int64),
            target=np.array([target + shift for _, target in kept], dtype=np.int64),
        ),
        named_count=named_count,
        inferred_count=len(kept) - named_count,
        rejected_count=rejected,
    )


def _named_pairs(trace: Trace, places: Places) -> tuple[list[tuple[int, int]], Rows]:
    """Return (source, target) pairs of recorded stream waits, and the calls of all that name two streams.

    Where the record does not say which call recorded the event, it counts as recorded at the wait.
    """
    table, start_ns = trace.syncs, trace.calls.start_ns
    is_named = (table.kind == SyncKind.STREAM_WAIT_EVENT) & (table.call != MISSING)
    rows = np.flatnonzero(is_named & (table.stream != MISSING) & (table.waited_stream != MISSING))
    told = table.call[rows].astype(np.int64)
    near = places.last_stream_lanes(_thread_lanes(places, trace.calls.thread[told]), start_ns[told])
    waiting, waited = (places.find_stream_lanes(named[rows], near) for named in (table.stream, table.waited_stream))
    recorded = np.where(table.record_call[rows] == MISSING, told, table.record_call[rows])
    known = np.flatnonzero((waited != MISSING) & (waiting != MISSING) & (waited != waiting))
    source = places.last_launched(waited[known], start_ns[recorded[known]])
    target = places.next_launched(waiting[known], start_ns[told[known]])
    found = (source != MISSING) & (target != MISSING)
    return list(zip(source[found].tolist(), target[found].tolist(), strict=True)), told


def _thread_lanes(places: Places, threads: Rows) -> Rows:
    """Return the host lane of each thread."""
    lane_of = {thread: lane for lane, group in enumerate(places.host.threads) for thread in group}
    return np.array([lane_of[thread] for thread in threads.tolist()], dtype=np.int64)


def _call_order_pairs(trace: Trace, places: Places, waits: Rows) -> list[tuple[int, int]]:
    """Return candidate pairs of waits that name no stream."""
    # The GPU node of the first launch after each wait on its thread; -1: none.
    calls = trace.calls
    nodes = np.flatnonzero(places.launch_node != MISSING)
    call = places.host.row[places.launch_node[nodes]]
    order = np.lexsort((calls.start_ns[call], calls.thread[call]))
    nodes, call = nodes[order], call[order]
    begin, end = (np.searchsorted(calls.thread[call], calls.thread[waits], side=side) for side in SIDES)
    at = search_segments(calls.start_ns[call], begin, end, calls.start_ns[waits])
    target = np.where(at < end, at_rows(nodes, at), MISSING)
    instants = trace.calls.start_ns[waits].astype(np.float64)
    pairs = []
    for lane in places.busiest_streams():
        source = places.last_launched(np.full(len(waits), lane), instants)
        found = (source != MISSING) & (target != MISSING)
        found &= at_rows(places.gpu.lane, target) != lane
        pairs += list(zip(source[found].tolist(), target[found].tolist(), strict=True))
    return pairs


def _consistent(places: Places, pairs: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], int]:
    """Drop pairs that an earlier one implies or that the measured times contradict; count the latter."""
    lane, start, end = places.gpu.lane.tolist(), places.gpu.start_ns.tolist(), places.gpu.end_ns.tolist()
    latest: dict[tuple[int, int], int] = {}
    kept, rejected = [], 0
    for source, target in pairs:
        between = (lane[source], lane[target])
        if latest.get(between, -1) >= source:
            continue
        if end[source] > start[target] + CONTRADICTION_NS:
            rejected += 1
            continue
        latest[between] = source
        kept.append((source, target))
    return kept, rejected


def missed_waits(trace: Trace, places: Places, lateness_ns: np.ndarray) -> Links:
    """Return edges for GPU nodes that start late without a reason, from another stream's kernel that ended just before.

    `lateness_ns` is the start of each GPU node past every known reason, [k]. Some thread must have issued a wait
    between the two launches.
    """
    waits_ns = np.sort(trace.calls.start_ns[call_roles(trace.strings, trace.calls.name) == Role.WAIT_EVENT])
    if len(places.gpu.streams) < 2 or not len(waits_ns):
        return no_links()
    near = NEAR_HIP_NS if any(name.startswith("hip") for name in trace.strings) else NEAR_NS
    gpu = places.gpu
    by_end = np.argsort(gpu.end_ns, kind="stable")
    ends = gpu.end_ns[by_end]
    source, target = [], []
    for node in np.flatnonzero(lateness_ns > LATE_NS).tolist():
        found = _ended_before(places, node, by_end, ends, near)
        if found == MISSING:
            continue
        low, high = sorted((places.launched_ns[found], places.launched_ns[node]))
        if np.searchsorted(waits_ns, low) < np.searchsorted(waits_ns, high):
            source.append(found + places.host_count)
            target.append(node + places.host_count)
    return Links(source=np.array(source, dtype=np.int64), target=np.array(target, dtype=np.int64))


def _ended_before(places: Places, node: int, by_end: Rows, ends: np.ndarray, near: float) -> int:
    """Return the GPU node of another stream that ended last within `near` before a node's start; -1: none."""
    gpu = places.gpu
    at = int(np.searchsorted(ends, gpu.start_ns[node], side="right")) - 1
    while at >= 0 and gpu.start_ns[node] - ends[at] <= near:
        candidate = int(by_end[at])
        if gpu.lane[candidate] != gpu.lane[node]:
            return candidate
        at -= 1
    return MISSING


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
    returned_ns = places.host.end_ns[nodes] + _SYNC_CONTRADICTION_NS
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
