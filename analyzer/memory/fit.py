"""Whether an iteration's memory fits a GPU."""

from collections.abc import Sequence
from typing import Final

from ...records import dataclass
from ...specs.generation_rows import generation_at
from ...specs.gpu import Gpu
from .use import MemoryUse

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Hold a quantity with its least and greatest plausible value."""

    low: float
    typical: float
    high: float


CONTEXT_BYTES: Final = Range(low=200 * MIB, typical=400 * MIB, high=700 * MIB)
"""What a process takes on the device besides its tensors: driver context and loaded kernels.
pytorch issue 28113: 200 to 700 MB, different from machine to machine; 20532: 300 to 400 MB on V100; 107667: about
300 MB since CUDA 11.7 loads kernels lazily. Before that, torch with cuDNN took up to 1,690 MB (55277, RTX 3090)."""
HIP_CONTEXT_BYTES: Final = Range(low=200 * MIB, typical=400 * MIB, high=1024 * MIB)
"""No figure was found for ROCm: CUDA's, with more room above."""
UNPLAYED_RATIO: Final = 0.05
"""What the caching allocator keeps beyond what it has handed out, where the order of allocations is not known: holes
and tails of segments in use. Median of the samples played through the allocator's rules."""
HIGHEST_RATIO: Final = 1.15
"""Reserved memory over what is predicted: 94 % of our own training recordings lie below
(benchmarks/check/own_memory.py). What the others hold beyond it is not known; blocks of a process's earlier life, such
as weights before they were cast, go back to the driver before an allocation fails."""

_HIPBLASLT_WORKSPACE_BYTES: Final = 76 * MIB
"""hipBLASLt's own, as torch allocates it (aten/src/ATen/cuda/CublasHandlePool.cpp), and allocated in
the MI300X recordings. On NVIDIA the two libraries share one."""

UNREPORTED_RATIO: Final = {
    "hbm": Range(low=0.984, typical=0.990, high=0.994),
    "gddr": Range(low=0.975, typical=0.980, high=0.993),
    "gddr with ecc": Range(low=0.916, typical=0.922, high=0.993),
    "amd": Range(low=0.999, typical=0.9998, high=1.0),
    "intel": Range(low=0.995, typical=0.998, high=1.0),
}
"""Memory that a process sees over nominal memory, where the catalogue holds no reported figure: the range of those
that it does hold (specs/gpus.toml). The driver reserves some; data-centre cards with GDDR also keep ECC in it (6.25 %),
unless their owner turned it off."""
SHARED_RATIO: Final = Range(low=0.85, typical=0.87, high=0.9)
"""Of the memory that a GPU shares with its host, what is left for it: an operator of GB10s found 0.85 to 0.87 to be
safe and more than 0.9 to end in out-of-memory errors (conselara.dev), whatever the driver reports."""
_BRANDS_WITHOUT_ECC: Final = ("GeForce", "RTX", "TITAN", "Quadro")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Say whether an iteration fits one GPU, and what the answer rests on; bytes."""

    gpu: str
    fits: bool | None
    """None where the iteration's memory is not known."""
    is_tight: bool
    """Whether the answer lies within the uncertainty of what is needed and what is there."""
    needed_bytes: int | None
    """Reserved memory and context."""
    lowest_needed_bytes: int | None
    highest_needed_bytes: int | None
    usable_bytes: int
    """What the framework reports as the device's memory, or would by what its kind reports; another process's share
    is not taken off."""
    context_bytes: int
    allocated_bytes: int | None
    """What torch counts as allocated at most: the peak, tails of blocks, workspaces of the matrix library."""
    reserved_bytes: int | None
    """What the allocator takes from the driver for it: the same with the free blocks between."""


def fit_on(use: MemoryUse | None, gpus: Sequence[Gpu]) -> tuple[Fit, ...]:
    """Return for each GPU whether the iteration fits.

    needed = reserved + context. The answer is tight where the needed range and the usable range overlap: it starts at
    the peak, for which the allocator gives free blocks back before it fails, and ends where a second thread multiplies
    matrices, Python still holds what it could (`highest_bytes`), and as much more is reserved as was seen.

    >>> [fit.fits for fit in fit_on(result.memory, [h100, a100])]
    [True, True]
    """
    return tuple(_fit(use, gpu) for gpu in gpus)


def _fit(use: MemoryUse | None, gpu: Gpu) -> Fit:
    usable, context = usable_bytes(gpu), (HIP_CONTEXT_BYTES if gpu.vendor == "AMD" else CONTEXT_BYTES)
    if use is None:
        return Fit(
            gpu=gpu.name,
            fits=None,
            is_tight=False,
            needed_bytes=None,
            lowest_needed_bytes=None,
            highest_needed_bytes=None,
            usable_bytes=int(usable.typical),
            context_bytes=int(context.typical),
            allocated_bytes=None,
            reserved_bytes=None,
        )
    workspace = matmul_workspace_bytes(gpu)
    workspaces, later = use.workspace_count * workspace, (use.workspace_count == 1) * workspace
    reserved = use.reserved_peak_bytes or round(use.peak_bytes * (1 + UNPLAYED_RATIO))
    needed = reserved + workspaces + context.typical
    lowest = use.peak_bytes + workspaces + context.low
    most_held = reserved + max(use.highest_bytes - use.peak_bytes, 0)
    highest = most_held * HIGHEST_RATIO + workspaces + later + context.high
    return Fit(
        gpu=gpu.name,
        fits=needed <= usable.typical,
        is_tight=lowest <= usable.high and highest > usable.low,
        needed_bytes=round(needed),
        lowest_needed_bytes=round(lowest),
        highest_needed_bytes=round(highest),
        usable_bytes=int(usable.typical),
        context_bytes=int(context.typical),
        allocated_bytes=use.allocated_peak_bytes + workspaces,
        reserved_bytes=reserved + workspaces,
    )


def usable_bytes(gpu: Gpu) -> Range:
    """Return the memory that one device of a GPU shows to a process; half of it for a package of two devices.

    Where the host shares it, what the host leaves.
    """
    if gpu.has_shared_memory:
        whole = gpu.reported_memory_bytes or gpu.memory_bytes
        return Range(low=whole * SHARED_RATIO.low, typical=whole * SHARED_RATIO.typical, high=whole * SHARED_RATIO.high)
    if gpu.reported_memory_bytes is not None:
        reported = float(gpu.reported_memory_bytes)
        return Range(low=reported, typical=reported, high=reported)
    ratio = UNREPORTED_RATIO[_memory_kind(gpu)]
    nominal = gpu.memory_bytes / (2 if gpu.is_package else 1)
    return Range(low=nominal * ratio.low, typical=nominal * ratio.typical, high=nominal * ratio.high)


def _memory_kind(gpu: Gpu) -> str:
    if gpu.vendor == "AMD":
        return "amd"
    if gpu.vendor == "Intel":
        return "intel"
    if not gpu.memory_type.startswith("GDDR"):
        return "hbm"
    return "gddr" if any(brand in gpu.name for brand in _BRANDS_WITHOUT_ECC) else "gddr with ecc"


def matmul_workspace_bytes(gpu: Gpu) -> int:
    """Return the workspace that torch gives the matrix library per thread and stream."""
    own = generation_at(gpu.compute_capability).blas_workspace_bytes
    return own + _HIPBLASLT_WORKSPACE_BYTES if gpu.vendor == "AMD" else own
