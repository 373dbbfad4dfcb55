"""CUDA and HIP graphs in a recording: which launches were captured into one, and which kernels ran from one."""

import re
from typing import Final

import numpy as np

from ...arrays import Mask, Rows, at_rows, distinct
from ...errors import InputError, parameter
from ...formats.trace.column import MISSING, row_count
from ...formats.trace.tables import Trace
from ...records import dataclass
from .window import Window, host_interval

_GRAPH_LAUNCH: Final = re.compile(r"^(?:cuda|cu|hip)GraphLaunch", re.IGNORECASE)
_BEGIN: Final = re.compile(r"^(?:cuda|cu|hip)StreamBeginCapture", re.IGNORECASE)
_END: Final = re.compile(r"^(?:cuda|cu|hip)StreamEndCapture", re.IGNORECASE)
_LAUNCH: Final = re.compile(r"launch(?!hostfunc)|memcpy|memset", re.IGNORECASE)
"""Calls that put one node into a graph that is captured; a host function is no GPU work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphUse:
    """Count what an iteration has to do with CUDA or HIP graphs."""

    captured_count: int = 0
    """Launches that went into a graph and ran nothing."""
    launch_count: int = 0
    """Launches of a graph."""
    kernel_count: int = 0
    """GPU activities that ran from one."""
    explained_count: int = 0
    """Those of them whose op is known, from the recording of the graph's capture."""


def is_graph_launch(name: str) -> bool:
    """Say whether a runtime call launches a graph.

    >>> is_graph_launch("cudaGraphLaunch"), is_graph_launch("cudaLaunchKernel")
    (True, False)
    """
    return _GRAPH_LAUNCH.match(name) is not None


def find_captures(trace: Trace, *, assume: bool = False) -> list[Rows]:
    """Return the launches, rows of calls in order, of each graph capture: between its begin and end, and ran nothing.

    Of a call inside another (a driver's inside the runtime's) the outer one counts. Where the recording shows neither
    begin nor end, `assume` takes all launches that ran nothing as one capture.
    """
    spans = _spans(trace, _calls_named(trace, _BEGIN), _calls_named(trace, _END))
    if not spans and not assume:
        return []
    unrun = unrun_launches(trace)
    edges = np.searchsorted(trace.calls.start_ns[unrun], np.array(spans, dtype=np.int64).reshape(-1, 2))
    parts = [unrun[low:high] for low, high in edges.tolist()]
    if not spans and len(unrun) > int(_launches(trace).sum()) / 2:
        parts = [unrun]
    return [part for part in parts if len(part)]


def unrun_launches(trace: Trace) -> Rows:
    """Return the launches of which nothing was seen to run, in order; of nested ones the outer.

    >>> unrun_launches(measured)
    array([], dtype=int64)
    """
    ran = np.zeros(row_count(trace.calls) + 1, dtype=bool)
    ran[trace.kernels.call] = True
    return _outer(trace, np.flatnonzero(_launches(trace) & ~ran[:-1]))


def graph_launches(trace: Trace) -> Rows:
    """Return the calls that launch a graph, in order; of nested ones the outer.

    >>> graph_launches(measured)
    array([], dtype=int64)
    """
    return _outer(trace, _calls_named(trace, _GRAPH_LAUNCH))


def is_replayed(trace: Trace) -> bool:
    """Say whether a recording of shapes tells that a graph launches it: a row called so encloses its ops.

    >>> is_replayed(measured)
    False
    """
    names = {trace.strings[name] for name in distinct(trace.ops.name).tolist()}
    return trace.meta.capture == "shapes" and any(map(is_graph_launch, names))


def graph_kernels(trace: Trace) -> Mask:
    """Say which GPU activities ran from a graph, [kernels].

    >>> graph_kernels(measured).any()
    np.False_
    """
    is_graph = np.zeros(row_count(trace.calls) + 1, dtype=bool)
    is_graph[graph_launches(trace)] = True
    from_graph: Mask = is_graph[trace.kernels.call]
    return from_graph


def unexplained_graph_kernels(trace: Trace) -> Mask:
    """Say which GPU activities ran from a graph and have no op but what is around its launch, [kernels].

    >>> unexplained_graph_kernels(measured).any()
    np.False_
    """
    of_call = at_rows(trace.calls.op, trace.kernels.call)
    unexplained: Mask = np.logical_and(graph_kernels(trace), trace.kernels.op == of_call)
    return unexplained


