"""What it costs that a product's operands do not lie as matrix units take them: across k, or off 16-byte boundaries.

Copies into shared memory without registers move 4, 8 or 16 bytes; Hopper's copy engine takes rows that start at whole
16 bytes alone. Other rows go through kernels of older instructions, element by element where they start at 2 bytes
(cuBLAS on Hopper: `cutlass_80_tensorop_..._align2`, `cutlass_75_tensorop_..._align1`). Hopper's matrix instructions
take operands of 4 bytes along k alone: others are turned round on their way.
"""

from functools import lru_cache
from math import inf
from typing import Final

import numpy as np

from ....arrays import Floats, Mask
from ..frame.parameters import Values, priors
from .problems import MatmulProblems, OperandLayout

ALIGNED_BYTES: Final = 16.0
COPIED_BYTES: Final = 4.0
"""The least that is copied into shared memory past the registers."""
TF32_BYTES: Final = 4.0
OUT_BYTES: Final = 2.0
VECTOR_ROWS: Final = 2.0
REGISTER_FLOPS_PER_CLOCK: Final = 2048.0
"""That ordinary loads of 2-byte operands feed before Hopper, beside the arithmetic: of AMD's, and of narrower operands,
which are widened on their way. An assumption: no product measured there is such."""
FLUSHED_COPIES: Final = inf
"""Stand for a benchmark that wrote all of the cache over. What a program moves in between is finite, mostly read."""

FEED_PARAMETERS: Final = priors("matmul, feed")
"""`accesses_per_clock`: threads' loads of a multiprocessor, however wide. The prior is from GPUs that no table has such
rows of: 50,304 words in place of 50,257 made GPT-2's training 25 % faster on A100 (Karpathy, nanoGPT, 2023), which at
its 135 ms for 12,288 tokens is 2.7 to 3.9; on RTX 4090 such kernels lose nothing to others of their tile (PyTorch issue
181718), which is 4 or more. Hopper's rows gave the form.
`tf32_turn_cycles`: per word of a tile's side, from trained products; no measured product has both operands across, but
convolutions' weight gradients, which do, reach 225 TFLOP/s on Hopper where the other directions reach 430, as it gives.
`element_along_ratio`: where both operands lie along k, cuBLAS's tiles for 2-byte rows are 128 x 128 at most, with three
quarters of the largest one's products per load.
`tf32_step_ratio`: cuBLAS has older kernels for TF32; `tf32_rounding`: Hopper's (`sm90_xmma_gemm`) take whole waves.
`tf32_split_us`: parts of a product are added up by a kernel of its own (`cublasLt::splitKreduce_kernel`).
`later_epilogue_ratio`: see `epilogue_values`; its prior was set with H100 and H200 in sight.
`flushed_share`: of a cache full of written lines, what reads must first drive out to DRAM."""


@lru_cache(maxsize=1)
def aligned_bytes(p: MatmulProblems) -> Floats:
    """Return the bytes, 16 at most, at whose multiples the rows of both operands and of the result start.

    Every tile asks for it. Products with a vector or two run kernels of their own, which load any row as it comes.
    """
    is_vector = np.minimum(p.m, p.n) <= VECTOR_ROWS
    left = np.where(p.layout & OperandLayout.LEFT_ACROSS, p.m, p.k) * p.left_bytes
    right = np.where(p.layout & OperandLayout.RIGHT_ACROSS, p.n, p.k) * p.right_bytes
    found: Floats = np.full(1, ALIGNED_BYTES)
    for step in (8.0, 4.0, 2.0):
        is_finer = (left % (2.0 * step) != 0) | (right % (2.0 * step) != 0) | (p.n * p.out_bytes % (2.0 * step) != 0)
        found = np.where(is_finer & ~is_vector, step, found)
    return found


