"""Convolutions on Hopper: layouts, single pixels, groups, fp32's algorithms, hot and cold operands."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from wavecast.analyzer.models.convolution.model import MODEL, simulate
from wavecast.analyzer.models.convolution.problems import ConvolutionTiming, problems_of_dims
from wavecast.analyzer.models.frame.parameters import resolve, theta_size
from wavecast.analyzer.models.frame.problems import as_columns
from wavecast.analyzer.work.work import ConvolutionDims, Direction
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import build_fleet, take_gpus
from wavecast.specs.gpu import Rate
from wavecast.specs.match import find_gpu

HOPPER = build_fleet([find_gpu(load_catalog(), "H100 SXM5 80GB")])
WEIGHTS = Direction.WEIGHT_GRADIENT
SMALL = [(size, channels, batch) for size in (7, 14, 28) for channels in (48, 64, 128) for batch in (1, 2, 16)]


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


def test_tf32_weight_gradients_turn_both_operands() -> None:
    large = convolution(size=56, channels=512)
    ratio = time_us(replace(large, direction=WEIGHTS), Rate.MATRIX_TF32) / time_us(large, Rate.MATRIX_TF32)
    assert 1.8 < ratio < 3.0


def test_winograd_serves_weight_gradients_of_fp32_alone() -> None:
    # With 4 x 4 filters it is ruled out: 16 positions instead of 9.
    large, other = convolution(size=56, channels=512), convolution(size=56, channels=512, kernel=4)
    forward = time_us(other, Rate.MATRIX_FP32) / time_us(large, Rate.MATRIX_FP32)
    large, other = (replace(dims, direction=WEIGHTS) for dims in (large, other))
    weights = time_us(other, Rate.MATRIX_FP32) / time_us(large, Rate.MATRIX_FP32)
    assert forward == pytest.approx(16 / 9, rel=0.1)
    assert weights > 1.5 * forward


def test_data_gradients_of_fp32_go_through_fourier_tiles() -> None:
    large = convolution(size=60, channels=512)
    gradient = replace(large, direction=Direction.INPUT_GRADIENT)
    assert time_us(gradient, Rate.MATRIX_FP32) < 0.6 * time_us(large, Rate.MATRIX_FP32)
    # A tile makes 30 x 30 pixels: one more a side takes 9 tiles and not 4.
    wider = replace(gradient, input_size=(61, 61), output_size=(61, 61))
    assert time_us(wider, Rate.MATRIX_FP32) > 1.7 * time_us(gradient, Rate.MATRIX_FP32)


@pytest.mark.parametrize(("rate", "packed"), [(Rate.MATRIX_BF16, 64), (Rate.MATRIX_TF32, 32)])
def test_groups_of_few_channels_share_a_chunk(rate: Rate, packed: int) -> None:
    few, many = (convolution(size=56, channels=256, groups=256 // width) for width in (4, packed // 2))
    wide = convolution(size=56, channels=256, groups=128 // packed)
    assert time_us(few, rate) == pytest.approx(time_us(many, rate), rel=0.02)
    assert time_us(wide, rate) > 1.05 * time_us(many, rate)


@pytest.mark.parametrize("rate", [Rate.MATRIX_BF16, Rate.MATRIX_TF32])
def test_far_positions_leave_hoppers_kernels(rate: Rate) -> None:
    near, far = (replace(convolution(channels=512), dilation=(step, step)) for step in (6, 12))
    assert time_us(far, rate) > 1.4 * time_us(near, rate)
    assert time_us(near, rate) == pytest.approx(time_us(convolution(channels=512), rate))


def test_far_data_gradients_of_fp16_run_on_vector_units() -> None:
    far = replace(convolution(channels=512), dilation=(12, 12), direction=Direction.INPUT_GRADIENT)
    assert time_us(far, Rate.MATRIX_FP16) > 10.0 * time_us(far)


def test_strided_single_pixels_have_gradients_of_the_pixels_they_met() -> None:
    strided = replace(convolution(kernel=1, channels=1024), output_size=(14, 14), stride=(2, 2))
    gradient = replace(strided, direction=Direction.INPUT_GRADIENT)
    assert time_us(gradient, Rate.MATRIX_FP32) < 1.5 * time_us(strided, Rate.MATRIX_FP32)


def test_a_first_layer_in_nchw_may_run_on_vector_units_as_it_lies() -> None:
    patches = replace(planar(convolution(size=224, kernel=4)), c_in=3, c_out=96, output_size=(56, 56), stride=(4, 4))
    packed = replace(patches, c_in=8)
    assert time_us(patches) < time_us(packed)


def test_tf32_leaves_a_first_layers_small_filters_to_fp32s_kernels() -> None:
    small, large = (replace(convolution(224, kernel), c_in=3, c_out=64) for kernel in (3, 7))
    assert time_us(planar(small), Rate.MATRIX_TF32) == pytest.approx(time_us(planar(small), Rate.MATRIX_FP32))
    assert time_us(planar(large), Rate.MATRIX_TF32) != pytest.approx(time_us(planar(large), Rate.MATRIX_FP32))


def test_amperes_kernels_write_nchw_themselves_in_tf32() -> None:
    far = replace(convolution(56, channels=64), dilation=(12, 12), c_out=512)
    assert time_us(planar(far), Rate.MATRIX_TF32) < time_us(far, Rate.MATRIX_TF32)  # in NHWC operands are rounded first
    assert time_us(planar(far), Rate.MATRIX_BF16) > 1.1 * time_us(far, Rate.MATRIX_BF16)


def test_data_gradients_of_a_first_layer_stay_on_matrix_units_in_16_bits() -> None:
    last = replace(planar(convolution(size=64, kernel=4)), c_in=3, c_out=64, output_size=(32, 32), stride=(2, 2))
    last = replace(last, batch=256, direction=Direction.INPUT_GRADIENT)
    assert time_us(last) > 1.2 * time_us(last, Rate.MATRIX_TF32)


def test_data_gradients_of_a_first_layer_take_filters_of_49_positions_as_those_of_36() -> None:
    first = replace(planar(convolution(size=64)), c_in=3, c_out=64, direction=Direction.INPUT_GRADIENT)
    large, less = (time_us(replace(first, kernel_size=(side, side)), Rate.MATRIX_TF32) for side in (7, 6))
    assert 1.0 < large / less < 1.6


def test_groups_of_fp32_take_turns() -> None:
    many, few = (time_us(convolution(size=7, groups=groups), Rate.MATRIX_FP32) for groups in (64, 2))
    assert many > few  # though it multiplies 1 / 32 of it


def test_groups_of_no_power_of_two_are_copied_apart() -> None:
    assert time_us(convolution(channels=336, groups=7)) > 2.0 * time_us(convolution(channels=512, groups=8))


def test_other_data_in_l2_costs_more_where_operands_fit_there() -> None:
    small, large = convolution(size=7, channels=64), convolution(size=112)
    for dims, least in ((small, 1.05), (large, 1.0)):
        assert time_us(dims, timing=ConvolutionTiming.COLD) / time_us(dims) >= least


def test_bf16_and_fp16_take_as_long() -> None:
    assert time_us(convolution()) == pytest.approx(time_us(convolution(), Rate.MATRIX_FP16))


def strided(pixels: int, batch: int, channels: int = 256) -> ConvolutionDims:
    """Return the data gradient of 4x4 filters whose results are `pixels` a side."""
    dims = replace(planar(convolution(channels=channels)), batch=batch, direction=Direction.INPUT_GRADIENT)
    return replace(dims, input_size=(2 * pixels,) * 2, output_size=(pixels,) * 2, kernel_size=(4, 4), stride=(2, 2))


def one_pixel(batch: int = 32) -> ConvolutionDims:
    """Return a generator's first layer: the data gradient of 4x4 filters whose results are one pixel."""
    dims = replace(planar(convolution(channels=512)), c_out=100, direction=Direction.INPUT_GRADIENT)
    return replace(dims, input_size=(4, 4), output_size=(1, 1), kernel_size=(4, 4), batch=batch)


