"""Which generation of GPU a compute capability or an architecture means, and what the GPUs of a fleet have of it.

Nothing else compares these with anything but `generation_rows`: what a new architecture changes is its row there.
"""

from typing import Final, Generic, TypeVar

import numpy as np

from ..arrays import Codes, Floats, Mask
from ..records import dataclass
from .attention_kernels import AttentionKernel
from .fleet import Fleet
from .generation_rows import AMD, GENERATIONS, NVIDIA, ROWS, UNKNOWN, Generation, generation_at
from .gpu import Gpu

_KindT = TypeVar("_KindT", Mask, Codes, Floats)

ARCHITECTURES: Final = (
    *("Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell"),
    *("CDNA4", "CDNA3", "CDNA2", "CDNA", "RDNA4", "RDNA3", "RDNA2", "Xe", "Gaudi"),
)
"""Names that the catalogue's architectures begin with; the first that fits counts."""
AMD_ARCHITECTURES: Final = ("CDNA", "RDNA")
"""What names of AMD's architectures begin with."""


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


@dataclass(frozen=True, slots=True)
class _Column(Generic[_KindT]):
    """Look up what the generation of each GPU of a fleet has."""

    by_row: _KindT

    def __call__(self, fleet: Fleet) -> _KindT:
        found: _KindT = self.by_row[fleet.generation]
        return found


def _is_of(*rows: Generation) -> _Column[Mask]:
    return _Column(np.array([any(row is one for one in rows) for row in GENERATIONS]))


def _having(name: str) -> _Column[Mask]:
    """Return which GPUs have what a field of `Generation` says."""
    return _Column(np.array([bool(getattr(row, name)) for row in GENERATIONS]))


