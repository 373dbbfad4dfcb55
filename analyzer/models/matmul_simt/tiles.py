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
"""Blocks of cuBLAS's `sgemm` kernels, as their names and launches in the NeuSight tables and our own give them;
`matrix`: Tensile's of usual sizes, declared. Columns: output columns, output rows, parts of a block that share k
(sliced kernels), threads, registers of a thread (as profilers show them, or 56 beside its accumulators).

The first size runs along the output's columns (n), since cuBLAS sees a row-major product transposed. Names of
`sm80_xmma_gemm` kernels give the rows first.
"""
TILE_NAMES: Final = tuple(_TILES)
SCHEDULERS: Final = 4.0

_XMMA: Final = tuple(name for name in TILE_NAMES if name.startswith("xmma"))
_CUTLASS: Final = ("cutlass_256x128", "cutlass_128x256")
_SMALL: Final = ("xmma_64x64", "xmma_32x32")
_MATRIX: Final = tuple(name for name in TILE_NAMES if name.startswith("matrix"))
_LARGE: Final = ("128x128", "128x64", "64x64", "32x128", "128x32")
_SLICED: Final = ("128x32_sliced1x4", "64x32_sliced1x4", "32x32_sliced1x4")
_SINGLE: Final = (*_LARGE, *_SLICED)
_SLIM: Final = ("32x128", "128x32", *_SLICED)
LAYOUTS: Final = ("batched", "single", "linear", "biased")
"""Several products; one; one whose operands are both contiguous along k; one to whose rows a row is added, on Hopper if
its operands are so too."""
MENUS: Final[Mapping[SgemmKernels, tuple[tuple[str, ...], ...]]] = {
    SgemmKernels.PASCAL: (("128x64",), ("128x128", "128x64"), _LARGE, ("64x64", "32x128", "128x32")),
    SgemmKernels.VOLTA: (("64x64", "32x128", "128x32"), _SINGLE, *(("128x128", "128x64", *_SLIM),) * 2),
    SgemmKernels.TURING: (("128x64", "64x64", "128x32"), *(_SINGLE,) * 3),
    SgemmKernels.AMPERE: (("128x128",), _SINGLE, *(("128x64", *_SLIM),) * 2),
    SgemmKernels.HOPPER: (
        (*_XMMA, "cutlass_256x128"),
        (*_CUTLASS, "cutlass_128x128", "cutlass_128x32", *_SMALL),
        *(_XMMA,) * 2,
    ),
    SgemmKernels.AMD_MATRIX: (_MATRIX,) * 4,
    SgemmKernels.OTHER: (_LARGE,) * 4,
}
"""What each library launches, by layout. Of Pascal to Ampere: the tiles in more than 2 % of the kernel names recorded
on P100, P4, V100, T4 (1 %) and A100 (no times); leaving one of these chips out leaves its times out, not this list.
Their linear layers have a bias: Pascal's without take any tile, as layers over a vocabulary are too fast for the small
ones (in sight). HOPPER's are in H100's and H200's names, NeuSight's and our own."""
SPLIT: Final = ((), (*_CUTLASS, *_SMALL), (*_CUTLASS, "xmma_64x32", "xmma_32x32"), (*_CUTLASS, "largek_32x32"))
"""HOPPER's tiles that share k out, by layout; every other library's all do, but for several products."""
TARGET_WAVES: Final = 4.0
LEAST_DEPTH: Final = 128.0
"""k is split until about four blocks per multiprocessor more than without, in parts of at least 128: median of the
recorded launches. Hopper's of `singly` fill waves, in parts as deep as their sides are long."""


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
    singly: Reals
    """1 where a block loads operands word by word in any layout (CUTLASS's `align1`, `sgemm_largek`), 0 elsewhere."""
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


LARGEST_AREA: Final = max(width * height for width, height, *_ in _TILES.values())


def _tile_columns() -> dict[str, Floats]:
    """Return what a tile alone says of its launch, one element per tile."""
    width, height, slices, threads, registers = np.array(list(_TILES.values()), dtype=np.float64).T
    held = width * height * slices / threads
    warps = np.maximum(threads / 32.0 / SCHEDULERS, 1.0)
    return {
        "width": width,
        "height": height,
        "area": width * height,
        "sides": width + height,
        "threads": threads,
        "registers": threads * registers,
        "others": (0.5 * np.sqrt(held) + (width + height) / threads) / held,
        "singly": np.array([name.startswith(("cutlass", "largek")) for name in _TILES], dtype=np.float64),
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
        most = np.maximum(np.floor(p.k / np.maximum(tile["sides"], LEAST_DEPTH)), 2.0)
        wanted = np.where(tile["singly"] > 0, _filling(waves, most), wanted)
        can_split = (p.batch == 1) & (waves < p.split_waves) & (choice < len(TILE_NAMES))
        split = np.where(can_split, wanted, 1.0).astype(p.m.dtype)
        is_split = (split > 1).astype(p.m.dtype)
        written = 1.0 + 2.0 * split * is_split
    return SimtLaunch(**tile, columns=columns, rows=rows, split=split, is_split=is_split, written=written)


def _filling(waves: Reals, most: Reals) -> Reals:
    """Return in how many parts, two to `most`, blocks of that many waves fill up to five waves best."""
    best, parts = np.zeros(()), np.full((), 2.0)
    for count in range(1, 6):
        tried = np.clip(np.floor(count / waves), 2.0, most)
        full = tried * waves / np.ceil(tried * waves)
        parts, best = np.where(full > best + 0.01, tried, parts), np.where(full > best + 0.01, full, best)
    return parts


def may_split(p: SimtPairs) -> Mask:
    """Return whether k might be split with any tile: what costs time is not tried for the others."""
    fewest_waves = p.m * p.n / (LARGEST_AREA * p.sm_count)
    return np.asarray((p.batch == 1) & (fewest_waves < p.split_waves) & (p.k >= 2.0 * LEAST_DEPTH))