def test_strided_data_gradients_of_fp32_take_32_pixels_of_one_image_at_a_time() -> None:
    # As many products, but blocks of 16 pixels of an image are half empty.
    small, large = (time_us(dims, Rate.MATRIX_FP32) for dims in (strided(4, 256, 1024), strided(16, 16, 1024)))
    assert small == pytest.approx(2 * large, rel=0.1)


def test_strided_data_gradients_of_few_channels_wait_for_their_sums() -> None:
    few, many = (time_us(strided(32, 32, channels), Rate.MATRIX_FP32) / channels**2 for channels in (64, 1024))
    assert few > 2 * many


def test_one_pixel_of_ragged_channels_leaves_matrix_units_in_tf32() -> None:
    pixel = one_pixel()
    assert time_us(pixel, Rate.MATRIX_TF32) > 2 * time_us(replace(pixel, c_out=104), Rate.MATRIX_TF32)


def test_volumes_in_tf32_have_a_rate_of_their_own() -> None:
    deep = convolution(size=16, channels=256)
    deep = replace(deep, input_size=(16,) * 3, output_size=(16,) * 3, kernel_size=(3,) * 3, stride=(1,) * 3)
    flat = replace(deep, input_size=(64, 64), output_size=(64, 64), kernel_size=(27, 1), stride=(1, 1))
    slower = [time_us(deep, rate) / time_us(flat, rate) for rate in (Rate.MATRIX_TF32, Rate.MATRIX_BF16)]
    assert slower[0] > 1.1 * slower[1] > 1.1


