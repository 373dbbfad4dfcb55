"""Re-times a graph: every lane a max-plus scan, on all GPUs at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ..fleet import Floats
from ..graph.record import FIRST_GPU_KIND, EdgeKind, Graph
from ..graph.rules import lane_firsts
from ..window import Rows

_FIRST_GPU_KIND: Final = int(FIRST_GPU_KIND)
"""Plain, as comparing enum members costs in the loop over runs."""
_QUEUE: Final = int(EdgeKind.QUEUE)
_BLOCK_ROWS: Final = 512
"""Nodes replayed in one step at most: what a step needs for 100 GPUs stays in the cache."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timing:
    """Say how long everything takes on each of m GPUs."""

    base_ns: Floats
    """Duration of each GPU node before scaling, [n]; any for host nodes."""
    factor: Floats
    """What each distinct kernel's duration is multiplied with, [d, m]."""
    factor_row: Rows
    """Row of `factor` of each GPU node, [n]; any for host nodes."""
    latency_ns: Floats
    """Of each Term, [terms, m]."""
    host_ratio: Floats
    """Host time relative to the recording, [m]."""
    residual_ns: Floats
    """Delay of each node past the rules, carried over as it is, [n]."""


def replay(graph: Graph, timing: Timing) -> Floats:
    """Return the end of every node on every GPU, ns since the start of capture, [n, m].

    GPU: end = max(end before + gap, arrival) + residual + duration. Host: end = max(end before + host time, arrival) +
    residual. Within a run, with S the running sum of what each node adds to the one before it, end - S is the running
    maximum of (arrival + own - S).
    """
    nodes = graph.nodes
    end = np.empty((len(nodes.row), timing.latency_ns.shape[1]))
    is_first, is_gpu = lane_firsts(nodes), nodes.is_gpu
    for begin, stop in _blocks(graph.runs):
        bound, total = _bounds_and_steps(graph, timing, end, slice(begin, stop))
        np.cumsum(total, axis=0, out=total)
        bound -= total
        if not is_first[begin]:
            np.maximum(bound[0], end[begin - 1], out=bound[0])
        elif not is_gpu[begin]:
            np.maximum(bound[0], 0.0, out=bound[0])
        np.maximum.accumulate(bound, axis=0, out=bound)
        np.add(bound, total, out=end[begin:stop])
    return end


def _blocks(runs: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield the runs in order, long ones in pieces."""
    for begin, stop in runs.tolist():
        for at in range(begin, stop, _BLOCK_ROWS):
            yield at, min(at + _BLOCK_ROWS, stop)


def _bounds_and_steps(graph: Graph, timing: Timing, end: Floats, run: slice) -> tuple[Floats, Floats]:
    """Return the end by what other lanes do, and what each node adds to the end of the one before it, [run, m]."""
    nodes = graph.nodes
    residual = timing.residual_ns[run, None]
    bound = np.repeat(nodes.release_ns[run, None], end.shape[1], axis=1)
    _add_arrivals(bound, graph, timing, end, run)
    bound += residual
    if nodes.kind[run.start] >= _FIRST_GPU_KIND:
        duration = timing.factor[timing.factor_row[run]]
        duration *= timing.base_ns[run, None]
        bound += duration
        duration += timing.latency_ns[nodes.gap_term[run]]
        duration += residual
        return bound, duration
    step = (nodes.lag_ns[run] + nodes.cost_ns[run])[:, None] * timing.host_ratio
    step += residual
    return bound, step


def _add_arrivals(bound: Floats, graph: Graph, timing: Timing, end: Floats, run: slice) -> None:
    """Raise each node's bound to the latest of the edges into it."""
    low, high = int(graph.first_edge[run.start]), int(graph.first_edge[run.stop])
    if low == high:
        return
    edges = graph.edges
    source, target = edges.source[low:high], edges.target[low:high]
    arrival = end[source]
    arrival += timing.latency_ns[edges.term[low:high]]
    queued = edges.kind[low:high] == _QUEUE
    if queued.any():
        held = source[queued]
        arrival[queued] -= timing.factor[timing.factor_row[held]] * timing.base_ns[held, None]
    starts = np.flatnonzero(np.append(True, target[1:] != target[:-1]))
    if len(starts) < len(target):
        arrival = np.maximum.reduceat(arrival, starts, axis=0)
    at = target[starts] - run.start
    bound[at] = np.maximum(bound[at], arrival)


def measured_timing(graph: Graph, residual_ns: Floats) -> Timing:
    """Return the timing of the recording itself, one GPU."""
    return Timing(
        base_ns=graph.nodes.cost_ns,
        factor=np.ones((1, 1)),
        factor_row=np.zeros(len(graph.nodes.row), dtype=np.int64),
        latency_ns=graph.latency_ns[:, None],
        host_ratio=np.ones(1),
        residual_ns=residual_ns,
    )
