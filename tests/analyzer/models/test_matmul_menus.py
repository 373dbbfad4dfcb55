"""Tiles that libraries' rules name for quantised operands."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from wavecast.analyzer.models.frame.parameters import prior_values
from wavecast.analyzer.models.frame.problems import RATES, as_columns, problems_from
from wavecast.analyzer.models.matmul.menus import RULES, ruled_tiles
from wavecast.analyzer.models.matmul.model import MODEL
from wavecast.analyzer.models.matmul.problems import COLD_COPIES, FORMATS, MatmulKernel, MatmulProblems
from wavecast.analyzer.models.matmul.quantized import QUANTIZED
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import build_fleet
from wavecast.specs.generations import quantized_kernels
from wavecast.specs.match import find_gpu
from wavecast.specs.product_kernels import QuantizedKernels

SIZES = st.tuples(*(st.integers(1, 40_000) for _ in range(3)))


def product(dtype: str, m: float, n: float, k: float, groups: float = 0.0) -> MatmulProblems:
    form = FORMATS[dtype]
    sizes = {
        "batch": max(groups, 1.0),
        "grouped": float(groups > 0),
        "m": m,
        "n": n,
        "k": k,
        "copies": COLD_COPIES,
        "distinct": 1.0,
    }
    widths = {"left_bytes": form.left_bytes, "right_bytes": form.right_bytes, "out_bytes": 2.0}
    kinds = {"rate": RATES.index(form.rate), "kind": int(form.kind), "quantized": 1}
    return problems_from(MatmulProblems, 1, **sizes, **widths, **kinds)


def time_us(gpu: str, problems: MatmulProblems) -> float:
    fleet = build_fleet([find_gpu(load_catalog(), gpu)])
    values = prior_values(QUANTIZED.parameters, 1)
    return float(QUANTIZED.simulate(as_columns(problems), fleet, values, None).time_ns[0, 0]) / 1e3


@pytest.mark.parametrize(
    ("gpu", "kernels"),
    [
        ("A100 SXM4 80GB", QuantizedKernels.NONE),
        ("L40S", QuantizedKernels.ADA),
        ("H100 SXM5 80GB", QuantizedKernels.HOPPER),
        ("B200 SXM (HGX, 180GB)", QuantizedKernels.BLACKWELL),
        ("RTX PRO 6000 Blackwell Server", QuantizedKernels.GB20X),
        ("Instinct MI355X", QuantizedKernels.CDNA),
    ],
)
def test_each_generation_has_its_kernels(gpu: str, kernels: QuantizedKernels) -> None:
    assert quantized_kernels(build_fleet([find_gpu(load_catalog(), gpu)])).tolist() == [kernels]


def test_few_rows_take_a_whole_tile_on_consumer_blackwell() -> None:
    """Its one tile of 128 rows makes one row as long as 128, where others have lower tiles."""
    short, high = (product("fp8", m, 4096, 4096) for m in (1, 128))
    gpu = "RTX PRO 6000 Blackwell Server"
    assert time_us(gpu, short) == pytest.approx(time_us(gpu, high), rel=0.1)
    assert ruled_tiles(short, np.array([QuantizedKernels.ADA]), np.array([142.0])).height.tolist() == [16.0]


def test_deep_gemm_takes_the_width_of_fewest_waves() -> None:
    """Two rows of tiles on 132 multiprocessors: 66 columns of 64 would do, narrower ones take more waves."""
    tiles = ruled_tiles(product("fp8_block", 256, 4096, 4096), np.array([QuantizedKernels.HOPPER]), np.array([132.0]))
    assert (tiles.height.tolist(), tiles.width.tolist()) == ([128.0], [64.0])


def test_missing_rows_are_slow_on_hopper() -> None:
    """A product of 129 rows takes longer than one of 256 there, as measured; on data-centre Blackwell it does not."""
    odd, whole = (product("fp8_block", m, 16384, 8192) for m in (129, 256))
    assert time_us("H100 SXM5 80GB", odd) > time_us("H100 SXM5 80GB", whole)
    assert time_us("B200 SXM (HGX, 180GB)", odd) <= time_us("B200 SXM (HGX, 180GB)", whole)


def test_grouped_products_have_torchs_tiles_on_hopper() -> None:
    fleet = build_fleet([find_gpu(load_catalog(), "H200 SXM 141GB")])
    found = [
        ruled_tiles(product("bf16", m, 4096, 4096, 8), quantized_kernels(fleet), fleet.sm_count) for m in (32, 512)
    ]
    tiles = [(it.height[0], it.width[0], it.down[0], it.overlap[0]) for it in found]
    assert tiles == [(64.0, 128.0, 2.0, 1.0), (128.0, 256.0, 2.0, 0.0)]


def test_rows_that_a_group_lacks_take_time_where_dram_does_not() -> None:
    """As measured: 32 rows a group take longer than 128 on H200, and a faster memory gains little."""
    values = prior_values(MODEL.parameters, 1)

    def time_ns(gpu: str, m: int) -> float:
        fleet = build_fleet([find_gpu(load_catalog(), gpu)])
        return float(MODEL.simulate(as_columns(product("bf16", m, 4096, 14336, 8)), fleet, values, None).time_ns[0, 0])

    assert time_ns("H200 SXM 141GB", 32) > time_ns("H200 SXM 141GB", 128)
    assert time_ns("H100 SXM5 80GB", 32) < 1.25 * time_ns("H200 SXM 141GB", 32)


@given(SIZES, st.sampled_from(sorted(RULES)), st.integers(1, 300))
def test_rules_give_tiles_of_sensible_size(
    sizes: tuple[int, int, int], rule: tuple[MatmulKernel, QuantizedKernels], sm_count: int
) -> None:
    dtype = next(name for name, item in FORMATS.items() if item.kind == rule[0])
    groups = float(rule[0] == MatmulKernel.PLAIN)
    tiles = ruled_tiles(product(dtype, *sizes, groups), np.array([int(rule[1])]), np.array([float(sm_count)]))
    assert tiles.is_ruled.all()
    assert ((tiles.height >= 8) & (tiles.height <= 256) & (tiles.width >= 8) & (tiles.width <= 256)).all()
    assert ((tiles.traffic > 0) & (tiles.traffic <= 1) & (tiles.kept > 0) & (tiles.kept <= 1)).all()
    assert (tiles.reread > 0).all()
