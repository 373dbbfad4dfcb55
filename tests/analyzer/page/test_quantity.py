"""Numbers as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from wavecast.analyzer.page.quantity import (
    MILLISECONDS,
    TimeUnit,
    common_time_unit,
    digits_within,
    format_bytes,
    format_change,
    format_count,
    format_error,
    format_number,
    format_rate,
    format_share,
    format_time,
    format_time_range,
)
from wavecast.analyzer.questions.analyze.page.gpu_sheet import interval_words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.00012344, "0.000123"),
        (0.0123, "0.0123"),
        (0.99996, "1.00"),
        (1.234, "1.23"),
        (9.996, "10.00"),
        (12.345, "12.35"),
        (99.996, "100.0"),
        (123.45, "123.5"),
        (1234.5, "1,234"),
        (1234567, "1,235,000"),
        (-1.5, "-1.50"),
        (float("nan"), "–"),
        (float("inf"), "–"),
    ],
)
def test_number(value: float, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("value_ns", "unit", "text"),
    [
        (0.5, None, "0.500 ns"),
        (1500, None, "1.50 µs"),
        (2.5e6, None, "2.50 ms"),
        (61.5e9, None, "61.50 s"),
        (300e3, MILLISECONDS, "0.300 ms"),
        (1e3, MILLISECONDS, "1.00 µs"),
        (0, MILLISECONDS, "0"),
        (200e9, MILLISECONDS, "200.0 s"),
        (None, MILLISECONDS, "–"),
    ],
)
def test_time(value_ns: float | None, unit: TimeUnit | None, text: str) -> None:
    assert format_time(value_ns, unit) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(1e6, 2e6, "1.00–2.00 ms"), (1e6, None, "≥ 1.00 ms"), (None, 2e6, "≤ 2.00 ms"), (None, None, "–")],
)
def test_time_range(low: float | None, high: float | None, text: str) -> None:
    assert format_time_range(low, high, MILLISECONDS) == text


def test_the_common_unit_suits_the_median() -> None:
    assert common_time_unit([2e6, 3e6, 4e9, None]) == MILLISECONDS
    assert common_time_unit([]) == MILLISECONDS


@pytest.mark.parametrize(
    ("ratio", "text"), [(0.0, "0 %"), (0.001, "<1 %"), (0.42, "42 %"), (1.0, "100 %"), (None, "–")]
)
def test_share(ratio: float | None, text: str) -> None:
    assert format_share(ratio) == text


@pytest.mark.parametrize(
    ("ratio", "error", "change", "fine"),
    [
        (0.1234, "12.3 %", "+12.3 %", "+12.34 %"),
        (-0.05, "-5.0 %", "-5.0 %", "-5.00 %"),
        (0.0, "0.0 %", "+0.0 %", "+0.00 %"),
        (None, "–", "–", "–"),
        (float("nan"), "–", "–", "–"),
    ],
)
def test_errors_and_changes(ratio: float | None, error: str, change: str, fine: str) -> None:
    assert (format_error(ratio), format_change(ratio), format_change(ratio, decimals=2)) == (error, change, fine)


def test_sizes_and_rates() -> None:
    assert format_bytes(512) == "512 B"
    assert format_bytes(80 * 2**30) == "80 GiB"
    assert format_bytes(2.75 * 2**20) == "2.75 MiB"
    assert format_bytes(float("inf")) == format_rate(float("inf"), "B/s") == format_time(float("nan")) == "–"
    assert format_rate(3.352e12, "B/s") == "3.35 TB/s"
    assert format_rate(600e9, "B/s") == "600 GB/s"
    assert format_count(1, "copy", "copies") == "1 copy"
    assert format_count(1234, "op") == "1,234 ops"


@given(st.floats(min_value=1e-12, max_value=1e15))
def test_a_number_keeps_three_digits(value: float) -> None:
    assert float(format_number(value).replace(",", "")) == pytest.approx(value, rel=6e-3)


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (16.02, 8.02, 40.06, "16.0"),
        (249.7, 100.0, 400.0, "250"),
        (255_612.0, 1e5, 4e5, "256,000"),
        (9.996, 5.0, 20.0, "10.0"),
        (1.234, 0.8, 2.0, "1.23"),
        (0.04567, 0.02, 0.1, "0.0457"),
        (16.02, 15.8, 16.3, "16.02"),
        (16.02, None, None, "16.02"),
        (16.02, 16.02, 16.02, "16.02"),
    ],
)
def test_a_value_within_a_wide_interval_keeps_three_digits(
    value: float, low: float | None, high: float | None, text: str
) -> None:
    assert format_number(value, digits_within(low, high)) == text


def test_ends_that_differ_by_rounding_are_no_interval() -> None:
    assert interval_words(17988796.0, 17988796.00000001, 1e6) == ""
    assert interval_words(17.0e6, 19.0e6, 1e6) == "17.0–19.0"
