"""The sentences above the tables: what was asked, what is not known, and what the path goes to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from wavecast.analyzer.graph.critical import PathSummary
from wavecast.analyzer.iteration.report import FASTER_HOST, AnalysisReport
from wavecast.analyzer.questions.analyze.page.headline import background, headline, verdict
from wavecast.analyzer.whatif.scenario import Scenario, TargetPrecision


def line_of(report: AnalysisReport, start: str) -> str | None:
    return next(
        (
            line
            for line in (*headline(report, "trace.json"), *verdict(report), *background(report))
            if line.startswith(start)
        ),
        None,
    )


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        (Scenario(batch_size=1_024), "a batch of 1,024"),
        (Scenario(precision=TargetPrecision.BF16, cuda_graph=True), "bf16 arithmetic, launches by CUDA graphs"),
        (Scenario(fuse_elementwise=True, cpu_speed=2.0), "pointwise ops merged"),
    ],
)
def test_what_was_asked_is_said(scenario: Scenario, words: str, measured_report: AnalysisReport) -> None:
    assert line_of(replace(measured_report, scenario=scenario), "What if") == f"What if, on every GPU below: {words}."


@pytest.mark.parametrize("scenario", [Scenario(), Scenario(cpu_speed=2.0, recorded_batch_size=4)])
def test_nothing_asked_is_not_said(scenario: Scenario, measured_report: AnalysisReport) -> None:
    assert line_of(replace(measured_report, scenario=scenario), "What if") is None


def test_memory_that_is_not_known_has_a_reason(measured_report: AnalysisReport) -> None:
    unknown = replace(measured_report, memory=None, memory_unknown="nothing was recorded")
    assert line_of(unknown, "Memory") == "Memory is not known: nothing was recorded."


def test_the_shares_of_the_path_add_up(measured_report: AnalysisReport) -> None:
    path = PathSummary(length_ns=100.0, node_ns={"kernel": 30.0}, edge_ns={"launch": 10.0}, unexplained_ns=60.0)
    assert line_of(replace(measured_report, critical_path=path), "Critical path") == (
        "Critical path on A100 SXM4 80GB: time for which nothing is recorded 60 %, kernels 30 %, launch latency 10 %."
    )


@pytest.mark.parametrize(
    ("host_speedup", "said"),
    [
        (1.029, "faster kernels help more than a faster CPU, though for 15 % the GPU waits for launches"),
        (1.51, "your CPU is the limit: 15 % of the iteration the GPU waits for launches"),
    ],
)
def test_the_cpu_is_the_limit_where_a_faster_one_helps_more(
    measured_report: AnalysisReport, host_speedup: float, said: str
) -> None:
    gains = tuple(
        replace(gain, speedup=host_speedup) if gain.change == FASTER_HOST else gain for gain in measured_report.gains
    )
    line = line_of(replace(measured_report, gains=gains), "On A100") or ""
    assert line.startswith(f"On A100 SXM4 80GB {said}. Replayed there, one change more gives:")


def test_what_a_replay_shows_to_help_is_offered(measured_report: AnalysisReport) -> None:
    line = line_of(measured_report, "On A100") or ""
    assert line.endswith(
        "Replayed there, one change more gives: CUDA graphs 1.18× (--cuda-graph), a batch twice as large at least "
        "1.10× (--batch 64); kernels twice as fast 1.50×."
    )


def test_where_nothing_helps_nothing_is_offered(measured_report: AnalysisReport) -> None:
    useless = tuple(replace(gain, speedup=1.01) for gain in measured_report.gains)
    line = line_of(replace(measured_report, gains=useless), "On A100") or ""
    assert line.endswith(
        "Replayed there, neither CUDA graphs, a faster host nor a larger batch help; kernels twice as fast 1.01×."
    )
