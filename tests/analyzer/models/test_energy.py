"""What arithmetic, traffic and waiting cost in joules, held against power curves and meters."""

from __future__ import annotations

import numpy as np
import pytest
from wavecast.analyzer.models.frame.energy import (
    BoardPower,
    board_power,
    joule_per_byte,
    joule_per_flop,
    switching_joule,
    vector_joule_per_flop,
)
from wavecast.analyzer.models.library import load_library
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import Fleet, build_fleet
from wavecast.specs.gpu import Rate
from wavecast.specs.match import find_gpu

CATALOG = load_catalog()


def power_of(*names: str) -> tuple[Fleet, BoardPower]:
    fleet, library = build_fleet([find_gpu(CATALOG, name) for name in names]), load_library()
    return fleet, board_power(fleet, library.values("matmul", fleet))


@pytest.mark.parametrize(
    ("gpu", "gb_per_s", "gflop_per_s", "measured_w"),
    [
        ("A100 SXM4 40GB", 1372, 343, 227),
        ("A100 SXM4 40GB", 1285, 13171, 300),
        ("A100 SXM4 40GB", 148, 19002, 180),
        ("L40", 845, 211, 199),
        ("L40", 844, 15404, 282),
    ],
)
def test_a_stream_draws_what_the_power_curves_say(
    gpu: str, gb_per_s: float, gflop_per_s: float, measured_w: float
) -> None:
    fleet, power = power_of(gpu)
    drawn = power.idle_w + joule_per_byte(fleet) * gb_per_s * 1e9 + vector_joule_per_flop(fleet) * gflop_per_s * 1e9
    assert drawn[0] == pytest.approx(measured_w, rel=0.15)
    assert drawn[0] < power.idle_w[0] + power.switching_w[0]


@pytest.mark.parametrize(
    ("gpu", "waiting_w"),
    [("V100 PCIe 32GB", 37.9), ("P100 PCIe 16GB", 35.0), ("A40", 90.5), ("Quadro RTX 6000", 69.5)],
)
def test_a_gpu_that_waits_draws_what_meters_of_others_say(gpu: str, waiting_w: float) -> None:
    """By networks so small that the host takes nearly all the time (benchmarks/check/board_power.csv)."""
    assert power_of(gpu)[1].idle_w[0] == pytest.approx(waiting_w, rel=0.2)


def test_narrower_formats_and_newer_processes_take_less() -> None:
    fleet, power = power_of("V100 SXM2 16GB", "A100 SXM4 80GB", "H100 SXM5")
    half = joule_per_flop(Rate.MATRIX_FP16, fleet, power)
    assert np.all(np.diff(half) < 0)
    assert joule_per_flop(Rate.MATRIX_FP8, fleet, power)[2] < half[2]
    assert np.all(joule_per_flop(Rate.FP64, fleet, power) > joule_per_flop(Rate.FP32, fleet, power))


def test_what_a_gpu_has_no_unit_for_costs_what_its_lanes_take() -> None:
    fleet, power = power_of("P100 PCIe 16GB", "V100 SXM2 16GB")
    as_bf16, as_tf32 = (joule_per_flop(rate, fleet, power) for rate in (Rate.MATRIX_BF16, Rate.MATRIX_TF32))
    assert as_bf16.tolist() == as_tf32.tolist() == joule_per_flop(Rate.MATRIX_FP32, fleet, power).tolist()
    assert joule_per_flop(Rate.MATRIX_FP16, fleet, power)[1] < as_bf16[1]


def test_a_hopper_draws_what_meters_say_of_its_units_and_of_waiting_for_them() -> None:
    """Sustained products of 8192 x 8192 x 8192 beside what idles at the clock they hold, and networks' kernels."""
    fleet, power = power_of("H100 SXM5")
    half, tf32, lanes = (
        joule_per_flop(rate, fleet, power)[0] * 1e12 for rate in (Rate.MATRIX_BF16, Rate.MATRIX_TF32, Rate.MATRIX_FP32)
    )
    assert half == pytest.approx(0.85, rel=0.2)
    assert tf32 == pytest.approx(2.0, rel=0.2)
    assert lanes == pytest.approx(10.2, rel=0.1)
    assert power.stalled_w[0] == pytest.approx(275, rel=0.15)


def test_tf32_runs_on_matrix_units_of_cards_whose_lanes_are_as_fast() -> None:
    fleet, power = power_of("RTX 4090", "RTX 2080 Ti")
    tf32, lanes = (joule_per_flop(rate, fleet, power) for rate in (Rate.MATRIX_TF32, Rate.MATRIX_FP32))
    assert tf32[0] < 0.5 * lanes[0]
    assert tf32[1] == lanes[1]


def test_real_data_take_what_sums_of_random_numbers_do() -> None:
    """544 W less 112 that idle at 3.02 TB/s (`own/power.parquet`): 143 pJ a byte, where copies of zeros take 92."""
    fleet, power = power_of("H100 SXM5")
    real = switching_joule(np.zeros(1), np.ones(1), np.array([Rate.FP32]), fleet, power)[0, 0]
    assert joule_per_byte(fleet)[0] * 1e12 == pytest.approx(92, rel=0.05)
    assert real * 1e12 == pytest.approx(143, rel=0.1)


def test_every_gpu_of_the_catalogue_has_finite_power() -> None:
    fleet, power = power_of(*(gpu.name for gpu in CATALOG.gpus))
    rates = np.empty(len(Rate), dtype=object)
    rates[:] = list(Rate)
    joule = switching_joule(np.full(len(Rate), 1e12), np.full(len(Rate), 1e9), rates, fleet, power)
    assert np.all(np.isfinite(joule) & (joule > 0))
    assert np.all((power.idle_w > 0) & (power.idle_w + power.switching_w <= fleet.tdp_w * 1.0001))


def test_a_cap_leaves_less_for_switching_and_nothing_of_what_idles() -> None:
    _, power = power_of("A100 SXM4 80GB", "A100 SXM4 80GB@250W")
    assert power.idle_w[0] == power.idle_w[1]
    assert power.switching_w[0] - power.switching_w[1] == pytest.approx(150)
