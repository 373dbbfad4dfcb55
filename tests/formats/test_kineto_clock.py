"""Times are converted from their digits, exactly."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec import Raw
from wavecast.formats.kineto.values import read_microseconds


def convert(*texts: str) -> list[int | None]:
    times = read_microseconds([Raw(text.encode()) for text in texts])
    return [ns if good else None for ns, good in zip(times.ns.tolist(), times.is_valid.tolist(), strict=True)]


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0),
        ("12", 12_000),
        ("1683564901548726.123", 1_683_564_901_548_726_123),
        ("1712195495519698.8", 1_712_195_495_519_698_800),
        ("0.001", 1),
        ("7.5", 7_500),
        ("3.0004", 3_000),
        ("3.0005", 3_001),
        ("1e3", 1_000_000),
        ("-1.5E-2", -15),
        ('"42.25"', 42_250),
        ("-12", -12_000),
    ],
)
def test_every_way_to_write_a_time(text: str, ns: Any) -> None:
    assert convert(text, "1") == [ns, 1000]


NO_TIMES = ["", "null", "NaN", '"NaN"', "{}", "[1]", '"soon"', "1e400", "9" * 30, "2500000000000000", "-1e16"]


@pytest.mark.parametrize("text", [*NO_TIMES, "{\n}", "true"])
def test_what_is_no_time_is_marked(text: str) -> None:
    assert convert("5", text, "6.5") == [5_000, None, 6_500]


def test_no_times() -> None:
    assert convert() == []


@given(st.lists(st.decimals(0, 2 * 10**15, places=6, allow_nan=False), min_size=1, max_size=20))
def test_digits_agree_with_exact_arithmetic(values: Any) -> None:
    texts = [f"{value:f}" for value in values]
    expected = [int((value * 1000).to_integral_value(ROUND_HALF_UP)) for value in map(Decimal, texts)]
    assert convert(*texts) == expected
