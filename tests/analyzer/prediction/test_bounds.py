"""Bounds and rooflines by hand, unit fallbacks, and the constants against real traces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from wavecast.analyzer.prediction.bounds import KERNEL_OVERHEAD_NS, LAUNCH_FLOOR_NS, Limit, bound_ops, limit_of
from wavecast.analyzer.work.table import WorkTable
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.tables import KernelKind
from wavecast.specs.fleet import build_fleet
from wavecast.specs.gpu import Gpu, Rate

GpuBuilder = Callable[..., Gpu]


def one_op(flops: float, moved_bytes: float, rate: Rate = Rate.FP32) -> WorkTable:
    rates = np.empty(1, dtype=object)
    rates[:] = [rate]
    return WorkTable(flops=np.array([flops]), moved_bytes=np.array([moved_bytes]), rate=rates)


@pytest.mark.parametrize(
    ("flops", "moved_bytes", "roofline_ns", "lower_ns", "limit"),
    [
        (12.8e9, 1e6, 1e6, 1e6, Limit.COMPUTE),  # 12.8 GFLOP at 12.8 TFLOP/s: 1 ms
        (0.0, 1e9, 1e6, 996_000.0, Limit.MEMORY),  # 1 GB at 1 TB/s: 1 ms; 4 MB of it may lie in L2
        (0.0, 2e6, 2_000.0, LAUNCH_FLOOR_NS, Limit.MEMORY),  # fits L2: 2 MB at 12.8 TB/s is under the floor
        (0.0, 100.0, LAUNCH_FLOOR_NS, LAUNCH_FLOOR_NS, Limit.LAUNCH),
    ],
)
def test_bounds_by_hand(
    gpu: GpuBuilder, flops: float, moved_bytes: float, roofline_ns: float, lower_ns: float, limit: Limit
) -> None:
    works, fleet = one_op(flops, moved_bytes), build_fleet([gpu()])
    bounds = bound_ops(works, fleet)
    assert bounds.roofline_ns[0, 0] == pytest.approx(roofline_ns)
    assert bounds.lower_ns[0, 0] == pytest.approx(lower_ns)
    assert limit_of(works, fleet, 0, 0) is limit


@pytest.mark.parametrize(
    ("has", "wanted", "runs"),
    [
        ({Rate.MATRIX_BF16: 9.0, Rate.FP32: 1.0}, Rate.MATRIX_BF16, 9.0),
        ({Rate.MATRIX_FP16: 9.0, Rate.FP32: 1.0}, Rate.MATRIX_BF16, 1.0),  # Volta: bfloat16 is FP32 arithmetic
        ({Rate.MATRIX_BF16: 9.0, Rate.FP32: 1.0}, Rate.MATRIX_FP8, 9.0),
        ({Rate.FP16: 2.0, Rate.FP32: 1.0}, Rate.MATRIX_FP16, 2.0),
        ({Rate.MATRIX_FP32: 4.0, Rate.FP32: 1.0}, Rate.MATRIX_TF32, 4.0),
        ({Rate.FP32: 1.0}, Rate.MATRIX_TF32, 1.0),
    ],
)
def test_a_missing_unit_falls_back_to_what_libraries_run(
    gpu: GpuBuilder, has: dict[Rate, float], wanted: Rate, runs: float
) -> None:
    assert build_fleet([gpu(peak_flops_per_s=has)]).flops_per_s[wanted][0] == runs


@pytest.mark.data
def test_the_constants_are_what_the_public_traces_show(data_dir: Path) -> None:
    shortest: dict[str, int] = {}
    for path in sorted((data_dir / "traces").glob("*.json.gz")):
        trace = load_trace(path)
        if trace.meta.clock_resolution_ns == 1:
            name = path.name.partition("_")[0]
            kernels = trace.kernels.duration_ns[trace.kernels.kind == KernelKind.KERNEL]
            shortest[name] = min(shortest.get(name, 10**9), int(kernels.min()))
    assert min(shortest.values()) == shortest["mi300x"] == pytest.approx(640, abs=5)
    assert min(shortest.values()) >= LAUNCH_FLOOR_NS
    assert shortest["v100"] == pytest.approx(KERNEL_OVERHEAD_NS, abs=5)
    assert shortest["h100"] == pytest.approx(1_500, abs=5)
    assert shortest["b200"] == pytest.approx(1_980, abs=5)