def test_one_pixel_of_ragged_channels_takes_blocks_of_64_pixels_in_fp32() -> None:
    single, tf32 = (time_us(one_pixel(batch=512), rate) for rate in (Rate.MATRIX_FP32, Rate.MATRIX_TF32))
    assert single == pytest.approx(2 * tf32, rel=0.1)


def test_a_first_layers_filled_channels_cost_more_where_l2_does_not_keep_them() -> None:
    first = replace(convolution(size=56, channels=64), c_in=3)
    # TensorRT keeps its own layout, and its layer takes 6 us more: the difference is what fills up 10 and 205 MB.
    small, large = (
        time_us(dims) - time_us(dims, timing=ConvolutionTiming.TENSORRT) + 6.0
        for dims in (replace(first, batch=b) for b in (200, 4096))
    )
    launches = 4 * 1.6
    assert small > launches + 8
    assert large > 1.2 * 4096 / 200 * (small - launches)


@pytest.mark.parametrize(
    ("direction", "is_planar", "batches"), [(WEIGHTS, True, (7, 8)), (Direction.INPUT_GRADIENT, False, (63, 64))]
)
def test_depthwise_kernels_in_fp16_change_gradually(
    direction: Direction, is_planar: bool, batches: tuple[int, int]
) -> None:
    dims = replace(convolution(size=56, channels=96, groups=96), direction=direction, is_channels_last=not is_planar)
    fewer, more = (time_us(replace(dims, batch=batch), Rate.MATRIX_FP16) for batch in batches)
    assert 0.9 * fewer < more < 1.3 * fewer


def test_depthwise_weight_gradients_add_up_each_block_and_wait_for_the_last_round() -> None:
    def gradient(batch: int, groups: int) -> float:
        return time_us(
            planar(replace(convolution(size=7, channels=groups, groups=groups), batch=batch, direction=WEIGHTS))
        )

    # A warp of one image waits as long for its block's sum as for the image.
    assert gradient(256, 1320) / gradient(8, 1320) < 0.8 * 256 / 8
    # 9 blocks a channel: 264 are two rounds of 132 multiprocessors, 288 three.
    assert gradient(2560, 32) > 1.3 * gradient(2560, 29)


def test_a_second_group_of_warps_hides_what_tf32s_data_gradients_turn() -> None:
    def cost(dims: ConvolutionDims) -> float:
        gradient = replace(dims, direction=Direction.INPUT_GRADIENT)
        return time_us(gradient, Rate.MATRIX_TF32) / time_us(dims, Rate.MATRIX_TF32)

    assert cost(convolution(size=56, channels=512)) == pytest.approx(1.0, abs=0.05)
    assert cost(convolution(size=56, channels=64)) > 1.1


def test_gradients_of_strided_single_pixels_clear_the_others() -> None:
    met = replace(convolution(size=28, kernel=1, channels=1024), direction=Direction.INPUT_GRADIENT)
    strided = replace(met, input_size=(56, 56), stride=(2, 2))
    assert time_us(strided) > 1.4 * time_us(met)


def test_patches_stay_on_matrix_units_and_sum_one_position_after_the_other() -> None:
    few, patches = (
        replace(planar(convolution(size=224, kernel=side)), batch=1, c_in=3, c_out=768, stride=(side, side))
        for side in (7, 16)
    )
    few, patches = replace(few, output_size=(32, 32)), replace(patches, output_size=(14, 14))
    # Positions times pixels are as many.
    assert time_us(patches) > 2.5 * time_us(few)


def test_narrow_tiles_load_vector_units_more() -> None:
    narrow, wide = (replace(convolution(size=112, channels=64), c_out=width) for width in (32, 64))
    assert 2.0 * time_us(narrow, Rate.MATRIX_FP32) > 1.15 * time_us(wide, Rate.MATRIX_FP32)


