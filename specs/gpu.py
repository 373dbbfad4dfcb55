"""One GPU of the catalogue, in SI units."""

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import Final

from ..records import dataclass, field


class Rate(StrEnum):
    """Name an arithmetic unit and its number format. Dense rates; a multiply-add is 2 FLOP.

    `FP64 … FP16` are the vector (non-tensor) units; the others are matrix (tensor) units.
    Matrix rates accumulate in FP32, as cuBLAS and cuDNN do by default, unless the name says otherwise.
    """

    FP64 = "fp64"
    FP32 = "fp32"
    FP16 = "fp16"
    MATRIX_FP64 = "matrix_fp64"
    MATRIX_FP32 = "matrix_fp32"
    """AMD only."""
    MATRIX_TF32 = "matrix_tf32"
    MATRIX_FP16 = "matrix_fp16"
    MATRIX_FP16_ACCUMULATE_FP16 = "matrix_fp16_accumulate_fp16"
    MATRIX_BF16 = "matrix_bf16"
    MATRIX_FP8 = "matrix_fp8"
    MATRIX_FP8_ACCUMULATE_FP16 = "matrix_fp8_accumulate_fp16"
    MATRIX_FP4 = "matrix_fp4"
    MATRIX_INT8 = "matrix_int8"


class MemoryKind(IntEnum):
    """Name a kind of memory; what none of these is named after is the kind's newest, or `OTHER`."""

    GDDR5 = 0
    GDDR5X = 1
    GDDR6 = 2
    GDDR6X = 3
    GDDR7 = 4
    HBM2 = 5
    HBM2E = 6
    HBM3 = 7
    HBM3E = 8
    LPDDR = 9
    OTHER = 10


_NEWEST_KINDS: Final = {"LPDDR": MemoryKind.LPDDR, "GDDR": MemoryKind.GDDR7, "HBM": MemoryKind.HBM3E}
_HBM_KINDS: Final = frozenset({MemoryKind.HBM2, MemoryKind.HBM2E, MemoryKind.HBM3, MemoryKind.HBM3E})
_INLINE_ECC_KINDS: Final = frozenset({MemoryKind.GDDR5, MemoryKind.GDDR5X, MemoryKind.GDDR6, MemoryKind.GDDR6X})
"""Where the correction bits lie in the same memory as the data: HBM has room of its own for them, GDDR7 corrects on its
die and keeps its whole size (see the top of gpus.toml)."""


DISPLAY_BRANDS: Final = ("GeForce", "TITAN", "Quadro", "RTX", "Radeon", "Arc")
_DEVICE_BRANDS: Final = ("GB10", "Jetson")
DISPLAY_HEADROOM: Final = 1.1
"""Above the 1.07 that was measured; taken up after the low ends of RTX 3090's networks were seen to be cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceNote:
    """Say where a group of values comes from and whether somebody checked it against a document or a device."""

    source: str
    verified: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Describe a GPU by its datasheet. Rates and bandwidths are peaks; None where no source was found."""

    name: str
    aliases: tuple[str, ...] = ()
    vendor: str
    architecture: str
    chip: str | None = None
    compute_capability: str
    """`9.0` for NVIDIA, the gfx name (`gfx942`) for AMD, the architecture's for others (`xe-hpc`, `gaudi3`)."""
    is_package: bool = False
    """Whether this is a package of several dies that frameworks show as several devices (MI250X)."""
    release_date: str | None = None

    sm_count: int
    """Streaming multiprocessors; compute units on CDNA, pairs of them on RDNA, Xe cores, Gaudi's processor cores."""
    fp32_lanes_per_sm: int
    base_clock_hz: float | None = None
    boost_clock_hz: float
    matrix_clock_hz: float | None = None
    """The clock at which the vendor states matrix rates, where it is not the boost clock."""

    memory_bytes: float
    """Nominal memory."""
    reported_memory_bytes: int | None = None
    """What the framework reports as total, where seen."""
    memory_type: str
    has_ecc: bool = False
    """Whether the memory is corrected: as the card is delivered, or as the user's file says."""
    has_shared_memory: bool = False
    """Whether processor and GPU are one chip on one memory."""
    memory_bus_bits: int | None = None
    memory_pin_rate_bits_per_s: float | None = None
    """Nominal data rate of one pin: bandwidth = bus bits x this / 8."""
    memory_bandwidth_bytes_per_s: float
    l2_cache_bytes: float

    peak_flops_per_s: Mapping[Rate, float]
    """Peak rate per unit; a unit that the GPU lacks is absent."""
    matrix_flops_per_clock_per_sm: int | None = None
    """Dense FP16 with FP32 accumulation; None where there are no matrix units."""

    warp_size: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    registers_per_sm: int
    shared_memory_per_sm_bytes: int
    max_shared_memory_per_block_bytes: int

    link_name: str | None = None
    """e.g. `NVLink 4`; None where there is none."""
    link_bandwidth_bytes_per_s: float = 0.0
    """NVLink or Infinity Fabric, both directions together; 0 where there is none."""
    pcie_bandwidth_bytes_per_s: float
    """PCIe, one direction, after line coding; half the memory's where the host shares it (a copy reads and writes)."""
    tdp_w: float

    power_cap_w: float | None = None
    """What the board is held to below its power; the clock falls where arithmetic would take more."""
    drawn_ratio: float | None = None
    """Of the board's power, what is drawn at full clock by what is asked about; None: as a busy GPU usually does."""
    clock_lock_hz: float | None = None
    """The clock that it is locked to, which is its boost clock then."""
    slice_name: str | None = None
    """The part of a GPU that this is, e.g. `1g.10gb`."""
    base_name: str | None = None
    """The GPU of the catalogue that is capped, locked or divided; None where it is run as delivered."""

    sources: Mapping[str, SourceNote] = field(default_factory=dict)
    """Per value group: clocks, memory, l2, vector, matrix, occupancy, links, power."""
    note: str = ""
    price_usd_per_hour: float | None = None
    """What a user's file says that it costs; the shipped entries leave prices to the price book."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Catalog:
    """Hold every known GPU, in the order of the file; a user's own additions come last."""

    gpus: tuple[Gpu, ...]


