"""In which units a generation's multiprocessors hand out their registers and shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

UNLIMITED: Final = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRules:
    """Say in which units a multiprocessor hands out its registers and shared memory."""

    register_unit: int
    """Registers per warp come in multiples of this."""
    partition_count: int = 4
    """Parts of the multiprocessor, each with its own registers, over which warps are spread."""
    max_registers_per_thread: int
    shared_memory_unit_bytes: int
    reserved_shared_memory_bytes: int = 0
    """What the system takes for itself in each block."""
    max_multi_warp_blocks: int = UNLIMITED
    """Blocks of more than one warp that fit, whatever they use; on AMD the number of barriers."""


KEPLER_RULES: Final = AllocationRules(register_unit=256, max_registers_per_thread=255, shared_memory_unit_bytes=256)
GP100_RULES: Final = AllocationRules(
    register_unit=256, partition_count=2, max_registers_per_thread=255, shared_memory_unit_bytes=256
)
AMPERE_RULES: Final = AllocationRules(
    register_unit=256,
    max_registers_per_thread=255,
    shared_memory_unit_bytes=128,
    reserved_shared_memory_bytes=1024,
)
"""NVIDIA (`cuda_occupancy.h`): registers in units of 256 per warp since 3.0; 4 sub-partitions, on 6.0 two; shared
memory in units of 256 bytes up to 7.x and 128 bytes from 8.0 on, where 1 KiB per block is reserved; 255 registers per
thread."""
GFX908_RULES: Final = AllocationRules(
    register_unit=256, max_registers_per_thread=256, shared_memory_unit_bytes=512, max_multi_warp_blocks=16
)
GFX90A_RULES: Final = AllocationRules(
    register_unit=512, max_registers_per_thread=512, shared_memory_unit_bytes=512, max_multi_warp_blocks=16
)
RDNA2_RULES: Final = AllocationRules(
    register_unit=512, max_registers_per_thread=256, shared_memory_unit_bytes=512, max_multi_warp_blocks=32
)
RDNA3_RULES: Final = AllocationRules(
    register_unit=768, max_registers_per_thread=256, shared_memory_unit_bytes=512, max_multi_warp_blocks=32
)
"""AMD (LLVM): 8 vector registers × 64 lanes on gfx90a and later, with up to 512 per lane (accumulation registers
included), 4 × 64 and 256 on gfx908; LDS in units of 512 bytes (for gfx950 and RDNA no source: assumed). RDNA's pairs of
compute units: 16 registers × 32 lanes, 24 where the file is half as large again, and 32 barriers."""
