"""What a vector op launches: blocks, the steps that a block's threads take in turn, and their instructions.

Read off PyTorch's CUDA sources (Loops.cuh, layer_norm_kernel.cu, PersistentSoftmax.cuh, SoftMax.cu) and, for
serving kernels, vLLM's; sizes that the sources fix are constants here, cycles and instructions are fitted.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from ....arrays import Floats, Mask, next_power
from ....records import dataclass
from ....specs.fleet import Fleet
from .problems import KERNEL_FACTS, WARP_SOFTMAX_COLUMNS, VectorKernel, VectorProblems

SMALL_WARP_COLUMNS: Final = 128
"""Up to here a warp holds two rows."""
VERY_LONG_ROW: Final = 16384.0
"""Columns over which a row's softmax takes 1,024 threads (torch 2.11; shorter rows were measured with older ones)."""
WARP, WIDE_WARP = 32.0, 64.0
VECTOR_ELEMENTS: Final = 4.0
"""Elements that a thread of the vectorised kernels takes at a time."""
HALF_BYTES, VECTOR_BYTES = 2.0, 16.0
"""The widest load, which softmax by blocks uses whatever the format."""
NORM_WARPS: Final = 4.0
UNROLLED_STEPS: Final = 4.0
"""CUDA's compiler unrolls loops by this; lanes that end layer norm's early make their warp run the remainder loop too.
AMD's does not."""
ROOMY_COLUMNS: Final = 5120
"""Over which a thread that keeps its part of a row in registers has more than 32: half of them fit (H100)."""
HELD_GRADIENTS: Final = 512
"""Columns up to which a warp's threads keep their part of a row of both tensors of a softmax's gradient (H100)."""
LEAST_WRITTEN: Final = 16.0
"""Bytes read for one written, beyond which a kernel over lists is a reduction."""
FIRST_QUANTIZED, TURN_AGAIN = 2.0**27, 0.3
"""Elements that TensorRT-LLM's 65,536 blocks quantise in their threads' first turns, eight each; of a first turn's
instructions, what a later one takes (B200, B300)."""
REDUCED_PER_BLOCK: Final = 2048.0
"""Elements of a reduction that a block takes at least: several short rows, or one."""


