"""What all models take from a GPU's datasheet: rates of memory and cache, power, launches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from wavecast.analyzer.models.frame.gpu_physics import (
    DRAM_PARAMETERS,
    L2_PARAMETERS,
    LAUNCH_PARAMETERS,
    LEAST_CLOCK,
    POWER_PARAMETERS,
    at_capped_clock,
    capped_stretch,
    dram_bytes_per_s,
    l2_bytes_per_s,
    launch_s,
    matrix_joule_per_flop,
    slow_down,
    switching_w,
)
from wavecast.analyzer.models.frame.parameters import Values, resolve, theta_size
from wavecast.arrays import Floats
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import Fleet, build_fleet
from wavecast.specs.match import find_gpu

CATALOG = load_catalog()
PARAMETERS = (*DRAM_PARAMETERS, *L2_PARAMETERS, *POWER_PARAMETERS, *LAUNCH_PARAMETERS)


def fleet_of(*names: str) -> Fleet:
    return build_fleet([find_gpu(CATALOG, name) for name in names])


def priors(fleet: Fleet) -> Values:
    return resolve(PARAMETERS, np.zeros(theta_size(PARAMETERS, 1)), 1, np.zeros(len(fleet.gpus), dtype=np.int64))


@pytest.mark.parametrize(
    ("name", "measured_gb_per_s"),
    [
        ("A100 SXM4 80GB", 5430),
        ("H100 PCIe 80GB", 7000),
        ("L40", 5240),
        ("Tesla V100 PCIe 32GB", 2440),
        ("Instinct MI100", 2720),
    ],
)
def test_l2_rate_is_near_what_micro_benchmarks_read(name: str, measured_gb_per_s: float) -> None:
    fleet = fleet_of(name)
    assert l2_bytes_per_s(fleet, priors(fleet))[0] == pytest.approx(measured_gb_per_s * 1e9, rel=0.2)


def test_l2_beside_gddr_comes_with_the_memory_and_beside_hbm_with_the_multiprocessors() -> None:
    fleet = fleet_of("RTX A6000", "H100 SXM")
    before = l2_bytes_per_s(fleet, priors(fleet))
    wider = l2_bytes_per_s(replace(fleet, bandwidth_bytes_per_s=fleet.bandwidth_bytes_per_s * 2), priors(fleet))
    larger = l2_bytes_per_s(replace(fleet, sm_count=fleet.sm_count * 2), priors(fleet))
    np.testing.assert_allclose(wider / before, [2.0, 1.0])
    np.testing.assert_allclose(larger / before, [1.0, 2.0])


def test_correction_inside_the_memory_costs_bandwidth_and_none_reads_more_than_stated() -> None:
    every = build_fleet(CATALOG.gpus)
    share = dram_bytes_per_s(every, priors(every)) / every.bandwidth_bytes_per_s
    assert (share <= 1.0).all()
    assert share[every.has_inline_ecc].max() < share[~every.has_inline_ecc & ~every.has_hbm].min()


def test_energy_falls_with_process_and_size_of_the_unit() -> None:
    fleet = fleet_of("Tesla V100 SXM2 16GB", "A100 SXM4 80GB", "H100 SXM", "B200 SXM (HGX, 180GB)")
    assert (np.diff(matrix_joule_per_flop(fleet, priors(fleet))) < 0).all()
    halves = matrix_joule_per_flop(fleet, priors(fleet), 1.0)
    assert (halves < matrix_joule_per_flop(fleet, priors(fleet))).all()


def test_short_kernels_end_before_the_clock_falls_and_no_clock_falls_far_below_its_base() -> None:
    fleet = fleet_of("L4", "A100 PCIe 40GB", "RTX PRO 6000 Blackwell Server")
    values = priors(fleet)
    demand_w = 5.0 * switching_w(fleet, values)
    assert (slow_down(demand_w * 1e-6, np.full(3, 1e-6), fleet, values) < 0.02).all()
    stretched = 1.0 + slow_down(demand_w * 10.0, np.full(3, 10.0), fleet, values)
    assert (stretched > 1.2).all()
    assert (stretched <= fleet.clock_hz / (LEAST_CLOCK * fleet.base_clock_hz) + 1e-9).all()


ROUNDING = 1e-12


@settings(max_examples=50, deadline=None)
@given(watts=st.floats(1.0, 3e3), seconds=st.floats(1e-7, 1.0), more=st.floats(1.0, 10.0))
def test_more_power_and_less_energy_are_never_slower(watts: float, seconds: float, more: float) -> None:
    every = build_fleet(CATALOG.gpus)
    values, joule = priors(every), np.full(len(CATALOG.gpus), watts * seconds)
    slow = slow_down(joule, np.full_like(joule, seconds), every, values)
    assert (slow >= 0.0).all()
    assert (
        slow_down(joule, np.full_like(joule, seconds), replace(every, tdp_w=every.tdp_w * more), values)
        <= slow + ROUNDING
    ).all()
    assert (slow_down(joule / more, np.full_like(joule, seconds), every, values) <= slow + ROUNDING).all()


@settings(max_examples=50, deadline=None)
@given(joule=st.floats(1e-6, 1e3), seconds=st.floats(1e-6, 1.0), faster=st.floats(1.0, 4.0))
def test_a_throttled_kernel_whose_parts_get_faster_is_never_slower(joule: float, seconds: float, faster: float) -> None:
    every = build_fleet(CATALOG.gpus)
    values, energy = priors(every), np.full(len(CATALOG.gpus), joule)

    def total_s(full_s: float) -> Floats:
        return full_s * (1.0 + slow_down(energy, np.full_like(energy, full_s), every, values))

    assert (total_s(seconds / faster) <= total_s(seconds) * (1 + 1e-9)).all()


def test_launches_are_microseconds() -> None:
    every = build_fleet(CATALOG.gpus)
    seconds = launch_s(every, priors(every))
    assert ((seconds > 1e-6) & (seconds < 1e-5)).all()


def test_a_cap_lowers_the_clock_and_leaves_the_memory_alone() -> None:
    fleet = fleet_of("A40", "A40@200W")
    capped = at_capped_clock(fleet)
    slower = capped_stretch(fleet)[1]
    assert slower > 1.1
    for name in ("clock_hz", "matrix_clock_hz", "base_clock_hz"):
        np.testing.assert_allclose(getattr(fleet, name) / getattr(capped, name), [1.0, slower])
    for rate, flops in fleet.flops_per_s.items():
        np.testing.assert_allclose(flops / capped.flops_per_s[rate], [1.0, slower])
    for name in ("bandwidth_bytes_per_s", "tdp_w", "power_ratio"):
        np.testing.assert_array_equal(getattr(fleet, name), getattr(capped, name))
    uncapped = fleet_of("A40")
    assert at_capped_clock(uncapped) is uncapped
