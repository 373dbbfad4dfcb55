"""Generations of GPU: what each has that others have not, in one row.

The one place where a compute capability or an architecture's name is compared with anything: what a new architecture
changes is its row. A capability beyond the last row counts as that row's generation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ..arrays import Codes, Floats, Mask
from .allocation import AMPERE_RULES, GFX90A_RULES, GFX908_RULES, GP100_RULES, KEPLER_RULES, AllocationRules
from .attention_kernels import ANYWHERE, BEFORE_AMPERE, SINCE_AMPERE, SINCE_CDNA2, AttentionKernel
from .fleet import Fleet
from .processes import NM_3, NM_4, NM_5, NM_6, NM_7, NM_8, NM_12, NM_16, ProcessNode
from .product_kernels import QuantizedKernels, SgemmKernels

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB
_GFX_NAME: Final = re.compile(r"gfx(\d+)([0-9a-f])[0-9a-f]")
"""AMD's names of architectures: major, minor, stepping."""
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
    converts_fp8_fast: bool = False
    """Kernels that widen FP8 operands themselves keep up with their loads. On compute capability 8.9 they do not: one
    query on an FP8 cache takes up to three times a BF16 cache's time there, and no longer than it on 9.0, 10.0 and 12.0
    (`ops/attention.parquet`, TensorRT-LLM). Earlier ones, which nobody measured, have no instruction for it at all."""


