"""How operands lie in memory, and what that costs a product."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from wavecast.analyzer.models.frame.parameters import prior_values
from wavecast.analyzer.models.frame.problems import RATES, as_columns, join_problems, problems_from
from wavecast.analyzer.models.matmul.feed import (
    aligned_bytes,
    epilogue_ratio,
    epilogue_values,
    segment_s,
    turned_cycles,
)
from wavecast.analyzer.models.matmul.limits import limits_of, machine_of
from wavecast.analyzer.models.matmul.menus import launch_of
from wavecast.analyzer.models.matmul.model import MODEL, group
from wavecast.analyzer.models.matmul.problems import FORMATS, MatmulProblems, OperandLayout, layout_of, problems_of
from wavecast.analyzer.work.work import Family, MatmulDims, Work
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import build_fleet
from wavecast.specs.generations import is_async
from wavecast.specs.gpu import Rate
from wavecast.specs.match import find_gpu

ALONG = OperandLayout(0)
TURNED = OperandLayout.LEFT_ACROSS | OperandLayout.RIGHT_ACROSS


def product(m: int, n: int, k: int, dtype: str = "bf16", layout: OperandLayout = ALONG) -> MatmulProblems:
    form, sizes = FORMATS[dtype], {"batch": 1, "m": m, "n": n, "k": k, "copies": 1, "distinct": 1}
    width = dict.fromkeys(("left_bytes", "right_bytes", "out_bytes"), form.left_bytes)
    kinds = {"rate": RATES.index(form.rate), "kind": int(form.kind), "layout": int(layout)}
    return problems_from(MatmulProblems, 1, **sizes, **width, **kinds)


def time_us(problems: MatmulProblems, gpu: str = "h100 sxm") -> float:
    fleet = build_fleet([find_gpu(load_catalog(), gpu)])
    return float(MODEL.simulate(problems, fleet, prior_values(MODEL.parameters, 1), None).time_ns[0]) / 1e3


def test_scales_beside_an_addend_leave_rows_where_they_start() -> None:
    numbers = 4096 * 4096
    work = Work(
        family=Family.MATMUL, flops=2 * 4096 * numbers, read_bytes=2 * numbers + 4 * numbers + 8,
        written_bytes=4 * numbers, dtype="float8_e4m3fn", is_matrix=True, dims=MatmulDims(m=4096, n=4096, k=4096),
    )  # fmt: skip
    found = problems_of([work], [Rate.MATRIX_FP8])
    assert found.out_bytes == 8.0
    assert aligned_bytes(found) == 16


@pytest.mark.parametrize(
    ("problems", "found"),
    [
        (product(512, 4096, 1024), 16),
        (product(512, 50257, 1024), 2),
        (product(512, 30522, 1024), 4),
        (product(512, 1024, 1028), 8),
        (product(50257, 768, 1024, layout=TURNED), 2),
        (product(50257, 768, 1024), 16),
        (product(512, 50257, 1024, "tf32"), 4),
        (product(1, 50257, 1024), 16),
    ],
    ids=["whole", "odd n", "even n", "8 bytes", "m along memory", "m across", "4 bytes", "a vector"],
)
def test_rows_start_where_the_contiguous_side_says(problems: MatmulProblems, found: int) -> None:
    assert aligned_bytes(problems) == found


def test_loads_of_odd_rows_hide_behind_slow_arithmetic() -> None:
    odd, whole = product(4096, 50257, 768, layout=TURNED), product(4096, 50256, 768, layout=TURNED)
    fast, slow = (time_us(odd, gpu) / time_us(whole, gpu) for gpu in ("a100 sxm4 80gb", "rtx 4090"))
    assert slow < 1.3 < 1.8 < fast


def test_rows_off_16_bytes_take_several_times_as_long_on_nvidia() -> None:
    odd, whole = product(4096, 50257, 768), product(4096, 50256, 768)
    even = product(4096, 50258, 768)
    assert time_us(odd) > 1.5 * time_us(even) > 2.0 * time_us(whole)
    assert time_us(odd, "mi300x") < 2.5 * time_us(whole, "mi300x")


def test_tf32_wants_its_operands_along_k_on_hopper_alone() -> None:
    along = product(8192, 4096, 4096, "tf32")
    across, twice = (replace(along, layout=np.array([int(item)])) for item in (OperandLayout.RIGHT_ACROSS, TURNED))
    assert time_us(along) < time_us(across) < time_us(twice)
    for gpu in ("a100 sxm4 80gb", "b200"):
        assert time_us(along, gpu) == time_us(twice, gpu)


def test_small_tiles_turn_more_tf32_operands_round_per_product() -> None:
    across, values = product(64, 64, 64, "tf32", OperandLayout.RIGHT_ACROSS), prior_values(MODEL.parameters, 1)
    per_area = [
        turned_cycles(across, high, wide, np.full(1, high * wide / 1024.0), np.array([True]), values)[0] / high / wide
        for high, wide in ((64.0, 64.0), (256.0, 128.0))
    ]
    assert per_area[0] > 1.5 * per_area[1] > 1.5 / 1024.0


def test_kernels_for_odd_rows_turn_no_tf32_operands_round() -> None:
    odd, values = product(1024, 50257, 768, "tf32", TURNED), prior_values(MODEL.parameters, 1)
    multiply = np.full(1, 32.0)
    assert turned_cycles(odd, 128.0, 256.0, multiply, np.array([True]), values)[0] == 32.0
    even = replace(odd, n=np.array([50256.0]))
    assert turned_cycles(even, 128.0, 256.0, multiply, np.array([True]), values)[0] > 40.0


def test_a_last_wave_is_shared_along_k_where_tf32_operands_lie_across_it() -> None:
    """144 tiles on 132 multiprocessors."""
    fleet, values = build_fleet([find_gpu(load_catalog(), "h100 sxm")]), prior_values(MODEL.parameters, 1)
    values = {**values, "later_epilogue_ratio": np.ones(1)}
    found = []
    for layout in (ALONG, TURNED):
        p = product(768, 3072, 16384, "tf32", layout)
        launch = replace(launch_of(np.zeros(1, int), p.batch, p.m, p.n, p.k, fleet.sm_count), tiles=np.array([144.0]))
        found.append(float(limits_of(p, launch, machine_of(p, fleet, values), values).rounds[0]))
    assert 1.09 < found[1] < 1.2 < 1.9 < found[0]


def test_wider_results_take_longer_to_write_out_unless_they_go_one_by_one() -> None:
    hopper, values = build_fleet([find_gpu(load_catalog(), "h100 sxm")]), prior_values(MODEL.parameters, 1)
    found = [product(512, n, 64, dtype) for n in (512, 197) for dtype in ("bf16", "tf32")]
    assert [epilogue_ratio(item, is_async(hopper), values)[0] for item in found] == [1.0, 2.0, 2.0, 2.0]


def test_batches_have_errors_of_their_own() -> None:
    one = product(512, 512, 512)
    batch = replace(one, batch=np.array([2.0]))
    items = (one, product(512, 512, 512, "tf32"), batch, replace(batch, grouped=np.ones(1, dtype=np.int64)))
    assert [int(group(item)[0]) for item in items] == [0, 1, 2, 0]


def test_older_kernels_for_tf32_have_whole_waves_on_hopper() -> None:
    """137 tiles of 128 x 256 take 132 multiprocessors two waves, which newer kernels fill with other tiles."""
    hopper, values = build_fleet([find_gpu(load_catalog(), "h100 sxm")]), prior_values(MODEL.parameters, 1)
    rounding = [machine_of(product(128, 137 * 256, 512, dtype), hopper, values).rounding for dtype in ("bf16", "tf32")]
    assert rounding[0][0] < 0.5 < rounding[1][0]


def test_whole_waves_and_shared_last_ones_of_tf32_are_hoppers_alone() -> None:
    """Data-centre Blackwell cannot run kernels made for Hopper's matrix instructions; no row of it is of TF32."""
    blackwell, values = build_fleet([find_gpu(load_catalog(), "b200")]), prior_values(MODEL.parameters, 1)
    found = [machine_of(product(128, 149 * 256, 512, dtype), blackwell, values).rounding for dtype in ("bf16", "tf32")]
    assert found[0] == found[1]
    along, across = (product(128, 149 * 256, 8192, "tf32", layout) for layout in (ALONG, OperandLayout.RIGHT_ACROSS))
    assert time_us(along, "b200") == time_us(across, "b200")
    odd = product(128, 149 * 256 + 2, 8192, "tf32", OperandLayout.RIGHT_ACROSS)
    costs = [segment_s(item, np.array([True]), values)[0] for item in (along, across, odd)]
    assert costs == [np.inf, values["tf32_split_us"][0] * 1e-6, np.inf]


