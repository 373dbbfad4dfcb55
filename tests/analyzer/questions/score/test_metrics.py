"""Error figures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from wavecast.analyzer.measurements.metrics import error_figures, kendall_tau, mean_error


def test_figures_of_known_errors() -> None:
    measured, predicted = np.full(4, 100.0), np.array([90.0, 110.0, 120.0, 100.0])
    figures = error_figures(measured, predicted, 0.9 * predicted, 1.1 * predicted)
    assert figures.rows == 4
    assert figures.mape == pytest.approx(0.1)
    assert figures.bias == pytest.approx(0.05)
    assert figures.median_ape == pytest.approx(0.1)
    assert figures.p90_ape == pytest.approx(0.17)
    assert figures.coverage_90 == pytest.approx(0.5)
    assert figures.width_90 == pytest.approx(0.2)


def test_rows_without_an_interval_do_not_count_as_outside() -> None:
    measured = np.full(2, 1.0)
    figures = error_figures(measured, measured, np.array([0.9, np.nan]), np.array([1.1, np.nan]))
    assert figures.coverage_90 == 1.0
    assert np.isnan(error_figures(measured, measured, measured * np.nan, measured * np.nan).coverage_90)


def test_a_baseline_is_scored_where_it_says_something() -> None:
    assert mean_error(np.array([1.0, 1.0]), np.array([1.5, np.nan])) == pytest.approx(0.5)
    assert mean_error(np.array([1.0]), np.array([np.nan])) is None


@pytest.mark.parametrize(
    ("left", "right", "tau"),
    [
        ([1, 2, 3], [10, 20, 30], 1.0),
        ([1, 2, 3], [30, 20, 10], -1.0),
        ([1, 2, 3], [10, 30, 20], 1 / 3),
        ([1, 2, 2], [1, 2, 3], 2 / np.sqrt(6)),
    ],
)
def test_kendall_tau(left: list[float], right: list[float], tau: float) -> None:
    assert kendall_tau(np.array(left), np.array(right)) == pytest.approx(tau)


@given(st.lists(st.floats(1, 1e6), min_size=2, max_size=8, unique=True))
def test_a_ranking_agrees_with_itself(values: list[float]) -> None:
    ranked = np.array(values)
    assert kendall_tau(ranked, ranked) == pytest.approx(1.0)
    assert kendall_tau(ranked, -ranked) == pytest.approx(-1.0)
    assert np.isnan(kendall_tau(ranked, np.zeros(len(ranked))))
