"""Matrix products on vector units: bounds, monotonicity, broadcasting, the choice of tiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wavecast.analyzer.models.frame.model import Estimate
from wavecast.analyzer.models.frame.parameters import resolve, theta_size
from wavecast.analyzer.models.frame.units import RATES
from wavecast.analyzer.models.matmul_simt.model import FEATURES, MODEL, simulate
from wavecast.analyzer.models.matmul_simt.problems import MatmulSimtProblems, problems_of
from wavecast.analyzer.models.matmul_simt.tiles import HEIGHT, WIDTH, choose_tile, launch_of, tile_rule
from wavecast.analyzer.work.work import Family, MatmulDims, Work
from wavecast.arrays import Floats
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import Fleet, build_fleet, take_gpus
from wavecast.specs.generations import sgemm_kernels
from wavecast.specs.gpu import Rate
from wavecast.specs.match import find_gpu

CATALOG = load_catalog()
EVERY = build_fleet(CATALOG.gpus)
SIZES = st.integers(1, 20_000)


def fleet_of(*names: str) -> Fleet:
    return build_fleet([find_gpu(CATALOG, name) for name in names])


def products(*sizes: tuple[int, int, int, int], contiguous: int = 1, floor_ns: float = 0.0) -> MatmulSimtProblems:
    batch, m, n, k = np.array(sizes, dtype=np.float64).T
    return MatmulSimtProblems(
        batch=batch,
        m=m,
        n=n,
        k=k,
        element_bytes=np.full(len(sizes), 4.0),
        rate=np.full(len(sizes), RATES.index(Rate.MATRIX_FP32), dtype=np.int64),
        contiguous=np.full(len(sizes), contiguous, dtype=np.int64),
        host_floor_ns=np.full(len(sizes), floor_ns),
        host_ratio=np.ones(len(sizes)),
    )


def column(problems: MatmulSimtProblems) -> MatmulSimtProblems:
    names = MatmulSimtProblems.__dataclass_fields__
    return MatmulSimtProblems(**{name: getattr(problems, name)[:, None] for name in names})


def run(problems: MatmulSimtProblems, fleet: Fleet, choice: npt.NDArray[np.int64] | None = None) -> Estimate:
    classes = len(MODEL.class_names)
    theta = np.zeros(theta_size(MODEL.parameters, classes))
    return simulate(problems, fleet, resolve(MODEL.parameters, theta, classes, MODEL.gpu_class(fleet)), choice)


def bound_ns(problems: MatmulSimtProblems, fleet: Fleet) -> Floats:
    """Return the time of the arithmetic at the unit's peak."""
    flops = 2.0 * problems.batch * problems.m * problems.n * problems.k
    return np.asarray(flops / fleet.flops_per_s[Rate.MATRIX_FP32] * 1e9)


@given(batch=st.sampled_from([1, 3, 64]), m=SIZES, n=SIZES, k=SIZES, contiguous=st.sampled_from([0, 1]))
def test_every_gpu_gets_a_finite_time_above_the_arithmetic(batch: int, m: int, n: int, k: int, contiguous: int) -> None:
    problems = column(products((batch, m, n, k), contiguous=contiguous))
    estimate = run(problems, EVERY)
    assert np.isfinite(estimate.time_ns).all()
    assert np.isfinite(estimate.features).all()
    assert estimate.features.shape == (1, len(CATALOG.gpus), len(FEATURES))
    assert (estimate.time_ns >= bound_ns(problems, EVERY) * 0.999).all()


@given(m=SIZES, n=SIZES, k=SIZES, contiguous=st.sampled_from([0, 1]))
def test_the_tile_is_on_the_architectures_menu(m: int, n: int, k: int, contiguous: int) -> None:
    problems = column(products((1, m, n, k), contiguous=contiguous))
    tile = run(problems, EVERY).choice
    assert tile is not None
    assert (tile_rule().menus[sgemm_kernels(EVERY), contiguous, tile[0]] == 0).all()


def test_pairs_equal_the_grid() -> None:
    fleet = fleet_of("Tesla T4", "A100 PCIe 40GB", "Instinct MI100")
    problems = products((1, 640, 900, 3000), (12, 70, 33, 500), (1, 64, 64, 20_000))
    grid = run(column(problems), fleet)
    pairs = run(problems, take_gpus(fleet, np.arange(3)))
    np.testing.assert_allclose(pairs.time_ns, np.diagonal(grid.time_ns), rtol=1e-12)
    np.testing.assert_allclose(pairs.features, grid.features[np.arange(3), np.arange(3)], rtol=1e-9, atol=1e-12)


def test_a_frozen_choice_gives_its_own_time() -> None:
    fleet = fleet_of("Tesla V100 PCIe 32GB")
    problems = products((1, 1024, 1024, 1024))
    free = run(problems, fleet)
    assert free.choice is not None
    assert run(problems, fleet, free.choice).time_ns == free.time_ns
    assert run(problems, fleet, np.array([7])).time_ns != free.time_ns


