"""Tiles of matrix products on matrix units: all, and the few of kernels for quantised operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final

import numpy as np

from ....arrays import Codes, Floats, Mask
from ....records import dataclass, replace
from ....specs.product_kernels import QuantizedKernels
from .problems import MatmulKernel, MatmulProblems


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RuledTiles:
    """Hold what a library's rule says of each problem on each GPU; columns that broadcast together."""

    is_ruled: Mask
    """False: no rule is known, and the best of all tiles is assumed."""
    height: Floats
    width: Floats
    resident: Floats
    """Blocks that share a multiprocessor."""
    traffic: Floats
    """Bytes asked of the second-level cache over those that blocks would ask for by themselves."""
    reread: Floats
    """Bytes that a wave of blocks covers over those of a wave as square as it can be."""
    kept: Floats
    """Share of the operands that the cache must hold so that no wave rereads them from DRAM."""
    overlap: Floats
    """Of the overlap of one tile's epilogue with the next one's main loop, what the kernel has."""

    across: Floats
    """Blocks of a cluster that lie side by side, and so share rows of the left operand."""
    down: Floats
    """Blocks of a cluster that lie one above the other, and so share columns of the right operand."""

    def apply(self, p: MatmulProblems, launch: MatmulLaunch) -> MatmulLaunch:
        """Return the launches with the ruled ones in place of those that were chosen; rules never split."""
        height = np.where(self.is_ruled, self.height, launch.height)
        width = np.where(self.is_ruled, self.width, launch.width)
        split = np.where(self.is_ruled, 1.0, launch.split)
        return replace(
            launch,
            height=height,
            width=width,
            split=split,
            tiles=_whole(p.m / height, self.down) * _whole(p.n / width, self.across) * p.batch,
            resident=np.where(self.is_ruled, self.resident, launch.resident),
            depth=p.k / split,
        )


def _whole(tiles: Floats, cluster: Floats) -> Floats:
    """Return tiles rounded up to whole clusters."""
    return np.asarray(np.ceil(tiles / cluster) * cluster)


class Order(IntEnum):
    """Name the order in which blocks go through the tiles of the result."""

    SQUARE = 0
    """Several rows and columns of tiles at a time."""
    DOWN = 1
    """Column by column."""
    SHORT = 2
    """Along the side with fewer tiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """Hold the tile of all problems up to `rows` rows."""

    rows: float = np.inf
    height: float
    width: float
    across: float = 1.0
    down: float = 1.0
    resident: float = 1.0


RUNG: Final = ("height", "width", "across", "down", "resident")
Rule = Callable[[MatmulProblems, Floats], Mapping[str, Floats]]
"""(problems, multiprocessors) -> columns of `RuledTiles` by name; 1 where nothing is said."""


def _ladder(order: Order, *rungs: Rung) -> Rule:
    """Return the rule that chooses by m alone."""
    edges = np.array([rung.rows for rung in rungs[:-1]])
    columns = {name: np.array([getattr(rung, name) for rung in rungs]) for name in RUNG}

    def rule(p: MatmulProblems, sm_count: Floats) -> Mapping[str, Floats]:
        row = np.searchsorted(edges, p.m, side="left")
        said = {name: column[row] for name, column in columns.items()}
        said["traffic"] = _traffic(p, said["height"], said["width"], said["across"], said["down"])
        return {**said, **_ordered(order, p, said["height"], said["width"], sm_count)}

    return rule


def _traffic(p: MatmulProblems, height: Floats, width: Floats, across: Floats, down: Floats) -> Floats:
    """Return bytes that clusters ask for over those of every block's whole tile: rows beyond the last are not read."""
    rows, columns = _whole(p.m / height, down), _whole(p.n / width, across)
    asked = p.m * p.left_bytes * columns / across + p.n * p.right_bytes * rows / down
    return np.asarray(asked / (rows * columns * (height * p.left_bytes + width * p.right_bytes)))