def test_later_epilogues_weigh_by_their_own_ratio() -> None:
    """One wave has no later ones; many waves of short main loops are epilogues and writes."""
    hopper, values = build_fleet([find_gpu(load_catalog(), "h100 sxm")]), prior_values(MODEL.parameters, 1)
    lighter = {**values, "later_epilogue_ratio": 0.5 * values["later_epilogue_ratio"]}

    def saved(side: int) -> float:
        light, usual = (
            MODEL.simulate(product(side, side, 64), hopper, it, None).time_ns[0] for it in (lighter, values)
        )
        return float(1.0 - light / usual)

    assert saved(128) == 0.0
    assert saved(16384) > 0.02


def test_many_waves_of_short_main_loops_take_what_their_writes_do_on_hopper() -> None:
    """192 products write 1.6 GB: 0.72 of the peak rate on H100, of H200 0.69 (measured)."""
    p = replace(product(2048, 2048, 128), batch=np.array([192.0]))
    for name, bytes_per_s in (("h100 sxm", 3.35e12), ("h200 sxm", 4.8e12)):
        fleet, values = build_fleet([find_gpu(load_catalog(), name)]), prior_values(MODEL.parameters, 1)
        write_us = 192.0 * 2048.0**2 * 2.0 / bytes_per_s * 1e6
        assert 1.1 * write_us < MODEL.simulate(p, fleet, values, None).time_ns[0] * 1e-3 < 2.1 * write_us


