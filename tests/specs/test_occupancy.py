"""Occupancy by hand, its invariants, and what the profiler recorded on real GPUs."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given, strategies as st
from wavecast.specs.catalog import load_catalog
from wavecast.specs.gpu import Catalog, Gpu
from wavecast.specs.match import find_gpu, match_device
from wavecast.specs.occupancy import MAX_THREADS_PER_BLOCK, blocks_per_sm, resident_blocks, sm_limits

KIB = 1024


def blocks(gpu: Gpu, threads: int, registers: int, shared_bytes: int) -> int:
    return int(resident_blocks(threads, registers, shared_bytes, [gpu])[0, 0])


@pytest.mark.parametrize(
    ("gpu", "threads", "registers", "shared_bytes", "expected"),
    [
        # 8 warps of 64: 8 blocks by warps. 32 x 32 = 1024 registers per warp, 16384 / 1024 x 4 = 64 warps: 8 blocks.
        pytest.param("V100 SXM2 32GB", 256, 32, 0, 8, id="V100 full"),
        # 33 x 32 = 1056, rounded up to 1280 per warp; 16384 / 1280 = 12 per quarter, 48 warps: 6 blocks.
        pytest.param("V100 SXM2 32GB", 256, 33, 0, 6, id="V100 register rounding"),
        # 1 warp: 64 by warps, but no more than 32 blocks.
        pytest.param("V100 SXM2 32GB", 32, 16, 0, 32, id="V100 blocks"),
        # 33 threads are 2 warps: 64 / 2 = 32.
        pytest.param("V100 SXM2 32GB", 33, 16, 0, 32, id="V100 partial warp"),
        # 97 threads are 4 warps: 16.
        pytest.param("V100 SXM2 32GB", 97, 16, 0, 16, id="V100 partial warps"),
        # 96 KiB / (12 KiB + 1 B rounded up to 256 B = 12544 B) = 7.8.
        pytest.param("V100 SXM2 32GB", 64, 16, 12 * KIB + 1, 7, id="V100 shared memory rounding"),
        # Nothing reserved before 8.0: 96 KiB / 48 KiB.
        pytest.param("V100 SXM2 32GB", 64, 16, 48 * KIB, 2, id="V100 shared memory"),
        pytest.param("V100 SXM2 32GB", 64, 16, 96 * KIB, 1, id="V100 all shared memory"),
        pytest.param("V100 SXM2 32GB", 64, 16, 96 * KIB + 1, 0, id="V100 too much shared memory"),
        # 1 KiB is reserved: 164 / (48 + 1) = 3.3.
        pytest.param("A100 SXM4 80GB", 128, 32, 48 * KIB, 3, id="A100 reserved shared memory"),
        # 164 / (40 + 1) = 4 exactly; one byte more takes another 128 B: 167936 / 42112 = 3.99.
        pytest.param("A100 SXM4 80GB", 128, 32, 40 * KIB, 4, id="A100 shared memory fits exactly"),
        pytest.param("A100 SXM4 80GB", 128, 32, 40 * KIB + 1, 3, id="A100 one byte more"),
        pytest.param("A100 SXM4 80GB", 128, 32, 163 * KIB, 1, id="A100 all shared memory"),
        pytest.param("A100 SXM4 80GB", 128, 32, 164 * KIB, 0, id="A100 too much shared memory"),
        # 255 x 32 = 8160, rounded up to 8192; 2 warps per quarter, 8 in all: one block of 8 warps, none of 9.
        pytest.param("A100 SXM4 80GB", 256, 255, 0, 1, id="A100 most registers"),
        pytest.param("A100 SXM4 80GB", 288, 255, 0, 0, id="A100 too many registers"),
        pytest.param("A100 SXM4 80GB", 32, 256, 0, 0, id="no thread has 256 registers"),
        # 1024 threads are all that a T4's multiprocessor holds.
        pytest.param("Tesla T4", 1024, 32, 0, 1, id="T4 1024 threads"),
        pytest.param("Tesla T4", 512, 32, 0, 2, id="T4 512 threads"),
        pytest.param("Tesla T4", 32, 32, 0, 16, id="T4 blocks"),
        pytest.param("Tesla T4", 1025, 32, 0, 0, id="too many threads"),
        # 48 warps on 8.9: 1024 threads once only, 24 blocks of 2 warps.
        pytest.param("L4", 1024, 32, 0, 1, id="L4 1024 threads"),
        pytest.param("L4", 64, 32, 0, 24, id="L4 blocks"),
        # 16 blocks on 8.6, where 48 / 2 = 24 warps would fit.
        pytest.param("RTX 3090", 64, 32, 0, 16, id="3090 blocks"),
        # Two halves of 32768 registers: 56 x 32 = 1792, 18 warps each, 36 in all: 9 blocks of 4 warps
        # (four quarters would hold 9 each: the same; with 58, rounded to 2048: 16 each, 32: 8 blocks).
        pytest.param("Tesla P100 SXM2 16GB", 128, 56, 0, 9, id="P100 registers"),
        # 72 x 32 = 2304: 14 per half, 28 warps; quarters would hold 7 each, 28. 80 x 32 = 2560: 12 per half, 24.
        pytest.param("Tesla P100 SXM2 16GB", 32, 88, 0, 22, id="P100 halves"),
        # The same 88 x 32 = 2816 on quarters: 5 each, 20.
        pytest.param("Tesla P4", 32, 88, 0, 20, id="P4 quarters"),
        # 227 KiB / (75 + 1): 228 / 76 = 3.
        pytest.param("H100 SXM5 80GB", 128, 32, 75 * KIB, 3, id="H100 shared memory"),
        # 4 waves of 64; 32 wave slots: 8. 64 x 64 = 4096 registers, 8 waves per SIMD.
        pytest.param("MI300X", 256, 64, 0, 8, id="MI300X full"),
        # 65 rounds up to 72: 32768 / 4608 = 7 per SIMD, 28 waves: 7 blocks.
        pytest.param("MI300X", 256, 65, 0, 7, id="MI300X register rounding"),
        # 2 waves: 16 by slots and by barriers. One wave needs no barrier: 32.
        pytest.param("MI300X", 128, 16, 0, 16, id="MI300X barriers"),
        pytest.param("MI300X", 64, 16, 0, 32, id="MI300X single waves"),
        pytest.param("MI300X", 256, 16, 64 * KIB, 1, id="MI300X all LDS"),
        pytest.param("MI355X", 256, 16, 64 * KIB, 2, id="MI355X LDS"),
        # MI100: 40 slots, barriers hold 2-wave blocks to 16; 24 registers x 64 = 1536: 10 waves per SIMD; 25 -> 28: 9.
        pytest.param("MI100", 256, 24, 0, 10, id="MI100 full"),
        pytest.param("MI100", 128, 24, 0, 16, id="MI100 barriers"),
        pytest.param("MI100", 64, 25, 0, 36, id="MI100 register rounding"),
        # Not recorded does not limit; no threads recorded is no block.
        pytest.param("A100 SXM4 80GB", 256, -1, -1, 8, id="nothing recorded"),
        pytest.param("A100 SXM4 80GB", 0, -1, -1, 0, id="no threads"),
    ],
)
def test_by_hand(catalog: Catalog, gpu: str, threads: int, registers: int, shared_bytes: int, expected: int) -> None:
    assert blocks(find_gpu(catalog, gpu), threads, registers, shared_bytes) == expected


def test_several_kernels_on_several_gpus_by_hand(catalog: Catalog) -> None:
    limits = sm_limits([find_gpu(catalog, name) for name in ("V100 SXM2 32GB", "Tesla T4")])
    # V100: 6 x 8 of 64 warps and 21 x 3 of 64. T4: 32 warps; 48 by registers, so 4 x 8 of 32; 10 x 3 of 32.
    assert blocks_per_sm([256, 96], [33, 16], 0, limits).tolist() == [[6, 4], [21, 10]]


KERNELS = st.tuples(st.integers(1, 1024), st.integers(1, 255), st.integers(0, 99 * KIB))


@given(KERNELS)
def test_kernels_and_gpus_broadcast_to_the_same_as_one_by_one(kernel: tuple[int, int, int]) -> None:
    gpus = load_catalog().gpus
    together = resident_blocks(*kernel, gpus)[0]
    assert together.shape == (len(gpus),)
    assert together.tolist() == [blocks(gpu, *kernel) for gpu in gpus]
    assert together.tolist() == blocks_per_sm(*kernel, sm_limits(gpus))[0].tolist()


@given(KERNELS)
def test_limits_are_never_exceeded(kernel: tuple[int, int, int]) -> None:
    gpus = load_catalog().gpus
    limits = sm_limits(gpus)
    threads, registers, shared_bytes = kernel
    resident = blocks_per_sm(*kernel, limits)[0]
    warps = -(-threads // limits.warp_size)
    assert (resident >= 0).all()
    assert (resident <= limits.max_blocks).all()
    assert (resident * warps <= limits.max_warps).all()
    assert (resident * warps * limits.warp_size * registers <= limits.registers).all()
    assert (resident * shared_bytes <= limits.shared_memory_bytes).all()


@given(KERNELS, st.integers(0, 2))
def test_a_kernel_that_asks_for_more_never_fits_more_often(kernel: tuple[int, int, int], which: int) -> None:
    gpus = load_catalog().gpus
    threads, registers, shared_bytes = kernel
    # On AMD a single wave needs no barrier: 65 threads may fit less often than 64, but never more often.
    fewer_blocks = resident_blocks(
        threads + 32 * (which == 0), registers + 8 * (which == 1), shared_bytes + KIB * (which == 2), gpus
    )
    assert (fewer_blocks <= resident_blocks(*kernel, gpus)).all()


def test_no_block_has_more_threads_than_documented(catalog: Catalog) -> None:
    assert MAX_THREADS_PER_BLOCK == 1024
    assert (resident_blocks(1024, -1, -1, catalog.gpus) >= 1).all()


NVIDIA_TRACES = [
    "a100_80gb_training",
    "a100_alexnet_inference",
    "a100_event_sync",
    "a100_event_sync_multi_stream",
    "b200_eager_inference",
    "h100_bert_small_inference",
    "h100_vit_small_inference",
    "rtx2080ti_resnet_training",
    "v100_convnet_ddp_training",
    "v100_dlrm_training_rank0",
    "v100_dlrm_training_rank1",
    "v100_training_memory_events",
]


@pytest.mark.data
@pytest.mark.parametrize("name", NVIDIA_TRACES)
def test_agrees_with_every_occupancy_the_profiler_recorded(catalog: Catalog, data_dir: Path, name: str) -> None:
    """The profiler records min(blocks per SM, grid / SM count) × threads per block / threads per SM, in whole percent.

    It does not know about the opt-in maximum of shared memory: a kernel with more than the default 48 KiB per block
    gets 0 from it, however many of its blocks run. That is why recorded values are computed anew and not used.
    """
    document = orjson.loads(gzip.decompress((data_dir / "traces" / f"{name}.json.gz").read_bytes()))
    device = document["deviceProperties"][0]
    gpu = match_device(catalog, device["name"], sm_count=device["numSms"], memory_bytes=device["totalGlobalMem"])
    assert gpu is not None
    kernels = [event["args"] for event in document["traceEvents"] if event.get("cat") == "kernel"]
    assert kernels
    recorded_percent = np.array([kernel["est. achieved occupancy %"] for kernel in kernels])
    threads = np.array([kernel["block"] for kernel in kernels]).prod(axis=1)
    grid_blocks = np.array([kernel["grid"] for kernel in kernels]).prod(axis=1)
    registers = np.array([kernel["registers per thread"] for kernel in kernels])
    shared_bytes = np.array([kernel["shared memory"] for kernel in kernels])
    resident = resident_blocks(threads, registers, shared_bytes, [gpu])[:, 0]
    percent = np.minimum(resident, grid_blocks / gpu.sm_count) * threads / gpu.max_threads_per_sm * 100
    expected_percent = np.where(shared_bytes > device["sharedMemPerBlock"], 0, percent)
    assert np.abs(expected_percent - recorded_percent).max() <= 0.5 + 1e-3
    assert (resident > 0).all(), "every kernel that ran fits"
