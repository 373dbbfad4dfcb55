"""Matrix products on vector units: bounds, monotonicity, broadcasting, the choice of tiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st
from wavecast.analyzer.models.frame.gpu_physics import at_capped_clock
from wavecast.analyzer.models.frame.model import Estimate
from wavecast.analyzer.models.frame.parameters import prior_values
from wavecast.analyzer.models.frame.problems import RATES, as_columns, problems_from
from wavecast.analyzer.models.matmul_simt.model import FEATURES, MODEL, group, simulate
from wavecast.analyzer.models.matmul_simt.pairs import pairs_of
from wavecast.analyzer.models.matmul_simt.problems import MatmulSimtProblems, problems_of
from wavecast.analyzer.models.matmul_simt.tiles import MENUS, SPLIT, TILE_NAMES, launch_of, may_split
from wavecast.analyzer.work.access import Access
from wavecast.analyzer.work.work import Family, MatmulDims, Work
from wavecast.arrays import Floats
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import Fleet, build_fleet, take_gpus
from wavecast.specs.generations import sgemm_kernels
from wavecast.specs.gpu import Rate
from wavecast.specs.match import find_gpu
from wavecast.specs.product_kernels import SgemmKernels

CATALOG = load_catalog()
EVERY = build_fleet(CATALOG.gpus)
SIZES = st.integers(1, 20_000)


def fleet_of(*names: str) -> Fleet:
    return build_fleet([find_gpu(CATALOG, name) for name in names])


def products(*sizes: tuple[int, int, int, int], contiguous: int = 1, floor_ns: float = 0.0) -> MatmulSimtProblems:
    return problems_from(
        MatmulSimtProblems,
        len(sizes),
        **dict(zip(("batch", "m", "n", "k"), np.array(sizes, dtype=np.float64).T, strict=True)),
        element_bytes=4.0,
        rate=RATES.index(Rate.MATRIX_FP32),
        contiguous=contiguous,
        host_floor_ns=floor_ns,
        host_ratio=1.0,
        copies=1.0,
    )


def run(problems: MatmulSimtProblems, fleet: Fleet, choice: npt.NDArray[np.int64] | None = None) -> Estimate:
    return simulate(problems, fleet, prior_values(MODEL.parameters, len(fleet.gpus)), choice)


def layout_of(batch: int, contiguous: int, kernels: int) -> int:
    """Return the index into `LAYOUTS` of products without a bias."""
    return 2 if contiguous and (batch == 1 or kernels == SgemmKernels.HOPPER) else int(batch == 1)


def bound_ns(problems: MatmulSimtProblems, fleet: Fleet) -> Floats:
    """Return the time of the arithmetic at the unit's peak."""
    flops = 2.0 * problems.batch * problems.m * problems.n * problems.k
    return np.asarray(flops / fleet.flops_per_s[Rate.MATRIX_FP32] * 1e9)


@pytest.mark.parametrize("name", ["Tesla T4", "RTX 3090", "L40S", "V100 SXM2 16GB", "Instinct MI300X"])
def test_a_lower_cap_is_never_faster(name: str) -> None:
    watts = find_gpu(CATALOG, name).tdp_w
    fleet = at_capped_clock(fleet_of(*(f"{name}@{share * watts:.0f}W" for share in (0.4, 0.6, 0.8, 0.9)), name))
    problems = as_columns(products((1, 4096, 3072, 768), (1, 4096, 50_257, 768)))
    assert (np.diff(run(problems, fleet).time_ns, axis=1) <= 0).all()


@settings(max_examples=25)
@given(batch=st.sampled_from([1, 3, 64]), m=SIZES, n=SIZES, k=SIZES, contiguous=st.sampled_from([0, 1]))
def test_every_gpu_gets_a_finite_time_above_the_arithmetic(batch: int, m: int, n: int, k: int, contiguous: int) -> None:
    problems = as_columns(products((batch, m, n, k), contiguous=contiguous))
    estimate = run(problems, EVERY)
    assert np.isfinite(estimate.time_ns).all()
    assert np.isfinite(estimate.described()).all()
    assert estimate.described().shape == (1, len(CATALOG.gpus), len(FEATURES))
    assert (estimate.time_ns >= bound_ns(problems, EVERY) * 0.999).all()


