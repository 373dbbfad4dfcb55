"""The generations of GPU that are known, a row each; `generations` finds the row of a GPU."""

from __future__ import annotations

from typing import Final

from ..records import dataclass, replace
from .attention_kernels import ANYWHERE, BEFORE_AMPERE, SINCE_AMPERE, SINCE_CDNA2, AttentionKernel
from .product_kernels import QuantizedKernels, SgemmKernels

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessNode:
    """Hold what a manufacturing process means for power."""

    energy_ratio: float
    """Energy per operation over the 16 nm process's."""
    clock_hz: float
    """The clock that it refers to."""


NM_16: Final = ProcessNode(energy_ratio=1.0, clock_hz=1.4e9)
NM_12: Final = ProcessNode(energy_ratio=0.85, clock_hz=1.4e9)
NM_7: Final = ProcessNode(energy_ratio=0.5, clock_hz=1.4e9)
NM_8: Final = ProcessNode(energy_ratio=0.65, clock_hz=1.7e9)
NM_4: Final = ProcessNode(energy_ratio=0.33, clock_hz=2.2e9)
NM_6: Final = ProcessNode(energy_ratio=0.46, clock_hz=1.5e9)
NM_5: Final = ProcessNode(energy_ratio=0.36, clock_hz=2.0e9)
NM_3: Final = ProcessNode(energy_ratio=0.25, clock_hz=2.4e9)
"""After what the foundries state for power at the same speed from one process to the next, rounded down to what boards
reach."""

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB
_SMALL_WORKSPACE_BYTES: Final = 8192 * _KIB + 128 * _KIB
"""cuBLAS, per thread and stream, as torch allocates it (`:4096:2:16:8`): aten/src/ATen/cuda/CublasHandlePool.cpp."""
_LARGE_WORKSPACE_BYTES: Final = 32 * _MIB
"""The same on compute capability 9, 10 and 12 (`:4096:8`; before 2026 only on 9), and hipBLAS's default.
The public recordings of one model on H100 and on MI300X start with totals exactly this far apart, twice."""
_LARGEST_WORKSPACE_BYTES: Final = 128 * _MIB
"""hipBLAS on gfx94x and gfx95x, same file."""
_NARROW_L2: Final = (2048 / 80) / (5120 / 108)
"""NVIDIA: V100's slices read 2048 bytes per clock for 80 multiprocessors, A100's 5120 for 108 (its white paper)."""
_CDNA_L2: Final = (2048 / 120) / 27
"""AMD: MI100's 16 channels give 128 bytes per clock (CDNA white paper) to 120 compute units; on MI300X, whose dies have
a second-level cache each, the Infinity Cache behind them gives 17.2 TB/s, 27 bytes per clock and unit. MI250X is
assumed like it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Hold what GPUs of one generation have in common beyond their figures."""

    name: str
    starts_at: str
    """The lowest compute capability; of AMD's generations how the target's name begins."""
    allocation: AllocationRules
    process: ProcessNode
    sgemm_kernels: SgemmKernels = SgemmKernels.OTHER
    quantized_kernels: QuantizedKernels = QuantizedKernels.NONE
    blas_workspace_bytes: int = _SMALL_WORKSPACE_BYTES
    """What torch gives cuBLAS or hipBLAS per thread and stream."""
    matrix_energy: float = 1.0
    """Of a FLOP on the matrix units, over what the process and the size of the units say."""
    l2_width: float = 1.0
    """Bytes that the second-level cache gives each multiprocessor per clock, over those of the vendor's newest.
    AMD's: set with MI355X's products in sight, CDNA2's assumed; NVIDIA's: the white papers' as remembered."""
    attention: frozenset[AttentionKernel] = ANYWHERE
    """What of it exists."""
    prefers_cudnn_attention: bool = False
    """Where versions of torch that put cuDNN's attention first do so (`check_prefer_cudnn_attention`: 9.0, 10.0, from
    2.11 on 10.3)."""
    has_tf32: bool = False
    """Matrix units take TF32 and bfloat16 (CUDA C++ programming guide)."""
    is_async: bool = False
    """Matrix units are fed from shared memory by a copy engine, in clusters of blocks that share operands; elsewhere
    by the warps' own registers."""
    has_tensor_memory: bool = False
    """Accumulators lie beside the registers, so that epilogues overlap with the next tile."""
    has_square_tiles: bool = False
    """Products are made of tiles of 256 x 256: by two multiprocessors together, or by one with 512 KiB of registers:
    names of kernels have them; looked for after MI355X's residuals."""
    has_wide_head_blocks: bool = False
    """TensorRT-LLM's attention for head dims above 64 runs in few large blocks, of which one that holds a few queries
    alone takes three times as long as elsewhere: its kernels of compute capability 12.0, whose times show it."""
    is_untested: bool = False
    """No GPU of it was measured: what the models say of it is carried over from the generation that is nearest."""
    converts_fp8_fast: bool = False
    """Kernels that widen FP8 operands themselves keep up with their loads. On compute capability 8.9 they do not: one
    query on an FP8 cache takes up to three times a BF16 cache's time there, and no longer than it on 9.0, 10.0 and 12.0
    (`ops/attention.parquet`, TensorRT-LLM). Earlier ones, which nobody measured, have no instruction for it at all."""


