"""Tiles of matrix products on matrix units, and the one that a library would launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ....arrays import Codes, Floats

TILES: Final = np.array(
    [
        (256, 128), (128, 256), (128, 128), (64, 256), (64, 128), (64, 64),
        (16, 64), (16, 128), (16, 256), (32, 128), (64, 16), (128, 32),
    ],
    dtype=np.float64,
)  # fmt: skip
"""Rows (of m) and columns (of n) of the output that one block computes: what a simulator with every pair of sides from
16 to 256 chooses, where 20 tiles and 8 splits gained nothing over these 12 with one split each."""
MOST_SPLITS: Final = 32.0
WAVE_PARTS: Final = 4.0
"""Parts of products that fill more than half of the multiprocessors: so many fill the last wave better."""
LEAST_DEPTH: Final = 128.0
"""k that a part of a split product covers at least."""
WASTED_SIDE: Final = 64.0
"""No library takes a tile with a side longer than this and at least twice its dimension."""
FULL_AREA: Final = 32768.0
"""Tile area that fills a multiprocessor; smaller ones share it, up to `MOST_RESIDENT` of them."""
MOST_RESIDENT: Final = 4.0
RESIDENT: Final = np.clip(np.floor(FULL_AREA / (TILES[:, 0] * TILES[:, 1])), 1.0, MOST_RESIDENT)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MatmulLaunch:
    """Hold the blocks of a launch; arrays that broadcast with problems and GPUs."""

    height: Floats
    width: Floats
    split: Floats
    tiles: Floats
    """Over the whole batch, before the split."""
    resident: Floats
    """Blocks that share a multiprocessor."""
    depth: Floats
    """k of one block."""

    @property
    def blocks(self) -> Floats:
        """Return the number of blocks."""
        return self.tiles * self.split


def launch_of(candidate: Codes, batch: Floats, m: Floats, n: Floats, k: Floats, sm_count: Floats) -> MatmulLaunch:
    """Return the launch of each candidate: a tile's number, or, beyond them, that of a tile split along k.

    Splits fill the multiprocessors that whole tiles leave idle, in the first wave or in the last.
    """
    tile, is_split = candidate % len(TILES), candidate >= len(TILES)
    height, width = TILES[:, 0][tile], TILES[:, 1][tile]
    tiles = np.ceil(m / height) * np.ceil(n / width) * batch
    idle = sm_count / tiles
    wanted = np.where(idle < 2.0, WAVE_PARTS, idle)
    parts = np.floor(np.clip(np.minimum(wanted, k / LEAST_DEPTH), 1.0, MOST_SPLITS))
    split = np.where(is_split, parts, 1.0)
    return MatmulLaunch(
        height=height,
        width=width,
        split=split,
        tiles=tiles,
        resident=RESIDENT[tile],
        depth=k / split,
    )