_REREADS, _THREADS, _SPAN, _IS_BY_ROW = (
    np.array([float(row[name]) for row in KERNEL_FACTS])
    for name in ("rereads", "threads", "columns_per_thread", "is_by_row")
)
"""What the source of a kind's kernel fixes: how often the input is read again (from cache where the rows in flight
fit), the most threads of a block, the elements that one takes per step, and whether a block takes a row or a number of
elements."""
_NAMES = tuple(kind.name.lower() for kind in VectorKernel)
_IS_TOKEN = np.array([kind.name.startswith("TOKEN") for kind in VectorKernel])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockShape:
    """Hold the blocks of n problems on GPUs of one warp size."""

    threads: Floats
    steps: Floats
    """Loop iterations of a thread, each waiting for its loads."""
    passed: Floats
    """The same without rounding: of one pass over the row."""
    is_ragged: Mask
    """Lanes of one warp of a layer norm end their loops apart."""
    worked: Floats
    """Elements that instructions are issued for: padding, scalar tails and diverging lanes included."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VectorLaunch:
    """Hold what n problems launch, as columns that broadcast with GPUs."""

    blocks: Floats
    threads: Floats
    start_cycles: Floats
    """Of the first blocks alone, whose instructions and parameters no cache holds yet."""
    latency_cycles: Floats
    """Of one block, from its first load to its last store."""
    chain_cycles: Floats
    """Of one block, in which it computes, whatever its loads wait for: addresses, and functions of many branches."""
    instructions: Floats
    """Thread instructions of the whole grid but those of `flops`."""
    flops: Floats
    row_steps: Floats
    """Loads that a thread waits for, one after another, before a row is read again."""
    rereads: Floats
    first_level_bytes: Floats
    """Of a row that its block alone reads again, written to by nobody; infinite where others pass between."""
    launches: Floats


def launch_of(problems: VectorProblems, fleet: Fleet, shared: Mapping[str, float]) -> VectorLaunch:
    """Return what the problems launch on the fleet, with the fitted values that all GPUs share."""
    # PyTorch's kernels divide work in two ways: a block per row (norms, softmax), or a number of elements per thread
    # (the rest). Short softmax rows take a warp each. AMD's wavefronts are twice as wide, and a fleet may mix vendors:
    # both divisions are computed and chosen GPU by GPU, not rounded: none changes by the company it is in.
    kind, is_warp = problems.kind, _is_warp(problems)
    is_by_row, is_again = _IS_BY_ROW[kind] > 0, kind == VectorKernel.QUANTIZE_DYNAMIC
    narrow = _blocks(problems, is_warp, WARP, shared["softmax_tail_ratio"])
    is_in_turn = (kind == VectorKernel.ELEMENTWISE) & (problems.in_turn > 1)
    first, each, issued = (
        np.where(is_warp, shared[f"warp_softmax_{part}"], _by_name(part, shared)[kind])
        for part in ("latency_cycles", "step_cycles", "instructions")
    )
    is_half = problems.written_bytes < 1.5 * HALF_BYTES * problems.elements
    # A warp loads and converts halves one by one; of gradients of long rows not all fits into its registers.
    is_crowded = (problems.columns > HELD_GRADIENTS) & (problems.read_bytes > 1.5 * problems.written_bytes)
    ratio = np.where(is_half, shared["half_softmax_ratio"], 1.0) * np.where(is_crowded, 2.0, 1.0)
    each, issued = (np.where(is_warp, ratio, 1.0) * part for part in (each, issued))
    turns = np.clip(np.ceil(problems.elements / narrow.threads), 1.0, problems.in_turn)
    chain = shared["index_cycles"] * problems.index_operations * np.where(is_in_turn, turns, 1.0)
    chain = np.where(kind == VectorKernel.ELEMENTWISE, chain + shared["function_cycles"] * problems.functions, 0.0)
    waits = shared["turn_cycles"] * turns * np.maximum(problems.loads, 1.0)
    first, each = np.where(is_in_turn, 0.0, first), np.where(is_in_turn, waits, each)
    # Where little is stored, loads do not wait for stores: two of them are under way.
    is_read = (kind == VectorKernel.LIST) & (problems.written_bytes < problems.read_bytes / LEAST_WRITTEN)
    each = np.where(is_read, each / 2, each)
    each_row = np.where(kind == VectorKernel.ROW_NORM, shared["row_norm_row_instructions"], 0.0) * problems.rows
    each_row = each_row * np.where(is_half, shared["half_norm_ratio"], 1.0)
    ragged_row = shared["ragged_row_instructions"] * problems.rows
    threads, latency, passed = narrow.threads, first + each * narrow.steps, narrow.passed
    work = issued * narrow.worked + each_row + ragged_row * narrow.is_ragged
    if (is_wide := fleet.warp_size > WARP).any():
        wide = _blocks(problems, is_warp, WIDE_WARP, shared["softmax_tail_ratio"])
        wide_work = issued * wide.worked + each_row + ragged_row * wide.is_ragged
        held = np.where(kind == VectorKernel.HELD_SOFTMAX, shared["amd_held_ratio"], 1.0)
        wider = (wide.threads, held * (first + each * wide.steps), wide_work, wide.passed)
        threads, latency, work, passed = (
            np.where(is_wide, there, here) for there, here in zip(wider, (threads, latency, work, passed), strict=True)
        )
    return VectorLaunch(
        blocks=_block_count(problems, narrow.threads, is_warp, is_in_turn),
        threads=threads,
        start_cycles=np.where(kind == VectorKernel.ROW_NORM, shared["row_norm_start_cycles"], 0.0),
        latency_cycles=latency,
        chain_cycles=chain,
        instructions=work
        + (
            shared["index_instructions"] * problems.index_operations
            + shared["scattered_instructions"] * problems.scattered
        )
        * problems.elements,
        flops=problems.flops * np.where(kind == VectorKernel.LIST, shared["list_flop_ratio"], ~is_by_row),
        row_steps=np.where(is_again, np.inf, passed),
        rereads=np.where(is_warp, 0.0, _REREADS[kind]),
        first_level_bytes=np.where(
            kind == VectorKernel.SOFTMAX, problems.read_bytes / np.maximum(problems.rows, 1.0), np.inf
        ),
        launches=np.where(is_again, shared["quantize_dynamic_launches"], 1.0),
    )


def _block_count(problems: VectorProblems, threads: Floats, is_warp: Mask, is_in_turn: Mask) -> Floats:
    """Return the blocks of warps of 32: of one row or of several short ones, or of what their threads take."""
    warp_rows = np.where(problems.columns <= SMALL_WARP_COLUMNS, 8.0, 4.0)
    warp_rows = warp_rows * WARP / np.minimum(next_power(problems.columns), WARP)
    by_count = problems.elements / (threads * np.where(is_in_turn, problems.in_turn, _SPAN[problems.kind]))
    by_row = problems.rows / np.where(is_warp, warp_rows, 1.0)
    blocks = np.where(_IS_BY_ROW[problems.kind] > 0, by_row, by_count)
    is_reduction = problems.kind == VectorKernel.REDUCTION
    return np.where(is_reduction, np.minimum(blocks, problems.elements / REDUCED_PER_BLOCK), blocks)


def _blocks(problems: VectorProblems, is_warp: Mask, warp: float, tail_ratio: float) -> BlockShape:
    """Return the blocks by the rule of each kind, the general one first."""
    kind, columns, is_softmax = problems.kind, problems.columns, problems.kind == VectorKernel.SOFTMAX
    span, threads, is_norm = _SPAN[kind], _THREADS[kind], kind == VectorKernel.ROW_NORM
    threads = np.where(_IS_TOKEN[kind], np.clip(columns / span, warp, threads), threads)
    threads = np.where(is_norm, NORM_WARPS * warp, threads)
    vector = np.clip(VECTOR_BYTES * problems.elements / np.maximum(problems.read_bytes, 1.0), 1.0, 8.0)
    threads = np.where(is_softmax, np.where(is_warp, 128.0, _softmax_threads(columns, vector, warp)), threads)
    steps = np.where(_IS_BY_ROW[kind] > 0, np.ceil(columns / (threads * span)), 1.0)
    vectors = columns / VECTOR_ELEMENTS
    is_ragged = is_norm & (warp == WARP) & (steps > 1.0) & (vectors % warp != 0.0)
    again = np.where(is_ragged & (steps % UNROLLED_STEPS == 0.0), UNROLLED_STEPS - 1.0, 0.0)
    # Rows that begin between two places of 16 bytes are read up to the next one before, by a step of its own.
    aligned = np.gcd(columns.astype(np.int64), vector.astype(np.int64)) / np.floor(vector)
    rests = columns, np.maximum(columns - threads + vector / 2.0, 0.0)
    wholes = [np.floor(rest / (vector * threads)) for rest in rests]
    tails = (np.ceil(rest / threads - vector * whole) for rest, whole in zip(rests, wholes, strict=True))
    even, odd = (whole + np.ceil(tail / UNROLLED_STEPS) for tail, whole in zip(tails, wholes, strict=True))
    whole, waits = (aligned * a + (1.0 - aligned) * b for a, b in (wholes, (even, odd + 1.0)))
    passed = columns / (threads * np.where(is_softmax, vector, span))
    padded, vectors_row = next_power(columns), vector * threads * whole
    row = np.where(is_warp, padded, vectors_row + tail_ratio * (columns - vectors_row))
    held = np.where(is_norm, problems.rows * VECTOR_ELEMENTS * warp * np.ceil(vectors / warp), problems.elements)
    worked = held * (1.0 + again / np.maximum(steps, 1.0))
    later = np.maximum(worked - FIRST_QUANTIZED, 0.0) * (kind == VectorKernel.QUANTIZE)
    worked = worked - (1.0 - TURN_AGAIN) * later
    steps = np.where(is_softmax, np.where(is_warp, padded / WARP, waits), steps + again)
    is_crowded = (kind == VectorKernel.HELD_SOFTMAX) & (columns > ROOMY_COLUMNS)
    return BlockShape(
        threads=np.where(is_crowded, 2.0, 1.0) * threads,
        steps=np.maximum(steps, 1.0),
        passed=passed,
        is_ragged=np.asarray(is_ragged),
        worked=np.where(is_softmax, problems.rows * row, worked),
    )


def _is_warp(problems: VectorProblems) -> Mask:
    return np.asarray((problems.kind == VectorKernel.SOFTMAX) & (problems.columns <= WARP_SOFTMAX_COLUMNS))


def _softmax_threads(columns: Floats, vector: Floats, warp: float) -> Floats:
    """Return the block of a softmax over long rows: a power of two under their vector loads, at most 512.

    With warps of 64 it is 1,024 always (recorded on MI100).
    """
    if warp > WARP:
        return np.full(columns.shape, 1024.0)
    most = np.where(columns > VERY_LONG_ROW, 1024.0, 512.0)
    return np.asarray(np.clip(next_power(np.floor(columns / vector / 2.0)), 128.0, most))


def _by_name(part: str, shared: Mapping[str, float]) -> Floats:
    return np.array([shared[f"{name}_{part}"] for name in _NAMES], dtype=np.float64)