def test_weight_gradients_of_few_results_and_fp16s_depthwise_take_longer_in_nchw() -> None:
    few = replace(convolution(size=112, kernel=1, channels=64), direction=WEIGHTS)
    assert time_us(planar(few), Rate.MATRIX_FP32) > 1.2 * time_us(few, Rate.MATRIX_FP32)
    depthwise = convolution(size=112, groups=256)
    assert time_us(planar(depthwise), Rate.MATRIX_FP16) > 1.1 * time_us(depthwise, Rate.MATRIX_FP16)
    assert time_us(planar(depthwise), Rate.MATRIX_BF16) > 2.0 * time_us(planar(depthwise), Rate.MATRIX_FP16)


def test_first_layers_have_kernels_of_their_own() -> None:
    stem = replace(convolution(size=224, kernel=7, channels=64), c_in=3, output_size=(112, 112), stride=(2, 2))
    assert time_us(stem, Rate.MATRIX_FP16) < 0.6 * time_us(stem)  # which sums positions and channels together
    few, more = (time_us(replace(stem, c_in=c, batch=256, direction=WEIGHTS), Rate.MATRIX_TF32) for c in (3, 8))
    assert few > 1.3 * more
    first = replace(convolution(size=224, channels=64), c_in=3, batch=256)
    # 16 positions instead of 9, but as many results to store.
    assert time_us(replace(first, kernel_size=(4, 4))) < 1.6 * time_us(first)
    lying, changed = (time_us(replace(first, c_in=channels), Rate.MATRIX_FP32) for channels in (4, 5))
    assert lying < 0.95 * changed


def test_fourier_tiles_of_few_channels_multiply_as_many_as_a_tile_is_wide() -> None:
    dims = replace(convolution(size=60, channels=512), direction=Direction.INPUT_GRADIENT)
    few, wide = (time_us(replace(dims, c_in=channels), Rate.MATRIX_FP32) for channels in (8, 32))
    assert few > 0.6 * wide


def test_small_products_of_tf32_start_later_in_the_forward_pass() -> None:
    small = replace(convolution(size=7, kernel=1, channels=64), batch=1)
    assert time_us(small, Rate.MATRIX_TF32) > time_us(small) + 1.0


def test_depthwise_data_gradients_unroll_usual_filters_and_of_many_images_run_on_matrix_units_in_fp16() -> None:
    dims = replace(convolution(kernel=5, groups=256), direction=Direction.INPUT_GRADIENT)
    three, five, seven = (time_us(planar(replace(dims, kernel_size=(side, side)))) for side in (3, 5, 7))
    assert three == pytest.approx(five, rel=0.1)
    assert seven > 2.0 * five
    many = replace(dims, batch=128)
    assert time_us(many, Rate.MATRIX_FP16) < 0.7 * time_us(many)
    assert time_us(dims, Rate.MATRIX_FP16) == pytest.approx(time_us(dims))


def test_depthwise_weight_gradients_walk_over_one_image_or_are_summed_in_many_parts() -> None:
    one = replace(planar(convolution(size=56, kernel=5, channels=64, groups=64)), batch=1, direction=WEIGHTS)
    quarter = replace(one, input_size=(28, 28), output_size=(28, 28))
    walked = time_us(one, Rate.MATRIX_FP16) - time_us(quarter, Rate.MATRIX_FP16)
    assert walked == pytest.approx(3 * 28**2 * 39 / 1980, rel=0.1)
    small = replace(convolution(size=7, kernel=5, channels=960, groups=960), batch=8, direction=WEIGHTS)
    assert time_us(small, Rate.MATRIX_TF32) > 3.0 * time_us(small)


def test_kinds_of_problem_have_intervals_of_their_own() -> None:
    assert MODEL.group is not None
    grouped = convolution(channels=4, groups=2)
    dims = (convolution(), replace(convolution(), c_in=3), grouped, replace(grouped, direction=WEIGHTS))
    names = [MODEL.group_names[code] for code in MODEL.group(problems_of_dims(dims, [Rate.MATRIX_BF16] * 4))]
    assert names == ["forward", "few channels", "grouped, deep or dilated", "weights, grouped or deep"]
    names = [MODEL.group_names[code] for code in MODEL.group(problems_of_dims(dims, [Rate.MATRIX_FP32] * 4))]
    assert names == ["forward", "few channels", *["grouped, vector units"] * 2]


def test_a_lone_block_of_vector_units_waits_for_its_loads() -> None:
    one, eight = (replace(convolution(size=7, channels=512), batch=batch) for batch in (1, 8))
    assert time_us(eight, Rate.MATRIX_FP32) < 3.0 * time_us(
        one, Rate.MATRIX_FP32
    )  # though it multiplies 8 times as much


def test_forward_passes_of_many_small_images_in_fp32_run_through_fourier_tiles() -> None:
    small, large = (planar(replace(convolution(size=size), batch=128)) for size in (14, 17))
    assert time_us(large, Rate.MATRIX_FP32) > 2.0 * time_us(small, Rate.MATRIX_FP32)


