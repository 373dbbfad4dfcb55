"""Golden cases of wave scaling, worked out by hand from the equations of Habitat (ATC 2021)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from wavecast.analyzer.prediction.wave import exact_wave_factor, large_wave_factor, reached_boundedness


def array(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


@pytest.mark.parametrize(("moved_bytes", "gamma"), [(3e6, 1.0), (6e6, 1.0), (1.5e6, 0.5), (0.0, 0.0)])
def test_a_kernel_is_bound_by_memory_as_far_as_its_bytes_take_its_time(moved_bytes: float, gamma: float) -> None:
    # 3 TB/s move 3 MB in a microsecond.
    assert reached_boundedness(array(moved_bytes), array(1e3), array(3e12))[0] == pytest.approx(gamma)


def test_large_wave_factor_of_a_memory_bound_kernel_is_the_bandwidth_ratio() -> None:
    # V100 900 GB/s → T4 320 GB/s; gamma 1.
    assert large_wave_factor(array(1.0), array(900 / 320), array(0.9), array(2.0))[0] == pytest.approx(2.8125)


def test_large_wave_factor_mixes_geometrically() -> None:
    # gamma 0.5: sqrt(4) · sqrt(2 · 0.5) = 2.
    assert large_wave_factor(array(0.5), array(4.0), array(0.5), array(2.0))[0] == pytest.approx(2.0)


def test_exact_factor_counts_whole_waves() -> None:
    # 1,000 blocks; 640 fit on the source (2 waves), 320 on the target (4 waves); gamma 1, bandwidth halves:
    # 4 · (2 · 320 / 640)^1 / 2 = 2.
    factor = exact_wave_factor(array(1.0), array(2.0), array(1.0), array(1000.0), array(640.0), array(320.0))
    assert factor[0] == pytest.approx(2.0)


def test_exact_factor_of_a_compute_bound_kernel() -> None:
    # gamma 0: waves and clock only. 900 blocks: 3 waves of 300 on the source, 2 of 450 on the target, clock x 1.25:
    # 2 · (1 / 1.25) / 3 = 0.5333.
    factor = exact_wave_factor(array(0.0), array(2.0), array(0.8), array(900.0), array(300.0), array(450.0))
    assert factor[0] == pytest.approx(2 * 0.8 / 3)


def test_blocks_that_do_not_fill_a_wave_gain_no_waves() -> None:
    # 10 blocks fit into one wave on both: a compute-bound kernel changes with the clock alone.
    factor = exact_wave_factor(array(0.0), array(3.0), array(0.5), array(10.0), array(100.0), array(1000.0))
    assert factor[0] == pytest.approx(0.5)


def test_a_lone_block_of_a_memory_bound_kernel_has_one_blocks_share_of_the_bandwidth() -> None:
    # Twice the bandwidth over four times the resident blocks: half the share, twice the time.
    factor = exact_wave_factor(array(1.0), array(0.5), array(1.0), array(1.0), array(100.0), array(400.0))
    assert factor[0] == pytest.approx(2.0)


positive = st.floats(0.05, 20)
counts = st.integers(1, 100_000).map(float)


@given(gamma=st.floats(0, 1), blocks=counts, wave=counts)
def test_the_same_gpu_is_the_identity(gamma: float, blocks: float, wave: float) -> None:
    factor = exact_wave_factor(array(gamma), array(1.0), array(1.0), array(blocks), array(wave), array(wave))
    assert factor[0] == pytest.approx(1.0)


@given(gamma=st.floats(0, 1), clock=positive, bandwidth=positive, gain=st.floats(1, 10), blocks=counts, wave=counts)
def test_more_bandwidth_is_never_slower(
    gamma: float, clock: float, bandwidth: float, gain: float, blocks: float, wave: float
) -> None:
    args = (array(clock), array(blocks), array(wave), array(2 * wave))
    slow = exact_wave_factor(array(gamma), array(bandwidth), *args)[0]
    fast = exact_wave_factor(array(gamma), array(bandwidth / gain), *args)[0]
    assert fast <= slow * (1 + 1e-12)


@given(gamma=st.floats(0, 1), bandwidth=positive, clock=positive, ratio=st.sampled_from([0.5, 1.0, 2.0]))
def test_many_waves_meet_the_large_wave_form(gamma: float, bandwidth: float, clock: float, ratio: float) -> None:
    blocks, source_wave = 1e7, 100.0
    exact = exact_wave_factor(
        array(gamma), array(bandwidth), array(clock), array(blocks), array(source_wave), array(source_wave * ratio)
    )[0]
    large = large_wave_factor(array(gamma), array(bandwidth), array(clock), array(1 / ratio))[0]
    assert exact == pytest.approx(large, rel=1e-3)