@settings(max_examples=25)
@given(batch=st.sampled_from([1, 64]), m=SIZES, n=SIZES, k=SIZES, contiguous=st.sampled_from([0, 1]))
def test_the_tile_is_on_the_architectures_menu(batch: int, m: int, n: int, k: int, contiguous: int) -> None:
    choice = run(as_columns(products((batch, m, n, k), contiguous=contiguous)), EVERY).choice
    assert choice is not None
    for kernels, found in zip(sgemm_kernels(EVERY).tolist(), choice[0].tolist(), strict=True):
        layout = layout_of(batch, contiguous, kernels)
        menu = MENUS[SgemmKernels(kernels)][layout]
        is_split = kernels == SgemmKernels.HOPPER and found < len(TILE_NAMES)
        assert TILE_NAMES[found % len(TILE_NAMES)] in (SPLIT[layout] if is_split else menu)


@settings(max_examples=25)
@given(batch=st.sampled_from([1, 64]), m=SIZES, n=SIZES, k=SIZES, contiguous=st.sampled_from([0, 1]))
def test_no_tile_of_the_menu_is_faster_than_the_one_chosen(batch: int, m: int, n: int, k: int, contiguous: int) -> None:
    fleet = fleet_of("Tesla V100 PCIe 32GB", "L40S", "H100 SXM5 80GB", "Instinct MI100")
    problems = as_columns(products((batch, m, n, k), contiguous=contiguous))
    chosen = run(problems, fleet).time_ns
    for gpu, kernels in enumerate(sgemm_kernels(fleet).tolist()):
        here = take_gpus(fleet, np.array([gpu]))
        layout = layout_of(batch, contiguous, kernels)
        whole = MENUS[SgemmKernels(kernels)][layout]
        split = SPLIT[layout] if kernels == SgemmKernels.HOPPER else whole
        if not may_split(pairs_of(problems, here, prior_values(MODEL.parameters, 1))).all():
            split = ()
        choices = [TILE_NAMES.index(name) + len(TILE_NAMES) for name in whole] + [
            TILE_NAMES.index(name) for name in split
        ]
        pairs = pairs_of(problems, here, prior_values(MODEL.parameters, 1))
        for choice in choices:
            if choice >= len(TILE_NAMES) or (launch_of(pairs, np.array(choice)).split > 1).all():
                assert run(problems, here, np.array(choice)).time_ns >= chosen[:, gpu] * (1 - 1e-6)


@pytest.mark.parametrize("gpu", ["L40S", "H100 SXM5 80GB", "Instinct MI100"])
@settings(max_examples=25)
@given(batch=st.sampled_from([1, 64]), m=SIZES, n=SIZES, k=SIZES, contiguous=st.sampled_from([0, 1]))
def test_a_few_more_multiprocessors_are_not_slower(
    gpu: str, batch: int, m: int, n: int, k: int, contiguous: int
) -> None:
    fleet = fleet_of(gpu)
    more = replace(
        fleet,
        sm_count=np.ceil(fleet.sm_count * 1.02),
        flops_per_s={rate: value * 1.02 for rate, value in fleet.flops_per_s.items()},
    )
    problems = as_columns(products((batch, m, n, k), contiguous=contiguous))
    assert (run(problems, more).time_ns <= run(problems, fleet).time_ns * 1.05).all()


@pytest.mark.parametrize("factor", [1.5, 2.0, 4.0])
def test_many_more_multiprocessors_on_the_same_memory_are_not_slower(factor: float) -> None:
    fleet = fleet_of("Tesla P40", "Tesla P100 PCIe 12GB", "A10G", "GeForce RTX 3070 Ti", "RTX A2000")
    rates = {rate: value * factor for rate, value in fleet.flops_per_s.items()}
    more = replace(fleet, sm_count=np.round(fleet.sm_count * factor), flops_per_s=rates)
    for contiguous in (0, 1):
        problems = as_columns(products((1, 2048, 50_272, 2560), (1, 8192, 50_272, 4096), contiguous=contiguous))
        assert (run(problems, more).time_ns <= run(problems, fleet).time_ns * 1.2).all()


