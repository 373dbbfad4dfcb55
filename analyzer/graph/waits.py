"""Edges between streams: which kernel an event wait made wait for which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ...arrays import Rows
from ...formats.trace.column import MISSING
from ...formats.trace.tables import SyncKind, Trace
from .place import Links, Places, no_links
from .roles import Role, call_roles
from .segments import SIDES, search_segments

CONTRADICTION_NS: Final = 0.0
"""A kernel that started this long before its supposed source ended did not wait for it."""
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
    target = _next_launched(trace, places, waits)
    instants = trace.calls.start_ns[waits].astype(np.float64)
    pairs = []
    for lane in places.busiest_streams():
        source = places.last_launched(np.full(len(waits), lane), instants)
        found = (source != MISSING) & (target != MISSING)
        found &= np.append(places.gpu.lane, MISSING)[target] != lane
        pairs += list(zip(source[found].tolist(), target[found].tolist(), strict=True))
    return pairs


def _next_launched(trace: Trace, places: Places, waits: Rows) -> Rows:
    """Return the GPU node of the first launch after each wait on its thread; -1: none."""
    calls = trace.calls
    nodes = np.flatnonzero(places.launch_node != MISSING)
    call = places.host.row[places.launch_node[nodes]]
    order = np.lexsort((calls.start_ns[call], calls.thread[call]))
    nodes, call = nodes[order], call[order]
    begin, end = (np.searchsorted(calls.thread[call], calls.thread[waits], side=side) for side in SIDES)
    at = search_segments(calls.start_ns[call], begin, end, calls.start_ns[waits])
    return np.where(at < end, np.append(nodes, MISSING)[at], MISSING)


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
