"""Builders for GPUs and traces with defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.signature import Signature, TensorSpec
from wavecast.formats.trace.tables import CallTable, Device, IterationTable, KernelTable, Meta, OpTable, Trace, Workload
from wavecast.specs.gpu import Gpu, Rate

GpuBuilder = Callable[..., Gpu]


def build_gpu(**changes: Any) -> Gpu:
    values: dict[str, Any] = {
        "name": "Base",
        "vendor": "NVIDIA",
        "architecture": "Test",
        "compute_capability": "8.0",
        "sm_count": 100,
        "fp32_lanes_per_sm": 64,
        "boost_clock_hz": 1e9,
        "memory_bytes": 40e9,
        "memory_type": "HBM2e",
        "memory_bandwidth_bytes_per_s": 1e12,
        "l2_cache_bytes": 4e6,
        "peak_flops_per_s": {Rate.FP32: 12.8e12, Rate.FP64: 6.4e12, Rate.MATRIX_FP16: 200e12, Rate.MATRIX_BF16: 200e12},
        "warp_size": 32,
        "max_threads_per_sm": 2048,
        "max_blocks_per_sm": 32,
        "registers_per_sm": 65536,
        "shared_memory_per_sm_bytes": 164 * 1024,
        "max_shared_memory_per_block_bytes": 163 * 1024,
        "pcie_bandwidth_bytes_per_s": 32e9,
        "tdp_w": 300.0,
    }
    return Gpu(**(values | changes))


@pytest.fixture(scope="session")
def gpu() -> GpuBuilder:
    return build_gpu


def half(*shape: int) -> TensorSpec:
    return TensorSpec("float16", shape)


def build_trace(*, device: str = "Base", **changes: Any) -> Trace:
    """An addition, a matrix product, a copy from the host and a kernel without an op, one after the other."""
    values: dict[str, Any] = {
        "meta": Meta(workload=Workload(name="toy", batch_size=8)),
        "devices": (Device(index=0, name=device, sm_count=100),),
        "strings": (
            "aten::add",
            "aten::mm",
            "aten::copy_",
            "void at::native::vectorized_elementwise_kernel<4>",
            "ampere_fp16_s16816gemm_fp16_128x64",
            "Memcpy HtoD (Pinned -> Device)",
            "my_kernel",
            "cudaLaunchKernel",
        ),
        "signatures": (
            Signature((half(1 << 24), half(1 << 24), 1), (half(1 << 24),)),
            Signature((half(4096, 4096), half(4096, 4096)), (half(4096, 4096),)),
            Signature((half(1 << 20), half(1 << 20), False), (half(1 << 20),)),
        ),
        "iterations": build_table(
            IterationTable, 1, start_ns=[0], end_ns=[2_000_000], cpu_start_ns=[0], cpu_end_ns=[2_000_000]
        ),
        "ops": build_table(
            OpTable, 3, name=[0, 1, 2], signature=[0, 1, 2], start_ns=[10, 110, 210], duration_ns=[90, 90, 90]
        ),
        "calls": build_table(
            CallTable, 4, name=[7] * 4, start_ns=[20, 120, 220, 400], duration_ns=[10] * 4, op=[0, 1, 2, -1]
        ),
        "kernels": build_table(
            KernelTable,
            4,
            name=[3, 4, 5, 6],
            kind=[0, 0, 1, 0],
            start_ns=[1_000, 150_000, 1_200_000, 1_400_000],
            duration_ns=[120_000, 1_000_000, 100_000, 200_000],
            call=[0, 1, 2, 3],
            op=[0, 1, 2, -1],
            grid=[[32768, 1, 1], [2048, 1, 1], [0, 0, 0], [1000, 1, 1]],
            block=[[128, 1, 1], [128, 1, 1], [0, 0, 0], [256, 1, 1]],
        ),
    }
    return Trace(**(values | changes))


@pytest.fixture(scope="session")
def toy_trace() -> Callable[..., Trace]:
    return build_trace