def test_pairs_equal_the_grid() -> None:
    fleet = fleet_of("Tesla T4", "A100 PCIe 40GB", "Instinct MI100")
    problems = products((1, 640, 900, 3000), (12, 70, 33, 500), (1, 64, 64, 20_000))
    grid = run(as_columns(problems), fleet)
    pairs = run(problems, take_gpus(fleet, np.arange(3)))
    np.testing.assert_allclose(pairs.time_ns, np.diagonal(grid.time_ns), rtol=1e-12)
    np.testing.assert_allclose(pairs.described(), grid.described()[np.arange(3), np.arange(3)], rtol=1e-9, atol=1e-12)


def test_a_frozen_choice_gives_its_own_time() -> None:
    fleet = fleet_of("Tesla V100 PCIe 32GB")
    problems = products((1, 1024, 1024, 1024))
    free = run(problems, fleet)
    assert free.choice is not None
    assert run(problems, fleet, free.choice).time_ns == free.time_ns
    assert run(problems, fleet, np.array([TILE_NAMES.index("128x32")])).time_ns > free.time_ns


@pytest.mark.parametrize("field", ["bandwidth_bytes_per_s", "l2_cache_bytes", "tdp_w"])
def test_more_of_a_resource_is_never_slower(field: str) -> None:
    fleet = fleet_of("Tesla T4", "Tesla P4", "A100 PCIe 40GB", "GeForce RTX 4090")
    better = replace(fleet, **{field: getattr(fleet, field) * 1.5})
    problems = as_columns(products((1, 2000, 3000, 4000), (1, 100, 60_000, 300), (200, 50, 60, 70)))
    assert (run(problems, better).time_ns <= run(problems, fleet).time_ns * (1 + 1e-12)).all()


def test_a_longer_k_takes_longer() -> None:
    fleet = fleet_of("Tesla P100 PCIe 16GB", "H100 SXM5 80GB", "L40S")
    problems = as_columns(products(*[(1, 4096, 4096, k) for k in (512, 1024, 2048, 4096)]))
    assert (np.diff(run(problems, fleet).time_ns, axis=0) > 0).all()


def test_a_small_board_with_a_low_power_limit_throttles() -> None:
    problems = products((1, 8192, 8192, 8192))
    slow = FEATURES.index("log slow-down")
    assert run(problems, fleet_of("Tesla T4")).described()[0, slow] > np.log(1.5)
    assert run(problems, fleet_of("Tesla V100 PCIe 32GB")).described()[0, slow] < np.log(1.2)


def test_the_host_adds_to_event_times_only() -> None:
    fleet = fleet_of("Tesla T4")
    kernel = run(products((1, 64, 64, 64)), fleet).time_ns[0]
    known = run(products((1, 64, 64, 64), floor_ns=40e3), fleet).time_ns[0]
    unknown = run(products((1, 64, 64, 64), floor_ns=float("nan")), fleet).time_ns[0]
    assert kernel < 20e3
    assert known == pytest.approx(40e3, rel=0.1)
    assert 25e3 < unknown < 50e3


def split_of(problems: MatmulSimtProblems, fleet: Fleet, choice: int) -> float:
    values = prior_values(MODEL.parameters, len(fleet.gpus))
    return float(launch_of(pairs_of(problems, fleet, values), np.array([choice])).split[0])


def test_k_is_split_only_where_multiprocessors_would_idle() -> None:
    fleet = fleet_of("Tesla V100 PCIe 32GB")

    def split(batch: int, m: int, k: int) -> float:
        return split_of(products((batch, m, m, k)), fleet, 0)

    assert split(1, 256, 30_000) > 4
    assert split(1, 256, 100) == 1
    assert split(1, 8192, 30_000) == 1
    assert split(32, 256, 30_000) == 1