def _ordered(order: Order, p: MatmulProblems, height: Floats, width: Floats, sm_count: Floats) -> Mapping[str, Floats]:
    """Return what the order of blocks means for rereading operands.

    Blocks that go along one side pass by all of its operand before they come to it again.
    """
    if order is Order.SQUARE:
        return {}
    rows, columns = np.ceil(p.m / height), np.ceil(p.n / width)
    active = np.minimum(rows * columns * p.batch, sm_count)
    is_down = (rows <= columns) if order is Order.SHORT else np.ones(1, dtype=bool)
    along = np.where(is_down, np.minimum(rows, active), np.minimum(columns, active))
    across = np.maximum(active / along, 1.0)
    high, wide = np.where(is_down, along, across), np.where(is_down, across, along)
    covered = high * height * p.left_bytes + wide * width * p.right_bytes
    left, right = p.m * p.left_bytes, p.n * p.right_bytes
    return {
        "reread": covered / (np.sqrt(active) * (height * p.left_bytes + width * p.right_bytes)),
        "kept": np.where(is_down, left, right) / (left + right),
    }


DEEP_SWAPPED_BELOW: Final = 32.0
DEEP_WIDTHS: Final = np.arange(16.0, 129.0, 8.0)
DEEP_SHARED_FROM: Final = 1024.0


def _deep_gemm(p: MatmulProblems, sm_count: Floats) -> Mapping[str, Floats]:
    """Return DeepGEMM's tiles on Hopper, as TensorRT-LLM calls it.

    Tiles have 64 rows up to 64 rows, else 128; of the widths it takes the one with fewest waves, then the fullest last
    wave, then the narrowest. Fewer than 32 rows lie across instead. Two blocks share rows from 1,024 rows on. A block
    writes its tile before it begins the next.
    """
    is_swapped = p.m < DEEP_SWAPPED_BELOW
    long, short = np.where(is_swapped, p.n, p.m), np.where(is_swapped, p.m, p.n)
    side = np.where(long <= 64.0, 64.0, 128.0)
    blocks = (np.ceil(long / side) * p.batch)[..., None] * np.ceil(short[..., None] / DEEP_WIDTHS)
    sms = sm_count[..., None]
    waves = np.ceil(blocks / sms)
    last = blocks - (waves - 1.0) * sms
    width = DEEP_WIDTHS[np.argmin(waves * (2.0 * sms) - last, axis=-1)]
    is_shared = (p.m >= DEEP_SHARED_FROM) & (p.n % (2.0 * width) == 0.0)
    return {
        "height": np.where(is_swapped, width, side),
        "width": np.where(is_swapped, side, width),
        "traffic": np.where(is_shared, 0.5 * side + width, side + width) / (side + width),
        "across": np.where(is_shared, 2.0, 1.0),
        "overlap": np.zeros(1),
    }


WIDE_WIDTHS: Final = np.array([64.0, 128.0, 256.0])


def _high_tiles(p: MatmulProblems, sm_count: Floats) -> Mapping[str, Floats]:
    """Return tiles of 128 rows, as wide as goes with the fewest columns of tiles one after the other."""
    blocks = (np.ceil(p.m / 128.0) * p.batch)[..., None] * np.ceil(p.n[..., None] / WIDE_WIDTHS)
    waves = np.maximum(blocks / sm_count[..., None], 1.0)
    width = WIDE_WIDTHS[np.argmin(waves * (WIDE_WIDTHS + WIDE_WIDTHS[0]), axis=-1)]
    return {"height": np.full(1, 128.0), "width": width, "traffic": np.full(1, 2.0 / 3.0)}


GROUPED_ROWS: Final = 128.0
"""Rows or columns of a group up to which torch's grouped product takes its small tile."""


def _grouped_mm(p: MatmulProblems, _: Floats) -> Mapping[str, Floats]:
    """Return the tiles of torch's grouped products on Hopper (`GroupMM.cu`, BSD-3-Clause; figures only).

    Two blocks, one above the other, share columns. The large tile's epilogues overlap with no main loop.
    """
    is_small = (p.m <= GROUPED_ROWS) | (p.n <= GROUPED_ROWS)
    height, width = np.where(is_small, 64.0, 128.0), np.where(is_small, 128.0, 256.0)
    said = {"height": height, "width": width, "down": np.full(1, 2.0), "overlap": np.where(is_small, 1.0, 0.0)}
    return {**said, "traffic": _traffic(p, height, width, np.ones(1), said["down"])}


