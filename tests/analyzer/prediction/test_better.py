"""Whether the order of two like GPUs holds for what was measured on one of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from wavecast.analyzer.prediction.predict import at_least, hold_order
from wavecast.analyzer.prediction.workload import measured_workload
from wavecast.analyzer.recorded.window import select_window
from wavecast.formats.trace.tables import Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import build_fleet
from wavecast.specs.gpu import Gpu
from wavecast.specs.match import find_gpu

GpuBuilder = Callable[..., Gpu]
CATALOG = load_catalog()


def test_kernels_are_no_slower_on_a_better_gpu_and_no_faster_on_a_worse_one(
    gpu: GpuBuilder, toy_trace: Callable[..., Trace]
) -> None:
    trace = toy_trace()
    workload = measured_workload(trace, select_window(trace))
    base = gpu()

    def scaled(name: str, ratio: float, **changes: float) -> Gpu:
        rates = {rate: flops * ratio for rate, flops in base.peak_flops_per_s.items()}
        return gpu(name=name, sm_count=round(base.sm_count * ratio), peak_flops_per_s=rates, **changes)

    mixed = scaled("Mixed", 1.2, memory_bandwidth_bytes_per_s=base.memory_bandwidth_bytes_per_s / 2)
    fleet = build_fleet([base, scaled("More", 1.2), scaled("Fewer", 0.8), mixed])
    measured = workload.duration_ns
    time = measured[:, None] * np.array([1.1, 1.2, 0.8, 1.2])
    before = time.copy()
    every = np.ones(len(measured), dtype=bool)
    every[0] = False
    hold_order(time, workload, every, fleet, build_fleet([base]))
    is_kernel = every & (workload.kind == 0)
    assert is_kernel.any()
    assert not is_kernel.all()
    np.testing.assert_allclose(time[is_kernel, :3], np.repeat(measured[is_kernel, None], 3, axis=1))
    np.testing.assert_array_equal(time[:, 3], before[:, 3])
    np.testing.assert_array_equal(time[~is_kernel], before[~is_kernel])


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ("A100 SXM4 80GB", "A100 SXM4 40GB"),
        ("Instinct MI300X", "Instinct MI308X"),
    ],
)
def test_one_of_two_like_gpus_is_better(better: str, worse: str) -> None:
    fleets = [build_fleet([find_gpu(CATALOG, name)]) for name in (better, worse)]
    assert at_least(*fleets).all()
    assert not at_least(*reversed(fleets)).any()


def test_an_sm_of_lower_rate_is_not_better() -> None:
    """A GeForce's matrix units do half per clock: what fills few multiprocessors is faster on the smaller card."""
    fleets = [build_fleet([find_gpu(CATALOG, name)]) for name in ("GeForce RTX 5090", "RTX PRO 4500 Blackwell")]
    assert not at_least(*fleets).any()
    assert not at_least(*reversed(fleets)).any()
