"""The factor that measurements of a GPU put on a model's times: bounded, alike for neighbours, fading with distance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st
from wavecast.analyzer.models.convolution import model as convolution
from wavecast.analyzer.models.convolution.problems import problems_of_dims
from wavecast.analyzer.models.frame import correction
from wavecast.analyzer.models.frame.correction import LIMIT, Calibration, correction_factor, proximity
from wavecast.analyzer.models.frame.model import kind_of
from wavecast.analyzer.work.work import ConvolutionDims, Direction
from wavecast.specs.gpu import Rate

REACH = 0.5
NO_KIND = np.array(-1)


def build_calibration(
    taught: list[list[float]],
    weights: list[float],
    *,
    coefficient: float = 0.0,
    kind_offsets: Mapping[int, float] | None = None,
    spared_kinds: Sequence[int] = (),
    taught_kinds: Sequence[int] = (),
) -> Calibration:
    count, offsets = len(taught[0]), dict(sorted((kind_offsets or {}).items()))
    return Calibration(
        columns=np.arange(count),
        mean=np.zeros(count),
        scale=np.ones(count),
        coefficients=np.r_[coefficient, np.zeros(count)],
        taught=np.array(taught),
        taught_kinds=np.array(taught_kinds or [-1] * len(taught), dtype=np.int64),
        weights=np.array(weights),
        reach=REACH,
        other_kind_ratio=0.5,
        kinds=np.array(list(offsets), dtype=np.int64),
        kind_offsets=np.array(list(offsets.values())),
        spared_kinds=np.array(spared_kinds, dtype=np.int64),
    )


def test_a_measurement_speaks_for_its_neighbours_alone() -> None:
    calibration = build_calibration([[0.0, 0.0]], [0.2], coefficient=0.1)
    features = np.array([[0.0, 0.0], [REACH, REACH], [9.0, -9.0]])
    at, near, far = np.log(correction_factor(calibration, features, NO_KIND))
    assert at == pytest.approx(0.3)
    assert near == pytest.approx(0.1 + 0.2 * np.exp(-0.5))
    assert far == pytest.approx(0.1, abs=1e-6)


def test_a_model_without_features_has_one_factor() -> None:
    calibration = build_calibration([[], []], [5.0, 5.0], coefficient=0.1)
    assert np.log(correction_factor(calibration, np.empty((3, 0)), NO_KIND)) == pytest.approx(0.1)


def test_kinds_of_kernel_that_were_measured_have_a_factor_of_their_own() -> None:
    calibration = build_calibration([[]], [0.0], coefficient=0.1, kind_offsets={7: -0.2, 2: 0.3})
    kinds = np.array([[2, 7, 7], [-1, 5, 9]])
    found = np.log(correction_factor(calibration, np.empty((2, 3, 0)), kinds))
    assert found == pytest.approx(np.array([[0.4, -0.1, -0.1], [0.1, 0.1, 0.1]]))


def test_a_measurement_says_less_of_other_kinds_of_kernel() -> None:
    calibration = build_calibration([[0.0]], [0.2], taught_kinds=[3])
    found = np.log(correction_factor(calibration, np.zeros((3, 1)), np.array([3, 4, -1])))
    assert found == pytest.approx([0.2, 0.1, 0.1])


def test_spared_kinds_keep_the_times_of_the_model() -> None:
    calibration = build_calibration([[]], [0.0], coefficient=0.1, kind_offsets={2: 0.3, 7: -0.2}, spared_kinds=[2])
    found = np.log(correction_factor(calibration, np.empty((3, 0)), np.array([2, 7, -1])))
    assert found == pytest.approx([0.0, -0.1, 0.1])


def test_many_problems_are_corrected_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    calibration = build_calibration([[0.0], [1.0]], [0.1, -0.2])
    features = np.linspace(-2.0, 2.0, 42).reshape(7, 6, 1)
    whole = correction_factor(calibration, features, NO_KIND)
    monkeypatch.setattr(correction, "_BLOCK_ROW_COUNT", 5)
    assert whole.shape == (7, 6)
    assert correction_factor(calibration, features, NO_KIND) == pytest.approx(whole)


@given(st.lists(st.floats(-5, 5), min_size=6, max_size=6), st.floats(-1e3, 1e3))
def test_no_factor_goes_beyond_the_limit(values: list[float], weight: float) -> None:
    rows = np.array(values).reshape(3, 2)
    calibration = build_calibration(rows.tolist(), [weight] * 3, kind_offsets={0: weight})
    found = np.log(correction_factor(calibration, rows, np.array([0, 0, 1])))
    assert (np.abs(found) <= LIMIT + 1e-12).all()
    near = proximity(rows, rows, REACH)
    assert near == pytest.approx(near.T)
    assert np.diag(near) == pytest.approx(1.0)


def convolution_kind(rate: Rate = Rate.MATRIX_FP32, channels: int = 64, kernel: int = 3, **changes: object) -> int:
    sizes: dict[str, object] = {"batch": 8, "c_in": channels, "c_out": channels, "groups": 1}
    sizes |= {"input_size": (28, 28), "output_size": (28, 28), "kernel_size": (kernel, kernel), "stride": (1, 1)}
    dims = ConvolutionDims(**(sizes | changes))  # type: ignore[arg-type]
    return int(kind_of(convolution.MODEL, problems_of_dims([dims], [rate]))[0])


def test_convolutions_of_other_kernels_are_of_other_kinds_whatever_their_size() -> None:
    assert convolution_kind() == convolution_kind(channels=128, batch=32) >= 0
    assert convolution_kind(kernel=1) == convolution_kind(kernel=1, channels=128)
    kinds = [
        convolution_kind(),
        convolution_kind(Rate.MATRIX_BF16),
        convolution_kind(kernel=1),
        convolution_kind(kernel=7),
        convolution_kind(groups=64),
        convolution_kind(direction=Direction.WEIGHT_GRADIENT),
        convolution_kind(direction=Direction.BOTH_GRADIENTS),
    ]
    kinds += [
        convolution_kind(rate, kernel=kernel, groups=groups, direction=direction)
        for rate in (Rate.FP64, Rate.MATRIX_TF32)
        for kernel in (1, 5)
        for groups in (1, 8)
        for direction in (Direction.FORWARD, Direction.WEIGHT_GRADIENT, Direction.BOTH_GRADIENTS)
    ]
    assert len(set(kinds)) == len(kinds)
    assert min(kinds) >= 0  # below are kinds that speak for no other