def test_k_in_one_piece_is_a_choice_of_its_own() -> None:
    fleet = fleet_of("Tesla V100 PCIe 32GB")
    assert split_of(products((1, 256, 256, 30_000)), fleet, len(TILE_NAMES)) == 1


def test_batches_along_k_run_other_batches_tiles_before_hopper() -> None:
    """A DLRM recorded on V100 runs `volta_sgemm_128x32_tn` for 16 products of 27 x 16 x 27, no sliced tile."""
    fleet, sizes = fleet_of("V100 SXM2 16GB", "A100 SXM4 80GB"), ((16, 27, 27, 16), (2048, 27, 27, 128))
    along, across = (run(as_columns(products(*sizes, contiguous=contiguous)), fleet) for contiguous in (1, 0))
    assert along.choice is not None
    assert across.choice is not None
    assert (along.choice == across.choice).all()


def test_a_kernel_that_shares_k_out_is_not_run_in_one_piece() -> None:
    """Three rows of 7,514 columns with a bias fill an H100 by blocks of 32 x 32 already."""
    problems = replace(products((1, 3, 7514, 12_071)), has_bias=np.ones(1, dtype=np.int64))
    choice = run(as_columns(problems), fleet_of("H100 SXM5 80GB")).choice
    assert choice is not None
    assert TILE_NAMES[choice[0, 0] % len(TILE_NAMES)] != "largek_32x32"


def test_linear_layers_of_ampere_run_no_square_tiles_of_cublas() -> None:
    """Of 7,500 linear layers recorded on A100, 1.5 % ran 128x128 and 0.7 % 64x64, however large they were."""
    problems = as_columns(products((1, 4096, 4096, 4096), (1, 16_384, 50_257, 4096), (1, 64, 64, 1024)))
    choice = run(problems, fleet_of("A100 PCIe 40GB")).choice
    assert choice is not None
    assert not {TILE_NAMES[found % len(TILE_NAMES)] for found in choice.ravel()} & {"128x128", "64x64"}


@pytest.mark.parametrize("contiguous", [0, 1])
def test_pascal_adds_a_bias_with_small_tiles_alone(contiguous: int) -> None:
    plain = products((1, 4096, 4096, 4096), contiguous=contiguous)
    with_bias, pascal = replace(plain, has_bias=np.ones(1, dtype=np.int64)), fleet_of("Tesla P100 PCIe 16GB")
    slow, fast = run(with_bias, pascal), run(plain, pascal)
    assert slow.choice is not None
    assert TILE_NAMES[slow.choice[0] % len(TILE_NAMES)] in {"64x64", "32x128"}
    assert slow.time_ns[0] > 1.05 * fast.time_ns[0]


@pytest.mark.parametrize("name", ["Tesla P100 PCIe 16GB", "Tesla V100 PCIe 32GB", "A100 PCIe 40GB"])
def test_slim_tiles_wait_for_the_loads_of_their_operands(name: str) -> None:
    problems, fleet = products((1, 8192, 8192, 1024)), fleet_of(name)
    slim, wide = (run(problems, fleet, choice_of(tile)).time_ns[0] for tile in ("32x128", "128x128"))
    assert 1.1 < slim / wide < 1.5


def test_operands_that_are_copied_first_take_their_bytes_longer() -> None:
    problems, fleet = products((8, 512, 512, 64), contiguous=0), fleet_of("Tesla P4")
    copied = replace(problems, before_bytes=np.full(1, 64e6))
    assert run(copied, fleet).time_ns[0] - run(problems, fleet).time_ns[0] > 64e6 / fleet.bandwidth_bytes_per_s[0] * 1e9


