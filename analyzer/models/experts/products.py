"""Seconds of a grouped product, tile by tile, and of the passes around the products."""

from typing import Final

import numpy as np

from ....arrays import Codes, Floats, Mask
from ....records import dataclass
from ....specs.experts_kernels import ExpertsKernel
from ...work.work import ExpertsFormat
from ..frame.gpu_physics import slow_down
from ..frame.parameters import Values
from .machine import ExpertsMachine
from .problems import ExpertsProblems
from .routing import HEIGHTS

TILES: Final = ((16, 64), (16, 128), (32, 128), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256))
"""Rows and columns that a block computes at a time."""
OUT_BYTES: Final = 2.0
STEP_BYTES: Final = 128.0
"""Bytes of the depth that one step covers: a row of shared memory's banks."""
FULL_TILE: Final = 16384.0
"""Area to which the epilogue's cycles refer."""
SQUARE_TILE: Final = 65536.0
SHARED_HEIGHT: Final = 64
"""Rows from which on clusters of blocks share operands, where there are clusters."""
L2_PASSES: Final = 3.0
"""Passes hand their rows on while these fit in so many times what holds weights."""
ALL_ROWS: Final = (ExpertsKernel.TRITON, ExpertsKernel.TRITON_FIXED, ExpertsKernel.MARLIN)
"""Kernels that keep a row for choices of other ranks' experts, too: vLLM's intermediate tensors are of that size."""
TALL: Final = (ExpertsKernel.CUTLASS, ExpertsKernel.DEEP_GEMM, ExpertsKernel.CUTE_DSL)
"""Kernels whose asynchronous instructions take 64 rows at least, 128 in block-scaled 4 bits."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpertsTile:
    """Hold a candidate, the same for all problems or one per problem and GPU."""

    height: Codes
    width: Codes
    row_blocks: Floats
    """Tiles that all experts' rows fill."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupedProduct:
    """Hold a grouped product's sizes and what DRAM needs for it."""

    depth: Floats
    columns: Floats
    dram_s: Floats


def product_of(p: ExpertsProblems, machine: ExpertsMachine, depth: Floats, columns: Floats) -> GroupedProduct:
    """Return a product of all rows; rows in and out pass through DRAM as far as they outgrow the cache."""
    read = p.busy * depth * columns * p.weight_bytes * machine.miss
    own = p.rows * (depth * p.input_bytes + columns * OUT_BYTES)
    spilled = own**2 / (own + machine.l2_bytes)
    dram_s = read / machine.stream_bytes_per_s + spilled / machine.dram_bytes_per_s
    return GroupedProduct(depth=depth, columns=columns, dram_s=dram_s)


def product_s(
    p: ExpertsProblems, machine: ExpertsMachine, values: Values, product: GroupedProduct, choice: Codes | None
) -> tuple[Floats, Codes]:
    """Return seconds by the chosen tile, or by the best one that the kernel has; and which tile that is."""
    if choice is not None:
        return _tile_s(p, machine, values, product, _chosen(p, choice)), choice
    times = []
    for height, width in TILES:
        tile = ExpertsTile(height=np.array(height), width=np.array(width), row_blocks=getattr(p, f"blocks_{height}"))
        times.append(np.where(_is_offered(p, machine, tile), _tile_s(p, machine, values, product, tile), np.inf))
    stacked = np.stack(times)
    return stacked.min(axis=0), stacked.argmin(axis=0)


def _chosen(p: ExpertsProblems, choice: Codes) -> ExpertsTile:
    sides = np.array(TILES)[choice]
    blocks = np.stack([np.broadcast_to(getattr(p, f"blocks_{height}"), choice.shape) for height in HEIGHTS])
    row = np.searchsorted(HEIGHTS, sides[..., 0])[None]
    row_blocks = np.take_along_axis(blocks, row, axis=0)[0]
    return ExpertsTile(height=sides[..., 0], width=sides[..., 1], row_blocks=row_blocks)


