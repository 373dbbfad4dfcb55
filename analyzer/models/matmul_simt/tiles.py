"""Which kernel runs an fp32 matrix product on vector units: tiles, menus by architecture, the library's choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ....arrays import Codes, Floats
from ....specs.fleet import Fleet
from ....specs.generations import SgemmKernels, sgemm_kernels

# columns: output columns, output rows, parts of a block that share k (sliced kernels), threads
_TILES: Final = np.array(
    [
        (128, 128, 1, 256),
        (128, 64, 1, 128),
        (64, 64, 1, 64),
        (32, 128, 1, 256),
        (128, 32, 1, 256),
        (128, 32, 4, 256),
        (64, 32, 4, 256),
        (32, 32, 4, 128),
    ],
    dtype=np.float64,
)
"""Blocks of cuBLAS's `sgemm` kernels, as their names and launches in the NeuSight tables give them.

A name's first size runs along the output's columns (n), since cuBLAS sees a row-major product transposed.
"""
WIDTH, HEIGHT, SLICES, THREADS = _TILES.T
PER_THREAD: Final = WIDTH * HEIGHT * SLICES / THREADS
"""Accumulators per thread."""

_MENUS: Final = {
    (SgemmKernels.PASCAL, 0): (1,),
    (SgemmKernels.PASCAL, 1): (2, 3, 4),
    (SgemmKernels.VOLTA, 0): (2, 3, 4),
    (SgemmKernels.VOLTA, 1): (0, 1, 3, 4, 5, 6, 7),
    (SgemmKernels.TURING, 0): (1, 2, 4),
    (SgemmKernels.TURING, 1): (0, 1, 2, 3, 4, 5, 6, 7),
    (SgemmKernels.AMPERE, 0): (0,),
    (SgemmKernels.AMPERE, 1): (0, 1, 3, 4, 5, 6, 7),
    (SgemmKernels.OTHER, 0): (0, 1, 2, 3, 4),
    (SgemmKernels.OTHER, 1): (0, 1, 2, 3, 4),
}
"""Tiles that each architecture's library has been seen to launch in more than 1 % of products, by whether k is
contiguous in both operands (linear layers) or in one (batched products). Read off kernel names, never off times."""


def _menu_table() -> npt.NDArray[np.float64]:
    """Return what to add to a tile's score: 0 on the menu, minus infinity off it, [kernels, contiguous, tile]."""
    table = np.full((len(SgemmKernels), 2, len(_TILES)), -np.inf)
    for (kernels, contiguous), tiles in _MENUS.items():
        table[kernels, contiguous, list(tiles)] = 0.0
    return table


MENUS: Final = _menu_table().astype(np.float32)
_AREA: Final = np.log(WIDTH * HEIGHT / 4096.0)

TOGETHER: Final = np.array([2, 4, 2, 4, 1, 1, 1, 1], dtype=np.float32)
"""Blocks per multiprocessor that the library's heuristics count as one round."""
MERIT: Final = np.array([0.52, 0.87, 0.34, 0.51, -0.08, -0.78, -0.70, -0.68])
"""Log efficiency that they seem to credit each tile with."""
DEPTH_AREA, DEPTH_SLICED = 0.12, 0.24
"""How much a long k favours large tiles and sliced ones."""
READS_WEIGHT: Final = 0.4
"""How much counts that small accumulators read more from shared memory where a multiprocessor has 128 lanes.

These 19 numbers maximise the likelihood of the kernels that five GPUs launched, each GPU and layout counting alike.
"""
_DEPTH: Final = DEPTH_AREA * _AREA + DEPTH_SLICED * (SLICES > 1)
WAVES_WORTH_SPLITTING: Final = 8.0
TARGET_WAVES: Final = 4.0
LEAST_DEPTH: Final = 128.0
"""k is split until about four blocks per multiprocessor more than without, in parts of at least 128: median of the
recorded launches."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimtLaunch:
    """Hold the tile and launch of each product; arrays broadcast with problems and fleet."""

    width: Floats
    height: Floats
    slices: Floats
    threads: Floats
    per_thread: Floats
    columns: Floats
    """Tiles along n."""
    rows: Floats
    """Tiles along m."""
    split: Floats


def choose_tile(batch: Floats, m: Floats, n: Floats, k: Floats, contiguous: Codes, fleet: Fleet) -> Codes:
    """Return the index of the tile that the library would launch: the least cost on the menu.

    cost = ceil(w / g) * g * area / (merit * (k / 512)^depth): rounds of g blocks on each multiprocessor, with w tiles
    per multiprocessor. How often that is the tile launched: benchmarks/check/tile_choice.py, on the names it was
    fitted to.
    """
    count = np.ceil(n[..., None] / WIDTH) * np.ceil(m[..., None] / HEIGHT) * batch[..., None]
    rounds = np.ceil((count / TOGETHER).astype(np.float32) / fleet.sm_count.astype(np.float32)[..., None])
    merit = MERIT - np.log(TOGETHER) - _AREA + np.log(k / 512.0)[..., None] * _DEPTH
    listed = (MENUS[sgemm_kernels(fleet)] - _reads_cost(fleet)[..., None, :])[
        np.arange(len(fleet.sm_count)), contiguous
    ]
    return np.asarray(np.argmax(merit.astype(np.float32) - np.log(rounds) + listed, axis=-1))


def _reads_cost(fleet: Fleet) -> Floats:
    """Return log cycles over FMA's own that reads from shared memory cost each tile, weighted, [GPU, tile]."""
    reads = fleet.fp32_lanes_per_sm[..., None] / (19.0 * np.sqrt(np.minimum(PER_THREAD, 64.0)))
    cost: Floats = READS_WEIGHT * 0.25 * np.log1p(reads**4)
    return cost.astype(np.float32)


def launch_of(batch: Floats, m: Floats, n: Floats, k: Floats, tile: Codes, fleet: Fleet) -> SimtLaunch:
    """Return the launch of a tile; k is split only where a single product leaves multiprocessors idle."""
    width, height = WIDTH[tile], HEIGHT[tile]
    columns, rows = np.ceil(n / width), np.ceil(m / height)
    waves = columns * rows / fleet.sm_count
    wanted = np.round(1.0 + TARGET_WAVES / waves)
    deepest = np.maximum(1.0, np.floor(k / LEAST_DEPTH))
    can_split = (batch == 1) & (waves < WAVES_WORTH_SPLITTING)
    return SimtLaunch(
        width=width,
        height=height,
        slices=SLICES[tile],
        threads=THREADS[tile],
        per_thread=PER_THREAD[tile],
        columns=columns,
        rows=rows,
        split=np.where(can_split, np.minimum(wanted, deepest), 1.0),
    )
