"""What the report offers is what a replay gives, and a change that changes nothing says why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from wavecast.analyzer.iteration.analyze import report_on, run_analysis
from wavecast.analyzer.iteration.gains import name_limit_changes
from wavecast.analyzer.iteration.report import FASTER_KERNELS, AnalysisReport
from wavecast.analyzer.models.library import Library
from wavecast.analyzer.whatif.scenario import Scenario, TargetPrecision
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.tables import Device, SyncKind, Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu

CATALOG = load_catalog()
SOURCE = "A100 SXM4 80GB"
FASTER_HOST, CUDA_GRAPHS, LARGER_BATCH = "a host twice as fast", "CUDA graphs", "a batch twice as large at least"
GPT2 = "gpt2_small-inference-bf16-b4-shapes.json.gz"


def ask(trace: Trace, gpu: str, **scenario: Any) -> AnalysisReport:
    gpus = [find_gpu(CATALOG, gpu)]
    return report_on(run_analysis(trace, CATALOG, targets=gpus, scenario=Scenario(**scenario)), ops_gpu=gpus[0])


def length_ns(report: AnalysisReport) -> float:
    return next(row.iteration_ns for row in report.predictions if row.gpu == report.ops_gpu)


def gains(report: AnalysisReport) -> dict[str, float]:
    return {gain.change: gain.speedup for gain in report.gains}


def reasons(report: AnalysisReport) -> list[str]:
    return [warning for warning in report.warnings if "changes nothing" in warning]


def synced(recording: Any, *, launches: int = 1, kernel_ns: int = 5_000) -> Trace:
    """Every `launches` launches the host waits for the GPU: 20 times."""
    at = 1_000
    for _ in range(20):
        first = at
        for _ in range(launches):
            recording.launch(at, 2_000, max(at + 3_000, first + 3_000), kernel_ns)
            at += 3_000
        done = max(at, first + 3_000 + launches * kernel_ns) + 1_000
        call = recording.call("cudaDeviceSynchronize", at, done - at)
        recording.sync(SyncKind.DEVICE, call)
        at = done + 1_000
    recording.op(500, at, name="aten::add")
    recording.iteration(0, at, 0, at)
    trace: Trace = recording.trace(devices=(Device(name="NVIDIA A100-SXM4-80GB", sm_count=108),))
    return trace


@pytest.fixture(scope="module")
def gpt2(root_dir: Path) -> Trace:
    return load_trace(root_dir / "samples" / GPT2)


@pytest.mark.parametrize(
    ("change", "scenario"),
    [(FASTER_HOST, {"cpu_speed": 2.0}), (CUDA_GRAPHS, {"cuda_graph": True})],
)
def test_a_gain_is_what_the_change_gives_when_it_is_asked_for(
    change: str, scenario: dict[str, Any], gpt2: Trace
) -> None:
    report = ask(gpt2, "H100 SXM")
    expected = length_ns(report) / length_ns(ask(gpt2, "H100 SXM", **scenario))
    assert gains(report)[change] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "scenario", [{"fuse_elementwise": True, "cpu_speed": 0.25}, {"cpu_speed": 0.8}, {"batch_size": 2}]
)
def test_gains_are_on_top_of_what_was_asked(scenario: dict[str, Any], gpt2: Trace) -> None:
    report = ask(gpt2, "H100 SXM", **scenario)
    both = ask(gpt2, "H100 SXM", **scenario, cuda_graph=True)
    assert gains(report)[CUDA_GRAPHS] == pytest.approx(length_ns(report) / length_ns(both), rel=1e-6)


def test_a_larger_batch_gains_at_least_what_is_said(gpt2: Trace) -> None:
    report = ask(gpt2, "H100 SXM")
    doubled = 2 * length_ns(report) / length_ns(ask(gpt2, "H100 SXM", batch_size=8))
    assert 1.0 < gains(report)[LARGER_BATCH] <= doubled
    assert next(gain.option for gain in report.gains if gain.change == LARGER_BATCH) == "batch=8"


def test_gains_stand_largest_first_and_faster_kernels_last(gpt2: Trace) -> None:
    report = ask(gpt2, "H100 SXM")
    offered = [gain.speedup for gain in report.gains[:-1]]
    assert offered == sorted(offered, reverse=True)
    assert report.gains[-1].change == FASTER_KERNELS


def test_nothing_is_offered_where_the_gpu_is_the_limit(gpt2: Trace) -> None:
    assert ask(gpt2, "T4").gains == ()


def test_what_was_asked_is_not_offered_again(gpt2: Trace) -> None:
    small = ask(gpt2, "H100 SXM", batch_size=2, cuda_graph=True)
    assert CUDA_GRAPHS not in gains(small)


@pytest.mark.parametrize(
    ("scenario", "said"),
    [
        ({"batch_size": 4}, "batch=4 changes nothing: it is the batch size of the recording"),
        ({"batch_size": 8, "recorded_batch_size": 7_777}, "no recorded size holds a batch of 7,777"),
        ({"precision": TargetPrecision.BF16}, "its products run in bfloat16 already"),
        ({"cuda_graph": True}, "cuda_graph changes nothing on Tesla T4: the GPU is busy for 100% of the iteration"),
        ({"cpu_speed": 3.0}, "host=3 changes nothing on Tesla T4: the GPU is busy"),
        ({"cpu_speed": 1.0}, "it is as fast as the host that the replay has anyway"),
    ],
)
def test_a_change_that_changes_nothing_says_why(scenario: dict[str, Any], said: str, gpt2: Trace) -> None:
    (reason,) = reasons(ask(gpt2, "T4", **scenario))
    assert said in reason


@pytest.mark.parametrize(
    "scenario",
    [{}, {"batch_size": 8}, {"precision": TargetPrecision.FP8}, {"cuda_graph": True}, {"cpu_speed": 2.0}],
)
def test_a_change_that_changes_something_is_not_explained_away(scenario: dict[str, Any], gpt2: Trace) -> None:
    assert reasons(ask(gpt2, "H100 SXM", **scenario)) == []


def test_launches_between_synchronisations_become_no_cuda_graph(recording: Any) -> None:
    (reason,) = reasons(ask(synced(recording), SOURCE, cuda_graph=True))
    assert "no two launches follow each other that a graph could hold: synchronisations" in reason


def test_a_host_that_waits_for_the_gpu_gains_nothing_from_cuda_graphs(recording: Any) -> None:
    (reason,) = reasons(ask(synced(recording, launches=4, kernel_ns=300_000), SOURCE, cuda_graph=True))
    assert "changes nothing on A100 SXM4 80GB: the GPU is busy for" in reason
    assert "for synchronisations" in reason


def test_a_trace_without_pointwise_ops_has_nothing_to_merge(recording: Any) -> None:
    (reason,) = reasons(ask(synced(recording), SOURCE, fuse_elementwise=True))
    assert "no pointwise kernel reads what the one before it wrote" in reason


def test_another_precision_changes_nothing_where_the_host_is_all_there_is(root_dir: Path) -> None:
    trace = load_trace(root_dir / "samples" / "dcgan-inference-fp32-b64-shapes.json.gz")
    slow: dict[str, Any] = {"cpu_speed": 0.01, "precision": TargetPrecision.BF16}
    (reason,) = reasons(ask(trace, "GB200", **slow))
    assert reason.startswith("precision='bf16' changes nothing on GB200 (per GPU): the GPU is busy for")
    without = replace(Scenario(**slow), precision=None)
    result = run_analysis(trace, CATALOG, targets=[find_gpu(CATALOG, "GB200")], scenario=without)
    assert float(result.forecast.iteration_ns[0]) == pytest.approx(length_ns(ask(trace, "GB200", **slow)), rel=0.005)


def test_a_library_of_ones_own_predicts_the_precision_that_was_recorded(root_dir: Path) -> None:
    trace = load_trace(root_dir / "samples" / "dcgan-inference-fp32-b64-shapes.json.gz")
    gpus = [find_gpu(CATALOG, "GB200")]
    scenario = Scenario(cpu_speed=0.01, precision=TargetPrecision.BF16)
    result = run_analysis(trace, CATALOG, targets=gpus, scenario=scenario, library=Library(fitted={}))
    assert any("precision='bf16' changes nothing" in warning for warning in report_on(result).warnings)


def test_a_gpu_that_becomes_the_limit_is_named(root_dir: Path) -> None:
    """On the H100 launches limit this network; a T4 is slower than its host, an L40S is not."""
    trace = load_trace(root_dir / "samples" / "vit_small-inference-bf16-b4-h100.json.gz")
    gpus = [find_gpu(CATALOG, name) for name in ("H100 SXM5 80GB", "Tesla T4", "L40S")]
    report = report_on(run_analysis(trace, CATALOG, targets=gpus))
    (named,) = [warning for warning in report.warnings if "the GPU is the limit" in warning]
    assert named.startswith("the host limits H100 SXM5 80GB (84 %")
    assert named.endswith("but on Tesla T4 the GPU is the limit")


def test_a_host_that_becomes_the_limit_is_named() -> None:
    rows = [SimpleNamespace(gpu=name, host_limited_ratio=ratio) for name, ratio in (("T4", 0.02), ("H100", 0.7))]
    (named,) = name_limit_changes("T4", rows)  # type: ignore[arg-type]
    assert named.startswith("T4 is the limit itself (2 %")
    assert "on H100 the host is" in named
    assert list(name_limit_changes(None, rows)) == []  # type: ignore[arg-type]
