"""Which kernel runs an fp32 matrix product on vector units: tiles, and the menus that libraries choose from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from ....arrays import Codes, Floats, Rows
from ....specs.fleet import Fleet
from ....specs.generations import SgemmKernels, sgemm_kernels

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
    "simt_64x32": (64, 32, 1, 64),
    "simt_32x64": (32, 64, 1, 64),
    "simt_32x32": (32, 32, 1, 64),
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
TILE_NAMES: Final = tuple(_TILES)
WIDTH, HEIGHT, SLICES, THREADS = np.array(list(_TILES.values()), dtype=np.float64).T
PER_THREAD: Final = WIDTH * HEIGHT * SLICES / THREADS
_MATRIX = tuple(name for name in TILE_NAMES if name.startswith("matrix"))
_SIMT = tuple(name for name in TILE_NAMES if name.startswith("simt"))
_SLICED = ("128x32_sliced1x4", "64x32_sliced1x4", "32x32_sliced1x4")
_VOLTA_SINGLE = ("128x128", "128x64", "64x64", "32x128", "128x32", *_SLICED)
MENUS: Final[Mapping[SgemmKernels, tuple[tuple[str, ...], ...]]] = {
    SgemmKernels.PASCAL: (("128x64",), ("128x128", "128x64"), ("64x64", "32x128", "128x32")),
    SgemmKernels.VOLTA: (("64x64", "32x128", "128x32"), _VOLTA_SINGLE, _VOLTA_SINGLE),
    SgemmKernels.TURING: (("128x64", "64x64", "128x32"), _VOLTA_SINGLE, _VOLTA_SINGLE),
    SgemmKernels.AMPERE: (("128x128",), _VOLTA_SINGLE, _VOLTA_SINGLE),
    SgemmKernels.HOPPER: (_SIMT,) * 3,
    SgemmKernels.AMD_MATRIX: (_MATRIX,) * 3,
    SgemmKernels.OTHER: (("128x128", "128x64", "64x64", "32x128", "128x32"),) * 3,
}
WAVES_WORTH_SPLITTING: Final = 8.0
TARGET_WAVES: Final = 4.0
LEAST_DEPTH: Final = 128.0


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


def menus_of(batch: Floats, contiguous: Codes, fleet: Fleet) -> Iterator[tuple[Rows, Rows, tuple[int, ...]]]:
    """Yield the rows and GPUs of one menu."""
    kernels = sgemm_kernels(fleet)
    kind = np.ravel(np.where(batch > 1, 0, 1 + contiguous))
    for code in np.unique(kernels):
        for layout in np.unique(kind):
            tiles = tuple(TILE_NAMES.index(name) for name in MENUS[SgemmKernels(code)][layout])
            yield np.flatnonzero(kind == layout), np.flatnonzero(kernels == code), tiles


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
