"""Ops that move much and compute little: elementwise, normalisation, softmax, reduction, gather, quantise.

A kernel's time is a soft maximum of four resources, each used at its own pace, and a floor:

    t = (Td^p + Tl^p + Ti^p + Tw^p)^(1/p) + launches * (t0 + c0/clk)

Td: bytes that miss L2 over the DRAM rate that kernels reach; Tl: all bytes over the L2 rate; Ti: instructions over
the SMs' issue rate; Tw: waves of blocks, each as long as one block's chain of dependent loads and reductions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ..fleet import Fleet, Floats
from .estimate import Codes, Estimate, Model
from .parameters import Parameter, Values
from .timing import event_time_ns
from .vector_problems import Kind, VectorProblems, problems_of

__all__ = ["MODEL", "Kind", "VectorProblems", "problems_of", "simulate"]

STEADY, LOSSY, PLAIN_GDDR, OTHER_VENDOR = range(4)
CLASS_NAMES: Final = ("HBM since Volta", "Pascal, or GDDR with ECC", "GDDR without ECC", "AMD")

VECTOR_BYTES = 16.0
"""Widest load of a thread."""
WARP_SOFTMAX_COLUMNS = 1024
MAX_BLOCKS_PER_SM = 32


def gpu_class(fleet: Fleet) -> Codes:
    """Return how the memory behaves.

    Pascal's controller reaches 3/4 of the peak where Volta's reaches more than 9/10 (NVIDIA, Tesla V100 GPU
    Architecture, 2017, STREAM figure); GDDR keeps ECC in the same memory, at the cost of bandwidth, and data-centre
    boards have it on.
    """
    consumer = np.array(["GeForce" in gpu.name or "TITAN" in gpu.name or "RTX" in gpu.name for gpu in fleet.gpus])
    lossy = (fleet.capability < 7.0) | ~(fleet.has_hbm | consumer)
    classes = np.where(lossy, LOSSY, np.where(fleet.has_hbm, STEADY, PLAIN_GDDR))
    return np.where(fleet.capability == 0.0, OTHER_VENDOR, classes).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Hold what is known of a kind's kernel without fitting."""

    rereads: float = 0.0
    """How often the input is read again, from cache where the rows in flight fit."""
    threads: float = 128.0
    """Most threads of a block."""
    columns_per_thread: float = 4.0
    """Elements that a thread takes per iteration."""


FORMS: Final = {
    Kind.ELEMENTWISE: Form(),
    Kind.ROW_NORM: Form(rereads=1.0),
    Kind.SOFTMAX: Form(rereads=2.0, threads=512.0),
    Kind.REDUCTION: Form(threads=512.0),
    Kind.GATHER: Form(columns_per_thread=1.0),
    Kind.TOKEN_NORM: Form(rereads=1.0, threads=1024.0, columns_per_thread=1.0),
    Kind.TOKEN_GATED: Form(threads=1024.0, columns_per_thread=1.0),
    Kind.TOKEN_GELU: Form(threads=1024.0, columns_per_thread=1.0),
    Kind.TOKEN_ROPE: Form(threads=512.0, columns_per_thread=2.0),
    Kind.QUANTIZE: Form(),
    Kind.QUANTIZE_DYNAMIC: Form(rereads=1.0),
    Kind.GATHER_SHARD: Form(columns_per_thread=1.0),
}

