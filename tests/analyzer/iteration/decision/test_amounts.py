"""Amounts as people write them, and what is none."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite

import pytest
from hypothesis import given, strategies as st
from wavecast.analyzer.iteration.decision.amounts import read_bytes, read_count, read_duration_ns, read_ratio, read_usd
from wavecast.errors import InputError

HOUR_NS = 3600e9
READERS = (read_bytes, read_count, read_duration_ns, read_ratio, read_usd)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("90000", 9e4), ("90_000", 9e4), ("90,000", 9e4), ("1 281 167", 1281167), ("1.28M", 1.28e6), ("2e9", 2e9),
        ("2 billion", 2e9), ("3k", 3e3), (".5 m", 5e5), ("1T", 1e12), ("1E6", 1e6),
    ],
)  # fmt: skip
def test_counts(text: str, count: float) -> None:
    assert read_count(text, "--for") == pytest.approx(count)


@pytest.mark.parametrize(
    ("text", "hours"), [("24h", 24), ("90min", 1.5), ("3d", 72), ("1d 12h", 36), ("2 weeks", 336), ("1.5 hours", 1.5)]
)
def test_durations(text: str, hours: float) -> None:
    assert read_duration_ns(text, "--deadline") == pytest.approx(hours * HOUR_NS)


@pytest.mark.parametrize(
    ("text", "size"), [("40GB", 40e9), ("40 GiB", 40 * 2**30), ("40", 40 * 2**30), ("0.5TB", 5e11), ("80g", 80e9)]
)
def test_sizes(text: str, size: float) -> None:
    assert read_bytes(text, "--min-memory") == pytest.approx(size)


@pytest.mark.parametrize("text", ["500", "$500", "500 USD", "500$", "0.5k"])
def test_sums(text: str) -> None:
    assert read_usd(text, "--budget") == 500


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("text", ["", " ", "x", "nan", "inf", "-1", "1,28M", "1..2", "e9", "0x10", "1e999", "9" * 5000])
def test_what_is_no_amount_is_refused_in_a_short_line(read: Callable[[str, str], float], text: str) -> None:
    with pytest.raises(InputError, match=r"^--it: ") as failure:
        read(text, "--it")
    assert len(str(failure.value)) < 300


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (read_bytes, "12" + " " * 240 + "MB"), (read_duration_ns, "1h " * 70), (read_usd, "5" + " " * 240 + "k"),
        (read_bytes, "\uff11\uff12GB"), (read_duration_ns, "\uff11\uff12h"), (read_count, "\u0661k"),
    ],
)  # fmt: skip
def test_an_amount_is_not_read_in_part_nor_in_other_digits(read: Callable[[str, str], float], text: str) -> None:
    with pytest.raises(InputError, match=r"^--it: "):
        read(text, "--it")


@pytest.mark.parametrize("text", ["0", "0h", "0GB", "$0"])
def test_nothing_is_no_amount(text: str) -> None:
    for read in (read_bytes, read_count, read_duration_ns, read_usd):
        with pytest.raises(InputError):
            read(text, "--it")


def test_no_allowance_is_one() -> None:
    assert read_ratio("0%", "--allowance") == 0
    with pytest.raises(InputError, match="more than 1,000 %"):
        read_ratio("1001%", "--allowance")


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in READERS:
        try:
            assert isfinite(read(text, "--it"))
        except InputError:
            continue
