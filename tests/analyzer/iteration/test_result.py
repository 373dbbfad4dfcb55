"""A trace put to a question: what-ifs compose, unprofiled iterations calibrate, CPU times never count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wavecast.analyzer.iteration.analyze import report_on, run_analysis
from wavecast.analyzer.iteration.gpu_replay import replay_on
from wavecast.analyzer.iteration.report import AnalysisReport
from wavecast.analyzer.iteration.result import Analysis
from wavecast.analyzer.models.library import Library
from wavecast.analyzer.whatif.axis.change import with_batch
from wavecast.analyzer.whatif.precision.precision import with_precision
from wavecast.analyzer.whatif.retiming.kernels import cast_times_ns
from wavecast.analyzer.whatif.scenario import Scenario, TargetPrecision
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.tables import CallTable, IterationTable, KernelTable, MemoryTable, Meta, OpTable, Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import build_fleet
from wavecast.specs.gpu import Catalog, Gpu
from wavecast.specs.match import find_gpu

GpuBuilder = Callable[..., Gpu]
TraceBuilder = Callable[..., Trace]
SCALED = "all times are scaled"
MODELLESS = Library(fitted={})
LENGTH_NS = 1_700_000
"""Of the busy toy iteration: its kernels end 100 us after one another, the host long before."""


def ask(trace: Trace, *gpus: Gpu, scenario: Scenario | None = None) -> Analysis:
    return run_analysis(trace, Catalog(gpus=gpus), library=MODELLESS, scenario=scenario)


def row(report: AnalysisReport, name: str) -> Any:
    return next(item for item in report.predictions if item.gpu == name)


def check_adds_up(result: Analysis) -> AnalysisReport:
    """Busy and idle time, interval and path all tell of the same iteration."""
    report = report_on(result)
    for item in report.predictions:
        assert item.gpu_busy_ns + sum(item.idle_ns.values()) == pytest.approx(item.iteration_ns, rel=1e-6)
        assert (item.iteration_low_ns or 0.0) <= item.iteration_ns * (1 + 1e-6)
        assert (item.iteration_high_ns or np.inf) >= item.iteration_ns * (1 - 1e-6)
    assert report.critical_path is not None
    assert report.critical_path.length_ns == pytest.approx(row(report, report.ops_gpu).iteration_ns, rel=1e-6)
    return report


def timed_without_profiler(trace: Trace, *lengths_ns: int) -> Trace:
    """Put iterations that were timed without the profiler before the captured ones."""
    table = trace.iterations
    stop = (np.cumsum(lengths_ns) - np.sum(lengths_ns) - 10).tolist()
    begin = [at - length for at, length in zip(stop, lengths_ns, strict=True)]
    columns = {"start_ns": begin, "end_ns": stop, "cpu_start_ns": begin, "cpu_end_ns": stop}
    joined = {name: [*values, *getattr(table, name).tolist()] for name, values in columns.items()}
    profiled = [False] * len(begin) + table.profiled.tolist()
    return replace(trace, iterations=build_table(IterationTable, len(profiled), profiled=profiled, **joined))


def slow_host(build: TraceBuilder, host_ns: int) -> Trace:
    """The toy trace with its last launch, and the kernel after it, as late as the host is slow."""
    trace = build()
    starts, kernels = trace.calls.start_ns.copy(), trace.kernels.start_ns.copy()
    starts[3], kernels[3] = host_ns - 10, host_ns + 5_000
    ends = np.array([host_ns + 205_000])
    return replace(
        trace,
        calls=replace(trace.calls, start_ns=starts),
        kernels=replace(trace.kernels, start_ns=kernels),
        iterations=replace(trace.iterations, end_ns=ends, cpu_end_ns=np.array([host_ns])),
    )


def busy(build: TraceBuilder) -> Trace:
    """The toy trace with kernels back to back: only the GPU counts."""
    trace = build()
    starts = np.array([1_000, 150_000, 1_200_000, 1_400_000])
    durations = np.array([149_000, 1_050_000, 200_000, 300_000])
    return replace(
        trace,
        kernels=replace(trace.kernels, start_ns=starts, duration_ns=durations),
        iterations=replace(trace.iterations, end_ns=np.array([LENGTH_NS]), cpu_end_ns=np.array([500])),
    )


def test_nothing_asked_changes_nothing(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    result = ask(toy_trace(), gpu(), gpu(name="Twin"))
    assert result.slowdown.host_ratio == result.slowdown.stretch_ratio == 1.0
    assert result.trace is result.recorded.trace
    np.testing.assert_allclose(result.forecast.iteration_ns, 2_000_000)
    same = ask(toy_trace(), gpu(), gpu(name="Twin"), scenario=Scenario(cpu_speed=1.0))
    np.testing.assert_array_equal(same.forecast.iteration_ns, result.forecast.iteration_ns)
    check_adds_up(result)


@pytest.mark.parametrize("replayed", [0.8, 1.25])
def test_the_interval_of_what_was_measured_holds_it(replayed: float, gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    result = ask(toy_trace(), gpu())
    ends = replayed * result.forecast.iteration_ns
    found = replace(result, forecast=replace(result.forecast, low_ns=ends, high_ns=ends))
    item = row(report_on(found), gpu().name)
    measured = item.iteration_ns
    assert (item.iteration_low_ns, item.iteration_high_ns) == (min(measured, ends[0]), max(measured, ends[0]))


def test_blocks_of_more_threads_than_can_be_counted_move_as_any(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    trace = toy_trace()
    kernels = replace(trace.kernels, block=np.full_like(trace.kernels.block, 2**31 - 1))
    check_adds_up(ask(replace(trace, kernels=kernels), gpu(), gpu(name="Other", sm_count=20)))


@pytest.mark.data
def test_a_host_of_known_speed_has_no_width(root_dir: Path) -> None:
    trace = load_trace(root_dir / "samples" / "resnet50-inference-bf16-b32-shapes.json.gz")
    catalog = load_catalog()
    gpus = [find_gpu(catalog, name) for name in ("H100 SXM5 80GB", "Tesla T4")]
    unknown, known = (
        run_analysis(trace, catalog, targets=gpus, scenario=Scenario(cpu_speed=speed)).forecast for speed in (None, 1.0)
    )
    np.testing.assert_allclose(known.iteration_ns, unknown.iteration_ns)
    widths = [np.log(item.high_ns / item.low_ns) for item in (known, unknown)]
    # H100 waits for the host, T4 does not.
    assert widths[0][0] < 0.5 * widths[1][0]
    assert widths[0][1] == pytest.approx(widths[1][1], rel=0.2)


@pytest.mark.parametrize("ratio", [0.5, 0.7, 0.95])
def test_unprofiled_iterations_tell_how_much_the_profiler_slowed_the_host(
    ratio: float, gpu: GpuBuilder, toy_trace: TraceBuilder
) -> None:
    trace = slow_host(toy_trace, 20_000_000)
    unprofiled_ns = round(ratio * 20_000_000 + 205_000)
    result = ask(timed_without_profiler(trace, unprofiled_ns, unprofiled_ns, unprofiled_ns), gpu(), gpu(name="Twin"))
    assert result.slowdown.host_ratio == pytest.approx(ratio, rel=0.01)
    assert result.slowdown.stretch_ratio == pytest.approx(1.0, abs=0.01)
    report = check_adds_up(result)
    assert row(report, "Base").iteration_ns == unprofiled_ns
    assert row(report, "Twin").iteration_ns == pytest.approx(unprofiled_ns, rel=1e-6)
    assert report.trace.iteration_count == 3
    assert not any(SCALED in warning for warning in report.warnings)


@pytest.mark.parametrize("ratio", [0.98, 1.02])
def test_where_the_gpu_is_the_limit_iterations_say_nothing_about_the_host(
    ratio: float, gpu: GpuBuilder, toy_trace: TraceBuilder
) -> None:
    unprofiled_ns = round(ratio * LENGTH_NS)
    result = ask(timed_without_profiler(busy(toy_trace), unprofiled_ns), gpu(), gpu(name="Twin"))
    assert 0.5 < result.slowdown.host_ratio < 1.2
    assert result.slowdown.stretch_ratio == pytest.approx(ratio, rel=1e-3)
    report = check_adds_up(result)
    assert row(report, "Twin").iteration_ns == pytest.approx(unprofiled_ns, rel=1e-6)
    assert report.source.gpu_busy_ns == pytest.approx(row(report, "Base").gpu_busy_ns)
    assert not any(SCALED in warning for warning in report.warnings)


def test_iterations_that_no_host_explains_are_pointed_out(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    result = ask(timed_without_profiler(busy(toy_trace), LENGTH_NS // 2), gpu())
    assert result.slowdown.stretch_ratio == pytest.approx(0.5, rel=0.01)
    (warning,) = (item for item in check_adds_up(result).warnings if SCALED in item)
    assert "50% shorter" in warning


def test_kernels_alone_begin_where_the_first_does(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    trace = toy_trace()
    gone = np.full(4, -1, dtype=np.int32)
    alone = replace(
        Trace(meta=trace.meta, devices=trace.devices, strings=trace.strings),
        kernels=replace(trace.kernels, call=gone, op=gone),
    )
    result = ask(alone, gpu(), gpu(name="Twin"))
    check_adds_up(result)
    assert result.slowdown.stretch_ratio == 1.0
    np.testing.assert_allclose(result.forecast.iteration_ns, 1_600_000 - 1_000)


def test_kernels_alone_count_to_the_iteration_that_they_ended_in(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    trace = toy_trace()
    gone = np.full(4, -1, dtype=np.int32)
    steps = build_table(
        IterationTable, 2, start_ns=[0, 1_150_000], end_ns=[1_150_000, 1_600_000],
        cpu_start_ns=[0, 200], cpu_end_ns=[100, 300],
    )  # fmt: skip
    alone = replace(
        Trace(meta=trace.meta, devices=trace.devices, strings=trace.strings, iterations=steps),
        kernels=replace(trace.kernels, call=gone, op=gone),
    )
    result = ask(alone, gpu())
    assert result.slowdown.stretch_ratio == 1.0
    assert result.forecast.iteration_ns[0] == pytest.approx(450_000)


def timed_on_a_cpu(build: TraceBuilder) -> Trace:
    """Three iterations of the toy's ops as a CPU ran them, ten times as long as any host needs."""
    trace = build()
    at = np.array([0, 1, 2]) * 30_000_000
    begin, end = [-9_000_000, *at], [0, *(at + 29_999_999)]
    return replace(
        trace,
        meta=replace(trace.meta, capture="cpu"),
        devices=(),
        kernels=build_table(KernelTable, 0),
        calls=build_table(CallTable, 0),
        ops=build_table(
            OpTable, 9, name=[0, 1, 2] * 3, signature=[0, 1, 2] * 3, parent=[-1, 0, 0, -1, 3, 3, -1, 6, 6],
            forward=[-1, -1, -1, -1, -1, -1, 3, -1, 0],
            start_ns=[0, 10, 10_000_010, 30_000_000, 30_000_010, 40_000_010, 60_000_000, 60_000_010, 70_000_010],
            duration_ns=[30_000_000, 9_000_000, 9_000_000] * 3,
        ),
        memory=build_table(MemoryTable, 2, time_ns=[5, 30_000_005], device=[-1, -1], size_bytes=[10, 10], op=[0, 3]),
        iterations=build_table(
            IterationTable, 4, start_ns=begin, end_ns=end, profiled=[False, True, True, True],
            cpu_start_ns=begin, cpu_end_ns=end,
        ),
    )  # fmt: skip


