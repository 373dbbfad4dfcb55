"""The first sentences of a report: which GPU to take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from wavecast.analyzer.iteration.report import AnalysisReport, GpuPrediction, RankPair
from wavecast.analyzer.questions.analyze.page.answer import answer_lines
from wavecast.analyzer.replay.causes import IdleCause

from .conftest import build_prediction

MILLISECOND_NS = 1e6


def row(number: int, iteration_ms: float, price: float | None = None) -> GpuPrediction:
    return build_prediction(
        f"GPU {number}",
        iteration_ms,
        iteration_low_ns=5.126 * MILLISECOND_NS,
        iteration_high_ns=25.126 * MILLISECOND_NS,
        price_usd_per_hour=price,
        speedup=None,
    )


def said(report: AnalysisReport, *rows: GpuPrediction, **changes: Any) -> list[str]:
    return list(answer_lines(replace(report, predictions=rows, **changes)))


@pytest.mark.parametrize("count", [20, 90])
def test_of_many_that_tie_none_is_named_as_the_fastest(count: int, measured_report: AnalysisReport) -> None:
    rows = [row(number, 10.0 + 0.001 * number, 100.0 - number) for number in range(count)]
    (line,) = said(measured_report, *rows, row(count, 20.0))
    assert line == (
        f"Fastest: {count} GPUs, all within 1 % of 10.0 ms (5.13–25.1 on GPU 0) per iteration; the cheapest of them "
        f"is GPU {count - 1} (${101 - count:.2f}/h), and no GPU costs less per iteration."
    )


def test_many_that_tie_without_a_price_are_counted(measured_report: AnalysisReport) -> None:
    (line,) = said(measured_report, *(row(number, 10.0) for number in range(20)))
    assert line == "Fastest: 20 GPUs, all within 1 % of 10.0 ms (5.13–25.1 on GPU 0) per iteration."


def test_the_first_of_few_that_tie_is_named(measured_report: AnalysisReport) -> None:
    rows = [row(0, 10.0, 3.0), row(1, 10.05, 2.0), *(row(number, 10.0 + number) for number in range(2, 20))]
    line = said(measured_report, *rows)[0]
    assert line.startswith("Fastest: GPU 0, 10.0 ms (5.13–25.1) per iteration. 2 GPUs lie within 1 % of the best; ")


def test_a_few_are_held_against_the_source_with_forward_ratios(measured_report: AnalysisReport) -> None:
    waits = {IdleCause.HOST: 8.4 * MILLISECOND_NS}
    ends: dict[str, Any] = {"iteration_low_ns": 1.0, "iteration_high_ns": 1.0}
    source = build_prediction("S", 10.0, is_source=True, price_usd_per_hour=4.0, **ends)
    rows = [
        build_prediction("A", 10.0, idle_ns=waits, price_usd_per_hour=4.0, **ends),
        build_prediction("B", 10.0, idle_ns=waits, price_usd_per_hour=1.72, **ends),
        build_prediction("C", 4.0, price_usd_per_hour=None, **ends),
        build_prediction("D", 23.0, price_usd_per_hour=4.0, **ends),
    ]
    pairs = tuple(
        RankPair(first=gpu, second="S", ratio_low=low, ratio_high=high, faster=0.5, cheaper=None)
        for gpu, low, high in (("A", 0.9, 1.2), ("B", 0.9, 1.2), ("C", 1 / 2.9, 1 / 2.1), ("D", 2.0, 2.5))
    )
    line = said(measured_report, source, *rows, rank_pairs=pairs)[0]
    assert line == (
        "Against S, 10.00 ms per iteration, as measured: A 1.00 × as fast (90 % interval 0.833–1.11), host-bound: "
        "84 % of the iteration the GPU waits, at about the same cost; B the same, at 0.430 of the cost; "
        "C 2.50 × faster (90 % interval 2.10–2.90); D 2.30 × slower (90 % interval 2.00–2.50), at 2.30 times the cost."
    )


@pytest.mark.parametrize(("is_source", "ends"), [(False, (10e6, 40e6)), (True, (None, None))])
def test_a_loop_is_as_uncertain_as_its_iteration_and_on_the_source_nobody_knows(
    is_source: bool, ends: tuple[float | None, float | None]
) -> None:
    row = build_prediction(
        "H200", 40.0, iteration_low_ns=20e6, iteration_high_ns=80e6, loop_ns=20e6, is_source=is_source
    )
    assert (row.loop_low_ns, row.loop_high_ns) == ends
