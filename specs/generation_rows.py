"""The generations of GPU that are known, a table of `generations.toml` each; `generations` says what GPUs have of it.

A capability beyond the last row counts as that row's generation.
"""

from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from ..records import dataclass
from .attention_kernels import AttentionKernel
from .documents import Entry
from .gpu import Gpu
from .product_kernels import QuantizedKernels, SgemmKernels
from .shipped import read_shipped

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessNode:
    """Hold what a manufacturing process means for power."""

    energy_ratio: float
    """Energy per operation over the 16 nm process's."""
    clock_hz: float
    """The clock that it refers to."""


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
    blas_workspace_bytes: int
    """What torch gives cuBLAS or hipBLAS per thread and stream."""
    matrix_energy: float = 1.0
    """Of a FLOP on the matrix units, over what the process and the size of the units say."""
    l2_width: float = 1.0
    """Bytes that the second-level cache gives each multiprocessor per clock, over those of the vendor's newest.
    AMD's: set with MI355X's products in sight, CDNA2's assumed; NVIDIA's: the white papers' as remembered."""
    attention: frozenset[AttentionKernel]
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


def _read_rows() -> tuple[dict[str, Generation], Entry]:
    """Return the generations of `generations.toml` by name, and the document."""
    document = read_shipped(Path(__file__).with_name("generations.toml"))
    tables = {row["name"]: row for group in ("nvidia", "amd", "other") for row in document[group]}
    parts: dict[str, Callable[[Any], Any]] = {
        "process": lambda name: ProcessNode(**document["process"][name]),
        "allocation": lambda name: AllocationRules(**document["allocation"][name]),
        "sgemm_kernels": lambda name: SgemmKernels[name.upper()],
        "quantized_kernels": lambda name: QuantizedKernels[name.upper()],
        "attention": lambda names: frozenset(AttentionKernel[name.upper()] for name in names),
    }

    def fields_of(name: str) -> Entry:
        """Return the fields of a row, with those of what it is like."""
        row = dict(tables[name])
        like = row.pop("like", None)
        own = {key: parts[key](value) if key in parts else value for key, value in row.items()}
        return own if like is None else fields_of(like) | own

    return {name: Generation(**fields_of(name)) for name in tables}, document


ROWS, _DOCUMENT = _read_rows()
"""By name."""
NVIDIA: Final = tuple(ROWS[row["name"]] for row in _DOCUMENT["nvidia"])
AMD: Final = tuple(ROWS[row["name"]] for row in _DOCUMENT["amd"])
UNKNOWN: Final = ROWS["of another vendor"]
GENERATIONS: Final = (UNKNOWN, *NVIDIA, *AMD)
"""In the order of `Fleet.generation`."""
_CODES: Final = {row.name: code for code, row in enumerate(GENERATIONS)}
_EDGES: Final = [float(row.starts_at) for row in NVIDIA]


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
    return GENERATIONS[bisect_right(_EDGES, float(compute_capability)) if is_number else 0]


def generation_code(gpu: Gpu) -> int:
    """Return the index into `GENERATIONS` of a GPU's; a capability that is a number says it of NVIDIA's alone."""
    code = _CODES[generation_at(gpu.compute_capability).name]
    return code if gpu.vendor == "NVIDIA" or code > len(NVIDIA) else 0