KEPLER: Final = Generation(
    name="Kepler", starts_at="1.0", allocation=KEPLER_RULES, process=NM_16, l2_width=_NARROW_L2, is_untested=True
)
MAXWELL: Final = replace(
    KEPLER, name="Maxwell", starts_at="5.0", sgemm_kernels=SgemmKernels.PASCAL, attention=BEFORE_AMPERE
)
GP100: Final = replace(MAXWELL, name="Pascal GP100", starts_at="6.0", allocation=GP100_RULES, is_untested=False)
PASCAL: Final = replace(MAXWELL, name="Pascal", starts_at="6.1", is_untested=False)
VOLTA: Final = replace(PASCAL, name="Volta", starts_at="7.0", process=NM_12, sgemm_kernels=SgemmKernels.VOLTA)
TURING: Final = replace(VOLTA, name="Turing", starts_at="7.5", sgemm_kernels=SgemmKernels.TURING)
GA100: Final = replace(
    TURING,
    name="Ampere GA100",
    starts_at="8.0",
    allocation=AMPERE_RULES,
    process=NM_7,
    sgemm_kernels=SgemmKernels.AMPERE,
    attention=SINCE_AMPERE,
    l2_width=1.0,
    has_tf32=True,
)
GA10X: Final = replace(GA100, name="Ampere GA10x", starts_at="8.6", process=NM_8)
ADA: Final = replace(GA10X, name="Ada", starts_at="8.9", process=NM_4, quantized_kernels=QuantizedKernels.ADA)
HOPPER: Final = replace(
    ADA,
    name="Hopper",
    starts_at="9.0",
    sgemm_kernels=SgemmKernels.HOPPER,
    quantized_kernels=QuantizedKernels.HOPPER,
    attention=SINCE_AMPERE | {AttentionKernel.FLASH3},
    prefers_cudnn_attention=True,
    is_async=True,
    converts_fp8_fast=True,
    blas_workspace_bytes=_LARGE_WORKSPACE_BYTES,
)
BLACKWELL: Final = replace(
    HOPPER,
    name="Blackwell of data centres",
    starts_at="10.0",
    quantized_kernels=QuantizedKernels.BLACKWELL,
    attention=SINCE_AMPERE,
    has_tensor_memory=True,
    has_square_tiles=True,
)
THOR: Final = replace(
    BLACKWELL,
    name="Blackwell of vehicles (Thor)",
    starts_at="11.0",
    blas_workspace_bytes=_SMALL_WORKSPACE_BYTES,
    is_untested=True,
)
_GB20X_ENERGY: Final = 0.7
"""The longest fp8 products of RTX PRO 6000 reach 0.84 of their peak within 600 W, those of L40S 0.45 within 350 W: at
most 0.63 of Ada's energy where as large a share of the board idles, 0.73 where a fifth does (looked at those rows)."""
GB20X: Final = replace(
    ADA,
    name="Blackwell of consumers",
    starts_at="12.0",
    sgemm_kernels=SgemmKernels.HOPPER,
    quantized_kernels=QuantizedKernels.GB20X,
    has_wide_head_blocks=True,
    converts_fp8_fast=True,
    matrix_energy=_GB20X_ENERGY,
    blas_workspace_bytes=_LARGE_WORKSPACE_BYTES,
)
LATER: Final = replace(
    GB20X, name="later", starts_at="13.0", blas_workspace_bytes=_SMALL_WORKSPACE_BYTES, is_untested=True
)
NVIDIA: Final = (
    *(KEPLER, MAXWELL, GP100, PASCAL, VOLTA, TURING, GA100, GA10X, ADA),
    *(HOPPER, BLACKWELL, THOR, GB20X, LATER),
)
"""By compute capability, ascending; the last is what nobody has seen yet."""

