"""Lays nodes out in time: where the file has no starts, each begins when what it depends on and its lane are done."""

import heapq
from collections.abc import Hashable, Sequence

import numpy as np

from ...arrays import Rows
from ...records import dataclass
from ..trace.column import MISSING
from .nodes import ChakraNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Hold start and end of each node in ns, and what of its dependencies could not be kept."""

    start_ns: Rows
    end_ns: Rows
    launcher: Rows
    """Of a GPU's node the host's node that it waits for longest, -1: none."""
    lost_count: int


def lay_out(nodes: list[ChakraNode], lanes: Sequence[Hashable]) -> Layout:
    """Return when the nodes run, each on its lane one after the other, in the order of their dependencies.

    A dependency on what is not in the file, on itself or against a circle's order is lost. Where the file has starts
    they stand, and dependencies only say who launches.
    """
    place = {node.number: row for row, node in enumerate(nodes)}
    found = [[place.get(number, MISSING) for number in node.data_deps] for node in nodes]
    lost = sum(deps.count(MISSING) for deps in found)
    deps = [[at for at in set(items) if at not in (MISSING, row)] for row, items in enumerate(found)]
    lost += sum(row in items for row, items in enumerate(found))
    order, cut = _order(nodes, deps)
    duration = [node.integer("duration_ns", node.duration_us * 1000) for node in nodes]
    start = [node.integer("start_ns", node.start_us * 1000) for node in nodes]
    end = [0] * len(nodes)
    if any(node.start_us or "start_ns" in node.attributes for node in nodes):
        end = [begin + length for begin, length in zip(start, duration, strict=True)]
    else:
        free: dict[Hashable, int] = {}
        is_done = [False] * len(nodes)
        for row in order:
            ready = max((end[at] for at in deps[row] if is_done[at]), default=0)
            start[row] = max(ready, free.get(lanes[row], 0))
            end[row] = free[lanes[row]] = start[row] + duration[row]
            is_done[row] = True
    return Layout(
        start_ns=np.array(start, dtype=np.int64),
        end_ns=np.array(end, dtype=np.int64),
        launcher=np.array([_launcher(nodes, row, deps[row], place, end) for row in range(len(nodes))], dtype=np.int64),
        lost_count=lost + cut,
    )


def _order(nodes: list[ChakraNode], deps: list[list[int]]) -> tuple[list[int], int]:
    """Return an order in which each node follows what it depends on, low numbers first, and how many deps it breaks."""
    children: list[list[int]] = [[] for _ in nodes]
    waits = [len(items) for items in deps]
    for row, items in enumerate(deps):
        for at in items:
            children[at].append(row)
    ready = [(nodes[row].number, row) for row, count in enumerate(waits) if not count]
    heapq.heapify(ready)
    stuck = iter(sorted(range(len(nodes)), key=lambda row: (nodes[row].number, row)))
    order: list[int] = []
    placed = [False] * len(nodes)
    cut = 0
    while len(order) < len(nodes):
        row = heapq.heappop(ready)[1] if ready else next(at for at in stuck if not placed[at])
        if placed[row]:
            continue
        cut += max(waits[row], 0)
        placed[row] = True
        order.append(row)
        for child in children[row]:
            waits[child] -= 1
            if not waits[child] and not placed[child]:
                heapq.heappush(ready, (nodes[child].number, child))
    return order, cut


def _launcher(nodes: list[ChakraNode], row: int, deps: list[int], place: dict[int, int], end: list[int]) -> int:
    if nodes[row].is_host:
        return MISSING
    hosts = [at for at in deps if nodes[at].is_host]
    if not hosts:
        above = (place.get(number, MISSING) for number in nodes[row].ctrl_deps)
        hosts = [at for at in above if at != MISSING and nodes[at].is_host]
    return max(hosts, key=lambda at: (end[at], nodes[at].number), default=MISSING)
