"""Theoretical occupancy: how many blocks of a kernel one multiprocessor holds at a time, by GPU.

NVIDIA's limits and their rounding are those of the CUDA C Programming Guide (technical specifications per compute
capability) and of `cuda_occupancy.h`, which its occupancy calculator and the profiler use:

    warps per block  w  = ⌈threads / warp size⌉
    by warps            ⌊max threads per SM / warp size / w⌋
    by registers        ⌊⌊(registers per SM / p) / ⌈registers per thread × warp size⌉_u⌋ × p / w⌋
    by shared memory    ⌊shared memory per SM / ⌈shared memory + reserved⌉_s⌋
    by blocks           max blocks per SM

where ⌈x⌉_u rounds up to a multiple of u, p is the number of sub-partitions, each with its share of the registers,
and the least of the four holds. AMD's waves follow the same form (LLVM's AMDGPU back end, `IsaInfo`), with 4 SIMDs
for p, and a barrier, of which there are 16, for each block of more than one wave.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..records import dataclass
from .generation_rows import UNLIMITED, generation_at
from .gpu import Gpu

IntArray = npt.NDArray[np.int64]

MAX_THREADS_PER_BLOCK: Final = 1024
"""CUDA C Programming Guide, all compute capabilities; the same for AMD work groups (ISA documents)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmLimits:
    """Hold the limits of one multiprocessor as columns, one row per GPU."""

    warp_size: IntArray
    max_warps: IntArray
    max_blocks: IntArray
    max_multi_warp_blocks: IntArray
    registers: IntArray
    register_unit: IntArray
    partition_count: IntArray
    max_registers_per_thread: IntArray
    shared_memory_bytes: IntArray
    max_shared_memory_per_block_bytes: IntArray
    shared_memory_unit_bytes: IntArray
    reserved_shared_memory_bytes: IntArray


def sm_limits(gpus: Sequence[Gpu]) -> SmLimits:
    """Collect the limits of several GPUs, in their order."""
    rules = [generation_at(gpu.compute_capability).allocation for gpu in gpus]
    return SmLimits(
        warp_size=_column([gpu.warp_size for gpu in gpus]),
        max_warps=_column([gpu.max_threads_per_sm // gpu.warp_size for gpu in gpus]),
        max_blocks=_column([gpu.max_blocks_per_sm for gpu in gpus]),
        max_multi_warp_blocks=_column([rule.max_multi_warp_blocks for rule in rules]),
        registers=_column([gpu.registers_per_sm for gpu in gpus]),
        register_unit=_column([rule.register_unit for rule in rules]),
        partition_count=_column([rule.partition_count for rule in rules]),
        max_registers_per_thread=_column([rule.max_registers_per_thread for rule in rules]),
        shared_memory_bytes=_column([gpu.shared_memory_per_sm_bytes for gpu in gpus]),
        max_shared_memory_per_block_bytes=_column([gpu.max_shared_memory_per_block_bytes for gpu in gpus]),
        shared_memory_unit_bytes=_column([rule.shared_memory_unit_bytes for rule in rules]),
        reserved_shared_memory_bytes=_column([rule.reserved_shared_memory_bytes for rule in rules]),
    )


def blocks_per_sm(
    threads_per_block: npt.ArrayLike,
    registers_per_thread: npt.ArrayLike,
    shared_memory_bytes: npt.ArrayLike,
    limits: SmLimits,
) -> IntArray:
    """Return how many blocks one multiprocessor holds, kernels × GPUs; 0 where the block cannot run there at all.

    The kernel columns have one row per kernel, or are scalars. Registers or shared memory of -1 (not recorded) do not
    limit. Fewer than 1 thread per block (not recorded) gives 0. Shared memory counts static and dynamic together; the
    split between it and the L1 cache is taken to be the one that suits the kernel best, as the driver chooses it.
    """
    threads = _rows(threads_per_block)
    registers = np.maximum(_rows(registers_per_thread), 0)
    shared_bytes = np.maximum(_rows(shared_memory_bytes), 0)
    warps = np.maximum(-(-threads // limits.warp_size), 1)
    multi_warp = np.minimum(limits.max_blocks, limits.max_multi_warp_blocks)
    blocks = np.minimum(limits.max_warps // warps, np.where(warps > 1, multi_warp, limits.max_blocks))
    blocks = np.minimum(blocks, _register_limit(registers, warps, limits))
    blocks = np.minimum(blocks, _shared_memory_limit(shared_bytes, limits))
    can_run = (
        (threads >= 1)
        & (threads <= MAX_THREADS_PER_BLOCK)
        & (registers <= limits.max_registers_per_thread)
        & (shared_bytes <= limits.max_shared_memory_per_block_bytes)
    )
    return np.where(can_run, blocks, 0)


def resident_blocks(
    threads_per_block: npt.ArrayLike,
    registers_per_thread: npt.ArrayLike,
    shared_memory_bytes: npt.ArrayLike,
    gpus: Sequence[Gpu],
) -> IntArray:
    """Return `blocks_per_sm` on several GPUs, kernels × GPUs, for callers that hold records and not limits.

    Computes once for all GPUs of the same limits: the catalogue's 162 have 30 different ones.

    >>> resident_blocks([128, 1024], [32, 64], [0, 65536], [h100, a100])
    array([[16, 16],
           [ 1,  1]])
    """
    kinds: dict[tuple[str | int, ...], int] = {}
    columns = [kinds.setdefault(_limits_key(gpu), len(kinds)) for gpu in gpus]
    representatives = [gpus[columns.index(kind)] for kind in range(len(kinds))]
    limits = sm_limits(representatives)
    return blocks_per_sm(threads_per_block, registers_per_thread, shared_memory_bytes, limits)[:, columns]


def _limits_key(gpu: Gpu) -> tuple[str | int, ...]:
    """Return what `sm_limits` reads of a GPU."""
    return (
        gpu.compute_capability,
        gpu.warp_size,
        gpu.max_threads_per_sm,
        gpu.max_blocks_per_sm,
        gpu.registers_per_sm,
        gpu.shared_memory_per_sm_bytes,
        gpu.max_shared_memory_per_block_bytes,
    )


def _register_limit(registers: IntArray, warps: IntArray, limits: SmLimits) -> IntArray:
    """Warps are dealt out evenly to the partitions, so what is left over in one cannot help another."""
    per_warp = _round_up(registers * limits.warp_size, limits.register_unit)
    warps_per_partition = limits.registers // limits.partition_count // np.maximum(per_warp, 1)
    return np.where(registers > 0, warps_per_partition * limits.partition_count // warps, UNLIMITED)


def _shared_memory_limit(shared_bytes: IntArray, limits: SmLimits) -> IntArray:
    per_block = _round_up(shared_bytes + limits.reserved_shared_memory_bytes, limits.shared_memory_unit_bytes)
    return np.where(per_block > 0, limits.shared_memory_bytes // np.maximum(per_block, 1), UNLIMITED)


def _round_up(values: IntArray, unit: IntArray) -> IntArray:
    return -(-values // unit) * unit


def _column(values: Sequence[int]) -> IntArray:
    return np.array(values, dtype=np.int64)


def _rows(values: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return kernel values as a column, to be broadcast against GPUs."""
    return np.atleast_1d(np.asarray(values, dtype=np.int64))[:, np.newaxis]
