"""What walks over rows: blocks, threads, and the loads that a thread waits for one after another.

Read off PyTorch's CUDA sources (Normalization.cuh, group_norm_kernel.cu, layer_norm_kernel.cu, ScanUtils.cuh, Loss.cu,
the pooling kernels); what cuDNN and Triton launch is what their profiles show: a block per channel or row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ....arrays import Floats, Mask
from ...work.row_kernels import RowKernel
from .problems import ReductionProblems

WARP: Final = 32.0
CHANNEL_THREADS: Final = 512.0
"""`MAX_BLOCK_SIZE` of the batch norm kernels; group norm's moments have as many (`kCUDABlockReduceNumThreads`)."""
TILE_COLUMNS: Final = 32.0
ROWS_PER_THREAD: Final = 16.0
MOST_TILES: Final = 128.0
LOADS_AT_ONCE: Final = 4.0
"""`OPTIMAL_TILE_W`, `ELEMENTS_PER_THREAD`, `MAX_H_BLOCK` and `PARALLEL_LOADS` of the kernels for channels last."""
MOST_PARTS: Final = 256.0 * 1024.0
"""Blocks of `batch_norm_transform_input` over all channels, unless there are more channels."""
VECTOR: Final = 4.0
ROW_THREADS: Final = 128.0
FUSED_THREADS: Final = 256.0
POOL_THREADS: Final = 256.0
SCAN_THREADS: Final = 512.0
REDUCED_PER_BLOCK: Final = 8192.0
"""Elements of a reduction that a block of 512 threads takes at least, sixteen each."""
PICKED_PER_THREAD: Final = 16.0
MOST_THREADS: Final = 1024.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Walk:
    """Hold what n problems launch, as columns."""

    blocks: Floats
    threads: Floats
    steps: Floats
    """Loads that a thread waits for in turn."""


def walk_of(problems: ReductionProblems) -> Walk:
    """Return blocks, threads and steps by the rule of each kernel."""
    kernel, rows, columns = problems.kernel, problems.rows, problems.columns

    def among(*kernels: RowKernel) -> Mask:
        return np.asarray(np.isin(kernel, kernels))

    pieces = np.maximum(columns / np.maximum(problems.run, 1.0), 1.0)
    wide = np.clip(_next_power(problems.run), WARP, CHANNEL_THREADS)
    tall = CHANNEL_THREADS / wide
    sum_tall = np.minimum(_last_power(pieces), CHANNEL_THREADS / WARP)
    sum_wide = np.minimum(wide, CHANNEL_THREADS / sum_tall)
    tile_wide, tile_tall = _tile(rows, columns)
    tiles = np.minimum(np.ceil(columns / (tile_tall * ROWS_PER_THREAD)), MOST_TILES)
    scan_wide = np.clip(_next_power(columns) / 2.0, WARP / 2.0, SCAN_THREADS)
    picked = np.where(columns > 1, columns, np.clip(_last_power(rows / PICKED_PER_THREAD), WARP, MOST_THREADS))
    is_sums, is_pick = among(RowKernel.CHANNEL_SUMS), among(RowKernel.PICK)
    is_channel = among(RowKernel.MOMENTS)
    is_column = among(RowKernel.COLUMN_MOMENTS, RowKernel.COLUMN_SUMS)
    is_whole = among(RowKernel.BATCH_NORM, RowKernel.BATCH_NORM_BACKWARD)
    is_row = among(RowKernel.ROW_FORWARD, RowKernel.ROW_BACKWARD)
    is_elements = among(RowKernel.CHANNEL_ELEMENTS)
    part_wide = np.clip(
        _next_power(problems.run / VECTOR), np.clip(_next_power(problems.run), WARP, 2.0 * WARP), CHANNEL_THREADS
    )
    part_tall = np.maximum(2.0 * WARP / part_wide, 1.0)
    parts = np.minimum(np.maximum(MOST_PARTS / np.maximum(rows, 1.0), 1.0), np.ceil(pieces / part_tall))
    is_fused = (kernel >= RowKernel.FUSED_FORWARD) & (kernel <= RowKernel.COMPILED_BACKWARD)
    is_reduce, is_scan = among(RowKernel.REDUCE, RowKernel.COMPILED_REDUCE), among(RowKernel.SCAN)
    rules: list[tuple[Mask, Floats, Floats, Floats]] = [
        (is_channel, rows, wide * tall, np.ceil(pieces / tall) * np.ceil(problems.run / wide)),
        (is_sums, rows, sum_wide * sum_tall, np.ceil(pieces / sum_tall) * np.ceil(problems.run / sum_wide)),
        (
            is_column,
            np.ceil(rows / tile_wide) * tiles,
            tile_wide * tile_tall,
            np.ceil(columns / (tile_tall * tiles * LOADS_AT_ONCE)),
        ),
        (
            is_elements,
            rows * parts,
            part_wide * part_tall,
            np.ceil(problems.run / part_wide) * np.ceil(pieces / (part_tall * parts)),
        ),
        (is_whole, rows, _alike(rows, CHANNEL_THREADS), np.ceil(columns / (VECTOR * CHANNEL_THREADS))),
        (is_row, rows, _alike(rows, ROW_THREADS), 2.0 * np.ceil(columns / (VECTOR * ROW_THREADS))),
        (
            is_fused,
            np.minimum(rows, problems.elements / (VECTOR * FUSED_THREADS)),
            _alike(rows, FUSED_THREADS),
            np.ceil(columns / (VECTOR * FUSED_THREADS)),
        ),
        (
            is_reduce,
            np.maximum(np.minimum(rows, problems.elements / REDUCED_PER_BLOCK), problems.elements / REDUCED_PER_BLOCK),
            _alike(rows, CHANNEL_THREADS),
            _alike(rows, 4.0),
        ),
        (is_scan, rows * scan_wide / SCAN_THREADS, _alike(rows, SCAN_THREADS), np.ceil(columns / (2.0 * scan_wide))),
        (is_pick, _alike(rows, 1.0), picked, np.ceil(rows / picked)),
    ]
    conditions = [rule[0] for rule in rules]
    by_thread = problems.elements / POOL_THREADS
    return Walk(
        blocks=np.select(conditions, [rule[1] for rule in rules], by_thread),
        threads=np.select(conditions, [rule[2] for rule in rules], POOL_THREADS),
        steps=np.maximum(np.select(conditions, [rule[3] for rule in rules], 1.0), 1.0),
    )


def _tile(rows: Floats, columns: Floats) -> tuple[Floats, Floats]:
    """Return the block of the channels-last kernels, channels x elements (`flexible_launch_configs`)."""
    wide = np.minimum(_last_power(rows), TILE_COLUMNS)
    tall = np.minimum(_last_power(np.ceil(columns / ROWS_PER_THREAD)), CHANNEL_THREADS / wide)
    return np.asarray(np.minimum(_last_power(rows), CHANNEL_THREADS / tall)), tall


def _alike(rows: Floats, value: float) -> Floats:
    return np.full(rows.shape, value)


def _last_power(count: Floats) -> Floats:
    """Return the power of two that is not over the count."""
    return np.asarray(2.0 ** np.floor(np.log2(np.maximum(count, 1.0))))


def _next_power(count: Floats) -> Floats:
    """Return the power of two that is not under the count."""
    return np.asarray(2.0 ** np.ceil(np.log2(np.maximum(count, 1.0))))
