"""What every room does with arrays."""

from __future__ import annotations

import pytest
from wavecast.arrays import none_for_nan


@pytest.mark.parametrize("value", [0.0, -1.5, float("inf"), 3, "nan", None, True])
def test_what_is_known_stays_as_it_is(value: object) -> None:
    assert none_for_nan(value) is value


def test_nan_becomes_none() -> None:
    assert none_for_nan(float("nan")) is None
