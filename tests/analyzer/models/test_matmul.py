"""Matrix products on matrix units: bounds, monotonicity, broadcasting, formats."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from wavecast.analyzer.models.frame.model import Estimate, Model
from wavecast.analyzer.models.frame.parameters import prior_values
from wavecast.analyzer.models.frame.problems import RATES, as_columns, join_problems, problems_from
from wavecast.analyzer.models.matmul.limits import REDUCTION_BYTES_PER_CLOCK, limits_of, machine_of
from wavecast.analyzer.models.matmul.menus import MOST_SPLITS, TILES, launch_of
from wavecast.analyzer.models.matmul.model import MODEL
from wavecast.analyzer.models.matmul.problems import FORMATS, MatmulKernel, MatmulProblems, least_work, problems_of
from wavecast.analyzer.models.matmul.quantized import QUANTIZED
from wavecast.analyzer.work.registry import work_of
from wavecast.analyzer.work.work import Family, MatmulDims, Work
from wavecast.arrays import Codes, Floats
from wavecast.formats.trace.signature import Signature, TensorSpec
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import Fleet, build_fleet, take_gpus
from wavecast.specs.generations import is_amd, is_async, quantized_kernels
from wavecast.specs.gpu import Rate
from wavecast.specs.match import find_gpu
from wavecast.specs.product_kernels import QuantizedKernels

CATALOG = load_catalog()
EVERY = build_fleet(CATALOG.gpus)
SIZES = st.integers(1, 20_000)


def fleet_of(*names: str) -> Fleet:
    return build_fleet([find_gpu(CATALOG, name) for name in names])


def products(*sizes: tuple[int, int, int, int], dtype: str = "bf16") -> MatmulProblems:
    kind = FORMATS[dtype]
    return problems_from(
        MatmulProblems,
        len(sizes),
        **dict(zip(("batch", "m", "n", "k"), np.array(sizes, dtype=np.float64).T, strict=True)),
        left_bytes=kind.left_bytes,
        right_bytes=kind.right_bytes,
        out_bytes=2.0,
        rate=RATES.index(kind.rate),
        kind=int(kind.kind),
        quantized=kind.is_quantized,
        copies=6.0,
        distinct=1.0,
    )


def run(
    problems: MatmulProblems, fleet: Fleet, choice: Codes | None = None, model: Model[MatmulProblems] = MODEL
) -> Estimate:
    return model.simulate(problems, fleet, prior_values(model.parameters, len(fleet.gpus)), choice)


def bound_ns(problems: MatmulProblems, fleet: Fleet) -> Floats:
    """Return the time of the arithmetic at the peak of the faster of the format's unit and FP32's, at full clock."""
    table = np.stack([fleet.flops_per_s[rate] for rate in RATES])
    peak = np.maximum(table[problems.rate, np.arange(table.shape[1])], fleet.flops_per_s[Rate.FP32])
    return np.asarray(2.0 * problems.batch * problems.m * problems.n * problems.k / (peak * fleet.clock_headroom) * 1e9)


@settings(max_examples=60, deadline=None)
@example(m=1, n=1537, k=12492, batch=64, dtype="nvfp4")  # once too long for single precision
@given(m=SIZES, n=SIZES, k=SIZES, batch=st.integers(1, 64), dtype=st.sampled_from(sorted(FORMATS)))
def test_time_is_finite_and_above_the_arithmetic_on_every_gpu(m: int, n: int, k: int, batch: int, dtype: str) -> None:
    problems = as_columns(products((batch, m, n, k), dtype=dtype))
    model = QUANTIZED if FORMATS[dtype].kind else MODEL
    found = run(problems, EVERY, model=model)
    assert np.isfinite(found.time_ns).all()
    assert np.isfinite(found.described()).all()
    assert (found.time_ns >= bound_ns(problems, EVERY)).all()


def test_columns_against_a_fleet_equal_pairs() -> None:
    problems = products((1, 4096, 4096, 4096), (1, 8, 8192, 1024), (32, 128, 128, 64), (1, 77, 1001, 513))
    fleet = fleet_of("H100 SXM", "L40S", "Tesla V100 SXM2 16GB", "Instinct MI300X")
    table = run(as_columns(problems), fleet)
    for gpu in range(len(fleet.gpus)):
        paired = run(problems, take_gpus(fleet, np.full(4, gpu)))
        np.testing.assert_allclose(table.time_ns[:, gpu], paired.time_ns, rtol=1e-9)
        np.testing.assert_allclose(table.described()[:, gpu], paired.described(), rtol=1e-9, atol=1e-9)


def test_mixed_formats_equal_each_alone() -> None:
    parts = [products((1, 512, 4096, 4096), dtype=dtype) for dtype in sorted(FORMATS)]
    fleet = fleet_of("H100 SXM", "L40S")
    together = run(as_columns(join_problems(parts)), fleet, model=QUANTIZED).time_ns
    alone = [run(as_columns(part), fleet, model=QUANTIZED).time_ns for part in parts]
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=1e-9)


@settings(max_examples=30, deadline=None)
@given(m=SIZES, n=SIZES.map(lambda size: 8 * size), k=SIZES.map(lambda size: 8 * size), batch=st.integers(1, 64))
def test_the_cheap_score_finds_about_the_least_time(m: int, n: int, k: int, batch: int) -> None:
    problems = as_columns(products((batch, m, n, k)))
    fleet = fleet_of("H100 SXM", "L40S", "Tesla T4", "RTX A6000", "Instinct MI355X")
    chosen = run(problems, fleet).time_ns
    pairs = [list(zip(sides.tolist(), (m, n), strict=True)) for sides in TILES]
    tiles = [
        i for i, both in enumerate(pairs) if all(side == 64 or (side < 64 and size <= 2 * side) for side, size in both)
    ]
    every = [run(problems, fleet, np.full(chosen.shape, tile)).time_ns for tile in tiles]
    fills = (min(m, n) > 64) & (np.ceil(m / 128) * np.ceil(n / 128) * batch >= 2 * fleet.sm_count)
    is_open = is_async(fleet) | is_amd(fleet) | ~fills  # elsewhere libraries do not take these tiles
    assert (chosen <= 1.15 * np.min(every, axis=0))[:, is_open].all()


def test_plain_products_that_fill_two_waves_before_hopper_take_no_narrow_tile() -> None:
    problems, fleet = as_columns(products((1, 1944, 4096, 4096), (1, 640, 4096, 4096))), fleet_of("A6000", "H100 SXM")
    choice = run(problems, fleet).choice
    assert choice is not None
    assert (TILES[choice[0, 0] % len(TILES)] >= 128).all()
    narrow = run(problems, fleet, np.full((2, 2), TILES.tolist().index([64.0, 256.0]))).time_ns
    assert narrow[0, 0] < run(problems, fleet).time_ns[0, 0]


def test_no_tile_is_repeated_along_a_side_that_it_is_made_short_for() -> None:
    problems, fleet = (
        as_columns(products((1, 97, 65536, 4096), (1, 786432, 196, 384))),
        fleet_of("RTX 3090", "A100 SXM4 80GB"),
    )
    choice = run(problems, fleet).choice
    assert choice is not None
    assert (TILES[choice % len(TILES)] >= 64).all()


def test_batches_that_share_a_weight_read_it_once() -> None:
    weight = TensorSpec("bfloat16", (1024, 64, 4096), (0, 4096, 1))
    own = replace(weight, strides=(64 * 4096, 4096, 1))
    rows = TensorSpec("bfloat16", (1024, 16, 64), (1024, 64, 1))
    works = [work_of("aten::bmm", Signature((rows, item))) for item in (weight, own)]
    problems = problems_of([work for work in works if work], [Rate.MATRIX_BF16] * 2)
    shared_bytes, own_bytes = least_work(problems).moved_bytes
    assert own_bytes - shared_bytes == 1023 * 64 * 4096 * 2
    shared_ns, own_ns = run(as_columns(problems), fleet_of("H100 SXM")).time_ns[:, 0]
    assert shared_ns < own_ns


def test_weights_of_a_large_model_are_cold_but_not_behind_written_lines() -> None:
    weight = as_columns(products((1, 8, 3584, 8192)))
    far, flushed = (replace(weight, copies=np.full((1, 1), copies)) for copies in (3e3, np.inf))
    near_ns, far_ns, flushed_ns = (run(item, fleet_of("H100 SXM")).time_ns[0, 0] for item in (weight, far, flushed))
    assert far_ns == pytest.approx(near_ns, rel=1e-3)
    assert flushed_ns > 1.1 * far_ns


def test_dram_turns_round_between_reads_and_writes() -> None:
    sizes = {"results": (128, 8192, 128, 512), "queries": (128, 8192, 512, 128)}
    fleet = fleet_of("H100 SXM", "B200", "A100 SXM4 80GB")
    values = prior_values(MODEL.parameters, len(fleet.gpus))
    for size in sizes.values():
        problems = as_columns(products(size))
        free = MODEL.simulate(problems, fleet, {**values, "turn_ratio": np.zeros(3)}, None).time_ns
        assert (run(problems, fleet).time_ns >= free).all()
        moved = least_work(problems).moved_bytes
        assert (run(problems, fleet).time_ns >= moved / fleet.bandwidth_bytes_per_s * 1e9).all()


def test_calls_that_are_graphs_of_their_own_end_late_on_blackwell() -> None:
    given, fleet = products((1, 4096, 4096, 4096)), fleet_of("B200", "H100 SXM")
    plain, lone = (run(as_columns(item), fleet).time_ns for item in (given, replace(given, lone=np.ones(1, np.int64))))
    assert (lone - plain).ravel() == pytest.approx([1025.0, 0.0], abs=0.1)


def test_no_learned_correction_speaks_of_batches() -> None:
    sizes = run(as_columns(products((1, 512, 512, 512), (8, 512, 512, 512))), fleet_of("H100 SXM")).sizes
    assert sizes is not None
    assert np.isfinite(sizes[0]).all()
    assert np.isnan(sizes[1]).any()


def test_half_rate_cards_run_above_the_stated_clock() -> None:
    problems, fleet = (
        as_columns(products((1, 65536, 4096, 4096))),
        fleet_of("RTX 3090", "RTX 3090@1695MHz", "RTX A6000"),
    )
    free, locked, professional = run(problems, fleet).time_ns[0]
    assert free < 0.95 * locked
    assert professional < free


def test_frozen_choice_repeats_the_chosen_launch() -> None:
    problems, fleet = (
        as_columns(products((1, 4096, 4096, 4096), (1, 8, 8192, 1024))),
        fleet_of("A100 SXM4 80GB", "B200"),
    )
    first = run(problems, fleet)
    np.testing.assert_array_equal(run(problems, fleet, first.choice).time_ns, first.time_ns)


@settings(max_examples=40, deadline=None)
@given(m=SIZES, n=SIZES, k=SIZES)
def test_more_bandwidth_is_never_slower(m: int, n: int, k: int) -> None:
    problems, fleet = as_columns(products((1, m, n, k))), fleet_of("H100 SXM", "L40S", "Tesla T4")
    launch = run(problems, fleet)
    faster = replace(fleet, bandwidth_bytes_per_s=fleet.bandwidth_bytes_per_s * 2)
    # power may rise with speed, by less than what the speed gains
    assert (run(problems, faster, launch.choice).time_ns <= launch.time_ns * 1.02).all()


def test_power_limit_slows_long_products_only() -> None:
    fleet = fleet_of("L40S")
    strong = replace(fleet, tdp_w=fleet.tdp_w * 4)
    problems = as_columns(products((1, 16384, 16384, 16384), (1, 256, 512, 512)))
    ratio = (run(problems, fleet).time_ns / run(problems, strong).time_ns)[:, 0]
    assert ratio[0] > 1.2
    assert ratio[1] == pytest.approx(1.0, abs=0.01)


def test_narrower_formats_are_faster_where_large_and_slower_where_conversion_rules() -> None:
    fleet = fleet_of("B200")
    large, small = (1, 16384, 8192, 8192), (1, 8, 256, 256)
    times = {
        dtype: run(as_columns(products(large, small, dtype=dtype)), fleet, model=QUANTIZED).time_ns[:, 0]
        for dtype in ("bf16", "fp8", "nvfp4")
    }
    assert times["nvfp4"][0] < times["fp8"][0] < times["bf16"][0]
    assert times["fp8"][1] > times["bf16"][1]


def test_only_two_dies_convert_later() -> None:
    thor = find_gpu(CATALOG, "Jetson AGX Thor 128GB")
    fleet = build_fleet([replace(thor, memory_type=memory) for memory in ("HBM3e", "LPDDR5X")])
    cases = (as_columns(products((1, 64, 512, 512), dtype=name)) for name in ("fp8", "fp8_static"))
    whole, product = (run(case, fleet, model=QUANTIZED).time_ns for case in cases)
    assert np.subtract(*(whole - product).ravel()) == pytest.approx(500.0, rel=0.1)


def test_rows_that_miss_sixteen_bytes_cost() -> None:
    fleet = fleet_of("A100 SXM4 80GB")
    aligned, odd = run(as_columns(products((1, 4096, 4096, 4096), (1, 4096, 4095, 4096))), fleet).time_ns[:, 0]
    assert odd > 1.2 * aligned


def test_split_fills_idle_multiprocessors_and_no_more() -> None:
    whole, split = np.arange(len(TILES)), np.arange(len(TILES), 2 * len(TILES))
    sizes = (np.ones(1), np.full(1, 64.0), np.full(1, 64.0), np.full(1, 65536.0))
    assert (launch_of(whole, *sizes, np.full(1, 132.0)).split == 1.0).all()
    found = launch_of(split, *sizes, np.full(1, 132.0))
    assert (found.blocks <= 132.0).all()
    assert (found.split <= MOST_SPLITS).all()
    assert found.split.max() > 8.0


def work(dims: MatmulDims | None, dtype: str = "bfloat16", read: float = 1e9, written: float = 1e6) -> Work:
    return Work(
        family=Family.MATMUL, flops=1.0, read_bytes=read, written_bytes=written, dtype=dtype, is_matrix=True, dims=dims
    )


def test_works_become_problems() -> None:
    dims = MatmulDims(m=16, n=4096, k=4096)
    packed = work(dims, read=2.0 * 16 * 4096 + 0.53 * 4096 * 4096)
    problems = problems_of(
        [work(dims), work(dims, "float8_e4m3fn"), packed, work(replace(dims, m=0), written=0.0)],
        [Rate.MATRIX_BF16, Rate.MATRIX_FP8, Rate.MATRIX_BF16, Rate.MATRIX_BF16],
    )
    assert problems.kind.tolist() == [
        MatmulKernel.PLAIN,
        MatmulKernel.FP8,
        MatmulKernel.WEIGHT_ONLY,
        MatmulKernel.PLAIN,
    ]
    assert problems.left_bytes.tolist() == [2.0, 1.0, 2.0, 2.0]
    assert problems.right_bytes[2] == pytest.approx(0.53)
    assert problems.m.tolist() == [16.0, 16.0, 16.0, 1.0]
    assert not problems.quantized.any()


def test_grouped_products_take_as_long_as_a_batch_of_them_within_more_but_on_hopper() -> None:
    batch, is_hopper = products((8, 512, 4096, 1024)), quantized_kernels(EVERY) == QuantizedKernels.HOPPER
    plain, grouped = (run(as_columns(item), EVERY) for item in (batch, replace(batch, grouped=np.ones(1, np.int64))))
    assert plain.unstated is None
    assert grouped.unstated is not None
    assert ((grouped.unstated < grouped.unstated.max()) == is_hopper).all()
    assert ((grouped.time_ns == plain.time_ns) == ~is_hopper).all()


def test_pairs_of_fp4_numbers_count_twice_along_k() -> None:
    problems = problems_of([work(MatmulDims(m=16, n=64, k=128), "float4_e2m1fn_x2")], [Rate.MATRIX_FP4])
    assert problems.k.tolist() == [256.0]
    assert problems.left_bytes.tolist() == [0.5625]


def test_works_without_sizes_are_refused() -> None:
    with pytest.raises(TypeError, match="MatmulDims"):
        problems_of([work(None)], [Rate.MATRIX_BF16])


def test_features_have_names() -> None:
    for model, dtype in ((MODEL, "bf16"), (QUANTIZED, "fp8")):
        found = run(as_columns(products((1, 64, 64, 64), dtype=dtype)), EVERY, model=model)
        assert found.described().shape[-1] == len(model.feature_names)


@pytest.mark.parametrize("parts", [1.0, 2.0, 7.0])
def test_parts_of_a_split_product_are_written_and_read_in_fp32_and_the_sum_written_once(parts: float) -> None:
    fleet, problems = fleet_of("A100 SXM4 80GB"), as_columns(products((3, 64, 96, 4096)))
    values = prior_values(MODEL.parameters, 1)
    launch = launch_of(np.zeros((1, 1), dtype=np.int64), *(np.ones((1, 1)),) * 4, fleet.sm_count)
    found = limits_of(
        problems, replace(launch, split=np.full((1, 1), parts)), machine_of(problems, fleet, values), values
    )
    moved_bytes = 4 * 3 * 64 * 96 * (parts + 1)
    added_s = values["reduction"] * moved_bytes / (REDUCTION_BYTES_PER_CLOCK * fleet.sm_count * fleet.clock_hz)
    expected_s = values["split_us"] * 1e-6 + added_s if parts > 1 else np.zeros(1)
    np.testing.assert_allclose(found.split_s, expected_s[None])


def test_as_many_tiles_share_a_multiprocessor_as_fill_it() -> None:
    ones = np.ones(len(TILES))
    found = launch_of(np.arange(len(TILES)), ones, *(4096 * ones,) * 3, np.full(1, 108.0))
    expected = [min(max(32768 // int(height * width), 1), 4) for height, width in TILES]
    assert found.resident.tolist() == expected
    assert (found.height * found.width).tolist() == [height * width for height, width in TILES]
