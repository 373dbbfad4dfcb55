"""Which kernel runs an fp32 matrix product on vector units: tiles, menus by architecture, the library's choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ....arrays import Codes, Floats
from ....formats.constants import read_constants
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

AREA: Final = np.log(WIDTH * HEIGHT / 4096.0)
TILE_NAMES: Final = tuple(
    f"{width:.0f}x{height:.0f}" + (f"_sliced1x{slices:.0f}" if slices > 1 else "")
    for width, height, slices, _ in _TILES.tolist()
)
"""As kernel names have them."""
KERNELS: Final = tuple(kernels.name.lower() for kernels in SgemmKernels)
LAYOUTS: Final = ("batched", "linear")
"""Whether k is contiguous in one operand (batched products) or in both (linear layers)."""
WAVES_WORTH_SPLITTING: Final = 8.0
TARGET_WAVES: Final = 4.0
LEAST_DEPTH: Final = 128.0
"""k is split until about four blocks per multiprocessor more than without, in parts of at least 128: median of the
recorded launches."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TileRule:
    """Hold what the library's choice depends on, fitted to the kernels that GPUs launched."""

    together: npt.NDArray[np.float32]
    """Blocks per multiprocessor that the library's heuristics count as one round, [tiles]."""
    merit: Floats
    """Log efficiency that they seem to credit each tile with, [tiles]."""
    depth_area: float
    """How much a long k favours large tiles."""
    depth_sliced: float
    """How much it favours sliced ones."""
    reads_weight: float
    """How much counts that small accumulators read more from shared memory where a multiprocessor has 128 lanes."""
    menus: npt.NDArray[np.float32]
    """What to add to a tile's score: 0 on the menu, minus infinity off it, [kernels, layouts, tiles].

    On it are the tiles that an architecture's library has been seen to launch. Read off kernel names, never off times.
    """


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


@cache
def tile_rule() -> TileRule:
    """Return the rule in use."""
    return rule_of(read_constants("simt_tiles"))


def rule_of(values: Mapping[str, Any]) -> TileRule:
    """Read a rule from the layout of its file of constants."""
    tiles = [values["tiles"][name] for name in TILE_NAMES]
    menus = np.full((len(KERNELS), len(LAYOUTS), len(TILE_NAMES)), -np.inf, dtype=np.float32)
    for row, kernels in enumerate(KERNELS):
        for column, layout in enumerate(LAYOUTS):
            menus[row, column, [TILE_NAMES.index(name) for name in values["menus"][kernels][layout]]] = 0.0
    return TileRule(
        together=np.array([tile["together"] for tile in tiles], dtype=np.float32),
        merit=np.array([tile["merit"] for tile in tiles]),
        depth_area=values["depth_area"],
        depth_sliced=values["depth_sliced"],
        reads_weight=values["reads_weight"],
        menus=menus,
    )


def choose_tile(
    batch: Floats, m: Floats, n: Floats, k: Floats, contiguous: Codes, fleet: Fleet, rule: TileRule | None = None
) -> Codes:
    """Return the index of the tile that the library would launch: the least cost on the menu, by the rule in use.

    cost = ceil(w / g) * g * area / (merit * (k / 512)^depth): rounds of g blocks on each multiprocessor, with w tiles
    per multiprocessor. How often that is the tile launched, mlp_weights/train/simt_tiles.py prints.
    """
    rule = rule or tile_rule()
    depth = rule.depth_area * AREA + rule.depth_sliced * (SLICES > 1)
    rounds = rounds_of(batch, m, n, fleet, rule.together)
    merit = rule.merit - np.log(rule.together) - AREA + np.log(k / 512.0)[..., None] * depth
    reads = (rule.reads_weight * reads_cost(fleet)).astype(np.float32)
    listed = (rule.menus[sgemm_kernels(fleet)] - reads[..., None, :])[np.arange(len(fleet.sm_count)), contiguous]
    return np.asarray(np.argmax(merit.astype(np.float32) - np.log(rounds) + listed, axis=-1))


def rounds_of(
    batch: Floats, m: Floats, n: Floats, fleet: Fleet, together: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Return the rounds of `together` blocks on each multiprocessor that a product takes by tile, [n, tiles]."""
    count = np.ceil(n[..., None] / WIDTH) * np.ceil(m[..., None] / HEIGHT) * batch[..., None]
    each = (count / together).astype(np.float32) / fleet.sm_count.astype(np.float32)[..., None]
    return np.asarray(np.ceil(each))


def reads_cost(fleet: Fleet) -> Floats:
    """Return log cycles over FMA's own that reads from shared memory cost each tile, [GPU, tiles]."""
    reads = fleet.fp32_lanes_per_sm[..., None] / (19.0 * np.sqrt(np.minimum(PER_THREAD, 64.0)))
    return np.asarray(0.25 * np.log1p(reads**4))


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
