"""The iteration on other GPUs: the graph replayed with predicted kernel times."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...arrays import Floats, Rows, at_rows, row_blocks
from ...formats.trace.tables import Trace
from ...records import dataclass, replace
from ...specs.gpu import Gpu
from ..graph.graph import Graph, Runs
from ..graph.latencies import generation_latencies
from ..graph.rules import RELEASE, lane_firsts
from ..graph.schedule import runs_before
from ..prediction.prediction import Prediction
from ..prediction.sum_interval import busy_interval_ns, row_changes
from ..prediction.workload import GpuWorkload
from ..recorded.window import Window
from .causes import occupation
from .engine import Timing, measured_timing, on_gpus, piece_rows_for, replay
from .iterations import IterationNodes, iteration_nodes, iteration_position


def loop_lengths(iterations: IterationNodes, graph: Graph, timing: Timing, runs: Runs) -> Floats:
    """Return what an iteration takes in a loop on each GPU, ns, [m]; NaN where the recording did not wait at its end.

    The slowest cycle: of the host alone, of a GPU that is behind its host, and through both once each; no more than the
    iteration takes by itself.
    """
    if iterations.closing < 0:
        return np.full(len(timing.host_ratio), np.nan)
    last, nodes = iterations.closing - 1, graph.nodes
    end_ns = replay(graph, timing, runs=runs)
    start_ns, finish_ns = (times[-1] for times in iterations.spans(end_ns))
    length_ns, host = finish_ns - start_ns, end_ns[last] - end_ns[iterations.host_start[0]]
    # A GPU that is behind by a whole iteration: what the host does meets it only where it waits for the GPU itself.
    release = np.where(
        nodes.is_gpu, np.maximum(nodes.release_ns, end_ns[last].max() + length_ns.max()), nodes.release_ns
    )
    ends = replay(replace(graph, nodes=replace(nodes, release_ns=release)), timing, runs=runs)
    launched = iterations.launched
    begun = (ends[launched] - timing.node_ns(launched)).min(axis=0)
    gpu, held = ends[launched].max(axis=0) - begun, ends[last] - begun
    said: Floats = np.minimum(np.maximum.reduce((host, gpu, 0.5 * (held + length_ns))), length_ns)
    return said


_ENDS: Final = 4
"""Columns per GPU beside the one as predicted: kernels fast and slow, host fast and slow."""
_BOTH_FAST: Final = 0.465
"""Of their half-widths, by which two independent errors are both under with a chance of 5 %: 0.7645 / 1.6449."""
_BLOCK_BYTES: Final = 1 << 28
"""Memory for the ends of all nodes on the GPUs that are replayed at a time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spread:
    """Hold the ends of the 90 % intervals that enter a replay."""

    low: Floats
    """What each row's time is multiplied with at the low end, [d, m]."""
    high: Floats
    host: Floats
    """Half width of the host's times, natural log, [m]; 0 on the recorded host."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forecast:
    """Hold the replayed iteration on m GPUs. Busy and idle times add up to the iteration."""

    timing: Timing
    span_ns: Floats
    """Start and end of the iteration, [2, m]."""
    low_ns: Floats
    """Ends of the iteration's 90 % interval, [m]; NaN where too much of the kernels' time has none."""
    high_ns: Floats
    reach_ns: Floats
    """How far the ends lie from the iteration by the kernels' errors alone (low, high) and by the host's alone, among
    them what kernels without a launch wait for, [4, m]; NaN where it has no interval."""
    busy_ns: Floats
    communication_ns: Floats
    """The part of `busy_ns` in which only collectives run, [m]."""
    idle_ns: Floats
    """By cause, [m, causes]."""
    loop_ns: Floats
    """What the iteration takes in a loop that does not wait for its end, [m]; NaN where the recording does not wait
    for it either, or does not tell."""

    @property
    def iteration_ns(self) -> Floats:
        """Return the length of the iteration, [m]."""
        return np.asarray(self.span_ns[1] - self.span_ns[0])


def kernel_rows(graph: Graph, trace: Trace, workload: GpuWorkload) -> Rows:
    """Return the workload row of each GPU node; one past the last for those that none stands for, [n].

    >>> kernel_rows(graph, measured, kernels)
    array([2, 2, 2, 2, 0, 1])
    """
    nodes, missing = graph.nodes, len(workload.op)
    rows = np.full(len(nodes.row), missing, dtype=np.int64)
    gpu = np.flatnonzero(nodes.is_gpu)
    kernels = nodes.row[gpu]
    of_ops = len(workload.op) and workload.kernel[0] < 0
    keys = trace.kernels.op[kernels] if of_ops else kernels
    found = at_rows(workload.row_of, keys)
    rows[gpu] = np.where(found < 0, missing, found)
    return rows


def target_timing(
    graph: Graph, trace: Trace, workload: GpuWorkload, prediction: Prediction, source: Gpu | None
) -> Timing:
    """Return the timing on every GPU of the prediction.

    A kernel takes its own measured time times what its row is predicted to take relative to the row's mean; kernels of
    a trace without times share the time of their op. Latencies move by the difference of the generations' values.

    >>> target_timing(result.graph, result.trace, result.workload, result.prediction, None).factor.shape
    (14, 2)
    """
    rows, nodes = kernel_rows(graph, trace, workload), graph.nodes
    gpus = prediction.fleet.gpus
    if source is None:
        base = _op_shares(graph, trace)
        factor = prediction.time_ns
    else:
        base = np.where(nodes.is_gpu, at_rows(trace.kernels.duration_ns, np.where(nodes.is_gpu, nodes.row, -1), 0), 0.0)
        mean = workload.duration_ns[:, None]
        factor = np.divide(prediction.time_ns, mean, out=np.ones_like(prediction.time_ns), where=mean > 0)
    rest = np.ones((1, len(gpus))) if source is not None else np.zeros((1, len(gpus)))
    return Timing(
        base_ns=base,
        factor=np.concatenate((factor, rest)),
        factor_row=rows,
        latency_ns=_latencies(graph, source, gpus),
        host_ratio=np.ones(len(gpus)),
        residual_ns=_delays_ns(graph, trace) if source is not None else np.zeros(len(nodes.row)),
    )


def _delays_ns(graph: Graph, trace: Trace) -> Floats:
    """Return what no rule explains of the nodes' starts, [n].

    Where the trace was cut out of a longer one, a stream's first kernel waited for those that were left out; another
    GPU need not be as far behind its host, and the iteration before the one that is meant brings it there.
    """
    if trace.meta.iteration is None:
        return graph.residual_ns
    return np.where(graph.nodes.is_gpu & lane_firsts(graph.nodes), 0.0, graph.residual_ns)


def _op_shares(graph: Graph, trace: Trace) -> Floats:
    """Return for each GPU node of a trace without times one over the number of kernels of its op, [n]."""
    op = trace.kernels.op
    counts = np.bincount(op[op >= 0], minlength=1)
    nodes = graph.nodes
    of_node = at_rows(op, np.where(nodes.is_gpu, nodes.row, -1), 0)
    return np.where(nodes.is_gpu, 1.0 / np.maximum(counts[np.maximum(of_node, 0)], 1), 0.0)


def _latencies(graph: Graph, source: Gpu | None, gpus: Sequence[Gpu]) -> Floats:
    """Return the latency of each term on each GPU, [terms, m]: as on the source, plus what generations differ by."""
    known = np.stack([generation_latencies(gpu.architecture) for gpu in gpus], axis=1)
    if source is None:
        return known
    here = generation_latencies(source.architecture)
    return np.asarray(graph.latency_ns[:, None] + known - here[:, None])


def forecast(
    trace: Trace,
    window: Window,
    graph: Graph,
    timing: Timing,
    spread: Spread,
    *,
    near: Runs | None = None,
    loop_host_ratio: float = 1.0,
) -> Forecast:
    """Replay the graph with the predicted times, and with those at the ends of their intervals.

    Of the graph what `near` names (default: all), which holds what runs beside the iteration. `loop_host_ratio`: the
    host's times in a loop, relative to those in the iteration by itself.

    The errors of the kernels' times and of the host's are independent: the ends of the iteration's interval lie
    sqrt(gpu^2 + host^2 + untold^2) from it, the first two the replay with that part at its end, the third by what
    kernels without a launch wait for. Where GPU and host take as long, either alone hides that the other is faster: the
    low end is no higher than with both fast, by as much as each, alone slow, would make the iteration longer.

    >>> spread = spread_of(result.prediction, result.workload, np.zeros(2))
    >>> found = forecast(result.trace, result.window, result.graph, result.forecast.timing, spread)
    >>> (found.iteration_ns / 1e6).round()  # ms on each GPU
    array([ 8., 11.])
    """
    count = timing.latency_ns.shape[1]
    at = iteration_position(trace, window.index)
    iterations = iteration_nodes(trace, graph).until(at)
    runs = runs_before(graph, iterations.every())
    values = len(graph.nodes.row) + _ENDS * int((runs[:, 1] - runs[:, 0]).sum())
    block = max(1, _BLOCK_BYTES // (8 * max(1, values)))
    parts = [
        _forecast_block(
            iterations, graph, runs, near, on_gpus(timing, columns), _select(spread, columns), loop_host_ratio
        )
        for columns in row_blocks(count, block)
    ]
    return Forecast(
        timing=timing,
        **{
            name: np.concatenate([getattr(part, name) for part in parts], axis=-1)
            for name in ("span_ns", "low_ns", "high_ns", "reach_ns", "busy_ns", "communication_ns", "loop_ns")
        },
        idle_ns=np.concatenate([part.idle_ns for part in parts]),
    )


def iteration_lengths(trace: Trace, window: Window, graph: Graph, timing: Timing) -> Floats:
    """Return how long the iteration takes on each GPU, ns, [m]: a replay and no more.

    >>> lengths_ns = iteration_lengths(result.trace, result.window, result.graph, result.forecast.timing)
    >>> (lengths_ns / 1e6).round()  # ms on each GPU
    array([ 8., 11.])
    """
    iterations = iteration_nodes(trace, graph).until(iteration_position(trace, window.index))
    end = replay(graph, timing, runs=runs_before(graph, iterations.every()))
    start, finish = (times[-1] for times in iterations.spans(end))
    return np.asarray(finish - start)


def _forecast_block(
    iterations: IterationNodes,
    graph: Graph,
    runs: Runs,
    near: Runs | None,
    timing: Timing,
    spread: Spread,
    loop_host_ratio: float,
) -> Forecast:
    """Forecast the last of some iterations on some of the GPUs; its span depends on nothing but `runs`."""
    count = timing.latency_ns.shape[1]
    # Equal pieces for all: where an end of an interval changes no time, it gives the same iteration to the last bit.
    piece_rows = piece_rows_for((1 + _ENDS) * count)
    end = replay(graph, timing, runs=near, piece_rows=piece_rows)
    start, finish = (times[-1] for times in iterations.spans(end))
    length = finish - start
    low, high, reach = np.full(count, np.nan), np.full(count, np.nan), np.full((_ENDS, count), np.nan)
    share = occupation(graph, timing, end, start, finish)
    # What the host's end leaves to kernels: a window of given times ends when it ended.
    past_host = finish - end[iterations.host_end[-1]] if iterations.is_alone else length
    del end  # as large as what is replayed next
    # Streams cannot overlap more in a loop: kernels that ran together share the GPU.
    paced = replace(timing, host_ratio=timing.host_ratio * loop_host_ratio)
    loop = np.maximum(loop_lengths(iterations, graph, paced, runs), share.busy_ns)
    known = np.flatnonzero(~np.isnan(spread.low).any(axis=0))
    if len(known):
        ends = replay(graph, _at_ends(on_gpus(timing, known), _select(spread, known)), runs=runs, piece_rows=piece_rows)
        begun, ended = (times[-1].reshape(_ENDS, -1) for times in iterations.spans(ends))
        reach[:, known] = gpu_low, gpu_high, host_low, host_high = np.abs(ended - begun - length[known])
        fall, rise = (reach_ns[known] for reach_ns in _untold_reach(iterations, graph, spread, share.released_ns))
        fall = np.minimum(fall, past_host[known])
        reach[2, known], reach[3, known] = np.hypot(host_low, fall), np.hypot(host_high, rise)
        low[known] = np.minimum(_low_end(length[known], np.hypot(gpu_low, reach[2, known])), length[known] - fall)
        both = 1.0 + np.minimum(gpu_high, host_high) / np.maximum(length[known], 1.0)
        low[known] = np.minimum(low[known], length[known] * both**-_BOTH_FAST)
        high[known] = length[known] + np.hypot(gpu_high, reach[3, known])
    return Forecast(
        timing=timing,
        span_ns=np.stack((start, finish)),
        low_ns=low,
        high_ns=high,
        reach_ns=reach,
        busy_ns=share.busy_ns,
        communication_ns=share.communication_ns,
        idle_ns=share.idle_ns,
        loop_ns=loop,
    )


def _untold_reach(
    iterations: IterationNodes, graph: Graph, spread: Spread, released_ns: Floats
) -> tuple[Floats, Floats]:
    """Return how far below and above the iteration may lie by kernels of which no launch is recorded, ns, [m] each.

    They begin when they did here, as where a host holds them. Where the GPU's own work does, the recorded waits are
    kept instead of the `released_ns` [m] that are left; with another GPU's host there may be none. Where kernels take
    what they took for certain, it is the same GPU.
    """
    if not np.any(graph.binding == RELEASE):
        return np.zeros_like(released_ns), np.zeros_like(released_ns)
    end_ns = graph.nodes.end_ns[:, None]
    start, finish = (times[-1] for times in iterations.spans(end_ns))
    kept = occupation(graph, measured_timing(graph, graph.residual_ns), end_ns, start, finish).released_ns
    is_other = (spread.high > spread.low).any(axis=0)
    return np.where(is_other, released_ns, 0.0), np.maximum(kept - released_ns, 0.0)


def _low_end(length: Floats, below: Floats) -> Floats:
    """Return the low end of an interval, which lies above 0 however far the errors reach: no time is negative."""
    share = np.divide(below, length, out=np.zeros_like(below), where=length > 0)
    return np.where(share <= 0.5, length - below, 0.25 * length / np.maximum(share, 0.5))


def _select(spread: Spread, columns: slice | Rows) -> Spread:
    return Spread(
        low=np.ascontiguousarray(spread.low[:, columns]),
        high=np.ascontiguousarray(spread.high[:, columns]),
        host=spread.host[columns],
    )


def _at_ends(timing: Timing, spread: Spread) -> Timing:
    """Return the timing of 4 m columns: kernels at their low and high end, hosts likewise."""
    unknown = np.ones((1, timing.factor.shape[1]))
    low, high = (timing.factor * np.concatenate((part, unknown)) for part in (spread.low, spread.high))
    faster, slower = timing.host_ratio * np.exp(-spread.host), timing.host_ratio * np.exp(spread.host)
    return replace(
        timing,
        factor=np.concatenate((low, high, timing.factor, timing.factor), axis=1),
        latency_ns=np.tile(timing.latency_ns, _ENDS),
        host_ratio=np.concatenate((timing.host_ratio, timing.host_ratio, faster, slower)),
        stretch=None if timing.stretch is None else np.tile(timing.stretch, _ENDS),
    )


def spread_of(prediction: Prediction, workload: GpuWorkload, host_half_width: Floats) -> Spread:
    """Return how far the kernels' times, and the hosts', may be off together; see `Spread`.

    Rows move together, by as much of their own half width as moves their sum to the end of its interval: that sum holds
    the correlation of errors (full within a family, less between). NaN columns where the sum has no interval.

    >>> spread_of(result.prediction, result.workload, np.zeros(2)).host
    array([0., 0.])
    """
    changes = row_changes(prediction)
    low, high = busy_interval_ns(prediction, workload.family, changes)
    total = prediction.total_busy_ns()
    factors = []
    for end, change in ((low, -changes.joint_fall), (high, changes.joint_rise)):
        whole = np.einsum("i,ij,ij->j", prediction.weight, prediction.time_ns, change)
        part = np.divide(end - total, whole, out=np.zeros_like(total), where=np.abs(whole) > 0)
        factors.append(1.0 + change * np.where(np.isnan(end), np.nan, part))
    return Spread(low=factors[0], high=factors[1], host=host_half_width)
