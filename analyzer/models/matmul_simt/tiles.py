"""Kernels of fp32 matrix products: the tiles of vector and matrix units, and which of them a library has for a GPU."""

import csv
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from ....arrays import Codes, Floats, Mask
from ....records import dataclass
from ....specs.product_kernels import SgemmKernels
from .pairs import Reals, SimtPairs

with Path(__file__).with_name("tiles.csv").open(encoding="utf-8", newline="") as _file:
    _TILES: Final = {name: tuple(map(int, sizes)) for name, *sizes in islice(csv.reader(_file), 1, None)}
"""Blocks of cuBLAS's `sgemm` kernels, as their names and launches in the NeuSight tables give them; `simt`: CUTLASS's
public list for vector units, with its warps; `matrix`: Tensile's of usual sizes, declared. Columns: output columns,
output rows, parts of a block that share k (sliced kernels), threads.

The first size runs along the output's columns (n), since cuBLAS sees a row-major product transposed. Names of
`sm80_xmma_gemm` kernels give the rows first.
"""
TILE_NAMES: Final = tuple(_TILES)
SCHEDULERS: Final = 4.0
REGISTERS_BESIDE: Final = 56.0
"""Registers of a thread beside its accumulators: addresses and the next operands; 120 for 64, as profilers show."""

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

    width: Reals
    height: Reals
    area: Reals
    sides: Reals
    """Width and height."""
    threads: Reals
    registers: Reals
    """Of a block."""
    others: Reals
    """Instructions beside the multiply-add, over those."""
    reads: Reals
    """Inverse of the side of a thread's square of accumulators."""
    operands: Reals
    """Words of operands per element and k."""
    lone_warps: Reals
    """Multiply-adds of a warp alone on its scheduler, per k."""
    stalls: Reals
    """Steps for which nobody hides a result's way, over the steps of k."""
    columns: Reals
    """Tiles along n."""
    rows: Reals
    """Tiles along m."""
    split: Reals
    is_split: Reals
    """1 or 0."""
    written: Reals
    """Results that are written, and read again where parts of k are summed."""


LARGEST_AREA: Final = max(width * height for width, height, _, _ in _TILES.values())


def _tile_columns() -> dict[str, Floats]:
    """Return what a tile alone says of its launch, one element per tile."""
    width, height, slices, threads = np.array(list(_TILES.values()), dtype=np.float64).T
    held = width * height * slices / threads
    warps = np.maximum(threads / 32.0 / SCHEDULERS, 1.0)
    return {
        "width": width,
        "height": height,
        "area": width * height,
        "sides": width + height,
        "threads": threads,
        "registers": threads * (held + REGISTERS_BESIDE),
        "others": (0.5 * np.sqrt(held) + (width + height) / threads) / held,
        "reads": 1.0 / np.sqrt(held),
        "operands": 1.0 / width + 1.0 / height,
        "lone_warps": warps * held / slices,
        "stalls": 1.0 / (warps * slices),
    }


_COLUMNS: Final[Mapping[np.dtype[Any], Mapping[str, Reals]]] = {
    np.dtype(np.float64): _tile_columns(),
    np.dtype(np.float32): {name: column.astype(np.float32) for name, column in _tile_columns().items()},
}


def launch_of(p: SimtPairs, choice: Codes) -> SimtLaunch:
    """Return the launch of a choice: a row of `TILE_NAMES`, beyond them the same tiles with k in one piece.

    k is split only where a single product leaves multiprocessors idle.
    """
    row = choice % len(TILE_NAMES)
    tile = {name: column[row] for name, column in _COLUMNS[p.m.dtype].items()}
    columns, rows = np.ceil(p.n / tile["width"]), np.ceil(p.m / tile["height"])
    split, is_split, written = np.array([[1.0], [0.0], [1.0]], dtype=p.m.dtype)
    if (choice < len(TILE_NAMES)).any():
        # The parts of k; in double precision, in which alone halves are rounded alike by all who ask.
        waves = np.divide(columns * rows, p.sm_count, dtype=np.float64)
        wanted = np.minimum(np.round(1.0 + TARGET_WAVES / waves), np.maximum(1.0, np.floor(p.k / LEAST_DEPTH)))
        can_split = (p.batch == 1) & (waves < WAVES_WORTH_SPLITTING) & (choice < len(TILE_NAMES))
        split = np.where(can_split, wanted, 1.0).astype(p.m.dtype)
        is_split = (split > 1).astype(p.m.dtype)
        written = 1.0 + 2.0 * split * is_split
    return SimtLaunch(**tile, columns=columns, rows=rows, split=split, is_split=is_split, written=written)


def may_split(p: SimtPairs) -> Mask:
    """Return whether k might be split with any tile: what costs time is not tried for the others."""
    fewest_waves = p.m * p.n / (LARGEST_AREA * p.sm_count)
    return np.asarray((p.batch == 1) & (fewest_waves < WAVES_WORTH_SPLITTING) & (p.k >= 2.0 * LEAST_DEPTH))