# Prior: instructions per element, cycles of a block before and per iteration of its threads, launches.
_PRIORS: Final = {
    Kind.ELEMENTWISE: (4.0, 1500.0, 300.0, 1.0),
    Kind.ROW_NORM: (40.0, 6000.0, 300.0, 1.0),
    Kind.SOFTMAX: (80.0, 6000.0, 300.0, 1.0),
    Kind.REDUCTION: (6.0, 5000.0, 300.0, 1.0),
    Kind.GATHER: (200.0, 2000.0, 500.0, 1.0),
    Kind.TOKEN_NORM: (90.0, 4000.0, 500.0, 1.0),
    Kind.TOKEN_GATED: (80.0, 2000.0, 1000.0, 1.0),
    Kind.TOKEN_GELU: (40.0, 2000.0, 500.0, 1.0),
    Kind.TOKEN_ROPE: (80.0, 2000.0, 500.0, 1.0),
    Kind.QUANTIZE: (20.0, 1500.0, 300.0, 1.0),
    Kind.QUANTIZE_DYNAMIC: (20.0, 1500.0, 300.0, 5.0),
    Kind.GATHER_SHARD: (200.0, 2000.0, 500.0, 1.0),
}


def _kind_parameters() -> tuple[Parameter, ...]:
    found = []
    for kind, (instructions, latency, iteration, launches) in _PRIORS.items():
        name = kind.name.lower()
        found += [
            Parameter(name=f"{name}_instructions", prior=instructions, spread=0.5),
            Parameter(name=f"{name}_latency_cycles", prior=latency, spread=0.7),
            Parameter(name=f"{name}_iteration_cycles", prior=iteration, spread=0.7),
        ]
        if launches > 1.0:
            found.append(Parameter(name=f"{name}_launches", prior=launches, spread=0.5))
    return tuple(found)


PARAMETERS: Final = (
    Parameter(name="dram_loss_ratio", prior=0.14, spread=0.5, class_spread=0.6),
    Parameter(name="l2_bytes_per_cycle_per_sm", prior=40.0, spread=0.5, class_spread=0.2),
    Parameter(name="l2_hot_ratio", prior=0.7, spread=0.4, class_spread=0.2),
    Parameter(name="l2_row_ratio", prior=0.7, spread=0.25),
    Parameter(name="l1_row_ratio", prior=0.9, spread=0.2),
    Parameter(name="floor_us", prior=0.8, spread=0.5),
    Parameter(name="floor_cycles", prior=1000.0, spread=0.7),
    Parameter(name="fp32_share", prior=0.2, spread=0.3),
    Parameter(name="flop_instructions", prior=1.0, spread=0.15, class_spread=0.4),
    Parameter(name="norm_row_instructions", prior=60000.0, spread=1.0),
    Parameter(name="warp_softmax_latency_cycles", prior=1500.0, spread=0.7),
    Parameter(name="warp_softmax_iteration_cycles", prior=30.0, spread=0.7),
    Parameter(name="warp_softmax_instructions", prior=10.0, spread=1.0),
    Parameter(name="sharpness", prior=2.5, spread=0.2),
    Parameter(name="host_floor_us", prior=28.0, spread=0.5),
    Parameter(name="host_overlap", prior=0.57, spread=0.2),
    *_kind_parameters(),
)


def simulate(problems: VectorProblems, fleet: Fleet, values: Values, choice: Codes | None) -> Estimate:
    """Return kernel times (event times where the problems carry a host's floor)."""
    shared = {name: float(value.flat[0]) for name, value in values.items()}
    launch = _launch(problems, shared)
    cycle_ns = 1e9 / fleet.clock_hz
    sm_cycle_ns = cycle_ns / fleet.sm_count
    moved = problems.read_bytes + problems.written_bytes
    hit = _hit(moved / (values["l2_hot_ratio"] * fleet.l2_cache_bytes))
    is_wide = fleet.warp_size > 32
    resident = np.floor(fleet.threads_per_sm / np.where(is_wide, launch.wide_threads, launch.threads))
    resident = np.maximum(np.minimum(resident, MAX_BLOCKS_PER_SM), 1.0)
    latency_cycles = np.where(is_wide, launch.wide_latency_cycles, launch.latency_cycles)
    miss = 1.0 - _hit(_row_pressure(launch, resident, fleet, shared))
    again = launch.rereads * problems.read_bytes
    dram_ns = (
        (moved + again * miss) * (1.0 - hit) * (1.0 + values["dram_loss_ratio"]) * (1e9 / fleet.bandwidth_bytes_per_s)
    )
    l2_ns = (moved + again) / values["l2_bytes_per_cycle_per_sm"] * sm_cycle_ns
    issue_ns = (launch.instructions + launch.flops * values["flop_instructions"]) * (
        sm_cycle_ns / _issue_width(fleet, shared["fp32_share"])
    )
    waves = np.maximum(launch.blocks / (resident * fleet.sm_count), 1.0)
    wave_ns = waves * latency_cycles * cycle_ns
    p = shared["sharpness"]
    busy_ns = (dram_ns**p + l2_ns**p + issue_ns**p + wave_ns**p) ** (1 / p)
    floor_ns = launch.launches * (1e3 * shared["floor_us"] + shared["floor_cycles"] * cycle_ns)
    time_ns = busy_ns + floor_ns
    features = _features(time_ns, dram_ns, l2_ns, issue_ns, wave_ns, hit, miss, waves)
    return Estimate(time_ns=_event(problems, time_ns, shared), features=features)


