"""A GPU whose figures vary: what follows, what it comes to, and how sure that is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wavecast.analyzer.iteration.analyze import run_analysis
from wavecast.analyzer.questions.sweep.axes import known_names
from wavecast.analyzer.questions.sweep.figures import FIGURES, find_figure, plain
from wavecast.analyzer.questions.sweep.imagined import varied_figures, vary_gpu
from wavecast.analyzer.questions.sweep.intervals import hold_to_physics
from wavecast.analyzer.questions.sweep.report import SweepLimit, SweepReport
from wavecast.analyzer.questions.sweep.sensitivity import find_sensitivity
from wavecast.analyzer.questions.sweep.sweep import SweepQuestion, sweep_trace
from wavecast.errors import InputError
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.tables import Trace
from wavecast.specs.catalog import imagine_gpus, load_catalog
from wavecast.specs.gpu import Gpu, Rate
from wavecast.specs.match import find_gpu

CATALOG = load_catalog()
TOGETHER = {"memory.pin_rate", "memory.bus", "clock", "matrix", "vector"}
"""Figures that are several keys of the catalogue."""


def named(name: str) -> Gpu:
    return find_gpu(CATALOG, name)


@pytest.fixture(scope="module")
def gpt2(root_dir: Path) -> Trace:
    return load_trace(root_dir / "samples" / "gpt2_small-training-bf16-b4-shapes.json.gz")


def ask(trace: Trace, gpu: str = "h100sxm", **changes: Any) -> SweepQuestion:
    return SweepQuestion(trace=trace, catalog=CATALOG, gpu=named(gpu), **changes)


def sweep(trace: Trace, gpu: str = "h100sxm", **vary: str) -> SweepReport:
    return sweep_trace(ask(trace, gpu), {name.replace("__", "."): text for name, text in vary.items()})


@pytest.mark.parametrize(
    ("base", "other"),
    [
        ("h100 pcie", "h200 sxm"),
        ("h100 sxm", "h200 sxm"),
        ("a100 sxm4 40gb", "a100 sxm4 80gb"),
        ("l4", "l40s"),
        ("mi300x", "mi325x"),
    ],
)
def test_a_gpu_with_all_figures_of_another_is_predicted_as_it(base: str, other: str, gpt2: Trace) -> None:
    first, second = named(base), named(other)
    figures = [(item, item.read(second)) for item in FIGURES if item.name not in TOGETHER]
    wanted = tuple((figure, value) for figure, value in figures if value)
    changed = varied_figures(first, wanted)
    assert {"memory.bandwidth", "memory.size"} <= {figure.name for figure, _ in changed}
    (copy,) = vary_gpu(first, {f"{first.name} as another": changed}, None)
    result = run_analysis(gpt2, CATALOG, targets=[second, copy])
    np.testing.assert_allclose(result.forecast.iteration_ns[1], result.forecast.iteration_ns[0], rtol=1e-12)
    np.testing.assert_allclose(result.prediction.time_ns[:, 1], result.prediction.time_ns[:, 0], rtol=1e-12)


def test_what_follows_from_a_figure_follows() -> None:
    base = named("h100 sxm")

    def varied(name: str, ratio: float) -> Gpu:
        figure = find_figure(name)
        assert figure is not None
        value = figure.read(base)
        assert value is not None
        return vary_gpu(base, {"varied": ((figure, value * ratio),)}, None)[0]

    for name in ("sms", "clock"):
        twice = varied(name, 2.0)
        for rate in (Rate.MATRIX_BF16, Rate.FP32, Rate.MATRIX_FP8):
            assert twice.peak_flops_per_s[rate] == pytest.approx(2 * base.peak_flops_per_s[rate])
        assert twice.memory_bandwidth_bytes_per_s == base.memory_bandwidth_bytes_per_s
    clock = varied("clock", 2.0)
    assert clock.matrix_clock_hz == pytest.approx(2 * (base.matrix_clock_hz or 0.0))
    assert clock.base_clock_hz == pytest.approx(2 * (base.base_clock_hz or 0.0))
    for name in ("memory.pin_rate", "memory.bus"):
        assert varied(name, 2.0).memory_bandwidth_bytes_per_s == pytest.approx(2 * base.memory_bandwidth_bytes_per_s)
    size = varied("memory.size", 2.0)
    assert size.reported_memory_bytes == pytest.approx(2 * (base.reported_memory_bytes or 0), abs=2)
    matrix = varied("matrix", 2.0)
    assert matrix.peak_flops_per_s[Rate.MATRIX_FP8] == pytest.approx(2 * base.peak_flops_per_s[Rate.MATRIX_FP8])
    assert matrix.peak_flops_per_s[Rate.FP32] == base.peak_flops_per_s[Rate.FP32]
    assert varied("pcie.bandwidth", 2.0).pcie_bandwidth_bytes_per_s == 2 * base.pcie_bandwidth_bytes_per_s


def test_a_gpu_of_a_file_can_be_imagined_on(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[[gpu]]\nname = "Mine"\nbased_on = "L40S"\nmemory = { bandwidth_gb_per_s = 1000 }\n')
    (found,) = imagine_gpus("Mine", {"Mine, bigger": {"memory": {"size_gib": 96}}}, path)
    assert (found.memory_bandwidth_bytes_per_s, found.memory_bytes) == (1e12, 96 * 2**30)
    with pytest.raises(InputError, match=r"imagined: Mine, bigger: memory\.size_gib"):
        imagine_gpus("Mine", {"Mine, bigger": {"memory": {"size_gib": -1}}}, path)


def test_every_figure_can_be_named_as_in_a_file_and_varied() -> None:
    for name in ("memory.bandwidth_gb_per_s", "Memory Bandwidth", "bandwidth", "memory-bandwidth", "memory_bandwidth"):
        found = find_figure(name)
        assert found is not None
        assert found.name == "memory.bandwidth"
    assert len(known_names()) == len(set(known_names()))
    spelled = [alias for item in FIGURES for alias in {plain(name) for name in (item.name, *item.aliases)}]
    assert len(spelled) == len(set(spelled))
    base = named("h100 sxm")
    for figure in FIGURES:
        value = figure.read(base)
        if value is not None:
            more = round(value * 1.5 / figure.step) * figure.step if figure.step else value * 1.5
            (gpu,) = vary_gpu(base, {"more": ((figure, more),)}, None)
            assert figure.read(gpu) == pytest.approx(more), figure.name


def test_more_bandwidth_is_faster_until_it_saturates(gpt2: Trace) -> None:
    report = sweep(gpt2, memory__bandwidth="0.5x..16x:11")
    times = [point.iteration_ns for point in report.points]
    assert times == sorted(times, reverse=True)
    unvaried = next(point for point in report.points if report.axes[0].ratio(point.at[0]) == pytest.approx(1))
    assert unvaried.iteration_ns == pytest.approx(report.base.iteration_ns)
    assert (unvaried.speedup_low, unvaried.speedup_high) == pytest.approx((1.0, 1.0))
    (knee,) = report.knees
    assert knee.is_saturated
    assert 0 <= knee.gain_beyond <= 0.02
    assert not report.slower_with_more
    ratio = [report.axes[0].ratio(point.at[0]) or 0.0 for point in report.points]
    for at, point in zip(ratio, report.points, strict=True):
        assert sum(point.shares.values()) == pytest.approx(1.0, abs=1e-6)
        assert point.speedup_low is not None
        assert point.speedup_high is not None
        assert point.speedup_low <= point.speedup <= point.speedup_high
        assert min(1.0, at) - 1e-9 <= point.speedup_low
        assert point.speedup_high <= max(1.0, at) + 1e-9
    memory = [point.shares.get(SweepLimit.MEMORY, 0.0) for point in report.points]
    assert memory == sorted(memory, reverse=True)


def test_points_that_no_gpu_comes_near_are_marked_and_wider(gpt2: Trace) -> None:
    report = sweep(gpt2, "l40s", matrix="1x,4x,40x,160x")
    assert [bool(point.beyond) for point in report.points] == [False, True, True, True]
    assert report.points[1].beyond == ("matrix rate per memory bandwidth",)
    assert all("matrix" in point.beyond for point in report.points[2:])
    near, far = (report.points[at] for at in (1, 3))
    relative = [(point.iteration_high_ns or 0.0) / point.iteration_ns for point in (near, far)]
    assert relative[1] > relative[0]


def test_the_size_of_memory_changes_what_fits_and_no_time(gpt2: Trace) -> None:
    report = sweep(gpt2, memory__size="2GiB,80GiB")
    small, large = report.points
    assert (small.fits, large.fits) == (False, True)
    assert small.iteration_ns == large.iteration_ns == report.base.iteration_ns
    assert not small.beyond


def test_two_parameters_are_a_grid_of_one_prediction(gpt2: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    from wavecast.analyzer.questions.sweep import sweep as module

    calls = []
    monkeypatch.setattr(module, "build_result", lambda *_, **__: calls.append(1))
    report = sweep(gpt2, memory__bandwidth="1x,2x,4x", sms="66,132")
    assert not calls
    assert [point.at for point in report.points] == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]
    assert len(report.knees) == 2
    as_is = next(point for point in report.points if point.at == (0, 1))
    assert as_is.iteration_ns == report.base.iteration_ns
    assert report.points[-1].speedup > report.points[0].speedup


def test_sizes_of_the_iteration_are_compared_by_work(gpt2: Trace) -> None:
    report = sweep(gpt2, batch="4,16")
    same, larger = report.points
    assert same.speedup == pytest.approx(1.0)
    assert larger.iteration_ns > same.iteration_ns
    assert larger.speedup == pytest.approx(4 * report.base.iteration_ns / larger.iteration_ns)
    assert (larger.samples_per_s or 0) / (same.samples_per_s or 1) == pytest.approx(larger.speedup)


def test_a_figure_goes_with_a_precision(gpt2: Trace) -> None:
    report = sweep(gpt2, "l40s", memory__bandwidth="1x,2x", precision="recorded,fp8")
    assert [axis.values for axis in report.axes][1] == ("recorded", "fp8")
    by_place = {point.at: point.speedup for point in report.points}
    assert by_place[0, 0] == pytest.approx(1.0)
    assert by_place[1, 0] > 1
    assert by_place[1, 1] > by_place[1, 0]


def test_a_measured_gpu_varies_from_what_was_measured(data_dir: Path) -> None:
    trace = load_trace(data_dir / "traces" / "h100_vit_small_inference.json.gz")
    report = sweep_trace(ask(trace, "h100 sxm"), {"host": "1,2"})
    one, two = report.points
    assert one.iteration_ns == pytest.approx(report.base.iteration_ns)
    assert report.base.iteration_ns == pytest.approx(report.source.iteration_ns, rel=0.01)
    assert 1.9 < two.speedup <= 2.0 + 1e-9
    clocks = sweep_trace(ask(trace, "h100 sxm"), {"clock": "1x,1.2x"})
    assert clocks.points[0].iteration_low_ns == clocks.points[0].iteration_high_ns  # the host is the recorded one


@pytest.mark.parametrize(
    ("vary", "part"),
    [
        ({}, "one parameter or two"),
        ({"sms": "1x", "clock": "1x", "batch": "1"}, "one parameter or two, found 3"),
        ({"memory.bandwith": "2x"}, "did you mean memory.bandwidth"),
        ({"sms": "1x", "clocks.sm_count": "2x"}, "stands there twice"),
        ({"memory.bandwidth": "1x", "memory.bus": "1x"}, "both set memory.bandwidth"),
        ({"matrix": "1x", "matrix.bf16": "2x"}, "both set matrix"),
        ({"clock": "1x", "clocks.boost_mhz": "2x"}, "both set clock"),
        ({"precision": "bf17"}, "expected some of recorded, bf16"),
        ({"matrix.fp4": "2x"}, "none that could be varied"),
        ({"memory.bandwidth": "1x..4x:100", "sms": "1x..2x:60"}, "6,000 points"),
        ({"batch": "1..150:+1"}, "at most 100"),
        ({"cached-tokens": "2x"}, "none to multiply"),
    ],
)
def test_what_cannot_be_varied_is_refused(vary: dict[str, str], part: str, gpt2: Trace) -> None:
    with pytest.raises(InputError, match=part):
        sweep_trace(ask(gpt2), vary)


def test_less_power_than_the_board_has_is_a_cap(gpt2: Trace) -> None:
    cut = [sweep(gpt2, gpu, tdp="200W,400W,700W").points for gpu in ("h100sxm", "h100sxm@400W")]
    asked = run_analysis(gpt2, CATALOG, targets=[named(f"h100sxm@{watts}W") for watts in (200, 400, 700)])
    for points in cut:
        assert [point.iteration_ns for point in points] == pytest.approx(asked.forecast.iteration_ns[:3])
    found = {item.name: item for item in find_sensitivity(ask(gpt2, "h100sxm@175W")).figures}
    assert found["tdp"].elasticity < -0.5


def test_sensitivity_is_the_slope_of_a_sweep(gpt2: Trace) -> None:
    report = find_sensitivity(ask(gpt2, "l40s"))
    found = {item.name: item for item in report.figures}
    assert {"memory.bandwidth", "clock", "sms", "matrix", "host"} <= set(found)
    assert "link.bandwidth" in report.absent
    ordered = [item.elasticity for item in report.figures]
    assert ordered == sorted(ordered)
    swept = sweep(gpt2, "l40s", memory__bandwidth="0.9090909090909091x,1.1x")
    less, more = (point.iteration_ns for point in swept.points)
    slope = np.log(more / less) / (2 * np.log(1.1))
    assert found["memory.bandwidth"].elasticity == pytest.approx(slope)
    for item in report.figures:
        assert item.low <= item.elasticity <= item.high
        assert -1.0 - 0.3 < item.elasticity < 0.05


def test_physics_holds_the_ends_of_a_change() -> None:
    assert hold_to_physics(0.8, 3.0, [2.0], is_linear=True) == (1.0, 2.0)
    assert hold_to_physics(0.8, 3.0, [2.0], is_linear=False) == (1.0, 3.0)
    assert hold_to_physics(0.2, 1.3, [0.5], is_linear=True) == (0.5, 1.0)
    assert hold_to_physics(0.2, 1.3, [0.5, 2.0], is_linear=True) == (0.2, 1.3)