CDNA: Final = Generation(
    name="CDNA",
    starts_at="gfx908",
    allocation=GFX908_RULES,
    process=NM_7,
    sgemm_kernels=SgemmKernels.AMD_MATRIX,
    l2_width=_CDNA_L2,
    blas_workspace_bytes=_LARGE_WORKSPACE_BYTES,
)
CDNA2: Final = replace(
    CDNA,
    name="CDNA2",
    starts_at="gfx90a",
    allocation=GFX90A_RULES,
    process=NM_6,
    attention=SINCE_CDNA2,
    l2_width=1.0,
)
CDNA3: Final = replace(
    CDNA2,
    name="CDNA3",
    starts_at="gfx94",
    process=NM_5,
    quantized_kernels=QuantizedKernels.CDNA,
    has_square_tiles=True,
    blas_workspace_bytes=_LARGEST_WORKSPACE_BYTES,
)
CDNA4: Final = replace(CDNA3, name="CDNA4", starts_at="gfx95", process=NM_3)
OTHER_GFX: Final = replace(CDNA2, name="of AMD, others", starts_at="gfx", is_untested=True)
RDNA2: Final = replace(OTHER_GFX, name="RDNA2", starts_at="gfx103", allocation=RDNA2_RULES, process=NM_7)
RDNA3: Final = replace(RDNA2, name="RDNA3", starts_at="gfx110", allocation=RDNA3_RULES, process=NM_5)
NAVI33: Final = replace(RDNA2, name="RDNA3 of Navi 33", starts_at="gfx1102", process=NM_6)
RDNA35: Final = replace(RDNA3, name="RDNA3.5", starts_at="gfx115", process=NM_4)
RDNA4: Final = replace(RDNA35, name="RDNA4", starts_at="gfx120")
AMD: Final = (CDNA, CDNA2, CDNA3, CDNA4, NAVI33, RDNA2, RDNA3, RDNA35, RDNA4, OTHER_GFX)
"""The first whose `starts_at` begins a target's name."""

UNKNOWN: Final = replace(
    KEPLER,
    name="of another vendor",
    starts_at="",
    allocation=AMPERE_RULES,
    process=NM_7,
    l2_width=1.0,
    blas_workspace_bytes=0,
    attention=ANYWHERE | {AttentionKernel.TRITON},
    has_tf32=True,
)
"""Intel's and others': no library of theirs was looked at. They are taken to have what accelerators since 2020 have."""
AMD_TARGETS: Final = {
    **{0: OTHER_GFX, 0x908: CDNA, 0x909: OTHER_GFX, 0x90A: CDNA2, 0x90B: OTHER_GFX, 0x940: CDNA3, 0x950: CDNA4},
    **{0x960: OTHER_GFX, 0x1030: RDNA2, 0x1040: OTHER_GFX, 0x1100: RDNA3, 0x1102: NAVI33, 0x1103: RDNA3},
    **{0x1110: OTHER_GFX, 0x1150: RDNA35, 0x1160: OTHER_GFX, 0x1200: RDNA4, 0x1210: OTHER_GFX},
}
"""Targets as numbers at which a generation starts, as the prefixes in `AMD` say."""
