"""How far the iteration was off, and why: kernels, host, or the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ....arrays import Floats, Rows, at_rows, none_for_nan
from ....formats.trace.iterations import host_steps
from ...graph.graph import NodeKind
from ...host.speed import told_between
from ...iteration.result import Analysis
from ...replay.binding import durations_ns
from ...replay.causes import CAUSES, IdleCause
from ...replay.engine import Timing, on_gpus, replay
from ...replay.iterations import iteration_position, iteration_spans
from .comparison import Half, TargetRatios
from .report import IterationComparison


def compare_iteration(predicted: Half, measured: Half, ratios: TargetRatios) -> IterationComparison:
    """Compare the iteration that the first recording predicts on the target with the one that the second measured."""
    first, column, second, own_column = predicted.result, predicted.column, measured.result, measured.column
    timing = on_gpus(first.forecast.timing, slice(column, column + 1))
    predicted_ns = float(first.forecast.iteration_ns[column])
    measured_ns = second.window.duration_ns or float(second.forecast.iteration_ns[own_column])
    stretch = second.slowdown.stretch_ratio / first.slowdown.stretch_ratio
    with_kernels = _with_kernels(first, timing, ratios.of_item * stretch, ratios.of_row * stretch)
    kernels_ns = _iteration_ns(first, with_kernels)
    hosts = _host_time_ns(first, column), _host_time_ns(second, own_column)
    known = min(hosts) > 0
    change = hosts[1] / hosts[0] if known else 1.0
    host_ns = _iteration_ns(first, replace(with_kernels, host_ratio=with_kernels.host_ratio * change))
    told = told_between(first.recorded.trace, second.recorded.trace)
    is_predicted = first.origin is None or first.origin.name != first.prediction.fleet.gpus[column].name
    return IterationComparison(
        predicted_ns=predicted_ns,
        predicted_low_ns=none_for_nan(float(first.forecast.low_ns[column])) if is_predicted else None,
        predicted_high_ns=none_for_nan(float(first.forecast.high_ns[column])) if is_predicted else None,
        measured_ns=measured_ns,
        predicted_busy_ns=float(first.forecast.busy_ns[column]),
        measured_busy_ns=float(second.forecast.busy_ns[own_column]),
        predicted_idle_ns=_idle(first, column),
        measured_idle_ns=_idle(second, own_column),
        kernel_error_ns=predicted_ns - kernels_ns,
        host_error_ns=kernels_ns - host_ns,
        other_error_ns=host_ns - measured_ns,
        host_speed_ratio=(first.scenario.cpu_speed or 1.0) / change if known else None,
        host_speed_by_ops=None if told is None else told.ratio,
        host_by_ops_half_width=None if told is None else told.half_width,
    )


def _with_kernels(result: Analysis, timing: Timing, of_item: Floats, of_row: Floats) -> Timing:
    """Return the timing with the kernels' times on the target, as far as they are known.

    Kernels of other iterations than the compared one change as those of their row do.
    """
    graph, trace = result.graph, result.trace
    predicted = durations_ns(graph, timing)
    gpu = np.flatnonzero(graph.nodes.is_gpu)
    items = graph.nodes.row[gpu]
    if result.origin is None:
        items = trace.kernels.op[items]
    ratio = np.ones(len(graph.nodes.row))
    found = np.where(items >= 0, at_rows(of_item, items, np.nan), np.nan)
    usual = at_rows(of_row, timing.factor_row[gpu], np.nan)
    chosen = np.where(np.isnan(found), usual, found)
    ratio[gpu] = np.where(np.isnan(chosen), 1.0, chosen)
    return replace(
        timing,
        base_ns=predicted * ratio,
        factor=np.ones((1, 1)),
        factor_row=np.zeros(len(ratio), dtype=np.int64),
        stretch=None,
    )


def _iteration_ns(result: Analysis, timing: Timing) -> float:
    start, finish = iteration_spans(result.trace, result.graph, replay(result.graph, timing))
    at = iteration_position(result.trace, result.replayed_window.index)
    return float((finish - start)[at, 0])


def _host_time_ns(result: Analysis, column: int) -> float:
    """Return the host's own time within the iteration: without the profiler, and without what it waited for."""
    nodes, index = result.graph.nodes, result.replayed_window.index
    marks = np.flatnonzero(nodes.kind == NodeKind.MARK)
    if index is None or not len(marks):
        return 0.0
    steps = host_steps(result.trace.iterations)
    lane: Rows = nodes.lane == nodes.lane[marks[0]]
    inside = lane & (nodes.end_ns > steps.cpu_start_ns[index]) & (nodes.end_ns <= steps.cpu_end_ns[index])
    return float((nodes.lag_ns + nodes.cost_ns)[inside].sum()) * float(result.forecast.timing.host_ratio[column])


def _idle(result: Analysis, column: int) -> Mapping[IdleCause, float]:
    return dict(zip(CAUSES, result.forecast.idle_ns[column].tolist(), strict=True))