def test_energy_per_operation_rises_with_the_clock_but_by_less_than_its_square() -> None:
    problems = products((1, 4096, 4096, 4096))
    slow = fleet_of("Tesla T4")
    values = prior_values(MODEL.parameters, 1)
    fast = replace(slow, clock_hz=2.0 * slow.clock_hz)
    rise = pairs_of(problems, fast, values).power / pairs_of(problems, slow, values).power
    assert 2.0 < rise[0] < 4.0


def test_128_lanes_wait_for_instructions_that_64_hide() -> None:
    problems = products((1, 16_384, 16_384, 8192), contiguous=0)
    hopper, ampere = fleet_of("H100 SXM5 80GB"), fleet_of("A100 SXM4 80GB")
    over_peak = [run(problems, fleet).time_ns[0] / bound_ns(problems, fleet)[0] for fleet in (hopper, ampere)]
    assert over_peak[0] > over_peak[1]


def test_results_are_stored_one_by_one_on_hopper_whatever_its_memory() -> None:
    """Its kernels take as long on H200, whose memory writes the results in 0.7 of H100's time."""
    hopper = fleet_of("H100 SXM5 80GB", "H200 SXM 141GB")
    first, second = run(as_columns(products((512, 1024, 1024, 64), contiguous=0)), hopper).time_ns[0]
    assert second > 0.9 * first


def test_wide_results_on_amd_read_the_right_operand_once_for_eight_rows_of_tiles() -> None:
    wide, usual = run(as_columns(products((1, 4096, 50_272, 2048), (1, 4096, 8192, 2048))), fleet_of("MI100")).time_ns
    assert (wide < 1.1 * 50_272 / 8192 * usual).all()


def test_a_vector_waits_for_its_matrix_in_dram() -> None:
    problems, fleet = products((1, 1, 4096, 1024)), fleet_of("H100 SXM5 80GB")
    cold = replace(problems, copies=np.full(1, np.inf))
    assert run(cold, fleet).time_ns > 1.3 * run(problems, fleet).time_ns


def test_few_small_blocks_wait_longer_for_dram_than_it_reads() -> None:
    problems, fleet = products((8, 512, 64, 512), contiguous=0), fleet_of("H100 SXM5 80GB")
    cold = replace(problems, copies=np.full(1, np.inf))
    read_ns = 4e9 * 8 * 512 * (512 + 64) / fleet.bandwidth_bytes_per_s[0]
    assert run(cold, fleet).time_ns[0] - run(problems, fleet).time_ns[0] > 1.3 * read_ns


def test_parts_of_k_that_get_a_bias_cost_more_kernels() -> None:
    problems, fleet = products((1, 512, 1024, 8192)), fleet_of("H100 SXM5 80GB")
    biased, parts = replace(problems, has_bias=np.ones(1, dtype=np.int64)), choice_of("cutlass_256x128")
    assert 4e3 < (run(biased, fleet, parts).time_ns - run(problems, fleet, parts).time_ns)[0] < 15e3


def choice_of(name: str, *, is_whole: bool = False) -> npt.NDArray[np.int64]:
    return np.array([TILE_NAMES.index(name) + is_whole * len(TILE_NAMES)])


def test_parts_of_k_fill_waves_of_hoppers_largest_tiles() -> None:
    """NeuSight's H100 launched 11, 7, 6 and 9 parts of these."""
    fleet = fleet_of("H100 SXM5 80GB")
    sizes = ((1, 512, 768, 30_522), (1, 768, 768, 4096), (1, 512, 1280, 3840), (1, 768, 3072, 4096))
    found = [split_of(products(size), fleet, int(choice_of("cutlass_128x256")[0])) for size in sizes]
    assert found == [11, 7, 6, 9]


def test_two_blocks_of_hopper_end_together_so_that_the_next_two_follow() -> None:
    fleet, whole = fleet_of("H100 SXM5 80GB"), choice_of("xmma_128x128", is_whole=True)
    three, four = run(
        as_columns(products((1, 18 * 128, 22 * 128, 4096), (1, 24 * 128, 22 * 128, 4096))), fleet, whole
    ).time_ns
    assert three[0] > 0.95 * four[0]
    small = choice_of("xmma_64x64", is_whole=True)
    three, four = run(
        as_columns(products((1, 18 * 64, 22 * 64, 4096), (1, 24 * 64, 22 * 64, 4096))), fleet, small
    ).time_ns
    assert three[0] < 0.85 * four[0]


