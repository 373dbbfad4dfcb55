"""From two recordings to the comparison: the one function behind `wavecast validate`."""

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Final, Unpack

import numpy as np

from ....arrays import Floats, Rows, at_rows, none_for_nan
from ....errors import InputError, UnknownGpuError
from ....formats.trace.column import Interner
from ....formats.trace.iterations import host_steps
from ....formats.trace.tables import Trace
from ....specs.gpu import Catalog, Gpu
from ...graph.graph import NodeKind
from ...host.speed import told_between
from ...iteration.analyze import Asked, run_analysis
from ...iteration.result import Analysis
from ...iteration.warnings import unexplained_graph_ns, warn, warn_recorded
from ...models.library import load_library
from ...recorded.choice import ALL, choose_iteration
from ...recorded.devices import source_gpu
from ...recorded.recording import choose_recording
from ...recorded.window import Window, check_usable
from ...replay.causes import CAUSES, IdleCause, durations_ns
from ...replay.engine import Timing, on_gpus, replay
from ...replay.iterations import iteration_position, iteration_spans
from .calls import Alignment, align, list_calls
from .comparison import (
    Half,
    TargetRatios,
    compare_families,
    compare_group,
    compare_ops,
    count_covered,
    list_unmatched,
    measured_half,
    predicted_half,
    target_ratios,
)
from .report import IterationComparison, Side, Validation

LEAST_MATCHED_RATIO: Final = 0.5
"""Of the kernels' time of either recording: below this, they are not the same workload. The pairs of recordings of one
workload on GPUs of two vendors match by 100 %; BERT and ViT, both transformers, by 0 %."""


def validate_traces(
    first: Trace,
    second: Trace,
    catalog: Catalog,
    *,
    target: Gpu | None = None,
    op_limit: int | None = 10,
    **asked: Unpack[Asked],
) -> Validation:
    """Predict `first` on the GPU of `second` and compare, op by op.

    `source` and `target` override what the recordings say of their GPUs; `op_limit` is the number of ops listed (None:
    all). `iteration` is of either trace; a number means nothing to a trace of a single one. Raises InputError where
    `second` has no GPU times, or where the two are not the same workload.

    >>> validation = validate_traces(measured, measured, catalog)
    >>> validation.total.call_count, round(validation.total.figures.mape, 2)
    (2, 0.0)
    """
    asked_of = _ask_both(first, second, asked.get("iteration"))
    window = choose_recording(second, asked_of[1]).window
    check_usable(window)
    if not len(window.kernel_rows):
        raise InputError(
            "the second trace holds no GPU kernels, so there is nothing to compare with: record it on the target GPU"
        )
    measured_on = target or _target_gpu(second, catalog, window)
    models = asked.get("library") or load_library()
    of_first: Asked = {**asked, "targets": [measured_on], "library": models, "iteration": asked_of[0]}
    predicted = run_analysis(first, catalog, **of_first)
    measured = run_analysis(
        second, catalog, targets=[measured_on], source=measured_on, library=models, iteration=asked_of[1]
    )
    halves, alignment = _pair(predicted, measured, measured_on)
    return _compare(*halves, alignment, op_limit)


def _ask_both(first: Trace, second: Trace, iteration: int | str | None) -> tuple[int | str | None, int | str | None]:
    """Return what to ask of each trace. Raises InputError where one of them has no such iteration."""
    choices, asked = [], []
    for trace, which in ((first, "first"), (second, "second")):
        single = int(np.sum(trace.iterations.profiled)) < 2
        asked.append(None if isinstance(iteration, int) and single else iteration)
        try:
            choices.append(choose_iteration(trace, asked[-1])[1])
        except InputError as error:
            raise InputError(f"the {which} trace: {error}") from None
    if iteration == ALL and choices[0].count != choices[1].count:
        raise InputError(
            f"all iterations as one do not compare: {choices[0].count} in the first trace, {choices[1].count} in the "
            "second; ask for one of them"
        )
    return asked[0], asked[1]


def _target_gpu(second: Trace, catalog: Catalog, window: Window) -> Gpu:
    """Return the GPU of the second recording, which another option names than that of the first."""
    try:
        return source_gpu(second, catalog, window, "to")
    except UnknownGpuError as error:
        raise UnknownGpuError(f"the second trace: {error}") from None


def _pair(predicted: Analysis, measured: Analysis, gpu: Gpu) -> tuple[tuple[Half, Half], Alignment]:
    keys, none = Interner[Hashable](), np.zeros(0, dtype=np.int64)
    rows: Rows = predicted.window.kernel_rows if predicted.origin is not None else none
    first = list_calls(predicted.trace, predicted.workload, rows, keys)
    second = list_calls(measured.trace, measured.workload, measured.window.kernel_rows, keys)
    alignment = align(first, second)
    halves = (
        predicted_half(predicted, predicted.column(gpu.name), first, alignment),
        measured_half(measured, measured.column(gpu.name), second, alignment),
    )
    return halves, alignment


def _compare(first: Half, second: Half, alignment: Alignment, op_limit: int | None) -> Validation:
    sides = _side(first), _side(second)
    if min(side.matched_ratio for side in sides) < LEAST_MATCHED_RATIO:
        raise InputError(
            f"the traces are not of the same workload: only {sides[0].matched_ratio:.0%} of the first one's kernel "
            f"time and {sides[1].matched_ratio:.0%} of the second one's are in ops that both have, with the same "
            f"shapes and types; {_advice(first, second)}"
        )
    ops = compare_ops(first, second, alignment)
    whole_ns = sum(item.measured_ns for item in ops)
    unmatched = [*list_unmatched(first, is_measured=False), *list_unmatched(second, is_measured=True)]
    ratios = target_ratios(first, second, len(alignment.rule))
    unexplained_ns = float(unexplained_graph_ns(second.result).sum())
    return Validation(
        source=sides[0],
        target=sides[1],
        scenario=first.result.scenario,
        iteration=_compare_iteration(first, second, ratios),
        total=compare_group(None, ops, whole_ns),
        families=compare_families(ops),
        ops=ops[:op_limit],
        op_count=len(ops),
        intervals=count_covered((op.measured_ns, op.is_covered) for op in ops),
        unmatched=tuple(sorted(unmatched, key=lambda item: -item.time_ns)),
        warnings=(
            *([f"what if, of the first trace: {', '.join(asked)}"] if (asked := first.result.scenario.changes) else []),
            *warn(first.result),
            *(f"the trace of the target: {text}" for text in warn_recorded(second.result, unexplained_ns)),
        ),
    )


def _advice(first: Half, second: Half) -> str:
    shaped = [bool(half.result.trace.signatures) for half in (first, second)]
    if shaped[0] != shaped[1]:
        return f"the {'second' if shaped[0] else 'first'} one holds no shapes: record it with record_shapes=True"
    return "record the same model, batch and precision on both GPUs"


def _side(half: Half) -> Side:
    matched = half.parts.pair >= 0
    choice = half.result.recorded.choice
    return Side(
        iteration_index=half.result.recorded.index,
        iteration_choice=choice.rule,
        recorded_iteration_count=choice.count,
        gpu=half.result.origin.name if half.result.origin is not None else None,
        framework=half.result.trace.meta.framework,
        call_count=len(half.calls.op),
        matched_call_count=len(np.unique(half.calls.part_call[matched])),
        kernel_time_ns=float(half.parts.time_ns.sum()),
        matched_ns=float(half.parts.time_ns[matched].sum()),
    )


def _compare_iteration(predicted: Half, measured: Half, ratios: TargetRatios) -> IterationComparison:
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