@pytest.mark.parametrize("field", ["bandwidth_bytes_per_s", "l2_cache_bytes", "tdp_w"])
def test_more_of_a_resource_is_never_slower(field: str) -> None:
    fleet = fleet_of("Tesla T4", "Tesla P4", "A100 PCIe 40GB", "GeForce RTX 4090")
    better = replace(fleet, **{field: getattr(fleet, field) * 1.5})
    problems = column(products((1, 2000, 3000, 4000), (1, 100, 60_000, 300), (200, 50, 60, 70)))
    assert (run(problems, better).time_ns <= run(problems, fleet).time_ns * (1 + 1e-12)).all()


def test_a_longer_k_takes_longer() -> None:
    fleet = fleet_of("Tesla P100 PCIe 16GB", "H100 SXM5 80GB", "L40S")
    problems = column(products(*[(1, 4096, 4096, k) for k in (512, 1024, 2048, 4096)]))
    assert (np.diff(run(problems, fleet).time_ns, axis=0) > 0).all()


def test_a_small_board_with_a_low_power_limit_throttles() -> None:
    problems = products((1, 8192, 8192, 8192))
    slow = FEATURES.index("log slow-down")
    assert run(problems, fleet_of("Tesla T4")).features[0, slow] > np.log(1.5)
    assert run(problems, fleet_of("Tesla V100 PCIe 32GB")).features[0, slow] < np.log(1.2)


def test_the_host_adds_to_event_times_only() -> None:
    fleet = fleet_of("Tesla T4")
    kernel = run(products((1, 64, 64, 64)), fleet).time_ns[0]
    known = run(products((1, 64, 64, 64), floor_ns=40e3), fleet).time_ns[0]
    unknown = run(products((1, 64, 64, 64), floor_ns=float("nan")), fleet).time_ns[0]
    assert kernel < 20e3
    assert known == pytest.approx(40e3, rel=0.1)
    assert 25e3 < unknown < 50e3


def test_k_is_split_only_where_multiprocessors_would_idle() -> None:
    fleet = fleet_of("Tesla V100 PCIe 32GB")

    def split(batch: float, m: float, k: float) -> float:
        sizes = (np.array([batch]), np.array([m]), np.array([m]), np.array([k]))
        tile = choose_tile(*sizes, np.array([1]), fleet)
        return float(launch_of(*sizes, tile, fleet).split[0])

    assert split(1, 256, 30_000) > 4
    assert split(1, 256, 100) == 1
    assert split(1, 8192, 30_000) == 1
    assert split(32, 256, 30_000) == 1


@pytest.mark.parametrize(
    ("gpu", "batch", "m", "n", "k", "contiguous", "kernel"),
    [
        ("Tesla P100 PCIe 16GB", 1, 8192, 2048, 2048, 1, (32, 128)),
        ("Tesla P4", 254, 449, 629, 84, 0, (128, 64)),
        ("Tesla V100 PCIe 32GB", 326, 981, 53, 242, 0, (32, 128)),
        ("Tesla V100 PCIe 32GB", 1, 414, 50136, 238, 1, (128, 64)),
        ("Tesla T4", 507, 114, 640, 83, 0, (128, 64)),
        ("Tesla T4", 34, 417, 31, 15, 0, (64, 64)),
        ("A100 PCIe 40GB", 752, 42, 46, 664, 0, (128, 128)),
        ("A100 PCIe 40GB", 1, 3177, 4185, 6779, 1, (128, 64)),
    ],
)
def test_recorded_kernels_are_found(
    gpu: str, batch: int, m: int, n: int, k: int, contiguous: int, kernel: tuple[int, int]
) -> None:
    tile = run(products((batch, m, n, k), contiguous=contiguous), fleet_of(gpu)).choice
    assert tile is not None
    assert (WIDTH[tile[0]], HEIGHT[tile[0]]) == kernel


def test_works_become_problems() -> None:
    works = [
        Work(family=Family.MATMUL, flops=1.0, read_bytes=1.0, written_bytes=1.0, dtype=dtype, dims=dims)
        for dtype, dims in (("float32", MatmulDims(m=2, n=3, k=4)), ("float64", MatmulDims(batch=5, m=2, n=3, k=4)))
    ]
    problems = problems_of(works, [Rate.MATRIX_FP32, Rate.MATRIX_FP64])
    assert problems.contiguous.tolist() == [1, 0]
    assert problems.element_bytes.tolist() == [4.0, 8.0]
    assert [RATES[code] for code in problems.rate.tolist()] == [Rate.MATRIX_FP32, Rate.MATRIX_FP64]
    assert (run(column(problems), EVERY).time_ns > 0).all()