def test_operands_across_k_load_four_words_at_a_time_on_hopper() -> None:
    fleet, tile = fleet_of("H100 SXM5 80GB"), choice_of("xmma_64x64", is_whole=True)
    along, one, across = (products((1, 4096, 4096, 4096), contiguous=code) for code in (1, 0, 0))
    across = replace(across, turned=np.ones(1, dtype=np.int64))
    times = [run(item, fleet, tile).time_ns[0] for item in (along, one, across)]
    assert times[0] > 1.05 * times[1] > 1.05**2 * times[2]


def test_blocks_drift_apart_with_the_root_of_k_and_hold_whole_lines_along_it() -> None:
    fleet, sizes = fleet_of("Tesla P4"), ((1, 4096, 4096, 1024), (1, 4096, 4096, 4096))
    values = prior_values(MODEL.parameters, 1)
    across, along = (
        np.ravel(pairs_of(as_columns(products(*sizes, contiguous=c)), fleet, values).drift) for c in (0, 1)
    )
    assert across[1] == pytest.approx(2.0 * across[0])
    assert along - across == pytest.approx(256.0 / fleet.l2_cache_bytes[0])


def test_arithmetic_after_a_pause_is_slower() -> None:
    problems, fleet = products((1, 4096, 4096, 4096)), fleet_of("H100 SXM5 80GB")
    paused = replace(problems, paused=np.ones(1, dtype=np.int64))
    assert 1.03 < run(paused, fleet).time_ns[0] / run(problems, fleet).time_ns[0] < 1.07


def test_kernels_own_times_have_widths_of_their_own() -> None:
    timed = [products((1, 64, 64, 64), contiguous=row, floor_ns=floor) for row, floor in ((0, 9e3), (1, 9e3), (1, 0.0))]
    assert [int(group(item)[0]) for item in timed] == [0, 1, 2]


def test_pieces_of_rows_cost_gddr_more() -> None:
    fleet = fleet_of("Tesla T4")
    hbm = replace(fleet, has_hbm=np.array([True]))
    problems = products((1, 8000, 8000, 6000), contiguous=1)
    assert run(problems, hbm).time_ns[0] < run(problems, fleet).time_ns[0]


def test_works_become_problems() -> None:
    works = [
        Work(family=Family.MATMUL, flops=1.0, read_bytes=1.0, written_bytes=1.0, dtype=dtype, dims=dims)
        for dtype, dims in (
            ("float32", MatmulDims(m=2, n=3, k=4)),
            ("float64", MatmulDims(batch=5, m=2, n=3, k=4)),
            ("float32", MatmulDims(m=2, n=3, k=4, is_k_contiguous=False, is_m_contiguous=True)),
        )
    ]
    works[0] = replace(works[0], read_bytes=4.0 * (2 * 4 + 4 * 3 + 3), written_bytes=4.0 * 2 * 3)
    works[1] = replace(works[1], access=Access(before_bytes=8.0))
    problems = problems_of(works, [Rate.MATRIX_FP32, Rate.MATRIX_FP64, Rate.MATRIX_FP32])
    assert problems.before_bytes.tolist() == [0.0, 8.0, 0.0]
    assert problems.has_bias.tolist() == [1, 0, 0]
    assert problems.copies.tolist() == [6.0] * 3
    assert problems.contiguous.tolist() == [1, 0, 0]
    assert problems.turned.tolist() == [0, 0, 1]
    assert problems.element_bytes.tolist() == [4.0, 8.0, 4.0]
    assert [RATES[code] for code in problems.rate.tolist()] == [Rate.MATRIX_FP32, Rate.MATRIX_FP64, Rate.MATRIX_FP32]
    assert (run(as_columns(problems), EVERY).time_ns > 0).all()
