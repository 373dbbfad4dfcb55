"""Convolutions: bounds, broadcasting, algorithms, gradients, depthwise."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wavecast.analyzer.models.convolution.model import MODEL, simulate
from wavecast.analyzer.models.convolution.problems import ConvolutionProblems, problems_of_dims
from wavecast.analyzer.models.convolution.tiles import best_fused, setting_of
from wavecast.analyzer.models.frame.model import Estimate
from wavecast.analyzer.models.frame.parameters import resolve, theta_size
from wavecast.analyzer.work.work import ConvolutionDims, Direction
from wavecast.arrays import Floats
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import Fleet, build_fleet, take_gpus
from wavecast.specs.gpu import Rate
from wavecast.specs.match import find_gpu

CATALOG = load_catalog()
FLEET = build_fleet(CATALOG.gpus)
V100 = build_fleet([find_gpu(CATALOG, "Tesla V100 PCIe 32GB")])


def convolution(
    batch: int = 32,
    c_in: int = 128,
    c_out: int = 128,
    size: int = 28,
    kernel: int = 3,
    stride: int = 1,
    groups: int = 1,
    spatial: int = 2,
    direction: Direction = Direction.FORWARD,
) -> ConvolutionDims:
    return ConvolutionDims(
        batch=batch,
        c_in=c_in,
        c_out=c_out,
        groups=groups,
        input_size=(size,) * spatial,
        output_size=(-(-size // stride),) * spatial,
        kernel_size=(kernel,) * spatial,
        stride=(stride,) * spatial,
        direction=direction,
    )


def as_rows(problems: ConvolutionProblems) -> ConvolutionProblems:
    return replace(problems, **{item.name: getattr(problems, item.name)[:, None] for item in fields(problems)})


def run(problems: ConvolutionProblems, fleet: Fleet) -> Estimate:
    theta = np.zeros(theta_size(MODEL.parameters, len(MODEL.class_names)))
    values = resolve(MODEL.parameters, theta, len(MODEL.class_names), MODEL.gpu_class(fleet))
    return simulate(problems, fleet, values, None)


def times(dims: ConvolutionDims, fleet: Fleet = FLEET, rate: Rate = Rate.MATRIX_FP32) -> Floats:
    return np.asarray(run(as_rows(problems_of_dims([dims], [rate])), fleet).time_ns[0])


KINDS = {
    "3x3": convolution(),
    "3x3, 4x4 pixels": convolution(size=4, batch=1),
    "1x1": convolution(kernel=1),
    "stem": convolution(c_in=3, c_out=64, size=224, kernel=7, stride=2),
    "depthwise": convolution(groups=128),
    "grouped": convolution(groups=32),
    "1d": convolution(spatial=1, size=1000),
    "3d": convolution(spatial=3, size=14),
    "input gradient": convolution(direction=Direction.INPUT_GRADIENT, stride=2),
    "weight gradient": convolution(direction=Direction.WEIGHT_GRADIENT),
    "both": convolution(direction=Direction.BOTH_GRADIENTS),
    "one pixel": convolution(batch=1, c_in=1, c_out=1, size=1),
}


@pytest.mark.parametrize("rate", [Rate.MATRIX_FP32, Rate.MATRIX_TF32, Rate.MATRIX_FP16, Rate.MATRIX_BF16])
@pytest.mark.parametrize("kind", KINDS)
def test_every_gpu_has_a_time_above_its_bound(kind: str, rate: Rate) -> None:
    dims = KINDS[kind]
    problems = problems_of_dims([dims], [rate])
    found = times(dims, rate=rate)
    peak = np.maximum(FLEET.flops_per_s[rate], FLEET.flops_per_s[Rate.FP32])
    flops = 2 * problems.m * problems.n * problems.k * problems.groups * problems.passes
    winograd = 4.0 if problems.tiles[0] > 0 else 1.0  # F(4x4, 3x3) needs a quarter of the multiplications
    assert np.isfinite(found).all()
    assert (found >= flops / winograd / peak * 1e9).all()
    assert (found < 1e10).all()


def test_products_hold_all_multiplications() -> None:
    problems = problems_of_dims([convolution(groups=4, stride=2)], [Rate.MATRIX_FP32])
    products = problems.m * problems.n * problems.k * problems.groups
    assert products == pytest.approx(32 * 14 * 14 * 9 * 128 * 128 / 4)


def test_a_transposed_convolution_is_the_gradient_of_its_mirror() -> None:
    mirror = convolution(c_in=64, c_out=128, stride=2, direction=Direction.INPUT_GRADIENT)
    transposed = replace(
        mirror,
        c_in=mirror.c_out,
        c_out=mirror.c_in,
        input_size=mirror.output_size,
        output_size=mirror.input_size,
        is_transposed=True,
        direction=Direction.FORWARD,
    )
    assert times(transposed) == pytest.approx(times(mirror))


def test_rows_against_a_fleet_equal_pairs() -> None:
    problems = problems_of_dims(list(KINDS.values()), [Rate.MATRIX_FP16] * len(KINDS))
    table = run(as_rows(problems), FLEET)
    columns = np.arange(len(KINDS)) * 7 % len(FLEET.gpus)
    paired = run(problems, take_gpus(FLEET, columns))
    assert paired.time_ns == pytest.approx(table.time_ns[np.arange(len(KINDS)), columns])


def test_the_choice_reproduces_the_time() -> None:
    problems = as_rows(problems_of_dims(list(KINDS.values()), [Rate.MATRIX_FP32] * len(KINDS)))
    theta = np.zeros(theta_size(MODEL.parameters, len(MODEL.class_names)))
    values = resolve(MODEL.parameters, theta, len(MODEL.class_names), MODEL.gpu_class(FLEET))
    first = simulate(problems, FLEET, values, None)
    assert simulate(problems, FLEET, values, first.choice).time_ns == pytest.approx(first.time_ns)


@given(
    batch=st.integers(1, 64),
    c_in=st.integers(1, 512),
    c_out=st.integers(1, 512),
    size=st.integers(3, 64),
    kernel=st.sampled_from([1, 3, 5]),
)
@settings(max_examples=40, deadline=None)
def test_more_bandwidth_is_never_slower(batch: int, c_in: int, c_out: int, size: int, kernel: int) -> None:
    dims = convolution(batch=batch, c_in=c_in, c_out=c_out, size=size, kernel=kernel)
    faster = replace(V100, bandwidth_bytes_per_s=V100.bandwidth_bytes_per_s * 1.5)
    # The mean over algorithms may move to one that is liked more though it takes longer, by less than this.
    assert times(dims, faster)[0] <= times(dims, V100)[0] * 1.02


def test_winograd_makes_3x3_cheaper_than_its_multiplications() -> None:
    plain, winograd = times(convolution(stride=2, size=56), V100), times(convolution(), V100)
    assert winograd[0] < plain[0]


def test_matrix_units_help_where_there_are_any() -> None:
    dims = convolution(batch=64, c_in=256, c_out=256)
    assert times(dims, V100, Rate.MATRIX_FP16)[0] < 0.6 * times(dims, V100)[0]
    pascal = build_fleet([find_gpu(CATALOG, "GeForce GTX 1080 Ti")])
    assert times(dims, pascal, Rate.MATRIX_FP16)[0] <= times(dims, pascal)[0]


def test_gradients_cost_more_than_the_forward() -> None:
    forward, both = times(convolution()), times(convolution(direction=Direction.BOTH_GRADIENTS))
    assert (both > 1.9 * forward).all()


def test_an_event_timed_call_includes_the_host() -> None:
    dims = convolution(batch=1, size=4)
    timed = run(as_rows(problems_of_dims([dims], [Rate.MATRIX_FP32], is_event_timed=True)), V100)
    assert timed.time_ns[0, 0] > times(dims, V100)[0] + 50e3


def test_fused_winograd_runs_whole_blocks_of_32_channels() -> None:
    """On one SM whose memory never waits, blocks run one after the other: the time is a staircase of the channels."""
    endless = np.full(1, np.inf)
    alone = replace(V100, sm_count=np.ones(1), bandwidth_bytes_per_s=endless, l2_cache_bytes=endless)
    theta = np.zeros(theta_size(MODEL.parameters, len(MODEL.class_names)))
    priors = resolve(MODEL.parameters, theta, len(MODEL.class_names), MODEL.gpu_class(alone))
    values = priors | {"l2_bytes_per_cycle_per_sm": endless, "throttle_ratio": np.zeros(1)}

    def fused_ns(channels: int) -> float:
        problems = as_rows(problems_of_dims([convolution(c_out=channels)], [Rate.MATRIX_FP32]))
        return float(best_fused(setting_of(problems, alone, values))[0, 0])

    one, two, three = (fused_ns(channels) for channels in (32, 64, 96))
    assert fused_ns(1) == one
    assert fused_ns(33) == two
    assert two - one == pytest.approx(three - two)
    assert two > 1.9 * one


@pytest.mark.parametrize(
    ("rate", "width"),
    [
        *((rate, 8.0) for rate in (Rate.FP64, Rate.MATRIX_FP64)),
        *((rate, 4.0) for rate in (Rate.FP32, Rate.MATRIX_FP32, Rate.MATRIX_TF32)),
        *((rate, 2.0) for rate in (Rate.FP16, Rate.MATRIX_FP16, Rate.MATRIX_FP16_ACCUMULATE_FP16, Rate.MATRIX_BF16)),
        *((rate, 1.0) for rate in (Rate.MATRIX_FP8, Rate.MATRIX_INT8)),
    ],
)
def test_elements_are_as_wide_as_the_unit_takes_them(rate: Rate, width: float) -> None:
    problems = problems_of_dims([convolution(batch=2, c_in=3, c_out=5, size=8)], [rate])
    assert problems.element_bytes.tolist() == [width]
    assert problems.moved_bytes.tolist() == [width * (2 * 8 * 8 * (3 + 5) + 9 * 3 * 5)]


@pytest.mark.parametrize(
    ("direction", "m", "n", "k", "passes", "share"),
    [
        (Direction.FORWARD, 2 * 4 * 4, 6 / 2, 9 * 8 / 2, 1.0, 0.0),
        (Direction.INPUT_GRADIENT, 2 * 8 * 8, 8 / 2, 9 * 6 / 2 / 4, 1.0, 0.0),
        (Direction.WEIGHT_GRADIENT, 2 * 4 * 4, 6 / 2, 9 * 8 / 2, 1.0, 1.0),
        (Direction.BOTH_GRADIENTS, 2 * 8 * 8, 8 / 2, 9 * 6 / 2 / 4, 2.0, 0.5),
    ],
)
def test_products_are_seen_from_the_side_that_is_made(
    direction: Direction, m: float, n: float, k: float, passes: float, share: float
) -> None:
    dims = convolution(batch=2, c_in=8, c_out=6, size=8, stride=2, groups=2, direction=direction)
    problems = problems_of_dims([dims], [Rate.FP32])
    found = [getattr(problems, name).tolist() for name in ("m", "n", "k", "groups", "passes", "weight_share")]
    assert found == [[m], [n], [k], [2.0], [passes], [share]]
    assert problems.tiles.tolist() == problems.fused_blocks.tolist() == [0.0]


@pytest.mark.parametrize(
    ("batch", "size", "first", "least", "large"),
    [
        (1, 8, 1, 1, 4),  # 4x8 tiles of 2x2 pixels cover 8x16 of them
        (1, 9, 2, 2, 9),
        (4, 2, 4, 1, 4),  # four images of 2x16 pixels in a block
        (4, 28, 4 * 4 * 2, 14 * 2, 4 * 49),  # four images of 2x16 pixels waste less than one of 8x16
    ],
)
def test_winograds_tiles_cover_all_pixels(batch: int, size: int, first: int, least: int, large: int) -> None:
    problems = problems_of_dims([convolution(batch=batch, size=size)], [Rate.FP32])
    assert (problems.fused_blocks[0], problems.least_fused_blocks[0], problems.tiles[0]) == (first, least, large)


def test_what_rests_on_priors_is_a_group_of_its_own() -> None:
    measured = convolution(batch=2, c_in=8, c_out=8)
    cases = (
        (measured, Rate.MATRIX_FP32, 0),
        (replace(measured, groups=8), Rate.MATRIX_FP32, 1),
        (replace(measured, direction=Direction.WEIGHT_GRADIENT), Rate.MATRIX_FP32, 1),
        (measured, Rate.MATRIX_FP16, 1),
    )
    problems = problems_of_dims([dims for dims, _, _ in cases], [rate for _, rate, _ in cases])
    assert MODEL.group is not None
    assert MODEL.group(problems).tolist() == [group for _, _, group in cases]