RULES: Final[Mapping[tuple[MatmulKernel, QuantizedKernels], Rule]] = {
    (MatmulKernel.FP8, QuantizedKernels.ADA): _ladder(
        Order.DOWN,
        Rung(rows=16, height=16, width=64),
        Rung(rows=64, height=32, width=64),
        Rung(rows=128, height=64, width=64, resident=2),
        Rung(rows=256, height=128, width=64, resident=2),
        Rung(height=128, width=128, resident=2),
    ),
    (MatmulKernel.FP8, QuantizedKernels.HOPPER): _ladder(
        Order.SHORT,
        Rung(rows=64, height=64, width=64, across=4),
        Rung(rows=256, height=64, width=64),
        Rung(rows=1024, height=128, width=128),
        Rung(height=128, width=128, down=2),
    ),
    (MatmulKernel.FP8, QuantizedKernels.BLACKWELL): _ladder(
        Order.SHORT,
        Rung(rows=16, height=64, width=64, across=4),
        Rung(rows=64, height=64, width=64),
        Rung(rows=256, height=64, width=128, down=2),
        Rung(height=128, width=128, across=2, down=2),
    ),
    (MatmulKernel.FP8, QuantizedKernels.GB20X): _ladder(Order.SHORT, Rung(height=128, width=128)),
    (MatmulKernel.FP8_BLOCK, QuantizedKernels.ADA): _ladder(Order.DOWN, Rung(height=32, width=128)),
    (MatmulKernel.FP8_BLOCK, QuantizedKernels.HOPPER): _deep_gemm,
    (MatmulKernel.FP8_BLOCK, QuantizedKernels.GB20X): _ladder(
        Order.SQUARE, Rung(rows=64, height=64, width=64), Rung(height=128, width=64)
    ),
    (MatmulKernel.PLAIN, QuantizedKernels.HOPPER): _grouped_mm,
    (MatmulKernel.FP4, QuantizedKernels.BLACKWELL): _high_tiles,
    (MatmulKernel.FP4, QuantizedKernels.GB20X): _ladder(Order.SHORT, Rung(height=128, width=128)),
}
"""Public kernels' own rules, no fits (all Apache-2.0; figures only). fp8: sgl-kernel's `fp8_gemm_kernel.cu` for compute
capability 8.9, 9.0 and 10.0 (where 256 x 128 over two multiprocessors is 128 x 128 on each); on 12.x the one tile that
vLLM's and FlashInfer's CUTLASS have. Blocks: TensorRT-LLM's `fp8_blockscale_gemm_kernel.cuh`; those of 12.x after the
step that GB202's times have at 64 rows (chosen with that chip in sight)."""

UNSAID: Final = ("resident", "traffic", "reread", "kept", "overlap", "across", "down")


def ruled_tiles(p: MatmulProblems, kernels: Codes, sm_count: Floats) -> RuledTiles:
    """Return what the rules say of each problem on each GPU."""
    is_ruled: Mask = np.zeros(1, dtype=bool)
    columns: dict[str, Floats] = {"height": np.full(1, 128.0), "width": np.full(1, 128.0)}
    columns |= {name: np.ones(1) for name in UNSAID}
    for (kind, library), rule in RULES.items():
        here = (p.kind == kind) & (kernels == library) & ((p.grouped > 0) | (kind != MatmulKernel.PLAIN))
        if here.any():
            columns |= {name: np.where(here, said, columns[name]) for name, said in rule(p, sm_count).items()}
            is_ruled = is_ruled | here
    return RuledTiles(is_ruled=is_ruled, **columns)


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
FULL_SIDE: Final = 128.0
"""Beyond this side a larger tile reuses operands no better within its shared memory."""
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
    return MatmulLaunch(height=height, width=width, split=split, tiles=tiles, resident=RESIDENT[tile], depth=k / split)
