"""Other GPUs' times in a recording: each part of the forecast from replays of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.graph.latencies import Term, generation_latencies
from wavecast.analyzer.iteration.analyze import run_analysis
from wavecast.analyzer.iteration.result import Analysis
from wavecast.analyzer.models.library import Library
from wavecast.analyzer.prediction.sum_interval import busy_interval_ns
from wavecast.analyzer.recorded.recording import with_iterations
from wavecast.analyzer.recorded.window import select_window
from wavecast.analyzer.replay import forecast as forecast_module
from wavecast.analyzer.replay.causes import durations_ns, occupation
from wavecast.analyzer.replay.engine import Timing, measured_timing, on_gpus, replay
from wavecast.analyzer.replay.forecast import Spread, forecast, spread_of, target_timing
from wavecast.analyzer.replay.iterations import iteration_nodes, iteration_position, iteration_spans
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.tables import Device, Trace
from wavecast.specs.gpu import Catalog, Gpu

from ...conftest import Recording
from .conftest import any_timing, recordings

GpuBuilder = Callable[..., Gpu]
TraceBuilder = Callable[..., Trace]
MODELLESS = Library(fitted={})
GPU_COUNT = 3


def ask(trace: Trace, *gpus: Gpu) -> Analysis:
    return run_analysis(trace, Catalog(gpus=gpus), library=MODELLESS)


def on_gpu(timing: Timing, column: int) -> Timing:
    return on_gpus(timing, slice(column, column + 1))


@settings(deadline=None, max_examples=40)
@given(recordings().filter(lambda trace: len(trace.kernels.call)), st.integers(0, 2**32 - 1), st.booleans())
def test_a_forecast_is_five_replays(recorded: Trace, seed: int, gpus_apart: bool) -> None:
    trace = with_iterations(recorded)
    graph, window, generator = build_graph(trace), select_window(trace), np.random.default_rng(seed)
    timing = any_timing(graph, seed, gpu_count=GPU_COUNT)
    rows = len(timing.factor) - 1
    spread = Spread(
        low=generator.uniform(0.5, 1.0, (rows, GPU_COUNT)),
        high=generator.uniform(1.0, 2.0, (rows, GPU_COUNT)),
        host=generator.uniform(0.0, 0.5, GPU_COUNT),
    )
    with pytest.MonkeyPatch.context() as patch:
        if gpus_apart:
            patch.setattr(forecast_module, "_BLOCK_BYTES", 0)
        found = forecast(trace, window, graph, timing, spread)
    at = iteration_position(trace, window.index)

    def span_ns(changed: Timing) -> Any:
        start, finish = iteration_spans(trace, graph, replay(graph, changed))
        return np.stack((start[at], finish[at]))

    def length_ns(**changes: Any) -> Any:
        start, finish = span_ns(replace(timing, **changes))
        return finish - start

    own = np.ones((1, GPU_COUNT))  # what no row stands for takes what it takes
    middle = length_ns()
    fast, slow = (length_ns(factor=timing.factor * np.vstack((part, own))) for part in (spread.low, spread.high))
    early, late = (length_ns(host_ratio=timing.host_ratio * np.exp(sign * spread.host)) for sign in (-1, 1))
    np.testing.assert_allclose(found.span_ns, span_ns(timing))
    np.testing.assert_allclose(found.iteration_ns, middle)
    end = replay(graph, timing)
    share = occupation(graph, timing, end, *found.span_ns)
    then, measured = graph.nodes.end_ns[:, None], measured_timing(graph, graph.residual_ns)
    spans = (times[at] for times in iteration_spans(trace, graph, then))
    untold = occupation(graph, measured, then, *spans).released_ns - share.released_ns
    nodes = iteration_nodes(trace, graph).until(at)
    fall = share.released_ns
    if nodes.is_alone:  # it does not end before the host does
        fall = np.minimum(fall, found.span_ns[1] - end[nodes.host_end[-1]])
    below = np.sqrt((middle - fast) ** 2 + (middle - early) ** 2 + fall**2)
    lows = np.where(2 * below <= middle, middle - below, middle**2 / np.maximum(4 * below, 1))  # never 0 or less
    lows, rise = np.minimum(lows, middle - fall), np.maximum(untold, 0.0)
    highs = middle + np.sqrt((slow - middle) ** 2 + (late - middle) ** 2 + rise**2)
    both = 1 + np.minimum(np.abs(slow - middle), np.abs(late - middle)) / np.maximum(middle, 1)
    np.testing.assert_allclose(found.low_ns, np.minimum(lows, middle / both**0.465), atol=1e-3)
    np.testing.assert_allclose(found.high_ns, highs, atol=1e-3)
    for name in ("busy_ns", "communication_ns", "idle_ns"):
        assert getattr(found, name).tolist() == getattr(share, name).tolist()
    for column in range(GPU_COUNT):
        (alone,) = replay(graph, on_gpu(timing, column)).T
        assert alone.tolist() == end[:, column].tolist()


def test_the_low_end_of_a_gpu_and_a_host_that_hide_each_other_has_both_fast(recording: Recording) -> None:
    recording.launch(1_000, 5_000, 7_900, 40_000)
    recording.launch(46_000, 1_000, 47_500, 500, stream=8)
    recording.iteration(0, 48_000, 0, 47_000)
    trace = recording.trace(devices=(Device(name="Base"),))
    graph, ends = build_graph(trace), np.full((1, 1), 0.5)
    spread = Spread(low=ends, high=4 * ends, host=np.array([np.log(2)]))
    timing = replace(
        measured_timing(graph, graph.residual_ns), factor=np.ones((2, 1)), factor_row=np.repeat([-1, 0], [4, 2])
    )
    found = forecast(trace, select_window(trace), graph, timing, spread)
    assert (found.reach_ns[[0, 2]] < 0.2 * found.iteration_ns).all()
    assert found.low_ns < 0.8 * found.iteration_ns


def test_every_kernel_takes_its_own_time_by_what_its_row_is_predicted(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    trace = toy_trace()
    durations = trace.kernels.duration_ns.copy()
    durations[3] = 300_000
    twice = replace(
        trace,
        kernels=replace(
            trace.kernels,
            name=np.array([3, 4, 5, 3]),
            grid=trace.kernels.grid[[0, 1, 2, 0]],
            block=trace.kernels.block[[0, 1, 2, 0]],
            op=np.array([0, 1, 2, 0]),
            duration_ns=durations,
        ),
    )
    result = ask(twice, gpu(), gpu(name="Half", memory_bandwidth_bytes_per_s=5e11))
    assert result.workload.row_of[0] == result.workload.row_of[3]  # 120 and 300 us of one row
    for column in (0, 1):
        lasting = durations_ns(result.graph, on_gpu(result.forecast.timing, column))
        of_kernel = {int(row): float(ns) for row, ns in zip(result.graph.nodes.row, lasting, strict=True) if ns}
        predicted = result.prediction.time_ns[result.workload.row_of, column]
        assert [of_kernel[kernel] for kernel in (1, 2)] == pytest.approx(predicted[[1, 2]].tolist())
        assert of_kernel[0] + of_kernel[3] == pytest.approx(2 * predicted[0])
        assert of_kernel[3] == pytest.approx(2.5 * of_kernel[0])


def test_a_trace_of_one_kernel_is_predicted(gpu: GpuBuilder, recording: Recording) -> None:
    recording.launch(1_000, 5_000, 7_900, 40_000)
    recording.iteration(0, 47_900, 0, 10_000)
    found = ask(recording.trace(devices=(Device(name="Base"),)), gpu()).forecast
    assert found.iteration_ns.tolist() == [47_900.0]
    assert found.busy_ns.tolist() == [40_000.0]


def test_a_kernel_that_took_no_time_takes_none_elsewhere(gpu: GpuBuilder, recording: Recording) -> None:
    recording.launch(1_000, 5_000, 7_900, 0)
    recording.launch(8_000, 5_000, 14_900, 40_000)
    recording.iteration(0, 54_900, 0, 15_000)
    found = ask(recording.trace(devices=(Device(name="Base"),)), gpu(), gpu(name="Other")).forecast
    assert np.isfinite(found.timing.factor).all()
    assert found.busy_ns[0] == 40_000.0


def test_kernels_of_another_device_count_nowhere(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    trace = toy_trace()
    apart = replace(trace, kernels=replace(trace.kernels, device=np.array([0, 0, 0, 1], dtype=np.int16)))
    result = ask(apart, gpu(), gpu(name="Half", memory_bandwidth_bytes_per_s=5e11))
    assert result.window.other_device_kernel_count == 1
    assert result.graph.nodes.row[result.graph.nodes.is_gpu].tolist() == [0, 1, 2]


def test_latencies_move_by_what_the_generations_differ(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    result = ask(toy_trace(), gpu(architecture="Ampere"), gpu(name="Other", architecture="Hopper"))
    measured, latency = result.graph.latency_ns, result.forecast.timing.latency_ns
    moved = generation_latencies("Hopper") - generation_latencies("Ampere")
    assert latency[:, 0].tolist() == measured.tolist()
    assert latency[:, 1].tolist() == (measured + moved).tolist()
    assert moved[Term.LAUNCH] == -450.0
    assert result.forecast.timing.host_ratio.tolist() == [1.0, 1.0]


def test_a_trace_without_times_has_its_ops_predicted_times_and_no_delays(root_dir: Path, gpu: GpuBuilder) -> None:
    trace = load_trace(root_dir / "samples" / "dlrm-training-fp32-b2048-shapes.json.gz")
    result = ask(trace, gpu(architecture="Hopper"))
    timing, nodes = result.forecast.timing, result.graph.nodes
    lasting = durations_ns(result.graph, on_gpu(timing, 0))[nodes.is_gpu]
    op = result.trace.kernels.op[nodes.row[nodes.is_gpu]]
    per_op = np.bincount(op, weights=lasting, minlength=len(result.workload.row_of))
    stood_for = (result.workload.row_of >= 0) & (np.bincount(op, minlength=len(per_op)) > 0)
    assert np.bincount(op).max() > 1
    np.testing.assert_allclose(
        per_op[stood_for], result.prediction.time_ns[result.workload.row_of[stood_for], 0], rtol=1e-9
    )
    assert not per_op[~stood_for].any()
    assert not timing.residual_ns.any()
    assert timing.latency_ns[:, 0].tolist() == generation_latencies("Hopper").tolist()


def test_without_times_the_kernels_of_an_op_share_its_time_alike(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    trace = toy_trace()
    trace = replace(trace, kernels=replace(trace.kernels, op=np.array([0, 0, 1, -1])))
    result = ask(trace, gpu())
    timing = target_timing(result.graph, trace, result.workload, result.prediction, None)
    nodes = result.graph.nodes
    shares = {int(row): float(timing.base_ns[node]) for node, row in enumerate(nodes.row) if nodes.is_gpu[node]}
    assert [shares[kernel] for kernel in range(3)] == [0.5, 0.5, 1.0]


def test_the_ends_of_all_rows_give_the_ends_of_the_sum(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    result = ask(toy_trace(), gpu(), gpu(name="Half", memory_bandwidth_bytes_per_s=5e11))
    prediction, workload = result.prediction, result.workload
    spread = spread_of(prediction, workload, np.zeros(2))
    low, high = busy_interval_ns(prediction, workload.family)
    busy = prediction.time_ns * prediction.weight[:, None]
    np.testing.assert_allclose((busy * spread.low).sum(axis=0), low)
    np.testing.assert_allclose((busy * spread.high).sum(axis=0), high)
    assert low[1] < prediction.total_busy_ns()[1] < high[1]
    assert spread.low[:, 0].tolist() == spread.high[:, 0].tolist() == [1.0] * len(busy)  # measured there
    unknown = replace(prediction, half_width=np.full_like(prediction.half_width, np.nan))
    assert np.isnan(spread_of(unknown, workload, np.zeros(2)).low).all()
    assert np.isnan(spread_of(unknown, workload, np.zeros(2)).high).all()