def named_graph_kernels(trace: Trace) -> Mask:
    """Say of which GPU activities that ran from a graph the op is known without its inputs, [kernels].

    >>> named_graph_kernels(measured).any()
    np.False_
    """
    is_known = np.logical_and(graph_kernels(trace), ~unexplained_graph_kernels(trace))
    named: Mask = is_known & (at_rows(trace.ops.signature, trace.kernels.op) == MISSING)
    return named


def describe_graphs(trace: Trace, window: Window) -> GraphUse:
    """Count what the window's iteration has to do with graphs.

    >>> describe_graphs(measured, recorded.window).kernel_count
    0
    """
    captured = np.concatenate([np.zeros(0, dtype=np.int64), *find_captures(trace)])
    launches = graph_launches(trace)
    ran, unknown = (
        int(mask[window.kernel_rows].sum()) for mask in (graph_kernels(trace), unexplained_graph_kernels(trace))
    )
    return GraphUse(
        captured_count=len(_within(trace, window, captured)),
        launch_count=len(_within(trace, window, launches)),
        kernel_count=ran,
        explained_count=ran - unknown,
    )


def refuse_capture(trace: Trace, window: Window) -> GraphUse:
    """Return what the iteration has to do with graphs. Raises InputError where it is nothing but one's capture.

    >>> refuse_capture(measured, recorded.window).launch_count  # two kernels, no graph
    0
    """
    use = describe_graphs(trace, window)
    if use.captured_count > len(window.kernel_rows) and trace.is_measured:  # most of its launches ran nothing
        ran_us = trace.kernels.duration_ns[window.kernel_rows].sum() / 1000
        raise InputError(
            f"this is the recording of a CUDA graph's capture, not of an iteration: {use.captured_count:,} launches "
            f"went into the graph and ran nothing (what ran beside them took {ran_us:,.0f} us); record a step that "
            f"launches the graph, and analyze that with this file as {parameter('capture')}"
        )
    return use


def _within(trace: Trace, window: Window, calls: Rows) -> Rows:
    if window.index is None:
        return calls
    low, high = host_interval(trace, window.index)
    start = trace.calls.start_ns[calls]
    return calls[(start >= low) & (start <= high)]


def _outer(trace: Trace, rows: Rows) -> Rows:
    """Return the calls, given in order, that lie inside no other of them on their thread."""
    latest: dict[int, int] = {}
    kept = []
    threads, start_ns, lasting = trace.calls.thread, trace.calls.start_ns, trace.calls.duration_ns
    for row in rows.tolist():
        thread, start = int(threads[row]), int(start_ns[row])
        if start >= latest.get(thread, start):
            latest[thread] = start + int(lasting[row])
            kept.append(row)
    return np.array(kept, dtype=np.int64)


def _launches(trace: Trace) -> Mask:
    """Say which calls put one thing on the GPU, or into a graph, [calls]."""
    found = np.array(
        [_LAUNCH.search(name) is not None and not is_graph_launch(name) for name in trace.strings], dtype=bool
    )
    return found[trace.calls.name] if row_count(trace.calls) else np.zeros(0, dtype=bool)


def _calls_named(trace: Trace, pattern: re.Pattern[str]) -> Rows:
    """Return the calls whose name a pattern matches, in order."""
    found = np.array([pattern.match(name) is not None for name in trace.strings], dtype=bool)
    return np.flatnonzero(found[trace.calls.name]) if row_count(trace.calls) else np.zeros(0, dtype=np.int64)


def _spans(trace: Trace, begins: Rows, ends: Rows) -> list[tuple[int, int]]:
    """Return start and end of each capture: begun before the recording, or going on after it, where only one shows."""
    start_ns = trace.calls.start_ns
    events = sorted([(int(start_ns[row]), 1) for row in begins] + [(int(start_ns[row]), 0) for row in ends])
    spans: list[tuple[int, int]] = []
    opened = int(start_ns.min()) if events and not events[0][1] else None
    for instant, is_begin in events:
        if opened is not None:
            spans.append((opened, instant))
        opened = instant if is_begin else None
    return spans if opened is None else [*spans, (opened, int(start_ns.max()) + 1)]