def _tile_s(
    p: ExpertsProblems, machine: ExpertsMachine, values: Values, product: GroupedProduct, tile: ExpertsTile
) -> Floats:
    """Return seconds: arithmetic with the tiles' padding and ends, DRAM, and what blocks ask of the cache.

    A last wave that is not full counts as `tail` of one, without steps, so that more multiprocessors never harm.
    """
    blocks = tile.row_blocks * np.ceil(product.columns / tile.width)
    filled = np.maximum(blocks / machine.fleet.sm_count, 1.0)
    waves = filled + values["tail"] * np.minimum(filled - 1.0, 1.0)
    padded = np.ceil(product.depth * p.input_bytes / STEP_BYTES) * STEP_BYTES / p.input_bytes
    flops = 2.0 * tile.height * tile.width * padded
    clock_hz = machine.fleet.clock_hz
    ends_s = values["epilogue_cycles"] * (tile.height * tile.width / FULL_TILE) / clock_hz
    math_s = np.maximum(waves * (flops / machine.flops_per_s + ends_s), 1e-12)
    math_s = math_s * (1.0 + slow_down(blocks * flops * machine.joule_per_flop, math_s, machine.fleet, values))
    is_shared = machine.is_async & (tile.height >= SHARED_HEIGHT)
    tile_bytes = product.depth * (tile.height * p.input_bytes + tile.width * p.weight_bytes)
    tile_bytes = tile_bytes * np.where(is_shared, values["cluster_traffic"], 1.0)
    port_s = waves * tile_bytes / (values["port_bytes_per_clock"] * clock_hz)
    cache_s = np.maximum(blocks * tile_bytes / machine.l2_bytes_per_s, port_s)
    power = values["sharpness"]
    most = np.maximum(np.maximum(math_s, product.dram_s), cache_s)
    parts = (math_s / most) ** power + (product.dram_s / most) ** power + (cache_s / most) ** power
    return np.asarray(most * parts ** (1.0 / power))


def _is_offered(p: ExpertsProblems, machine: ExpertsMachine, tile: ExpertsTile) -> Mask:
    """Say whether the kernel has a tile.

    vLLM's and SGLang's fixed ones: 16 rows while there are no more tokens than experts, else 64; 64 columns, or the
    128 of a block of scales (`get_default_config`). Marlin's have up to 64 rows.
    """
    kernel, height, width = machine.kernel, tile.height, tile.width
    fixed_height = np.where(p.tokens <= p.local_experts, 16, 64)
    fixed_width = np.where(p.format == ExpertsFormat.FP8_BLOCK, 128, 64)
    is_fixed = (height == fixed_height) & (width == fixed_width)
    offered = np.where(kernel == ExpertsKernel.TRITON_FIXED, is_fixed, True)
    offered &= np.where(kernel == ExpertsKernel.TRITON, (height <= 128) & (width <= 128), True)
    offered &= np.where(kernel == ExpertsKernel.MARLIN, height <= 64, True)
    least = np.where(p.format == ExpertsFormat.FP4, 128, 64)
    offered &= np.where(np.isin(kernel, TALL) & machine.is_async, height >= least, True)
    return np.asarray(offered & ((height * width < SQUARE_TILE) | machine.has_square_tiles))


def passes_s(p: ExpertsProblems, machine: ExpertsMachine) -> Floats:
    """Return seconds of what moves rows beside the products: routing, conversion, gather, activation, sum.

    All tokens are converted and written, also those that no expert here has; FlashInfer's masked groups (CuTe) take
    and leave only the tokens that were sent here.
    """
    is_sent = machine.kernel == ExpertsKernel.CUTE_DSL
    is_all = np.isin(machine.kernel, ALL_ROWS)
    tokens = np.where(is_sent, np.minimum(p.tokens, p.rows), p.tokens)
    rows = np.where(is_all, p.choices, p.rows)
    routing = np.where(is_sent, 0.0, p.tokens * p.experts * ROUTING_BYTES + p.choices * CHOICE_BYTES)
    quantize = np.where(p.quantized > 0, tokens * p.hidden * (OUT_BYTES + p.input_bytes), 0.0)
    gathered = np.where(is_all, np.minimum(p.tokens, p.rows), p.rows)
    gather = gathered * p.hidden * 2.0 * p.input_bytes
    activation = rows * (p.columns + p.intermediate) * OUT_BYTES
    combine = (rows + tokens) * p.hidden * OUT_BYTES
    moved = machine.passes * (routing + quantize + gather + activation + combine)
    spilled = moved**2 / (moved + L2_PASSES * machine.l2_bytes)
    return np.asarray(spilled / machine.dram_bytes_per_s + moved / machine.l2_bytes_per_s)


ROUTING_BYTES: Final = 8.0
"""Per token and expert: a logit of 4 bytes written and read."""
CHOICE_BYTES: Final = 32.0
"""Per choice: its expert, weight and place, sorted."""