def fed_cycles(
    p: MatmulProblems,
    height: Floats | float,
    width: Floats | float,
    multiply: Floats,
    is_async: Mask,
    is_amd: Mask,
    values: Values,
) -> Floats:
    """Return cycles per k of a tile's arithmetic with what loads of unaligned rows add to it.

    Threads load both sides of a tile for each k, access by access: beside the arithmetic on Hopper and later, hidden by
    it before, where they pass by the registers. No table has such rows there: timm's networks on RTX 3090 and 4090
    (ResMLP, relative positions), which take nothing more, were looked at.
    """
    start = aligned_bytes(p)
    if (start == ALIGNED_BYTES).all():
        return multiply
    element = 0.5 * (p.left_bytes + p.right_bytes)
    is_narrow = start < COPIED_BYTES
    rate = values["accesses_per_clock"] * np.where(is_narrow & (p.layout == 0), values["element_along_ratio"], 1.0)
    loads = element / start * (height + width) / rate
    through_registers = element * height * width / REGISTER_FLOPS_PER_CLOCK
    is_direct = ~is_amd & (is_narrow | (element >= OUT_BYTES))
    older = np.where(is_direct, np.maximum(multiply, loads), multiply + through_registers)
    return np.where(start < ALIGNED_BYTES, np.where(is_async, multiply + loads, older), multiply)


def epilogue_ratio(p: MatmulProblems, is_async: Mask, values: Values) -> Floats:
    """Return what an epilogue takes over one that writes rows of whole 16 bytes, of elements of 2 bytes.

    Other rows go element by element, whatever its bytes.
    """
    is_whole = p.n * p.out_bytes % ALIGNED_BYTES == 0
    if is_whole.all():
        return p.out_bytes / OUT_BYTES
    return np.where(is_whole | ~is_async, p.out_bytes / OUT_BYTES, values["unaligned_epilogue_ratio"])


def epilogue_values(p: MatmulProblems, in_registers: Mask, values: Values) -> Values:
    """Return what epilogues have of their own where accumulators lie in registers (Hopper).

    All warps work on one tile there, so that its conversion hides behind no main loop; writes to DRAM hold no warp.
    cuBLAS's kernels for whole rows of 2 bytes stay on their multiprocessor, and fetch the next tile's operands
    meanwhile (`nvjet`). All epilogues but the first take less: they no longer coincide.
    """
    return {
        "later_writes": in_registers * 1.0,
        "fetched_ahead": in_registers * (p.left_bytes != TF32_BYTES) * (aligned_bytes(p) == ALIGNED_BYTES),
        "later_epilogue_ratio": np.where(in_registers, values["later_epilogue_ratio"], 1.0),
    }


def turned_cycles(
    p: MatmulProblems, height: Floats | float, width: Floats | float, multiply: Floats, is_turned: Mask, values: Values
) -> Floats:
    """Return cycles per k of a tile's arithmetic, beside which 4-byte operands across k are turned round (a norm).

    Of one such operand a tile takes its shorter side. Rows off 16 bytes run Ampere's kernels, which turn nothing.
    """
    is_turned = is_turned & (p.left_bytes == TF32_BYTES)
    if not is_turned.any():
        return multiply
    is_turned = is_turned & (aligned_bytes(p) == ALIGNED_BYTES)
    is_both = p.layout == OperandLayout.LEFT_ACROSS | OperandLayout.RIGHT_ACROSS
    sides = np.where(is_both, height + width, np.where(p.layout > 0, np.minimum(height, width), 0.0))
    return np.where(is_turned, np.hypot(multiply, sides * values["tf32_turn_cycles"]), multiply)


def split_us(p: MatmulProblems, is_async: Mask, values: Values) -> Floats:
    """Return what a split along k costs beside its traffic."""
    return np.where(is_async & (p.left_bytes == TF32_BYTES), values["tf32_split_us"], values["split_us"])


def segment_s(p: MatmulProblems, in_registers: Mask, values: Values) -> Floats:
    """Return the seconds that sums of parts cost where kernels divide the work evenly along k; infinite elsewhere.

    Hopper's for TF32 do (`segment_k_on` in their names), where operands lie across k; rows off 16 bytes run others.
    """
    exists = in_registers & (p.left_bytes == TF32_BYTES) & (p.layout > 0) & (p.batch == 1.0)
    exists = exists & (aligned_bytes(p) == ALIGNED_BYTES)
    return np.where(exists, values["tf32_split_us"] * 1e-6, np.inf) if exists.any() else np.full(1, np.inf)


def driven_out(copies: Floats, read_bytes: Floats, l2_bytes: Floats, values: Values) -> Floats:
    """Return the written lines that reads drive out of a cache that a benchmark wrote over."""
    return np.where(copies == FLUSHED_COPIES, values["flushed_share"] * np.minimum(read_bytes, l2_bytes), 0.0)