def _event(problems: VectorProblems, time_ns: Floats, shared: dict[str, float]) -> Floats:
    if not np.any(problems.host_floor_ns != 0):
        return time_ns
    floor = np.where(np.isnan(problems.host_floor_ns), 1e3 * shared["host_floor_us"], problems.host_floor_ns)
    own = floor * problems.host_ratio
    late = 1.0 - (1.0 - shared["host_overlap"]) / problems.host_ratio
    return np.where(floor > 0, event_time_ns(time_ns, own, late), time_ns)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Launch:
    """Hold what a problem launches: columns of the problems' shape."""

    threads: Floats
    blocks: Floats
    row_bytes: Floats
    """Input bytes that a block holds while it works."""
    rereads: Floats
    instructions: Floats
    """Thread instructions of the whole grid, but those that the op's own arithmetic takes."""
    flops: Floats
    latency_cycles: Floats
    wide_threads: Floats
    wide_latency_cycles: Floats
    launches: Floats


def _launch(problems: VectorProblems, shared: dict[str, float]) -> Launch:
    kind, columns, rows = problems.kind, problems.columns, problems.rows
    is_row = (
        (kind != Kind.ELEMENTWISE)
        & (kind != Kind.QUANTIZE)
        & (kind != Kind.QUANTIZE_DYNAMIC)
        & (kind != Kind.GATHER)
        & (kind != Kind.GATHER_SHARD)
    )
    is_warp = (kind == Kind.SOFTMAX) & (columns <= WARP_SOFTMAX_COLUMNS)
    padded = 2.0 ** np.ceil(np.log2(np.maximum(columns, 1.0)))
    span = _table([form.columns_per_thread for form in FORMS.values()])[kind]
    threads = _table([form.threads for form in FORMS.values()])[kind]
    threads = np.where(
        kind == Kind.SOFTMAX,
        np.clip(2.0 ** (np.ceil(np.log2(np.maximum(columns, 1.0) / span)) - 1.0), 128.0, 512.0),
        threads,
    )
    threads = np.where(
        (kind >= Kind.TOKEN_NORM) & (kind <= Kind.TOKEN_ROPE),
        np.minimum(threads, np.maximum(columns / span, 32.0)),
        threads,
    )
    threads = np.where(is_warp, 128.0, threads)
    per_block = np.where(is_warp, np.where(columns <= 128, 8.0, 4.0), 1.0)
    blocks = np.where(is_row, rows / per_block, problems.elements / (threads * span))
    iterations = np.where(is_row, np.ceil(columns / (threads * span)), 1.0)
    iterations = np.where(is_warp, np.maximum(padded / 32.0, 1.0), iterations)
    splits = (kind == Kind.ROW_NORM) & (iterations % 4.0 == 0.0) & (columns % 128.0 != 0.0)
    extra = np.where(splits, 3.0, 0.0)
    wide_threads = np.where(
        kind == Kind.ROW_NORM, 2.0 * threads, np.where((kind == Kind.SOFTMAX) & ~is_warp, 1024.0, threads)
    )
    wide_iterations = np.where(wide_threads != threads, np.ceil(columns / (wide_threads * span)), iterations)
    kinds = [item.name.lower() for item in Kind]
    latency = _table([shared[f"{name}_latency_cycles"] for name in kinds])[kind]
    iteration = _table([shared[f"{name}_iteration_cycles"] for name in kinds])[kind]
    latency = np.where(is_warp, shared["warp_softmax_latency_cycles"], latency)
    iteration = np.where(is_warp, shared["warp_softmax_iteration_cycles"], iteration)
    each = _table([shared[f"{name}_instructions"] for name in kinds])[kind]
    instructions = problems.elements * each * (1.0 + extra / np.maximum(iterations, 1.0))
    instructions = np.where(is_warp, rows * padded * shared["warp_softmax_instructions"], instructions)
    instructions = instructions + np.where(kind == Kind.ROW_NORM, rows * shared["norm_row_instructions"], 0.0)
    launches = _table([shared.get(f"{name}_launches", 1.0) for name in kinds])[kind]
    rereads = np.where(is_warp, 0.0, _table([form.rereads for form in FORMS.values()])[kind])
    return Launch(
        threads=threads,
        blocks=blocks,
        row_bytes=np.where(kind == Kind.QUANTIZE_DYNAMIC, np.inf, problems.read_bytes / np.maximum(blocks, 1.0)),
        rereads=rereads,
        instructions=instructions,
        flops=np.where(is_row, 0.0, problems.flops),
        latency_cycles=latency + iteration * (iterations + extra),
        wide_threads=wide_threads,
        wide_latency_cycles=latency + iteration * wide_iterations,
        launches=launches,
    )