def chip_of(gpu: Gpu) -> str:
    """Return the die that a GPU is made of, its own name where that is not known.

    GPUs of one die behave so alike that accuracy on one says nothing about models that were trained on the other.

    >>> chip_of(h100)
    'GH100'
    """
    return gpu.chip or gpu.name


def listed_name(gpu: Gpu) -> str:
    """Return the name under which a GPU is sold and built into machines: a capped or locked one is the same card.

    >>> listed_name(h100)
    'H100 SXM5 80GB'
    """
    return gpu.name if gpu.slice_name is not None else gpu.base_name or gpu.name


def memory_kind(memory_type: str) -> MemoryKind:
    """Return the kind that a catalogue's memory type names, whatever its case.

    >>> memory_kind("HBM2e"), memory_kind("LPDDR5X"), memory_kind("HBM4")
    (<MemoryKind.HBM2E: 6>, <MemoryKind.LPDDR: 9>, <MemoryKind.HBM3E: 8>)
    """
    name = memory_type.upper().replace(" ", "")
    if name in MemoryKind.__members__:
        return MemoryKind[name]
    return next((kind for start, kind in _NEWEST_KINDS.items() if name.startswith(start)), MemoryKind.OTHER)


def is_hbm(memory_type: str) -> bool:
    """Say whether a memory type is HBM rather than GDDR, LPDDR or another."""
    return memory_kind(memory_type) in _HBM_KINDS


def has_inline_ecc(gpu: Gpu) -> bool:
    """Say whether error correction is on and keeps its bits among the data, which costs a share of the bandwidth."""
    return gpu.has_ecc and memory_kind(gpu.memory_type) in _INLINE_ECC_KINDS


def clock_headroom(gpu: Gpu) -> float:
    """Return the highest clock of a GPU over its stated boost clock.

    What is stated of cards that drive displays is what they usually reach; they were measured at up to 1.07 of their
    peak rates, and their firmware allows more. Data-centre cards state their maximum.

    >>> clock_headroom(h100)
    1.0
    """
    return DISPLAY_HEADROOM if gpu.name.startswith(DISPLAY_BRANDS) and gpu.clock_lock_hz is None else 1.0


def is_datacenter(gpu: Gpu) -> bool:
    """Say whether a GPU is sold for servers: by its brand, as vendors name cards for desks and devices apart.

    >>> is_datacenter(h100)
    True
    """
    name = gpu.base_name or gpu.name
    return not name.startswith((*DISPLAY_BRANDS, *_DEVICE_BRANDS)) or name.endswith(" Server")


def peak_flops_per_s(gpu: Gpu, rate: Rate) -> float | None:
    """Return the peak rate of a unit, or None where the GPU lacks it (or no source states it).

    >>> peak_flops_per_s(h100, Rate.MATRIX_BF16) / 1e12
    989.4
    """
    return gpu.peak_flops_per_s.get(rate)


def is_matrix_rate(rate: Rate) -> bool:
    """Say whether a rate belongs to the matrix (tensor) units.

    >>> is_matrix_rate(Rate.MATRIX_BF16), is_matrix_rate(Rate.FP32)
    (True, False)
    """
    return rate.value.startswith("matrix_")
