"""The factor that measurements of a GPU put on a model's times: bounded, alike for neighbours, fading with distance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wavecast.analyzer.models import correction
from wavecast.analyzer.models.correction import LIMIT, REACH, Calibration, correction_factor, proximity


def build_calibration(taught: list[list[float]], weights: list[float], *, coefficient: float = 0.0) -> Calibration:
    count = len(taught[0])
    return Calibration(
        mean=np.zeros(count),
        scale=np.ones(count),
        coefficients=np.r_[coefficient, np.zeros(count)],
        taught=np.array(taught),
        weights=np.array(weights),
    )


def test_a_measurement_speaks_for_its_neighbours_alone() -> None:
    calibration = build_calibration([[0.0, 0.0]], [0.2], coefficient=0.1)
    at, near, far = np.log(correction_factor(calibration, np.array([[0.0, 0.0], [REACH, REACH], [9.0, -9.0]])))
    assert at == pytest.approx(0.3)
    assert near == pytest.approx(0.1 + 0.2 * np.exp(-0.5))
    assert far == pytest.approx(0.1, abs=1e-6)


def test_a_model_without_features_has_one_factor() -> None:
    calibration = build_calibration([[], []], [5.0, 5.0], coefficient=0.1)
    assert np.log(correction_factor(calibration, np.empty((3, 0)))) == pytest.approx(0.1)


def test_many_problems_are_corrected_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    calibration = build_calibration([[0.0], [1.0]], [0.1, -0.2])
    features = np.linspace(-2.0, 2.0, 42).reshape(7, 6, 1)
    whole = correction_factor(calibration, features)
    monkeypatch.setattr(correction, "_BLOCK_ROW_COUNT", 5)
    assert whole.shape == (7, 6)
    assert correction_factor(calibration, features) == pytest.approx(whole)


@given(st.lists(st.floats(-5, 5), min_size=6, max_size=6), st.floats(-1e3, 1e3))
def test_no_factor_goes_beyond_the_limit(values: list[float], weight: float) -> None:
    rows = np.array(values).reshape(3, 2)
    found = np.log(correction_factor(build_calibration(rows.tolist(), [weight] * 3), rows))
    assert (np.abs(found) <= LIMIT + 1e-12).all()
    near = proximity(rows, rows)
    assert near == pytest.approx(near.T)
    assert np.diag(near) == pytest.approx(1.0)