def test_what_a_cpu_took_is_not_the_host_of_a_gpu(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    timed = timed_on_a_cpu(toy_trace)
    result = ask(timed, gpu())
    report = check_adds_up(result)
    assert report.source.gpu is None
    assert report.trace.op_count == 3
    assert report.trace.iteration_count == 0
    assert report.iteration_rule == "replay_on_synthetic_host"
    untimed = Trace(meta=Meta(capture="shapes"), strings=timed.strings, signatures=timed.signatures, ops=build_table(
        OpTable, 3, name=[0, 1, 2], signature=[0, 1, 2], parent=[-1, 0, 0]
    ))  # fmt: skip
    np.testing.assert_allclose(result.forecast.iteration_ns, ask(untimed, gpu()).forecast.iteration_ns)
    assert result.trace.memory.op.tolist() == [-1, 0]
    assert result.trace.ops.forward.tolist() == [-1, -1, -1]


@pytest.mark.data
def test_what_ifs_of_the_trace_apply_batch_first(root_dir: Path, gpu: GpuBuilder) -> None:
    trace = load_trace(root_dir / "samples" / "resnet50-training-fp32-b32-shapes.json.gz")
    both = ask(trace, gpu(), scenario=Scenario(batch_size=64, precision=TargetPrecision.BF16))
    expected = with_precision(with_batch(trace, 64).trace, TargetPrecision.BF16)
    ops, signatures = both.trace.ops, expected.trace.signatures
    assert [both.trace.signatures[at] for at in ops.signature.tolist()] == [
        signatures[at] for at in expected.trace.ops.signature.tolist()
    ]
    assert both.trace.meta.workload.batch_size == 64
    check_adds_up(both)


@pytest.mark.data
def test_conversions_that_a_precision_inserts_take_their_time(root_dir: Path, gpu: GpuBuilder) -> None:
    trace = load_trace(root_dir / "samples" / "resnet50-training-fp32-b32-shapes.json.gz")
    target = gpu()
    result = ask(trace, target, scenario=Scenario(precision=TargetPrecision.BF16))
    changed = with_precision(trace, TargetPrecision.BF16)
    casts_ns = float(cast_times_ns(changed.casts, build_fleet([target]), MODELLESS).sum())
    assert casts_ns > 0
    # A trace of the same ops that needs no conversions takes less by just their time.
    without = ask(changed.trace, target)
    added = float(result.prediction.total_busy_ns()[0] - without.prediction.total_busy_ns()[0])
    assert added == pytest.approx(casts_ns, rel=1e-6)


@pytest.mark.data
@pytest.mark.parametrize("name", ["resnet50-training-bf16-b32", "dlrm-inference-fp32-b2048"])
def test_what_ifs_of_the_graph_never_lengthen(name: str, root_dir: Path, gpu: GpuBuilder) -> None:
    trace = load_trace(root_dir / "samples" / f"{name}-shapes.json.gz")
    gpus = [gpu(), gpu(name="Fast", memory_bandwidth_bytes_per_s=4e12)]
    plain = ask(trace, *gpus).forecast.iteration_ns
    questions = (
        Scenario(cuda_graph=True),
        Scenario(fuse_elementwise=True),
        Scenario(cuda_graph=True, fuse_elementwise=True),
        Scenario(cpu_speed=2.0),
    )
    for scenario in questions:
        result = ask(trace, *gpus, scenario=scenario)
        copied = 0.03 if scenario.fuse_elementwise else 0.0  # inductor lays a convolution's inputs out anew
        assert np.all(result.forecast.iteration_ns <= plain * (1 + copied + 1e-9))
        check_adds_up(result)


def test_the_closeup_is_the_forecast_node_by_node(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    result = ask(slow_host(toy_trace, 5_000_000), gpu(), gpu(name="Half", memory_bandwidth_bytes_per_s=5e11))
    for column, name in enumerate(("Base", "Half")):
        replayed = replay_on(result, name)
        assert replayed.end_ns.max() == pytest.approx(result.forecast.span_ns[1, column])
        assert replayed.path.length_ns == pytest.approx(result.forecast.iteration_ns[column])


def test_of_gpus_that_wait_for_the_host_the_less_busy_stands_first(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    quick = gpu(name="Quick", memory_bandwidth_bytes_per_s=2e12)
    quicker = gpu(name="Quicker", memory_bandwidth_bytes_per_s=4e12)
    report = report_on(ask(slow_host(toy_trace, 500_000_000), gpu(), quick, quicker))
    assert [item.gpu for item in report.predictions] == ["Quicker", "Quick", "Base"]


@pytest.mark.data
def test_recorded_allocations_say_nothing_about_another_batch(data_dir: Path) -> None:
    trace, catalog = load_trace(data_dir / "traces" / "h100_vit_small_inference.json.gz"), load_catalog()
    targets = [find_gpu(catalog, "L4")]
    recorded = report_on(run_analysis(trace, catalog, targets=targets))
    assert row(recorded, "L4").fits
    for scenario in (Scenario(batch_size=40_000), Scenario(precision=TargetPrecision.FP8)):
        asked = report_on(run_analysis(trace, catalog, targets=targets, scenario=scenario))
        assert asked.memory is None
        assert "recorded allocations" in (asked.memory_unknown or "")
        assert row(asked, "L4").fits is None