def _table(entries: list[float]) -> Floats:
    return np.array(entries, dtype=np.float64)


def _row_pressure(launch: Launch, resident: Floats, fleet: Fleet, shared: dict[str, float]) -> Floats:
    """Return the rows in flight over the cache that can hold them: an SM's first level, or the second level."""
    per_sm = resident * launch.row_bytes
    first = np.where(fleet.capability >= 7.0, shared["l1_row_ratio"] * fleet.shared_memory_per_sm_bytes, 1.0)
    second = shared["l2_row_ratio"] * fleet.l2_cache_bytes / fleet.sm_count
    return np.asarray(per_sm / np.maximum(first, second))


def _hit(pressure: Floats) -> Floats:
    """Return the share of bytes that a cache holds: 1/(1 + x^4) of the bytes over its useful size."""
    square = pressure * pressure
    return np.asarray(1.0 / (1.0 + square * square))


def _issue_width(fleet: Fleet, fp32_share: float) -> Floats:
    """Return thread instructions per cycle of an SM.

    Four schedulers issue 128 where integer and FP32 lanes are apart (since Volta), but FP32 has its own limit.
    """
    schedulers = np.where(fleet.capability >= 7.0, 128.0, fleet.fp32_lanes_per_sm)
    return np.asarray(1.0 / ((1.0 - fp32_share) / schedulers + fp32_share / fleet.fp32_lanes_per_sm))


def _features(*parts: Floats) -> Floats:
    time_ns, dram_ns, l2_ns, issue_ns, wave_ns, hit, miss, waves = np.broadcast_arrays(*parts)
    return np.stack(
        [
            np.log(time_ns),
            dram_ns / time_ns,
            l2_ns / time_ns,
            issue_ns / time_ns,
            wave_ns / time_ns,
            hit,
            miss,
            np.log(waves),
        ],
        axis=-1,
    )


MODEL: Final = Model(
    name="vector",
    parameters=PARAMETERS,
    class_names=CLASS_NAMES,
    gpu_class=gpu_class,
    simulate=simulate,
    feature_names=("log t", "dram", "l2", "issue", "wave", "hit", "miss", "log waves"),
)