generation_codes: Final[_Column[Codes]] = _Column(np.arange(len(GENERATIONS)))
"""A number per GPU that tells generations apart, also AMD's; for grouping, not for comparing with."""
is_nvidia: Final = _is_of(*NVIDIA)
is_amd: Final = _is_of(*AMD)
is_before_volta: Final = _is_of(ROWS["Kepler"], ROWS["Maxwell"], ROWS["Pascal GP100"], ROWS["Pascal"])
"""NVIDIA's of Pascal or before: integer and FP32 lanes are one, L1 is no shared memory."""
is_volta: Final = _is_of(ROWS["Volta"])
is_since_volta: Final = _is_of(*NVIDIA[4:])
is_hopper: Final = _is_of(ROWS["Hopper"])
is_blackwell: Final = _is_of(ROWS["Blackwell of data centres"], ROWS["Blackwell of vehicles (Thor)"])
"""Of data centres."""
is_async: Final = _having("is_async")
"""Matrix units are fed asynchronously: Hopper and data-centre Blackwell."""
has_serving_kernels: Final = _is_of(*(row for row in GENERATIONS if row not in (*NVIDIA[:4], ROWS["RDNA2"])))
"""vLLM and its like have kernels for it: since Volta, and not RDNA2."""
prefers_composable_kernel: Final = _is_of(ROWS["CDNA3"], ROWS["CDNA4"])
"""Engines take CK's attention there, Triton's on others of AMD."""
takes_int8_of_ck: Final = _is_of(ROWS["CDNA4"])
"""aiter's tables name kernels of CK alone for int8 there, which do not split k."""
has_engine_all_reduce: Final = _is_of(*NVIDIA, ROWS["CDNA3"], ROWS["CDNA4"])
"""Engines' own all-reduce runs there (AMD: vLLM pull request 16010)."""
casts_half_gradients: Final = _is_of(ROWS["CDNA2"])
"""MIOpen runs fp16's gradients as bf16's there ("MI200 matrix fused multiply-add behavior specifics" in its docs)."""
has_tensor_memory: Final = _having("has_tensor_memory")
"""There is memory of its own for accumulators: data-centre Blackwell."""
has_square_tiles: Final = _having("has_square_tiles")
"""Libraries take tiles of 256 x 256: data-centre Blackwell, CDNA3 and later."""
has_wide_head_blocks: Final = _having("has_wide_head_blocks")
"""TensorRT-LLM's attention of head dims above 64 runs in few large blocks."""
prefers_cudnn_attention: Final = _having("prefers_cudnn_attention")
"""Versions of torch that put cuDNN's attention first do so."""
converts_fp8_fast: Final = _having("converts_fp8_fast")
"""Kernels that widen FP8 operands keep up with their loads."""
has_tf32: Final = _having("has_tf32")
"""Matrix units take TF32."""
sgemm_kernels: Final[_Column[Codes]] = _Column(np.array([row.sgemm_kernels for row in GENERATIONS]))
"""`SgemmKernels`."""
quantized_kernels: Final[_Column[Codes]] = _Column(np.array([row.quantized_kernels for row in GENERATIONS]))
"""`QuantizedKernels`."""
matrix_energy: Final[_Column[Floats]] = _Column(np.array([row.matrix_energy for row in GENERATIONS]))
"""Energy per FLOP on matrix units over what the process and the units' size say."""
l2_width: Final[_Column[Floats]] = _Column(np.array([row.l2_width for row in GENERATIONS]))
"""Bytes per clock and multiprocessor of the second-level cache over those of the vendor's newest."""
_ENERGY_RATIO: Final[_Column[Floats]] = _Column(np.array([row.process.energy_ratio for row in GENERATIONS]))
_CLOCK_HZ: Final[_Column[Floats]] = _Column(np.array([row.process.clock_hz for row in GENERATIONS]))
_IS_OF_DATA_CENTRES: Final = _is_of(ROWS["Blackwell of data centres"])
_ULTRA: Final = 10.3
"""Compute capability of B300 and GB300."""
_ATTENTION: Final = np.array([[kernel in row.attention for row in GENERATIONS] for kernel in AttentionKernel])
_MAY_PERSIST: Final = _is_of(
    ROWS["Volta"], *(row for row in NVIDIA[5:] if row not in (ROWS["Turing"], ROWS["Ampere GA10x"]))
)
_PERSISTENT_SM_COUNT: Final = 98.0
"""From Ampere on; `use_persist_device_heuristics` in PyTorch's aten/src/ATen/native/cudnn/RNN.cpp excludes compute
capability 7.5, 8.6 and smaller GPUs."""


def exponential_ratio(fleet: Fleet) -> Floats:
    """Return the exponentials that a multiprocessor takes over those of its generation.

    Blackwell Ultra's takes twice as many (NVIDIA, "Making Softmax More Efficient with NVIDIA Blackwell Ultra", 2026).

    >>> exponential_ratio(fleet).tolist()
    [1.0, 1.0]
    """
    return np.where(_IS_OF_DATA_CENTRES(fleet) & (fleet.capability >= _ULTRA), 2.0, 1.0)


def has_attention(kernel: Codes, fleet: Fleet) -> Mask:
    """Say whether an `AttentionKernel` exists on a GPU; the arrays broadcast.

    >>> has_attention(np.array([[AttentionKernel.FLASH3]]), fleet)
    array([[ True, False]])
    """
    return np.asarray(_ATTENTION[kernel, fleet.generation])


def has_persistent_layers(fleet: Fleet) -> Mask:
    """Say on which GPUs a half-precision recurrent layer that fits may keep its weights in registers for all steps.

    >>> has_persistent_layers(fleet).tolist()
    [True, True]
    """
    return _MAY_PERSIST(fleet) & (_is_of(ROWS["Volta"])(fleet) | (fleet.sm_count >= _PERSISTENT_SM_COUNT))


def process_energy(fleet: Fleet) -> tuple[Floats, Floats]:
    """Return each GPU's energy per operation over the 16 nm process's, and the clock in Hz that it refers to."""
    return _ENERGY_RATIO(fleet), _CLOCK_HZ(fleet)