def test_kernels_that_stay_fetch_the_next_tile_beside_a_conversion() -> None:
    """Hopper's for whole rows of 2 bytes; not those for TF32 or rows off 16 bytes, nor other GPUs'."""
    values, hopper = prior_values(MODEL.parameters, 1), np.array([True])
    found = [
        epilogue_values(product(512, n, 64, dtype), is_hopper, values)["fetched_ahead"][0]
        for n, dtype, is_hopper in (
            (512, "bf16", hopper),
            (512, "tf32", hopper),
            (197, "bf16", hopper),
            (512, "bf16", ~hopper),
        )
    ]
    assert found == [1, 0, 0, 0]


def test_strides_say_the_layout() -> None:
    assert layout_of(MatmulDims(m=4, n=5, k=6)) == ALONG
    assert layout_of(MatmulDims(m=4, n=5, k=6, is_k_contiguous=True, is_m_contiguous=False)) == ALONG
    assert (
        layout_of(MatmulDims(m=4, n=5, k=6, is_k_contiguous=False, is_m_contiguous=False)) == OperandLayout.RIGHT_ACROSS
    )
    assert layout_of(MatmulDims(m=4, n=5, k=6, is_k_contiguous=False, is_m_contiguous=True)) == TURNED


def test_tiles_of_tf32_are_chosen_with_shared_last_waves_so_that_no_better_gpu_is_slower() -> None:
    hopper, values = build_fleet([find_gpu(load_catalog(), "h100 sxm")]), prior_values(MODEL.parameters, 1)
    items = [product(m, 936, 6808, "tf32", OperandLayout.RIGHT_ACROSS) for m in range(2048, 8192, 64)]
    problems, times = as_columns(join_problems(items)), []
    for step in range(8):
        rates = {rate: value * (1.0 + step / 132.0) for rate, value in hopper.flops_per_s.items()}
        more = replace(hopper, sm_count=hopper.sm_count + step, flops_per_s=rates)
        times.append(MODEL.simulate(problems, more, values, None).time_ns)
    assert (np.diff(times, axis=0) <= 0.02 * times[0]).all()
