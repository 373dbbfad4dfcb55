"""Values of parameters, as people write them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st
from wavecast.analyzer.questions.sweep.figures import BANDWIDTH
from wavecast.analyzer.questions.sweep.values import MOST_POINTS, ParameterQuantity, join_values, read_values
from wavecast.errors import InputError

BYTES = ParameterQuantity(
    name="memory.bandwidth", scales=BANDWIDTH.scales, usual_scale=1e9, base=1e12, base_name="Base"
)
COUNT = ParameterQuantity(name="sms", scales={"": 1.0}, usual_scale=1.0, base=132.0, base_name="Base", step=1.0)
GPUS = ParameterQuantity(name="gpus", scales={}, usual_scale=1.0, base=None, base_name="Base", step=1.0, doubles=True)


@pytest.mark.parametrize(
    ("quantity", "text", "expected"),
    [
        (BYTES, "2x", [2e12]),
        (BYTES, "1x, 2x,4x", [1e12, 2e12, 4e12]),
        (BYTES, "150%", [1.5e12]),
        (BYTES, "2TB/s", [2e12]),
        (BYTES, "2000", [2e12]),
        (BYTES, "1x..4x:3", [1e12, 2e12, 4e12]),
        (BYTES, "1..4x:3", [1e12, 2e12, 4e12]),
        (BYTES, "2..8TB/s:3", [2e12, 4e12, 8e12]),
        (BYTES, "1x..8x:x2", [1e12, 2e12, 4e12, 8e12]),
        (BYTES, "1x..2x:+0.5", [1e12, 1.5e12, 2e12]),
        (COUNT, "1.5x", [198]),
        (COUNT, "66,132,264", [66, 132, 264]),
        (COUNT, "264,66,66", [66, 264]),
        (COUNT, "66,2x", [66, 264]),
        (BYTES, "1000,2000", [1e12, 2e12]),
        (BYTES, "1.5e3,2000,1000.5", [1.0005e12, 1.5e12, 2e12]),
        (BYTES, "500,1000..4000x2", [5e11, 1e12, 2e12, 4e12]),
        (COUNT, "0.001x", [1]),
        (GPUS, "8..64", [8, 16, 32, 64]),
        (GPUS, "8..48x4", [8, 32, 48]),
        (GPUS, "8..32:+8", [8, 16, 24, 32]),
    ],
)
def test_values_are_read(quantity: ParameterQuantity, text: str, expected: list[float]) -> None:
    assert read_values(quantity, text, 5).numbers == pytest.approx(expected)


@pytest.mark.parametrize(
    ("quantity", "text", "part"),
    [
        (BYTES, "", "expected a range"),
        (BYTES, "much", "expected a range"),
        (BYTES, "1x..", "expected a range"),
        (BYTES, "0x", "above 0"),
        (BYTES, "-2x", "above 0"),
        (BYTES, "nan", "above 0"),
        (BYTES, "infx", "above 0"),
        (BYTES, "1e999x", "above 0"),
        (BYTES, "4x..1x", "smaller value first"),
        (BYTES, "1x..1x", "smaller value first"),
        (BYTES, "1x..4x:1000000", "at most 200"),
        (BYTES, "1x..4x:1", "at least 2 points"),
        (BYTES, "1x..4x:x1.0000001", "at most 200"),
        (BYTES, "1x..4x:x1", "factor above 1"),
        (BYTES, "1x..4x:+0", "above 0"),
        (BYTES, "1e9x", "expected 0.001x to 1000x"),
        (BYTES, "2 furlongs", "unknown unit"),
        (BYTES, "1,500GB/s", "a comma parts values"),
        (BYTES, "1,5TB/s", "a comma parts values"),
        (BYTES, "1,500GB/s..2,000GB/s", "a comma parts values"),
        (COUNT, "2,048", "a comma parts values"),
        (COUNT, "66.5", "whole number"),
        (COUNT, "66.5..132", "whole number"),
        (GPUS, "2x", "none to multiply"),
        (BYTES, ",".join(f"{at}x" for at in range(1, MOST_POINTS + 2)), "at most 200"),
    ],
)
def test_what_is_no_value_is_refused(quantity: ParameterQuantity, text: str, part: str) -> None:
    with pytest.raises(InputError, match=f"^vary {quantity.name}.*{part}"):
        read_values(quantity, text, 5)


@given(st.floats(0.01, 100), st.floats(1.01, 10), st.integers(2, MOST_POINTS))
def test_a_range_has_its_ends_and_equal_ratios(low: float, growth: float, count: int) -> None:
    numbers = read_values(BYTES, f"{low!r}x..{low * growth!r}x:{count}", 5).numbers
    assert len(numbers) == count
    assert (numbers[0], numbers[-1]) == pytest.approx((low * 1e12, low * growth * 1e12))
    ratios = [b / a for a, b in pairwise(numbers)]
    assert ratios == pytest.approx([growth ** (1 / (count - 1))] * (count - 1))


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        numbers = read_values(COUNT, text, 5).numbers
    except InputError:
        return
    assert all(number == int(number) >= 1 for number in numbers)


def test_twice_and_as_it_is_are_points_of_a_range() -> None:
    numbers = read_values(BYTES, "0.7x..3x", 4).numbers
    assert {1e12, 2e12} <= set(numbers)
    assert read_values(COUNT, "1x..2x", 3).rounded
    assert not read_values(COUNT, "1x..2x:2", 3).rounded


def test_lists_are_texts() -> None:
    assert join_values([66, "2x"]) == "66,2x"
    assert join_values("1x..4x") == "1x..4x"
    assert join_values(132) == "132"
