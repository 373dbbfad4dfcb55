"""Kernels of fp32 matrix products: the tiles of vector and matrix units, and which of them a library has for a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from ....arrays import Codes, Floats
from ....specs.fleet import Fleet
from ....specs.product_kernels import SgemmKernels

# columns: output columns, output rows, parts of a block that share k (sliced kernels), threads
_TILES: Final = {
    "128x128": (128, 128, 1, 256),
    "128x64": (128, 64, 1, 128),
    "64x64": (64, 64, 1, 64),
    "32x128": (32, 128, 1, 256),
    "128x32": (128, 32, 1, 256),
    "128x32_sliced1x4": (128, 32, 4, 256),
    "64x32_sliced1x4": (64, 32, 4, 256),
    "32x32_sliced1x4": (32, 32, 4, 128),
    "simt_256x128": (256, 128, 1, 256),
    "simt_128x256": (128, 256, 1, 256),
    "simt_128x128": (128, 128, 1, 128),
    "simt_256x64": (256, 64, 1, 128),
    "simt_64x256": (64, 256, 1, 128),
    "simt_128x64": (128, 64, 1, 128),
    "simt_64x128": (64, 128, 1, 128),
    "simt_64x64": (64, 64, 1, 128),
    "simt_128x32": (128, 32, 1, 128),
    "simt_32x128": (32, 128, 1, 128),
    "matrix_128x128": (128, 128, 1, 256),
    "matrix_128x96": (128, 96, 1, 256),
    "matrix_96x128": (96, 128, 1, 256),
    "matrix_128x64": (128, 64, 1, 256),
    "matrix_64x128": (64, 128, 1, 256),
    "matrix_64x64": (64, 64, 1, 256),
    "matrix_64x32": (64, 32, 1, 256),
    "matrix_32x64": (32, 64, 1, 256),
    "matrix_32x32": (32, 32, 1, 256),
    "matrix_64x16": (64, 16, 1, 256),
    "matrix_16x64": (16, 64, 1, 256),
    "matrix_16x16": (16, 16, 1, 64),
}
"""Blocks of cuBLAS's `sgemm` kernels, as their names and launches in the NeuSight tables give them; `simt`: CUTLASS's
public list for vector units, with its warps; `matrix`: Tensile's of usual sizes, declared.

The first size runs along the output's columns (n), since cuBLAS sees a row-major product transposed. Names of
`sm80_xmma_gemm` kernels give the rows first.
"""
TILE_NAMES: Final = tuple(_TILES)
WIDTH, HEIGHT, SLICES, THREADS = np.array(list(_TILES.values()), dtype=np.float64).T
PER_THREAD: Final = WIDTH * HEIGHT * SLICES / THREADS
"""Accumulators per thread."""

_SIMT: Final = tuple(name for name in TILE_NAMES if name.startswith("simt"))
_MATRIX: Final = tuple(name for name in TILE_NAMES if name.startswith("matrix"))
_LARGE: Final = ("128x128", "128x64", "64x64", "32x128", "128x32")
_SINGLE: Final = (*_LARGE, "128x32_sliced1x4", "64x32_sliced1x4", "32x32_sliced1x4")
LAYOUTS: Final = ("batched", "single", "linear")
"""Several products; one; one whose operands are both contiguous along k."""
MENUS: Final[Mapping[SgemmKernels, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]]] = {
    SgemmKernels.PASCAL: (("128x64",), ("128x128", "128x64"), ("64x64", "32x128", "128x32")),
    SgemmKernels.VOLTA: (("64x64", "32x128", "128x32"), _SINGLE, _SINGLE),
    SgemmKernels.TURING: (("128x64", "64x64", "128x32"), _SINGLE, _SINGLE),
    SgemmKernels.AMPERE: (("128x128",), _SINGLE, _SINGLE),
    SgemmKernels.HOPPER: (_SIMT,) * 3,
    SgemmKernels.AMD_MATRIX: (_MATRIX,) * 3,
    SgemmKernels.OTHER: (_LARGE,) * 3,
}
"""What each library launches, by layout. Of Pascal to Ampere: the tiles in more than 1 % of the kernel names recorded
on P100, P4, V100, T4 and A100 (no times); leaving one of these chips out leaves its times out, not this list. HOPPER's
is CUTLASS's public list; H100's recorded kernels have three smaller tiles too, which are left out for that reason."""
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


def launch_of(batch: Floats, m: Floats, n: Floats, k: Floats, choice: Codes, fleet: Fleet) -> SimtLaunch:
    """Return the launch of a choice: a row of `TILE_NAMES`, beyond them the same tiles with k in one piece.

    k is split only where a single product leaves multiprocessors idle.
    """
    tile = choice % len(TILE_NAMES)
    width, height = WIDTH[tile], HEIGHT[tile]
    columns, rows = np.ceil(n / width), np.ceil(m / height)
    waves = columns * rows / fleet.sm_count
    wanted = np.round(1.0 + TARGET_WAVES / waves)
    deepest = np.maximum(1.0, np.floor(k / LEAST_DEPTH))
    can_split = (batch == 1) & (waves < WAVES_WORTH_SPLITTING) & (choice < len(TILE_NAMES))
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
