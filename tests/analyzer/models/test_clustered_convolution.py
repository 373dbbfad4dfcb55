"""Convolutions on Hopper: layouts, single pixels, groups, fp32's algorithms, hot and cold operands."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from wavecast.analyzer.models.convolution.model import MODEL, simulate
from wavecast.analyzer.models.convolution.problems import ConvolutionTiming, problems_of_dims
from wavecast.analyzer.models.frame.parameters import resolve, theta_size
from wavecast.analyzer.work.work import ConvolutionDims, Direction
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import build_fleet, take_gpus
from wavecast.specs.gpu import Rate
from wavecast.specs.match import find_gpu

HOPPER = build_fleet([find_gpu(load_catalog(), "H100 SXM5 80GB")])
WEIGHTS = Direction.WEIGHT_GRADIENT


def convolution(size: int = 28, kernel: int = 3, channels: int = 256, groups: int = 1) -> ConvolutionDims:
    return ConvolutionDims(
        batch=32,
        c_in=channels,
        c_out=channels,
        groups=groups,
        input_size=(size, size),
        output_size=(size, size),
        kernel_size=(kernel, kernel),
        stride=(1, 1),
        is_channels_last=True,
    )


def time_us(dims: ConvolutionDims, rate: Rate = Rate.MATRIX_BF16, timing: int = ConvolutionTiming.KERNELS) -> float:
    theta = np.zeros(theta_size(MODEL.parameters, len(MODEL.class_names)))
    values = resolve(MODEL.parameters, theta, len(MODEL.class_names), MODEL.gpu_class(HOPPER))
    problems = replace(problems_of_dims([dims], [rate]), timing=np.array([int(timing)]))
    return float(simulate(problems, take_gpus(HOPPER, np.zeros(1, dtype=np.int64)), values, None).time_ns[0]) / 1e3


def planar(dims: ConvolutionDims) -> ConvolutionDims:
    return replace(dims, is_channels_last=False)


@pytest.mark.parametrize(
    ("rate", "is_slower"), [(Rate.MATRIX_BF16, True), (Rate.MATRIX_TF32, True), (Rate.MATRIX_FP32, False)]
)
def test_each_unit_has_a_layout_of_its_own(rate: Rate, is_slower: bool) -> None:
    assert (time_us(planar(convolution()), rate) > time_us(convolution(), rate)) is is_slower


def test_single_pixels_are_products_whose_layout_does_not_change_where_rows_are_whole_loads() -> None:
    whole, odd = convolution(size=28, kernel=1), convolution(size=27, kernel=1)
    assert time_us(planar(whole)) == pytest.approx(time_us(whole))
    assert time_us(planar(odd)) > 1.5 * time_us(odd)


def test_tf32_weight_gradients_run_at_half_the_rate() -> None:
    large = convolution(size=56, channels=512)
    ratio = time_us(replace(large, direction=WEIGHTS), Rate.MATRIX_TF32) / time_us(large, Rate.MATRIX_TF32)
    assert 1.5 < ratio < 2.5


def test_winograd_serves_weight_gradients_of_fp32_alone() -> None:
    # With 4 x 4 filters it is ruled out: 16 positions instead of 9.
    large, other = convolution(size=56, channels=512), convolution(size=56, channels=512, kernel=4)
    forward = time_us(other, Rate.MATRIX_FP32) / time_us(large, Rate.MATRIX_FP32)
    large, other = (replace(dims, direction=WEIGHTS) for dims in (large, other))
    weights = time_us(other, Rate.MATRIX_FP32) / time_us(large, Rate.MATRIX_FP32)
    assert forward == pytest.approx(16 / 9, rel=0.1)
    assert weights > 1.5 * forward


def test_groups_of_no_power_of_two_are_copied_apart() -> None:
    assert time_us(convolution(channels=336, groups=7)) > 2.0 * time_us(convolution(channels=512, groups=8))


def test_other_data_in_l2_costs_more_where_operands_fit_there() -> None:
    small, large = convolution(size=7, channels=64), convolution(size=112)
    for dims, least in ((small, 1.05), (large, 1.0)):
        assert time_us(dims, timing=ConvolutionTiming.COLD) / time_us(dims) >= least


def test_bf16_and_fp16_take_as_long() -> None:
    assert time_us(convolution()) == pytest.approx(time_us(convolution(), Rate.MATRIX_FP16))
