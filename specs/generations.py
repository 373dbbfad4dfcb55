"""Which generation of GPU a compute capability or an architecture means, and what the GPUs of a fleet have of it.

The one place where these are compared with anything: what a new architecture changes is its row in `generation_rows`.
A capability beyond the last row counts as that row's generation.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import numpy as np

from ..arrays import Codes, Floats, Mask
from .attention_kernels import AttentionKernel
from .fleet import Fleet
from .generation_rows import (
    AMD,
    AMD_TARGETS,
    BLACKWELL,
    GP100,
    HOPPER,
    KEPLER,
    MAXWELL,
    NVIDIA,
    PASCAL,
    THOR,
    UNKNOWN,
    Generation,
)
from .gpu import Gpu

_GFX_NAME: Final = re.compile(r"gfx(\d+)([0-9a-f])[0-9a-f]")
"""AMD's names of architectures: major, minor, stepping."""
_ROWS: Final = (UNKNOWN, *NVIDIA, *AMD)
_EDGES: Final = np.array([float(row.starts_at) for row in NVIDIA])
_AMD_EDGES: Final = np.array(list(AMD_TARGETS))
_AMD_ROWS: Final = np.array([_ROWS.index(row) for row in AMD_TARGETS.values()])

ARCHITECTURES: Final = (
    *("Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell"),
    *("CDNA4", "CDNA3", "CDNA2", "CDNA", "RDNA4", "RDNA3", "RDNA2", "Xe", "Gaudi"),
)
"""Names that the catalogue's architectures begin with; the first that fits counts."""
AMD_ARCHITECTURES: Final = ("CDNA", "RDNA")
"""What names of AMD's architectures begin with."""


@lru_cache(maxsize=256)
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


def why_untested(gpu: Gpu) -> str | None:
    """Return why nothing that was measured tells how good predictions for a GPU are; None where something does.

    >>> from dataclasses import replace
    >>> why_untested(h100), why_untested(replace(h100, has_shared_memory=True))
    (None, 'no GPU that shares its memory with the host was measured')
    """
    generation = generation_at(gpu.compute_capability)
    if generation is UNKNOWN:
        return f"no GPU of {gpu.vendor} was measured"
    if generation.is_untested:
        return f"no GPU of the generation {generation.name} was measured"
    return "no GPU that shares its memory with the host was measured" if gpu.has_shared_memory else None


def is_untested(fleet: Fleet) -> Mask:
    """Say which GPUs are `why_untested`.

    >>> is_untested(fleet).tolist()
    [False, False]
    """
    return np.array([why_untested(gpu) is not None for gpu in fleet.gpus], dtype=bool)


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
_IS_EARLY: Final = _is_of(KEPLER, MAXWELL, GP100, PASCAL)
_IS_HOPPER: Final = _is_of(HOPPER)
_IS_BLACKWELL: Final = _is_of(BLACKWELL, THOR)
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
    """Say which GPUs are NVIDIA's.

    >>> is_nvidia(fleet).tolist()
    [True, True]
    """
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

    >>> from wavecast.specs.product_kernels import SgemmKernels
    >>> [SgemmKernels(code).name for code in sgemm_kernels(fleet)]
    ['HOPPER', 'AMPERE']
    """
    return _SGEMM_KERNELS[_row(fleet)]


def quantized_kernels(fleet: Fleet) -> Codes:
    """Return the `QuantizedKernels` of each GPU.

    >>> from wavecast.specs.product_kernels import QuantizedKernels
    >>> [QuantizedKernels(code).name for code in quantized_kernels(fleet)]
    ['HOPPER', 'NONE']
    """
    return _QUANTIZED_KERNELS[_row(fleet)]


def process_energy(fleet: Fleet) -> tuple[Floats, Floats]:
    """Return each GPU's energy per operation over the 16 nm process's, and the clock in Hz that it refers to."""
    row = _row(fleet)
    return _ENERGY_RATIO[row], _CLOCK_HZ[row]