_KEPLER: Final = Generation(name="Kepler", starts_at="1.0", allocation=KEPLER_RULES, process=NM_16, l2_width=_NARROW_L2)
_MAXWELL: Final = replace(
    _KEPLER, name="Maxwell", starts_at="5.0", sgemm_kernels=SgemmKernels.PASCAL, attention=BEFORE_AMPERE
)
_GP100: Final = replace(_MAXWELL, name="Pascal GP100", starts_at="6.0", allocation=GP100_RULES)
_PASCAL: Final = replace(_MAXWELL, name="Pascal", starts_at="6.1")
_VOLTA: Final = replace(_PASCAL, name="Volta", starts_at="7.0", process=NM_12, sgemm_kernels=SgemmKernels.VOLTA)
_TURING: Final = replace(_VOLTA, name="Turing", starts_at="7.5", sgemm_kernels=SgemmKernels.TURING)
_GA100: Final = replace(
    _TURING,
    name="Ampere GA100",
    starts_at="8.0",
    allocation=AMPERE_RULES,
    process=NM_7,
    sgemm_kernels=SgemmKernels.AMPERE,
    attention=SINCE_AMPERE,
    l2_width=1.0,
    has_tf32=True,
)
_GA10X: Final = replace(_GA100, name="Ampere GA10x", starts_at="8.6", process=NM_8)
_ADA: Final = replace(_GA10X, name="Ada", starts_at="8.9", process=NM_4, quantized_kernels=QuantizedKernels.ADA)
_HOPPER: Final = replace(
    _ADA,
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
_BLACKWELL: Final = replace(
    _HOPPER,
    name="Blackwell of data centres",
    starts_at="10.0",
    quantized_kernels=QuantizedKernels.BLACKWELL,
    attention=SINCE_AMPERE,
    has_tensor_memory=True,
    has_square_tiles=True,
)
_THOR: Final = replace(
    _BLACKWELL, name="Blackwell of vehicles (Thor)", starts_at="11.0", blas_workspace_bytes=_SMALL_WORKSPACE_BYTES
)
_GB20X_ENERGY: Final = 0.7
"""The longest fp8 products of RTX PRO 6000 reach 0.84 of their peak within 600 W, those of L40S 0.45 within 350 W: at
most 0.63 of Ada's energy where as large a share of the board idles, 0.73 where a fifth does (looked at those rows)."""
_GB20X: Final = replace(
    _ADA,
    name="Blackwell of consumers",
    starts_at="12.0",
    sgemm_kernels=SgemmKernels.HOPPER,
    quantized_kernels=QuantizedKernels.GB20X,
    has_wide_head_blocks=True,
    converts_fp8_fast=True,
    matrix_energy=_GB20X_ENERGY,
    blas_workspace_bytes=_LARGE_WORKSPACE_BYTES,
)
_LATER: Final = replace(_GB20X, name="later", starts_at="13.0", blas_workspace_bytes=_SMALL_WORKSPACE_BYTES)
NVIDIA: Final = (
    *(_KEPLER, _MAXWELL, _GP100, _PASCAL, _VOLTA, _TURING, _GA100, _GA10X, _ADA),
    *(_HOPPER, _BLACKWELL, _THOR, _GB20X, _LATER),
)
"""By compute capability, ascending; the last is what nobody has seen yet."""

_CDNA: Final = Generation(
    name="CDNA",
    starts_at="gfx908",
    allocation=GFX908_RULES,
    process=NM_7,
    sgemm_kernels=SgemmKernels.AMD_MATRIX,
    l2_width=_CDNA_L2,
    blas_workspace_bytes=_LARGE_WORKSPACE_BYTES,
)
_CDNA2: Final = replace(
    _CDNA,
    name="CDNA2",
    starts_at="gfx90a",
    allocation=GFX90A_RULES,
    process=NM_6,
    attention=SINCE_CDNA2,
    l2_width=1.0,
)
_CDNA3: Final = replace(
    _CDNA2,
    name="CDNA3",
    starts_at="gfx94",
    process=NM_5,
    quantized_kernels=QuantizedKernels.CDNA,
    has_square_tiles=True,
    blas_workspace_bytes=_LARGEST_WORKSPACE_BYTES,
)
_CDNA4: Final = replace(_CDNA3, name="CDNA4", starts_at="gfx95", process=NM_3)
_OTHER_GFX: Final = replace(_CDNA2, name="of AMD, others", starts_at="gfx")
AMD: Final = (_CDNA, _CDNA2, _CDNA3, _CDNA4, _OTHER_GFX)
"""The first whose `starts_at` begins a target's name."""

_UNKNOWN: Final = replace(_KEPLER, name="of another vendor", starts_at="", process=NM_7)
_ROWS: Final = (_UNKNOWN, *NVIDIA, *AMD)
_EDGES: Final = np.array([float(row.starts_at) for row in NVIDIA])
_AMD_EDGES: Final = np.array([0, 0x908, 0x909, 0x90A, 0x90B, 0x940, 0x950, 0x960])
"""Targets as numbers at which a generation starts, as the prefixes in `AMD` say."""
_AMD_ROWS: Final = np.array(
    [_ROWS.index(row) for row in (_OTHER_GFX, _CDNA, _OTHER_GFX, _CDNA2, _OTHER_GFX, _CDNA3, _CDNA4, _OTHER_GFX)]
)

ARCHITECTURES: Final = (
    *("Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell"),
    *("CDNA4", "CDNA3", "CDNA2", "CDNA"),
)
"""Names that the catalogue's architectures begin with; the first that fits counts."""
AMD_ARCHITECTURES: Final = ("CDNA", "RDNA")
"""What names of AMD's architectures begin with."""


def generation_at(compute_capability: str) -> Generation:
    """Return the generation of a compute capability such as `9.0`, or of an AMD target such as `gfx942`.

    >>> generation_at("9.0").name
    'Hopper'
    """
    for row in AMD:
        if compute_capability.startswith(row.starts_at):
            return row
    is_number = compute_capability.replace(".", "", 1).isdecimal()
    return _ROWS[np.searchsorted(_EDGES, float(compute_capability) if is_number else 0.0, side="right")]


def is_reported_as(compute_capability: str, reported: str) -> bool:
    """Say whether frameworks may report a compute capability so: of AMD's `gfx942` they say `9.4`, or features, too.

    >>> is_reported_as("gfx942", "9.4"), is_reported_as("gfx90a", "gfx90a:xnack-"), is_reported_as("8.0", "8.6")
    (True, True, False)
    """
    name = reported.partition(":")[0]
    known = _GFX_NAME.fullmatch(compute_capability)
    return name == compute_capability or (known is not None and name == f"{known[1]}.{int(known[2], 16)}")


def generation_of(architecture: str | None) -> str | None:
    """Return the one of `ARCHITECTURES` that a catalogue's architecture is of; None: of none.

    >>> generation_of("Blackwell Ultra"), generation_of("CDNA3")
    ('Blackwell', 'CDNA3')
    """
    return next((name for name in ARCHITECTURES if (architecture or "").startswith(name)), None)


def is_of_amd(architecture: str | None) -> bool:
    """Say whether a catalogue's architecture, or one of `ARCHITECTURES`, is AMD's.

    >>> is_of_amd("CDNA3"), is_of_amd("Hopper")
    (True, False)
    """
    return (architecture or "").startswith(AMD_ARCHITECTURES)


def _row(fleet: Fleet) -> Codes:
    """Return the index into `_ROWS` of each GPU."""
    row = np.searchsorted(_EDGES, fleet.capability, side="right").astype(np.int64)
    amd = _AMD_ROWS[np.searchsorted(_AMD_EDGES, fleet.amd_target, side="right") - 1]
    return np.where(fleet.amd_target > 0, amd, row).astype(np.int64)


def _is_of(*rows: Generation) -> Mask:
    return np.array([any(row is one for one in rows) for row in _ROWS])


def _having(name: str) -> Mask:
    """Return which rows have what a field of `Generation` says."""
    return np.array([bool(getattr(row, name)) for row in _ROWS])


_IS_NVIDIA: Final = _is_of(*NVIDIA)
_IS_AMD: Final = _is_of(*AMD)
_IS_EARLY: Final = _is_of(_KEPLER, _MAXWELL, _GP100, _PASCAL)
_IS_HOPPER: Final = _is_of(_HOPPER)
_IS_BLACKWELL: Final = _is_of(_BLACKWELL, _THOR)
_IS_ASYNC: Final = _having("is_async")
_HAS_TENSOR_MEMORY: Final = _having("has_tensor_memory")
_HAS_SQUARE_TILES: Final = _having("has_square_tiles")
_PREFERS_CUDNN_ATTENTION: Final = _having("prefers_cudnn_attention")
_ATTENTION: Final = np.array([[kernel in row.attention for row in _ROWS] for kernel in AttentionKernel])
_HAS_WIDE_HEAD_BLOCKS: Final = _having("has_wide_head_blocks")
_CONVERTS_FP8_FAST: Final = _having("converts_fp8_fast")
_HAS_TF32: Final = _having("has_tf32")
_SGEMM_KERNELS: Final = np.array([row.sgemm_kernels for row in _ROWS], dtype=np.int64)
_QUANTIZED_KERNELS: Final = np.array([row.quantized_kernels for row in _ROWS], dtype=np.int64)
_ENERGY_RATIO: Final = np.array([row.process.energy_ratio for row in _ROWS])
_MATRIX_ENERGY: Final = np.array([row.matrix_energy for row in _ROWS])
_L2_WIDTH: Final = np.array([row.l2_width for row in _ROWS])
_CLOCK_HZ: Final = np.array([row.process.clock_hz for row in _ROWS])


def matrix_energy(fleet: Fleet) -> Floats:
    """Return each GPU's energy per FLOP on matrix units over what its process and its units' size say."""
    return _MATRIX_ENERGY[_row(fleet)]


def l2_width(fleet: Fleet) -> Floats:
    """Return the bytes per clock and multiprocessor of each second-level cache over those of its vendor's newest."""
    return _L2_WIDTH[_row(fleet)]


def generation_codes(fleet: Fleet) -> Codes:
    """Return a number per GPU that tells generations apart, also AMD's; for grouping, not for comparing with.

    >>> len(set(generation_codes(fleet).tolist()))
    2
    """
    return _row(fleet)


def is_nvidia(fleet: Fleet) -> Mask:
    """Say which GPUs are NVIDIA's."""
    return _IS_NVIDIA[_row(fleet)]


def is_amd(fleet: Fleet) -> Mask:
    """Say which GPUs are AMD's.

    >>> is_amd(fleet).tolist()
    [False, False]
    """
    return _IS_AMD[_row(fleet)]


def is_before_volta(fleet: Fleet) -> Mask:
    """Say which GPUs are NVIDIA's of Pascal or before: integer and FP32 lanes are one, L1 is no shared memory.

    >>> is_before_volta(fleet).tolist()
    [False, False]
    """
    return _IS_EARLY[_row(fleet)]


def is_since_volta(fleet: Fleet) -> Mask:
    """Say which GPUs are NVIDIA's of Volta or later."""
    return is_nvidia(fleet) & ~is_before_volta(fleet)


def has_attention(kernel: Codes, fleet: Fleet) -> Mask:
    """Say whether an `AttentionKernel` exists on a GPU; the arrays broadcast.

    >>> has_attention(np.array([[AttentionKernel.FLASH3]]), fleet)
    array([[ True, False]])
    """
    return np.asarray(_ATTENTION[kernel, _row(fleet)])


def prefers_cudnn_attention(fleet: Fleet) -> Mask:
    """Say where versions of torch that put cuDNN's attention first do so."""
    return _PREFERS_CUDNN_ATTENTION[_row(fleet)]


def is_hopper(fleet: Fleet) -> Mask:
    """Say which GPUs are of the Hopper generation."""
    return _IS_HOPPER[_row(fleet)]


def is_async(fleet: Fleet) -> Mask:
    """Say which GPUs feed their matrix units asynchronously: Hopper and data-centre Blackwell."""
    return _IS_ASYNC[_row(fleet)]


def has_tensor_memory(fleet: Fleet) -> Mask:
    """Say which GPUs have memory of their own for accumulators: data-centre Blackwell."""
    return _HAS_TENSOR_MEMORY[_row(fleet)]


def has_wide_head_blocks(fleet: Fleet) -> Mask:
    """Say where TensorRT-LLM's attention of head dims above 64 runs in few large blocks."""
    return _HAS_WIDE_HEAD_BLOCKS[_row(fleet)]


def converts_fp8_fast(fleet: Fleet) -> Mask:
    """Say on which GPUs kernels that widen FP8 operands keep up with their loads."""
    return _CONVERTS_FP8_FAST[_row(fleet)]


def is_blackwell(fleet: Fleet) -> Mask:
    """Say which GPUs are data-centre Blackwell."""
    return _IS_BLACKWELL[_row(fleet)]


def has_square_tiles(fleet: Fleet) -> Mask:
    """Say which GPUs' libraries take tiles of 256 x 256: data-centre Blackwell, CDNA3 and later."""
    return _HAS_SQUARE_TILES[_row(fleet)]


def has_tf32(fleet: Fleet) -> Mask:
    """Say which GPUs' matrix units take TF32."""
    return _HAS_TF32[_row(fleet)]


def sgemm_kernels(fleet: Fleet) -> Codes:
    """Return the `SgemmKernels` of each GPU.

    >>> [SgemmKernels(code).name for code in sgemm_kernels(fleet)]
    ['HOPPER', 'AMPERE']
    """
    return _SGEMM_KERNELS[_row(fleet)]


def quantized_kernels(fleet: Fleet) -> Codes:
    """Return the `QuantizedKernels` of each GPU.

    >>> [QuantizedKernels(code).name for code in quantized_kernels(fleet)]
    ['HOPPER', 'NONE']
    """
    return _QUANTIZED_KERNELS[_row(fleet)]


def process_energy(fleet: Fleet) -> tuple[Floats, Floats]:
    """Return each GPU's energy per operation over the 16 nm process's, and the clock in Hz that it refers to."""
    row = _row(fleet)
    return _ENERGY_RATIO[row], _CLOCK_HZ[row]
