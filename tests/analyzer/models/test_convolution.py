"""Convolutions: bounds, broadcasting, algorithms, gradients, depthwise."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from wavecast.analyzer.models.convolution.amd import MODEL as MIOPEN
from wavecast.analyzer.models.convolution.model import MODEL
from wavecast.analyzer.models.convolution.nvidia import best_fused, setting_of
from wavecast.analyzer.models.convolution.problems import (
    ConvolutionProblems,
    ConvolutionTiming,
    least_work,
    problems_of_dims,
    runs_depthwise,
    runs_narrow_groups,
    tensor_elements,
)
from wavecast.analyzer.models.convolution.products import Product, product_of
from wavecast.analyzer.models.frame.model import Estimate
from wavecast.analyzer.models.frame.parameters import resolve, theta_size
from wavecast.analyzer.work.work import ConvolutionDims, Direction
from wavecast.arrays import Codes, Floats
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import Fleet, build_fleet, take_gpus
from wavecast.specs.generations import is_amd, is_async, is_before_volta
from wavecast.specs.gpu import Rate, is_matrix_rate
from wavecast.specs.match import find_gpu

CATALOG = load_catalog()
FLEET = build_fleet([gpu for gpu in CATALOG.gpus if gpu.vendor != "AMD"])
AMD = build_fleet([gpu for gpu in CATALOG.gpus if gpu.vendor == "AMD"])
FLEETS = {"cuDNN": FLEET, "MIOpen": AMD}
each_library = pytest.mark.parametrize("fleet", FLEETS.values(), ids=FLEETS)
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


def run(problems: ConvolutionProblems, fleet: Fleet, choice: Codes | None = None) -> Estimate:
    model = MIOPEN if is_amd(fleet).all() else MODEL
    theta = np.zeros(theta_size(model.parameters, len(model.class_names)))
    values = resolve(model.parameters, theta, len(model.class_names), model.gpu_class(fleet))
    return model.simulate(problems, fleet, values, choice)


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
    "dilated": replace(convolution(), dilation=(2, 2)),
    "channels last": replace(convolution(), is_channels_last=True),
    "depthwise weight gradient": convolution(groups=128, direction=Direction.WEIGHT_GRADIENT),
    "3d, both": convolution(spatial=3, size=14, direction=Direction.BOTH_GRADIENTS),
    "both": convolution(direction=Direction.BOTH_GRADIENTS),
    "one pixel": convolution(batch=1, c_in=1, c_out=1, size=1),
}


@pytest.mark.parametrize("rate", [Rate.MATRIX_FP32, Rate.MATRIX_TF32, Rate.MATRIX_FP16, Rate.MATRIX_INT8])
@pytest.mark.parametrize("kind", KINDS)
@each_library
def test_every_gpu_has_a_time_above_its_bound(fleet: Fleet, kind: str, rate: Rate) -> None:
    dims = KINDS[kind]
    problems = problems_of_dims([dims], [rate])
    found = times(dims, fleet, rate)
    peak = np.maximum(fleet.flops_per_s[rate], fleet.flops_per_s[Rate.FP32])
    flops = least_work(problems).flops
    winograd = 4.0 if problems.tiles[0] > 0 else 1.0  # F(4x4, 3x3) needs a quarter of the multiplications
    assert np.isfinite(found).all()
    assert (found >= flops / winograd / peak * 1e9).all()
    assert (found < 1e10).all()


def product(dims: ConvolutionDims, waste: float = 0.0, chunk_waste: float | None = None) -> Product:
    return product_of(problems_of_dims([dims], [Rate.MATRIX_FP16]), waste, chunk_waste)


@pytest.mark.parametrize("direction", list(Direction)[:3])
def test_products_hold_all_multiplications(direction: Direction) -> None:
    found = product(convolution(groups=4, stride=2, direction=direction))
    products = found.m * found.n * found.k * found.groups
    assert products == pytest.approx(32 * 14 * 14 * 9 * 128 * 128 / 4)


def test_a_strided_data_gradient_may_waste_the_positions_that_no_pixel_meets() -> None:
    dims = convolution(stride=2, direction=Direction.INPUT_GRADIENT)
    assert product(dims, waste=1.0).k == pytest.approx(4 * product(dims).k)


def test_few_channels_are_filled_up_on_matrix_units() -> None:
    few, whole = convolution(c_in=3), convolution(c_in=32)
    assert product(few, chunk_waste=1.0).k == product(whole, chunk_waste=1.0).k
    assert product(few).k < product(few, chunk_waste=0.5).k < product(whole).k


def on(name: str) -> Fleet:
    return build_fleet([find_gpu(CATALOG, name)])


@pytest.mark.parametrize("rate", [Rate.MATRIX_TF32, Rate.MATRIX_FP16, Rate.MATRIX_BF16])
def test_channels_last_spares_the_change_of_layout(rate: Rate) -> None:
    dims, a100 = convolution(batch=64, size=56), on("A100 SXM4 40GB")
    last = replace(dims, is_channels_last=True)
    assert times(last, a100, rate)[0] < 0.8 * times(dims, a100, rate)[0]


def test_vector_units_read_either_layout() -> None:
    dims = convolution(batch=64, size=56)
    assert times(replace(dims, is_channels_last=True), V100)[0] == times(dims, V100)[0]


def test_single_pixels_are_multiplied_as_they_lie_where_rows_of_pixels_are_whole_loads() -> None:
    def extra(size: int, stride: int = 1) -> float:
        dims, gpu = convolution(batch=64, kernel=1, size=size, stride=stride), on("GeForce RTX 3090")
        last = times(replace(dims, is_channels_last=True), gpu, Rate.MATRIX_FP16)
        return float((times(dims, gpu, Rate.MATRIX_FP16) / last)[0])

    # 14 x 14 pixels are loads of 8 bytes, and fill a part of each image's last tile.
    assert extra(56) == 1.0 < extra(14) < 1.2
    assert min(extra(7), extra(57), extra(56, stride=2)) > 1.2


def test_tf32_kernels_write_nchw_themselves_where_channels_come_by_fours() -> None:
    gpu = on("A100 SXM4 40GB")

    def extra(c_in: int) -> float:
        dims = convolution(batch=64, c_in=c_in, c_out=256, size=56)
        last = times(replace(dims, is_channels_last=True), gpu, Rate.MATRIX_TF32)
        return float((times(dims, gpu, Rate.MATRIX_TF32) - last)[0])

    assert extra(36) < 0.5 * extra(37)


def test_first_layers_sum_positions_and_few_channels_together() -> None:
    gpu = on("GeForce RTX 3090")
    stem, patch = (
        convolution(batch=64, c_in=3, c_out=64, size=224, kernel=kernel, stride=kernel // 3) for kernel in (7, 14)
    )
    problems = problems_of_dims([stem, patch, replace(stem, c_in=8)], [Rate.MATRIX_FP16] * 3)
    assert product_of(problems, 0.0, 1.0, has_first=True).k.tolist() == [224.0, 196 * 32.0, 49 * 32.0]
    wider = replace(stem, c_in=8, is_channels_last=True)
    assert times(replace(stem, is_channels_last=True), gpu, Rate.MATRIX_FP16) < times(wider, gpu, Rate.MATRIX_FP16)


def depthwise(size: int, kernel: int, stride: int = 1, channels: int = 256) -> ConvolutionDims:
    return convolution(64, channels, channels, size, kernel, stride, groups=channels)


@pytest.mark.parametrize(
    ("dims", "rate", "is_taken"),
    [
        (depthwise(28, 3), Rate.MATRIX_FP16, True),
        (depthwise(28, 5, stride=2), Rate.MATRIX_FP16, True),
        (depthwise(28, 3, stride=2, channels=128), Rate.MATRIX_FP16, False),
        (depthwise(28, 7), Rate.MATRIX_FP16, False),
        (depthwise(4, 3), Rate.MATRIX_FP16, False),
        (depthwise(28, 3), Rate.MATRIX_BF16, False),
        (replace(depthwise(28, 3), dilation=(2, 2)), Rate.MATRIX_FP16, False),
        (replace(depthwise(28, 7), is_channels_last=True), Rate.MATRIX_BF16, True),
        (replace(convolution(groups=32), is_channels_last=True), Rate.MATRIX_FP16, False),
    ],
)
def test_whose_depthwise_kernel_runs(dims: ConvolutionDims, rate: Rate, is_taken: bool) -> None:
    assert runs_depthwise(problems_of_dims([dims], [rate])).tolist() == [is_taken]


@pytest.mark.parametrize(
    ("dims", "rate", "is_taken"),
    [
        (convolution(groups=32), Rate.MATRIX_FP16, True),
        (convolution(groups=8, stride=2), Rate.MATRIX_BF16, True),
        (convolution(groups=4), Rate.MATRIX_FP16, False),
        (convolution(c_in=96, c_out=96, groups=8), Rate.MATRIX_FP16, False),
        (convolution(c_out=256, groups=32), Rate.MATRIX_FP16, False),
        (convolution(groups=32), Rate.MATRIX_TF32, False),
        (convolution(groups=32, direction=Direction.INPUT_GRADIENT), Rate.MATRIX_FP16, False),
        (replace(convolution(groups=32), dilation=(2, 2)), Rate.MATRIX_FP16, False),
        (convolution(), Rate.MATRIX_FP16, False),
    ],
)
def test_whose_kernels_take_several_narrow_groups_at_once(dims: ConvolutionDims, rate: Rate, is_taken: bool) -> None:
    assert runs_narrow_groups(problems_of_dims([dims], [rate])).tolist() == [is_taken]


def test_narrow_groups_take_about_as_long_as_their_bytes() -> None:
    gpu = on("GeForce RTX 3090")
    narrow, uneven = (
        replace(convolution(256, 32 * width, 32 * width, 28, groups=32), is_channels_last=True) for width in (16, 12)
    )
    moved = least_work(problems_of_dims([narrow], [Rate.MATRIX_FP16])).moved_bytes / gpu.bandwidth_bytes_per_s * 1e9
    found = times(narrow, gpu, Rate.MATRIX_FP16)
    assert moved < found < 2.0 * moved
    assert found < 0.5 * times(uneven, gpu, Rate.MATRIX_FP16)


def test_large_depthwise_filters_are_faster_with_channels_last() -> None:
    dims, gpu = depthwise(28, 7), on("GeForce RTX 3090")
    last = replace(dims, is_channels_last=True)
    assert times(last, gpu, Rate.MATRIX_FP16)[0] < 0.5 * times(dims, gpu, Rate.MATRIX_FP16)[0]


def test_operands_in_the_other_layout_are_copied_first() -> None:
    last = replace(convolution(batch=64, size=56), is_channels_last=True)
    elements = 64 * 128 * 56 * 56
    added = times(replace(last, copied_elements=elements), V100, Rate.MATRIX_FP16) - times(last, V100, Rate.MATRIX_FP16)
    assert added[0] > 4 * elements / V100.bandwidth_bytes_per_s[0] * 1e9


@each_library
def test_a_tensor_that_the_epilogue_adds_is_read(fleet: Fleet) -> None:
    dims = convolution(kernel=1, size=56)
    assert (times(replace(dims, added_tensors=1), fleet) > times(dims, fleet)).all()


@each_library
def test_both_gradients_take_as_long_as_one_after_the_other(fleet: Fleet) -> None:
    data, weights, both = (times(convolution(direction=direction), fleet) for direction in list(Direction)[1:])
    assert both == pytest.approx(data + weights)


def test_int8_has_no_winograd_and_5x5_have_since_volta_or_as_data_gradients() -> None:
    def gain(
        name: str, kernel: int, rate: Rate, direction: Direction = Direction.FORWARD, *, spatial: int = 2
    ) -> float:
        dims = convolution(kernel=kernel, c_out=64, spatial=spatial, direction=direction)
        return float((times(replace(dims, dilation=(2,) * spatial), on(name), rate) / times(dims, on(name), rate))[0])

    pascal, data = "GeForce GTX 1080 Ti", Direction.INPUT_GRADIENT
    assert gain(pascal, 3, Rate.MATRIX_FP32) > 1.4
    assert gain(pascal, 3, Rate.MATRIX_INT8) == gain(pascal, 5, Rate.MATRIX_FP32) == 1.0
    assert gain("Tesla T4", 5, Rate.MATRIX_FP32) > 2.0 < gain(pascal, 5, Rate.MATRIX_FP32, data)
    assert gain("Gaudi 2", 5, Rate.MATRIX_FP32) == 1.0
    assert gain("Tesla T4", 25, Rate.MATRIX_FP32, spatial=1) == gain(pascal, 25, Rate.MATRIX_FP32, data, spatial=1) == 1


def test_images_of_less_than_a_tile_are_changed_in_layout_where_that_is_quicker() -> None:
    fleet = build_fleet([find_gpu(CATALOG, name) for name in ("A100 SXM4 40GB", "Tesla V100 PCIe 32GB", "RTX 4090")])
    small, large = (times(convolution(128, 512, 2048, size, kernel=1), fleet, Rate.MATRIX_FP16) for size in (4, 8))
    assert (small < 0.6 * large).all()


def test_volumes_of_few_channels_stay_on_matrix_units() -> None:
    few, more = (convolution(4, c_in, 64, 28, spatial=3) for c_in in (3, 12))
    a100 = on("A100 SXM4 40GB")
    assert times(few, a100, Rate.MATRIX_TF32)[0] > 1.5 * times(few, a100, Rate.MATRIX_FP32)[0]
    assert times(more, a100, Rate.MATRIX_TF32)[0] < 1.2 * times(more, a100, Rate.MATRIX_FP32)[0]


def test_what_l2_keeps_from_call_to_call_is_not_loaded_again() -> None:
    fleet, dims = on("L40S"), convolution(16, 64, 64, 64, kernel=1)
    small, large = replace(fleet, l2_cache_bytes=fleet.l2_cache_bytes / 8.0), replace(dims, batch=256)
    assert times(dims, small)[0] > 1.2 * times(dims, fleet)[0]
    assert times(large, small)[0] == pytest.approx(times(large, fleet)[0], rel=0.03)


def test_dilation_rules_out_winograd() -> None:
    assert problems_of_dims([replace(convolution(), dilation=(2, 2))], [Rate.FP32]).tiles.tolist() == [0.0]


@pytest.mark.parametrize(("rate", "early"), [(Rate.MATRIX_FP32, 0), (Rate.MATRIX_FP16, 1)])
def test_sizes_of_the_correction_are_the_same_on_every_gpu_of_a_library(rate: Rate, early: int) -> None:
    problems = problems_of_dims([convolution()] * len(FLEET.gpus), [rate] * len(FLEET.gpus))
    table, paired = run(as_rows(problems), FLEET), run(problems, FLEET)
    assert table.sizes is not None
    assert table.size_column is not None
    assert paired.sizes is not None
    assert table.sizes.shape == (len(FLEET.gpus), len(MODEL.class_names), len(MODEL.size_names))
    assert np.array_equal(table.sizes[0, table.size_column], paired.sizes, equal_nan=True)
    is_unknown = np.isnan(paired.sizes).all(axis=1)
    assert is_unknown.tolist() == ((is_before_volta(FLEET) & (early == 1)) | is_async(FLEET)).tolist()
    assert len(np.unique(paired.sizes[~is_unknown], axis=0)) == 1


def test_groups_and_volumes_are_corrected_where_the_library_was_measured() -> None:
    problems = as_rows(problems_of_dims([KINDS[name] for name in ("grouped", "3d", "3x3")], [Rate.MATRIX_FP16] * 3))
    sizes, of_miopen = run(problems, FLEET).sizes, run(problems, AMD).sizes
    assert sizes is not None
    assert of_miopen is not None
    assert np.isnan(sizes[:, 1, 0]).tolist() == [True, True, False]
    assert np.isfinite(of_miopen).all()


def test_matrix_units_of_display_cards_run_above_the_stated_clock() -> None:
    fleet = build_fleet([find_gpu(CATALOG, "RTX 3090"), find_gpu(CATALOG, "RTX A6000")])
    stated = replace(fleet, clock_headroom=np.ones(2))
    dims = replace(convolution(256, 512, 512, 28), is_channels_last=True)
    gain = times(dims, stated, Rate.MATRIX_FP16) / times(dims, fleet, Rate.MATRIX_FP16)
    assert gain == pytest.approx([1.09, 1.0], abs=0.02)


def test_a_tile_begins_and_ends_as_slowly_whatever_rate_multiplies() -> None:
    a100 = find_gpu(CATALOG, "A100 SXM4 80GB")
    slow = {rate: flops / 4 if rate == Rate.MATRIX_FP16 else flops for rate, flops in a100.peak_flops_per_s.items()}
    fleet = build_fleet([a100, replace(a100, peak_flops_per_s=slow)])
    few, many = (
        times(replace(convolution(256, c_in, 512, 28, kernel=1), is_channels_last=True), fleet, Rate.MATRIX_FP16)
        for c_in in (64, 4096)
    )
    assert many[1] / many[0] > 1.5 * few[1] / few[0]


def test_a_larger_cache_keeps_what_weight_gradients_load_again() -> None:
    a100 = find_gpu(CATALOG, "A100 SXM4 80GB")
    fleet = build_fleet([a100, replace(a100, l2_cache_bytes=4 << 20)])
    forward, weights = (
        times(convolution(256, 64, 256, 56, kernel=1, direction=way), fleet, Rate.MATRIX_FP16)
        for way in (Direction.FORWARD, Direction.WEIGHT_GRADIENT)
    )
    assert forward[1] == pytest.approx(forward[0], rel=0.1)
    assert weights[1] > 1.03 * weights[0]


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


@each_library
def test_rows_against_a_fleet_equal_pairs(fleet: Fleet) -> None:
    problems = problems_of_dims(list(KINDS.values()), [Rate.MATRIX_FP16] * len(KINDS))
    table = run(as_rows(problems), fleet)
    columns = np.arange(len(KINDS)) * 7 % len(fleet.gpus)
    paired = run(problems, take_gpus(fleet, columns))
    assert paired.time_ns == pytest.approx(table.time_ns[np.arange(len(KINDS)), columns])


@each_library
def test_the_choice_reproduces_the_time(fleet: Fleet) -> None:
    problems = as_rows(problems_of_dims(list(KINDS.values()), [Rate.MATRIX_FP32] * len(KINDS)))
    first = run(problems, fleet)
    assert run(problems, fleet, first.choice).time_ns == pytest.approx(first.time_ns)


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


FIGURES = ("sm_count", "clock_hz", "bandwidth_bytes_per_s", "l2_cache_bytes")
SMALL_BOARD_W = 65.0


@given(
    batch=st.integers(1, 256),
    c_in=st.integers(1, 1024),
    c_out=st.integers(1, 1024),
    size=st.integers(3, 112),
    kernel=st.sampled_from([1, 3, 5]),
    direction=st.sampled_from(list(Direction)),
    rate=st.sampled_from([Rate.MATRIX_FP32, Rate.MATRIX_TF32, Rate.MATRIX_FP16, Rate.MATRIX_INT8]),
    figure=st.sampled_from(FIGURES),
    factor=st.sampled_from([1.02, 1.3, 2.0]),
)
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("library", FLEETS)
def test_a_better_gpu_is_not_slower(
    library: str,
    batch: int,
    c_in: int,
    c_out: int,
    size: int,
    kernel: int,
    direction: Direction,
    rate: Rate,
    figure: str,
    factor: float,
) -> None:
    """More multiprocessors and a higher clock bring their arithmetic with them.

    Boards of 60 W are the exception: what reads faster there may draw more than they sustain.
    """
    dims = convolution(batch=batch, c_in=c_in, c_out=c_out, size=size, kernel=kernel, direction=direction)
    fleet = FLEETS[library]
    better = replace(fleet, **{figure: getattr(fleet, figure) * factor})
    if figure in FIGURES[:2]:
        better = replace(better, flops_per_s={unit: flops * factor for unit, flops in fleet.flops_per_s.items()})
    if figure == "clock_hz":
        better = replace(better, matrix_clock_hz=fleet.matrix_clock_hz * factor)
    limit = np.where(fleet.tdp_w <= SMALL_BOARD_W, 1.25, 1.1)
    assert (times(dims, better, rate) <= limit * times(dims, fleet, rate)).all()


def test_winograd_makes_3x3_cheaper_than_its_multiplications() -> None:
    plain, winograd = times(convolution(stride=2, size=56), V100), times(convolution(), V100)
    assert winograd[0] < plain[0]


def test_matrix_units_help_where_there_are_any() -> None:
    dims = convolution(batch=64, c_in=256, c_out=256)
    assert times(dims, V100, Rate.MATRIX_FP16)[0] < 0.6 * times(dims, V100)[0]
    pascal = build_fleet([find_gpu(CATALOG, "GeForce GTX 1080 Ti")])
    assert times(dims, pascal, Rate.MATRIX_FP16)[0] <= times(dims, pascal)[0]


def test_tf32_that_is_allowed_runs_as_fp32_on_amd() -> None:
    """PyTorch does not tell MIOpen: fp32 took half as long on MI300X as on MI355X, which has no TF32."""
    assert (times(KINDS["weight gradient"], AMD, Rate.MATRIX_TF32) == times(KINDS["weight gradient"], AMD)).all()


@pytest.mark.parametrize("size", [4, 16, 32])
def test_faster_matrix_units_of_amd_take_no_longer(size: int) -> None:
    gpu = find_gpu(CATALOG, "Instinct MI350X")
    peaks = {rate: flops * (4.0 if is_matrix_rate(rate) else 1.0) for rate, flops in gpu.peak_flops_per_s.items()}
    fleet = build_fleet([gpu, replace(gpu, peak_flops_per_s=peaks)])
    usual, faster = times(convolution(c_in=256, c_out=256, size=size, kernel=1), fleet, Rate.MATRIX_BF16)
    assert faster <= 1.01 * usual


def test_large_products_on_amd_pass_a_third_of_the_peak_and_gradients_leave_out_zeros() -> None:
    mi250x = build_fleet([find_gpu(CATALOG, "Instinct MI250X (1 GCD)")])
    large = convolution(batch=256, c_in=512, c_out=512, stride=2, size=56)
    flops = 2.0 * 256 * 28 * 28 * 9 * 512 * 512
    assert flops / times(large, mi250x, Rate.MATRIX_FP16)[0] > 0.35e-9 * mi250x.flops_per_s[Rate.MATRIX_FP16][0]
    plain, strided = (
        times(convolution(256, 1024, 1024, 28, 1, stride, direction=Direction.INPUT_GRADIENT), mi250x)[0]
        for stride in (1, 2)
    )
    assert strided < 0.85 * plain


@pytest.mark.parametrize(
    ("name", "channels", "groups", "is_slower"),
    [
        ("Instinct MI100", 96, 1, False),
        ("Instinct MI100", 104, 1, True),
        ("Instinct MI250X (1 GCD)", 104, 1, False),
        ("Instinct MI250X (1 GCD)", 96, 2, True),
        ("Instinct MI100", 96, 2, False),
    ],
)
def test_whose_data_gradients_in_bf16_have_an_implicit_kernel(
    name: str, channels: int, groups: int, is_slower: bool
) -> None:
    dims = convolution(c_in=channels, c_out=channels, groups=groups, direction=Direction.INPUT_GRADIENT)
    ratio = times(dims, on(name), Rate.MATRIX_BF16) / times(dims, on(name), Rate.MATRIX_FP16)
    assert (ratio[0] > 3.0) == is_slower


def test_single_positions_pass_by_pixels_that_they_do_not_meet() -> None:
    gradient = convolution(64, 1024, 1024, 28, 1, 2, direction=Direction.INPUT_GRADIENT)
    assert product(gradient).k == 1024 / 4
    assert times(gradient, V100)[0] < 0.6 * times(replace(gradient, stride=(1, 1), output_size=(28, 28)), V100)[0]
    problems = problems_of_dims([convolution(kernel=1, stride=2)], [Rate.MATRIX_FP16])
    x, y, weights = tensor_elements(problems)
    whole = product_of(problems, waste=0.0)
    assert whole.passing(problems).moved_bytes == pytest.approx(2 * (x / 4 + y + weights))
    assert whole.passing(problems, is_planar=True).moved_bytes == pytest.approx(2 * (x / 2 + y + weights))


def test_strided_data_gradients_of_few_channels_fill_their_tiles() -> None:
    p100 = build_fleet([find_gpu(CATALOG, "Tesla P100 PCIe 16GB")])
    few, more = (
        times(convolution(16, c_in, 32, 336, 9, 2, direction=Direction.INPUT_GRADIENT), p100)[0] for c_in in (1, 8)
    )
    assert few < 0.4 * more


@pytest.mark.parametrize("name", ["A100 SXM4 80GB", "Tesla P100 PCIe 16GB", "GeForce RTX 3090"])
def test_strided_data_gradients_take_no_leap_where_the_narrowest_tile_is_full(name: str) -> None:
    # Of few pixels and many channels of y: 18 times as long with the eighth channel.
    fleet = build_fleet([find_gpu(CATALOG, name)])
    seven, eight = (
        times(convolution(1, c_in, 1024, 8, 7, 2, direction=Direction.INPUT_GRADIENT), fleet)[0] for c_in in (7, 8)
    )
    assert eight < 2.0 * seven


def test_gradients_cost_more_than_the_forward() -> None:
    # Strided: of others Hopper's fp32 gradients have algorithms that multiply less.
    forward, both = (
        times(convolution(stride=2, direction=way)) for way in (Direction.FORWARD, Direction.BOTH_GRADIENTS)
    )
    assert (both > 1.5 * forward).all()


def test_an_event_timed_call_includes_the_host() -> None:
    dims = convolution(batch=1, size=4)
    problems = as_rows(problems_of_dims([dims], [Rate.MATRIX_FP32]))
    timed = run(replace(problems, timing=np.full((1, 1), int(ConvolutionTiming.CALL))), V100)
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
    assert (problems.element_bytes * sum(tensor_elements(problems))).tolist() == [
        width * (2 * 8 * 8 * (3 + 5) + 9 * 3 * 5)
    ]


@pytest.mark.parametrize(
    ("direction", "m", "n", "k"),
    [
        (Direction.FORWARD, 2 * 4 * 4, 6 / 2, 9 * 8 / 2),
        (Direction.INPUT_GRADIENT, 2 * 8 * 8, 8 / 2, 9 * 6 / 2 / 4),
        (Direction.WEIGHT_GRADIENT, 9 * 8 / 2, 6 / 2, 2 * 4 * 4),
        (Direction.BOTH_GRADIENTS, 2 * 8 * 8, 8 / 2, 9 * 6 / 2 / 4),
    ],
)
def test_products_are_seen_from_the_side_that_is_made(direction: Direction, m: float, n: float, k: float) -> None:
    dims = convolution(batch=2, c_in=8, c_out=6, size=8, stride=2, groups=2, direction=direction)
    found = product(dims)
    assert [found.m.tolist(), found.n.tolist(), found.k.tolist(), found.groups.tolist()] == [[m], [n], [k], [2.0]]
    problems = problems_of_dims([dims], [Rate.FP32])
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


def test_errors_are_grouped_by_direction_and_kind() -> None:
    plain = convolution(batch=2, c_in=8, c_out=8)
    cases = (
        (plain, 0),
        (replace(plain, direction=Direction.WEIGHT_GRADIENT), 1),
        (replace(plain, groups=8), 2),
        (replace(plain, dilation=(2, 2)), 2),
        (convolution(spatial=3, size=4), 2),
    )
    problems = problems_of_dims([dims for dims, _ in cases], [Rate.MATRIX_FP16] * len(cases))
    assert MODEL.group is not None
    assert MODEL.group(problems).tolist() == [group for _, group in cases]


@pytest.mark.parametrize(
    ("name", "least", "most"), [("Tesla P100 PCIe 16GB", 1.7, 2.1), ("GeForce GTX 1080 Ti", 0.9, 1.1)]
)
def test_pairs_of_fp16_are_multiplied_at_once_where_vector_units_do_so(name: str, least: float, most: float) -> None:
    """GP100 alone: other chips before Volta sum fp16 at the rate of fp32."""
    fleet, dims = build_fleet([find_gpu(CATALOG, name)]), convolution(c_in=512, c_out=512, kernel=1, size=56)
    single, half = (
        run(as_rows(problems_of_dims([dims], [rate])), fleet).time_ns[0, 0]
        for rate in (Rate.MATRIX_FP32, Rate.MATRIX_FP16)
    )
    assert least < single / half < most


@pytest.mark.parametrize(
    ("rate", "groups"), [(Rate.MATRIX_BF16, 1), (Rate.MATRIX_FP16, 32)], ids=["bf16", "groups of 8 channels"]
)
def test_what_no_pairs_speed_up_takes_gp100_no_longer_than_fp32(rate: Rate, groups: int) -> None:
    """Of bf16 it has no pairs, and narrow groups fill a corner of the block that sums them."""
    fleet = build_fleet([find_gpu(CATALOG, "Tesla P100 PCIe 16GB")])
    for direction in (Direction.FORWARD, Direction.INPUT_GRADIENT, Direction.WEIGHT_GRADIENT):
        dims = replace(convolution(batch=32, c_in=256, c_out=256, size=28), groups=groups, direction=direction)
        single, half = (
            run(as_rows(problems_of_dims([dims], [one])), fleet).time_ns[0, 0] for one in (Rate.MATRIX_FP32, rate)
        )
        assert 0.9 < single / half < 1.3