def test_far_kernels_lose_on_one_image_what_matrix_units_else_keep() -> None:
    near, far = (replace(convolution(channels=2048), dilation=(step, step)) for step in (4, 12))
    costs = [time_us(replace(dims, batch=1)) / time_us(dims) for dims in (near, far)]
    assert costs[1] > 1.5 * costs[0]


def test_grouped_weight_gradients_of_fp32_may_run_winograds() -> None:
    square = replace(planar(convolution(size=7, channels=1024, groups=32)), batch=256, direction=WEIGHTS)
    dilated = replace(square, dilation=(2, 2))
    assert time_us(dilated, Rate.MATRIX_FP32) > 1.5 * time_us(square, Rate.MATRIX_FP32)


def test_strided_weight_gradients_of_fp32_part_one_groups_sums_however_many_groups_take_turns() -> None:
    few, many = (
        replace(convolution(channels=8 * groups, groups=groups), stride=(2, 2), output_size=(14, 14), direction=WEIGHTS)
        for groups in (16, 128)
    )
    assert time_us(many, Rate.FP32) < 9.0 * time_us(few, Rate.FP32)


def test_ragged_groups_are_filled_up_and_gradients_in_16_bits_take_turns() -> None:
    ragged, even = convolution(channels=336, groups=7), convolution(channels=448, groups=7)
    last, first = (time_us(place(ragged)) - time_us(place(even)) for place in (replace, planar))
    assert last > 30.0
    assert first < 0.5 * last
    one, other = (replace(dims, batch=1, direction=WEIGHTS) for dims in (ragged, even))
    assert time_us(one) > 5.0 * time_us(other)


def test_weight_gradients_of_single_pixels_in_nchw_are_written_for_each_image() -> None:
    few, many = (
        replace(convolution(size=8, kernel=1, channels=512), batch=batch, direction=WEIGHTS) for batch in (32, 64)
    )
    assert time_us(planar(many)) - time_us(planar(few)) > 1.5 * (time_us(many) - time_us(few))


def test_strided_single_pixels_read_what_they_meet() -> None:
    dims = replace(convolution(size=112, kernel=1, channels=512), output_size=(56, 56), stride=(2, 2))
    whole = replace(convolution(size=56, kernel=1, channels=512))
    assert time_us(dims) == pytest.approx(time_us(whole), rel=0.35)


def test_small_problems_start_sooner_on_amperes_kernels() -> None:
    assert time_us(convolution(size=4, channels=64)) < 7.0 < time_us(convolution(size=14))


@pytest.mark.parametrize(
    ("rate", "direction"), [(Rate.MATRIX_BF16, Direction.FORWARD), (Rate.MATRIX_TF32, Direction.INPUT_GRADIENT)]
)
def test_depthwise_kernels_make_pixels_beyond_an_edge(rate: Rate, direction: Direction) -> None:
    whole, ragged = (
        replace(convolution(size=size, kernel=5, channels=960, groups=960), batch=256, direction=direction)
        for size in (8, 7)
    )
    assert time_us(ragged, rate) > 0.95 * time_us(whole, rate)


def test_depthwise_tiles_in_nchw_are_read_with_what_lies_around_them() -> None:
    small, large = (planar(convolution(size=size, kernel=5, channels=64, groups=64)) for size in (14, 56))
    ratio = (
        16.0
        * time_us(replace(small, batch=512), Rate.MATRIX_FP16)
        / time_us(replace(large, batch=512), Rate.MATRIX_FP16)
    )
    assert ratio == pytest.approx((18 / 14) ** 2 / (60 / 56) ** 2, rel=0.1)


def test_sums_are_parted_only_where_that_pays_so_that_no_faster_memory_is_slower() -> None:
    theta = np.zeros(theta_size(MODEL.parameters, len(MODEL.class_names)))
    values = resolve(MODEL.parameters, theta, len(MODEL.class_names), MODEL.gpu_class(HOPPER))
    dims = [replace(convolution(size, 5, channels), batch=batch, direction=WEIGHTS) for size, channels, batch in SMALL]
    problems = as_columns(problems_of_dims(dims, [Rate.MATRIX_BF16] * len(dims)))
    fleets = [replace(HOPPER, bandwidth_bytes_per_s=HOPPER.bandwidth_bytes_per_s * 1.03**step) for step in range(40)]
    times = [simulate(problems, fleet, values, None).time_ns for fleet in fleets]
    assert (np.diff(times, axis=0) <= 0.1 * times[0]).all()
