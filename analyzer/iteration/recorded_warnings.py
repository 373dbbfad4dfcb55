"""What a reader should know of the recording itself: cold starts, idle iterations, kernels that CUDA graphs ran."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from ...arrays import Floats, share_busy_time
from ...errors import parameter
from ..recorded.choice import ALL, LONGEST, MEDIAN, list_numbers
from ..recorded.graphs import describe_graphs, named_graph_kernels, unexplained_graph_kernels
from ..recorded.standstill import Reason, Standstill
from .result import Analysis

UNEXPLAINED_GRAPH_SHARE: Final = 0.05
"""Of the GPU time: from here on, kernels from graphs whose ops are not known are pointed out."""


def warn_recorded(result: Analysis) -> Iterator[str]:
    """Yield one sentence per doubt about the recording of the iteration."""
    for reason, describe in ((Reason.SETUP, _cold_start), (Reason.EARLIER_WORK, _earlier_work)):
        found = [item for item in result.standstills if item.reason is reason]
        if found:
            yield describe(result, found)
    idle = result.choice.idle
    if idle and result.choice.rule in (MEDIAN, LONGEST):
        noun, verb = ("iterations", "do") if len(idle) > 1 else ("iteration", "does")
        yield f"{noun} {list_numbers(idle)} of {result.choice.count} {verb} next to nothing and {verb} not count"
    if result.origin is not None:
        yield from _warn_graphs(result)


def _cold_start(result: Analysis, found: list[Standstill]) -> str:
    """Say what was set up, how long that took, and what is left without."""
    longest = max(found, key=lambda item: item.call_ns)
    where = f" in {longest.op}" if longest.op is not None else ""
    spent = sum(item.length_ns for item in found)
    return (
        f"a cold start: for {_words(spent)} of this iteration the GPU stood still while the process set itself up "
        f"(the longest call: {longest.call}{where}, {_words(longest.call_ns)}); that time is left out on every GPU, "
        f"which leaves {_words(result.window.duration_ns or 0.0)}; {_other_iteration(result)}"
    )


def _other_iteration(result: Analysis) -> str:
    """Say how to get an iteration that is no cold start."""
    choice, index = result.choice, result.window.index
    others = [row for row in choice.recorded if row not in choice.idle and row != index]
    if choice.rule == ALL and others:
        return f"{parameter('iteration', others[-1])} predicts one without it"
    if others and index is not None:
        later = next((row for row in others if row > index), others[-1])
        return f"{parameter('iteration', later)} predicts another one"
    return "record after a few iterations of warm-up, or several iterations"


def _earlier_work(result: Analysis, found: list[Standstill]) -> str:
    spent = sum(item.length_ns for item in found)
    return (
        f"for {_words(spent)} of this iteration the host waits in {found[0].call} for GPU work from before the "
        "recording; that time is left out on every GPU, "
        f"which leaves {_words(result.window.duration_ns or 0.0)}"
    )


def _words(time_ns: float) -> str:
    return f"{time_ns / 1e9:.2f} s" if time_ns >= 1e9 else f"{time_ns / 1e6:.1f} ms"


def unexplained_graph_ns(result: Analysis) -> Floats:
    """Return of each row of the workload how long its kernels from graphs took whose op no capture tells."""
    trace, rows, workload = result.trace, result.window.kernel_rows, result.workload
    busy = share_busy_time(trace.kernels.start_ns[rows], trace.kernels.duration_ns[rows])
    mine = unexplained_graph_kernels(trace)[rows]
    return np.bincount(workload.row_of[rows[mine]], weights=busy[mine], minlength=len(workload.op)).astype(np.float64)


def _warn_graphs(result: Analysis) -> Iterator[str]:
    use, total_ns = describe_graphs(result.trace, result.window), float(result.workload.busy_ns.sum())
    unknown_ns = float(unexplained_graph_ns(result).sum())
    if unknown_ns > UNEXPLAINED_GRAPH_SHARE * total_ns:
        is_one = use.launch_count == 1
        launches = "a CUDA graph" if is_one else f"{use.launch_count:,} CUDA graphs"
        part = f"{use.kernel_count - use.explained_count:,} of the {use.kernel_count:,}"
        yield (
            f"this records the execution of {launches}: the ops of {part} kernels in {'it' if is_one else 'them'}, "
            f"{unknown_ns / total_ns:.0%} of the GPU time, are not known; {parameter('capture', 'FILE')} explains them "
            "with a recording of the graph's capture"
        )
    named_ns = _named_graph_ns(result)
    if named_ns > UNEXPLAINED_GRAPH_SHARE * total_ns:
        yield (
            f"of {named_ns / total_ns:.0%} of the GPU time, in CUDA graphs, ops and modules are known by torch's "
            "annotations alone, which have no shapes: these kernels are moved by their launches and names; "
            f"{parameter('capture')} FILE adds the shapes with a recording of the graph's capture"
        )


def _named_graph_ns(result: Analysis) -> float:
    """Return how long kernels from graphs took whose op is known without its inputs."""
    trace, rows = result.trace, result.window.kernel_rows
    busy = share_busy_time(trace.kernels.start_ns[rows], trace.kernels.duration_ns[rows])
    return float(busy[named_graph_kernels(trace)[rows]].sum())
