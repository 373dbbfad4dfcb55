"""How PyTorch's general reduction shares its work out: `setReduceConfig` of ATen's Reduce.cuh.

Recorded grids of torch 2.11 (H100 and H200) are these: all of 2,140 over columns, 1,186 of 1,204 along rows.
"""

from typing import Final

import numpy as np

from ...arrays import Floats, Mask, last_power
from ...records import dataclass

WARP: Final = 32.0
THREADS: Final = 512.0
"""Of a block whose threads take one column each; they are fewer where each takes two or four."""
LEAST_PER_THREAD, MOST_PER_THREAD = 16.0, 256.0
"""Values that a thread keeps at least where blocks share a result, and from which on they do."""
VECTOR: Final = 4.0
VECTORS_FROM: Final = 128.0
"""Elements over which a whole tensor is read in vectors."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReduceBlocks:
    """Hold the launches of n reductions, arrays alike."""

    width: Floats
    """Neighbouring columns that a thread adds up."""
    across: Floats
    """Threads of a block that lie along the innermost dim."""
    deep: Floats
    """Its rows of threads."""
    grid: Floats
    """Blocks over the results."""
    sharing: Floats
    """Blocks that share the same results; each leaves its partial sums for the last."""
    values: Floats
    """Values that a thread adds up."""


def column_blocks(columns: Floats, reduced: Floats, sm_count: Floats, threads_per_sm: Floats) -> ReduceBlocks:
    """Return what a GPU launches to reduce each of some columns over so many elements, neighbours kept apart.

    >>> one = [np.array([value]) for value in (768.0, 8192.0, 132.0, 2048.0)]  # 768 columns of 8,192 on an H100
    >>> [int(item[0]) for item in (column_blocks(*one).grid, column_blocks(*one).sharing)]
    [6, 128]
    """
    width = np.where(columns % 4.0 == 0.0, 4.0, np.where(columns % 2.0 == 0.0, 2.0, 1.0))
    across, deep = _block(columns / width, reduced, THREADS / width)
    blocks = np.ceil(columns / (width * across))
    grid, sharing, values = _share(reduced, blocks, deep, sm_count * np.floor(threads_per_sm / (across * deep)))
    return ReduceBlocks(width=width, across=across, deep=deep, grid=grid, sharing=sharing, values=values)


def row_blocks(rows: Floats, reduced: Floats, sm_count: Floats, threads_per_sm: Floats) -> ReduceBlocks:
    """Return what a GPU launches to reduce rows of so many neighbours each."""
    is_vector = (rows == 1.0) & (reduced > VECTORS_FROM)
    across, deep = _block(np.where(is_vector, reduced / VECTOR, reduced), rows, THREADS)
    most = sm_count * np.floor(threads_per_sm / (across * deep))
    grid, sharing, values = _share(np.ceil(reduced / across), rows, deep, most)
    return ReduceBlocks(width=np.ones(rows.shape), across=across, deep=deep, grid=grid, sharing=sharing, values=values)


def _block(inner: Floats, outer: Floats, threads: Floats | float) -> tuple[Floats, Floats]:
    """Return the block's threads along the inner dim, a warp if they suffice, and along the outer one."""
    deep = np.minimum(last_power(outer), threads / np.minimum(last_power(inner), WARP))
    return np.minimum(last_power(inner), threads / deep), deep


def _share(left: Floats, results: Floats, deep: Floats, most: Floats) -> tuple[Floats, Floats, Floats]:
    """Return blocks over the results, blocks that share them, and what is left to a thread.

    Rows of threads share a result of many values; so do blocks, up to `most` that are resident together.
    """
    is_shared: Mask = left >= np.minimum(deep * LEAST_PER_THREAD, MOST_PER_THREAD)
    values = np.where(is_shared, np.ceil(left / deep), left)
    grid = np.where(is_shared, results, np.ceil(results / deep))
    by_size = np.minimum(np.ceil(most / np.maximum(grid, 1.0)), np.ceil(values / LEAST_PER_THREAD))
    sharing = np.maximum(by_size, np.ceil(values / MOST_PER_THREAD))
    is_split = is_shared & (values >= MOST_PER_THREAD) & (grid <= most)
    sharing = np.where(is_split, sharing, 1.0)
    return grid, sharing, values / sharing
