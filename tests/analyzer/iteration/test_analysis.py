"""From a trace to the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from wavecast.analyzer.iteration import op_rows
from wavecast.analyzer.iteration.analyze import analyze_trace
from wavecast.analyzer.iteration.report import AnalysisReport, GpuPrediction, OpPrediction
from wavecast.analyzer.models.frame.gpu_physics import capped_stretch
from wavecast.analyzer.models.library import Library
from wavecast.analyzer.prediction.prediction import Method
from wavecast.analyzer.prediction.ratios import UNREAD_SHARE
from wavecast.errors import InputError, UnknownGpuError
from wavecast.formats.trace.tables import Trace
from wavecast.specs.fleet import build_fleet
from wavecast.specs.gpu import Catalog, Gpu, Rate

GpuBuilder = Callable[..., Gpu]
TraceBuilder = Callable[..., Trace]
BUSY_NS = 120_000 + 1_000_000 + 100_000 + 200_000


def on(report: AnalysisReport, name: str) -> GpuPrediction:
    return next(item for item in report.predictions if item.gpu == name)


def op(report: AnalysisReport, name: str) -> OpPrediction:
    return next(item for item in report.ops if item.op == name)


def analyze(trace: Trace, *gpus: Gpu, **options: object) -> AnalysisReport:
    return analyze_trace(trace, Catalog(gpus=gpus), **options)  # type: ignore[arg-type]


def test_the_source_keeps_its_measured_times(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    found = on(analyze(toy_trace(), gpu()), "Base")
    assert found.is_source
    assert found.gpu_busy_ns == BUSY_NS
    assert found.iteration_ns == 2_000_000
    assert found.methods == {Method.MEASURED: 1.0}
    assert found.speedup == 1.0
    assert found.samples_per_s == pytest.approx(8 / 2e-3)


def test_an_equal_gpu_under_another_name_takes_as_long(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    report = analyze(toy_trace(), gpu(), gpu(name="Twin"))
    assert on(report, "Twin").iteration_ns == pytest.approx(2_000_000)
    assert not on(report, "Twin").is_source


def test_each_kernel_is_moved_by_its_own_method(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    rates = {Rate.FP32: 12.8e12, Rate.MATRIX_FP16: 400e12}
    fast = gpu(name="Fast", memory_bandwidth_bytes_per_s=2e12, peak_flops_per_s=rates, pcie_bandwidth_bytes_per_s=64e9)
    report = analyze(toy_trace(), gpu(), fast, targets=[fast], library=Library(fitted={}))
    fixed = 1_250
    assert op(report, "aten::add").method is Method.WAVE_SCALING
    # Nearly all of the bandwidth was reached, so that twice of it is worth nearly half; waves are equal.
    moved = 3 * 2 * 2**24
    gamma = min(moved / ((120_000 - fixed) * 1e-9 * 0.9 * 1e12), 1.0)
    assert gamma > 0.9
    assert op(report, "aten::add").predicted_ns == pytest.approx(fixed + (120_000 - fixed) * 0.5**gamma)
    # 2 · 4096³ FLOP at twice the rate: compute-bound on both.
    assert op(report, "aten::mm").method is Method.BOUND_RATIO
    assert op(report, "aten::mm").predicted_ns == pytest.approx(fixed + (1_000_000 - fixed) / 2)
    assert op(report, "aten::copy_").method is Method.LINK_RATIO
    assert op(report, "aten::copy_").predicted_ns == pytest.approx(fixed + (100_000 - fixed) / 2)
    # No op, no shapes: as much the memory's as such kernels usually are.
    assert op(report, "my_kernel").predicted_ns == pytest.approx(fixed + (200_000 - fixed) * 0.5**UNREAD_SHARE)
    assert sum(on(report, "Fast").methods.values()) == pytest.approx(1.0)
    fast_row = on(report, "Fast")
    assert fast_row.gpu_busy_ns == pytest.approx(sum(item.predicted_ns for item in report.ops))
    assert fast_row.gpu_busy_ns + sum(fast_row.idle_ns.values()) == pytest.approx(fast_row.iteration_ns)
    # The toy's kernels have no launches: they start when they did, and its host takes 2 ms whatever the GPU.
    assert fast_row.iteration_ns == pytest.approx(2_000_000)


def test_a_cap_slows_kernels_without_a_model_by_the_clock(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    capped = gpu(name="Capped", power_cap_w=0.5 * gpu().tdp_w)
    report = analyze(toy_trace(), gpu(), capped, targets=[capped], library=Library(fitted={}))
    free = on(analyze(toy_trace(), gpu(), targets=[gpu()], library=Library(fitted={})), gpu().name)
    drawing = replace(capped, drawn_ratio=(free.mean_power_w or 0.0) / capped.tdp_w)
    slower, usual = capped_stretch(build_fleet([drawing, capped])).tolist()
    assert 1.1 < slower < 0.95 * usual  # an iteration that waits draws less than a busy GPU
    fixed = 1_250
    assert op(report, "aten::mm").predicted_ns == pytest.approx(fixed + (1_000_000 - fixed) * slower)
    for name, measured_ns in (("aten::add", 120_000), ("my_kernel", 200_000)):
        assert measured_ns < op(report, name).predicted_ns < measured_ns * slower
    assert op(report, "aten::copy_").predicted_ns == pytest.approx(100_000)


def test_models_move_what_they_cover_and_leave_copies_to_their_link(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    rates = {Rate.FP32: 12.8e12, Rate.MATRIX_FP16: 400e12}
    fast = gpu(name="Fast", memory_bandwidth_bytes_per_s=2e12, peak_flops_per_s=rates, pcie_bandwidth_bytes_per_s=64e9)
    report = analyze(toy_trace(), gpu(), fast, targets=[fast])
    assert op(report, "aten::add").method is Method.ANCHORED_MODEL
    assert op(report, "aten::mm").method is Method.ANCHORED_MODEL
    assert op(report, "aten::copy_").method is Method.LINK_RATIO
    assert op(report, "my_kernel").method is Method.WAVE_SCALING
    for name, source_ns in (("aten::add", 120_000), ("aten::mm", 1_000_000)):
        found = op(report, name)
        assert found.predicted_low_ns is not None
        assert found.predicted_high_ns is not None
        assert found.predicted_low_ns < found.predicted_ns < found.predicted_high_ns
        assert 0.4 * source_ns < found.predicted_ns < 0.9 * source_ns


def test_no_prediction_is_under_its_bound(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    report = analyze(toy_trace(), gpu(), gpu(name="Huge", memory_bandwidth_bytes_per_s=1e15, sm_count=1000))
    bounded = [item for item in report.ops if item.bound_ns is not None]
    assert len(bounded) == 3
    assert all(item.predicted_ns >= item.bound_ns for item in bounded if item.bound_ns is not None)


def test_a_gpu_without_links_leaves_collectives_unmodelled(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    trace = toy_trace()
    strings = (*trace.strings[:6], "ncclDevKernel_AllReduce_Sum_f16_RING_LL", trace.strings[7])
    report = analyze(replace(trace, strings=strings), gpu(), gpu(name="Other"), targets=[gpu(name="Other")])
    found = op(report, "ncclDevKernel_AllReduce_Sum_f16_RING_LL")
    assert found.method is Method.UNMODELLED
    assert found.predicted_ns == 200_000
    assert any("communication" in warning for warning in report.warnings)


def test_ranked_fastest_first_with_the_source_among_the_targets(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    slow, fast = (gpu(name=name, memory_bandwidth_bytes_per_s=rate) for name, rate in (("S", 0.5e12), ("F", 2e12)))
    report = analyze(toy_trace(), gpu(), slow, fast, targets=[slow, fast])
    assert [item.gpu for item in report.predictions] == ["F", "Base", "S"]
    assert report.ops_gpu == "S"


def test_packages_of_several_devices_are_predicted_only_when_named(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    package = gpu(name="Two dies", is_package=True)
    assert [item.gpu for item in analyze(toy_trace(), gpu(), package).predictions] == ["Base"]
    assert any("Two dies" in warning for warning in analyze(toy_trace(), gpu(), package, targets=[package]).warnings)


def test_shapes_alone_give_rooflines_where_no_model_is_at_hand(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    empty = Trace()
    trace = toy_trace(kernels=empty.kernels, calls=empty.calls, devices=())
    found = on(analyze(trace, gpu(), library=Library(fitted={})), "Base")
    add_ns, mm_ns, copy_ns = 3 * 2**24 * 2 / 1e12 * 1e9, 2 * 4096**3 / 200e12 * 1e9, 2 * 2**20 * 2 / 1e12 * 1e9
    assert found.gpu_busy_ns == pytest.approx(add_ns + mm_ns + copy_ns)
    assert found.iteration_ns > found.gpu_busy_ns
    assert found.methods == {Method.ROOFLINE: 1.0}
    assert found.iteration_low_ns is not None
    assert found.iteration_low_ns <= found.iteration_ns
    assert found.iteration_high_ns is None
    assert found.speedup is None


def test_shapes_alone_give_model_times_with_an_interval(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    empty = Trace()
    trace = toy_trace(kernels=empty.kernels, calls=empty.calls, devices=())
    bare, found = (on(analyze(trace, gpu(), **options), "Base") for options in ({"library": Library(fitted={})}, {}))
    assert found.methods == {Method.OP_MODEL: 1.0}
    assert bare.iteration_ns < found.iteration_ns < 2 * bare.iteration_ns
    assert found.iteration_low_ns is not None
    assert found.iteration_high_ns is not None
    assert found.iteration_low_ns < found.iteration_ns < found.iteration_high_ns


def test_a_prediction_of_wide_interval_is_called_unreliable(
    gpu: GpuBuilder, toy_trace: TraceBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = Trace()
    trace = toy_trace(kernels=empty.kernels, calls=empty.calls, devices=())
    near = gpu()
    assert "unreliable" not in op(analyze(trace, near, targets=[near]), "aten::mm").reason
    monkeypatch.setattr(op_rows, "UNRELIABLE_FACTOR", 1.01)
    assert "unreliable: 90 % interval a factor of" in op(analyze(trace, near, targets=[near]), "aten::mm").reason


def test_an_unknown_source_gpu_is_named(gpu: GpuBuilder, toy_trace: TraceBuilder) -> None:
    with pytest.raises(UnknownGpuError, match=r"'Mystery 9000'.*name .* with source"):
        analyze(toy_trace(device="Mystery 9000"), gpu())
    assert on(analyze(toy_trace(device="Mystery 9000"), gpu(), source=gpu()), "Base").is_source


def test_a_trace_without_ops_is_refused(gpu: GpuBuilder) -> None:
    with pytest.raises(InputError, match="no ops and no kernels"):
        analyze(Trace(), gpu())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    bandwidth=st.floats(1e11, 1e13), clock=st.floats(5e8, 3e9), sms=st.integers(1, 500), matrix=st.floats(1e13, 5e15)
)
def test_any_gpu_gets_a_finite_time_over_the_bound(
    gpu: GpuBuilder, toy_trace: TraceBuilder, bandwidth: float, clock: float, sms: int, matrix: float
) -> None:
    rates = {Rate.FP32: 128.0 * sms * clock, Rate.MATRIX_FP16: matrix}
    target = gpu(
        name="Any",
        memory_bandwidth_bytes_per_s=bandwidth,
        boost_clock_hz=clock,
        sm_count=sms,
        peak_flops_per_s=rates,
    )
    report = analyze(toy_trace(), gpu(), target, targets=[target])
    assert 580_000 < on(report, "Any").iteration_ns < float("inf")
    for item in report.ops:
        assert item.bound_ns is None or item.predicted_ns >= item.bound_ns * (1 - 1e-9)
