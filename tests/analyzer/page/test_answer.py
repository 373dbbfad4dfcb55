"""The first sentences of a report: which GPU to take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from wavecast.analyzer.iteration.report import AnalysisReport, GpuPrediction
from wavecast.analyzer.questions.analyze.page.answer import answer_lines

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
