"""Brings the replay of a recording to the time that its iterations really take, without the profiler."""

from typing import Final

import numpy as np

from ...arrays import Floats
from ...formats.trace.meta import OWN_FORMAT
from ...formats.trace.tables import Trace
from ...records import dataclass, replace
from ..graph.graph import Graph
from ..host.costs import profiler_shares
from ..host.recorded_speed import classify_calls
from ..recorded.window import Window
from .engine import Timing, measured_timing, replay
from .iterations import iteration_position, iteration_spans

HOST_RATIOS: Final = np.geomspace(0.25, 2.0, 64)
"""Host times tried, relative to the recording under the profiler."""
RECORDER_SHARE: Final = 0.51
"""What is left of a host's time outside of runtime calls without our own recorder, which watches modules and tensors
beside the profiler: the median of 36 of our recordings that wait for the host, 0.48 to 0.55 without a network."""
_HOST_SPREAD: Final = 0.3
"""Natural log: how far the ratio that follows is off, one standard deviation of 36 of our recordings that wait for
their host, which swings from one iteration to the next as well."""
_LENGTH_SPREAD: Final = 0.02
"""Natural log: how far an iteration may differ from the captured one for reasons beside the host, clocks above all. An
assumption: it decides only between a host that explains the whole difference and one that explains all but this."""
_FINE: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerSlowdown:
    """Say how a recording under the profiler differs from an iteration without, to re-time its replay by."""

    host_ratio: float = 1.0
    """Host time, relative to the recording."""
    stretch_ratio: float = 1.0
    """All times, GPU and host, beside that, so that the replay takes as long as was measured: what no host explains."""
    loop_host_ratio: float = 1.0
    """Host time in a loop at another time, relative to that."""


def find_slowdown(graph: Graph, trace: Trace, window: Window) -> ProfilerSlowdown:
    """Return what brings the recording's replay to the window's duration.

    The profiler slows the host; iterations timed without it tell by how much. The host ratio is the likeliest of a
    normal prior on its logarithm, by what the profiler usually adds, and a normal error of the length; the rest
    stretches everything alike.

    >>> find_slowdown(graph, measured, recorded.window).host_ratio
    1.0
    """
    measured_ns = window.duration_ns
    if not measured_ns:
        return ProfilerSlowdown()
    loop_host_ratio = 1.0
    if np.all(trace.iterations.profiled):
        host_ratio, replayed_ns = 1.0, float(_between_ends(graph, trace, window, graph.nodes.end_ns[:, None])[0])
    else:
        usual = unprofiled_share(trace, window)
        lengths = np.maximum(_lengths_ns(graph, trace, window, HOST_RATIOS), 1.0)
        tried = np.geomspace(HOST_RATIOS[0], HOST_RATIOS[-1], _FINE)
        off = np.log(np.interp(tried, HOST_RATIOS, lengths) / measured_ns) / _LENGTH_SPREAD
        host_ratio = float(tried[np.argmin(off**2 + (np.log(tried / usual) / _HOST_SPREAD) ** 2)])
        replayed_ns = float(_lengths_ns(graph, trace, window, np.array([host_ratio]))[0])
        # Midway: hosts swing, and both are moments of one. Weights by variances, learned without the network that is
        # scored, gained less on our recordings than two timings of one loop differ by.
        loop_host_ratio = float(np.sqrt(usual / host_ratio))
    is_same = replayed_ns <= 0 or abs(measured_ns - replayed_ns) < 1.0
    stretch_ratio = 1.0 if is_same else measured_ns / replayed_ns
    return ProfilerSlowdown(host_ratio=host_ratio, stretch_ratio=stretch_ratio, loop_host_ratio=loop_host_ratio)


def unprofiled_share(trace: Trace, window: Window) -> float:
    """Return what is left of the profiled iteration's host time without the profiler.

    Runtime calls keep theirs, the usual share of the rest stays. What waits is no host time.

    >>> unprofiled_share(measured, recorded.window) < 1.0
    True
    """
    rows, (_, waits_ns) = trace.iterations, classify_calls(trace)
    begin, end = rows.start_ns[window.index], rows.end_ns[window.index]
    inside = (trace.calls.start_ns >= begin) & (trace.calls.start_ns < end)
    waited_ns = float(waits_ns[inside].sum())
    called_ns = float(trace.calls.duration_ns[inside].sum()) - waited_ns
    called = min(called_ns / max(float(end - begin) - waited_ns, called_ns, 1.0), 1.0)
    is_ours = trace.meta.source_format == OWN_FORMAT
    return 1.0 - (1.0 - (RECORDER_SHARE if is_ours else profiler_shares(trace).mean)) * (1.0 - called)


def without_profiler(graph: Graph, timing: Timing, found: ProfilerSlowdown) -> tuple[Graph, Timing]:
    """Return graph and timing with the host's times, and all times, as they are without the profiler.

    A replay of the two takes `stretch_ratio` times as long everywhere.
    """
    stretch = found.stretch_ratio
    host_ratio = timing.host_ratio * found.host_ratio
    if stretch == 1.0:
        return graph, replace(timing, host_ratio=host_ratio)
    nodes = replace(graph.nodes, release_ns=graph.nodes.release_ns * stretch)
    stretched = replace(
        timing,
        base_ns=timing.base_ns * stretch,
        latency_ns=timing.latency_ns * stretch,
        host_ratio=host_ratio * stretch,
        residual_ns=timing.residual_ns * stretch,
    )
    return replace(graph, nodes=nodes, lane_slack_ns=graph.lane_slack_ns * stretch), stretched


def _lengths_ns(graph: Graph, trace: Trace, window: Window, host_ratio: Floats) -> Floats:
    """Return how long the recorded iteration takes with hosts that take `host_ratio` [m] of the recorded time, [m]."""
    count = len(host_ratio)
    recorded = measured_timing(graph, graph.residual_ns)
    tried = replace(
        recorded,
        factor=np.ones((1, count)),
        latency_ns=np.repeat(recorded.latency_ns, count, axis=1),
        host_ratio=host_ratio,
    )
    return _between_ends(graph, trace, window, replay(graph, tried))


def _between_ends(graph: Graph, trace: Trace, window: Window, end_ns: Floats) -> Floats:
    """Return how long the iteration takes where the nodes end at `end_ns` [n, m], [m]."""
    start, finish = iteration_spans(trace, graph, end_ns)
    return np.asarray((finish - start)[iteration_position(trace, window.index)])
