"""The library's choice of a tile for an fp32 product: that of least time among those that it has for a GPU."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from ....arrays import Codes, Singles
from ....specs.fleet import Fleet
from ....specs.generations import sgemm_kernels
from ....specs.product_kernels import SgemmKernels
from .limits import run_of
from .pairs import SimtPairs, stack_pairs, take_pairs
from .problems import MatmulSimtProblems
from .tiles import LAYOUTS, MENUS, TILE_NAMES, launch_of, may_split

PAIRS_AT_ONCE: Final = 2048
"""Products on GPUs whose candidates stay in the processor's cache."""


def _numbered_menus() -> tuple[list[tuple[Codes, bool]], Codes]:
    """Return the different menus, each of tiles [t, 1] and whether k can be split, and the number of each library's."""
    numbers: dict[tuple[tuple[str, ...], bool], int] = {}
    table = np.zeros((len(SgemmKernels), len(LAYOUTS)), dtype=np.int64)
    for library, layouts in MENUS.items():
        for row, names in enumerate(layouts):
            table[library, row] = numbers.setdefault((names, row > 0), len(numbers))
    tiles = [(np.array([[TILE_NAMES.index(name)] for name in names]), can_split) for names, can_split in numbers]
    return tiles, table


_MENUS, _NUMBERS = _numbered_menus()


def choose_tile(problems: MatmulSimtProblems, fleet: Fleet, pairs: SimtPairs) -> Codes:
    """Return the choice of least time on each GPU's menu, [n, m], or [n] on a paired fleet; `launch_of` reads it.

    A GPU that is better in some figure is not slower by its choice: what it chooses costs no more than what the other
    one chose. A single product's k may be split or not. Times are compared in single precision.
    """
    layout = np.where(problems.batch > 1, 0, 1 + problems.contiguous)
    number = _NUMBERS[sgemm_kernels(fleet), layout]
    table = stack_pairs(pairs, number.shape)
    found = np.empty(number.size, dtype=np.int64)
    for menu, (tiles, can_split) in enumerate(_MENUS):
        asked = np.flatnonzero(number == menu)
        for start in range(0, len(asked), PAIRS_AT_ONCE):
            chosen = asked[start : start + PAIRS_AT_ONCE]
            found[chosen] = _least(table, chosen, tiles, can_split=can_split)
    return found.reshape(number.shape)


def _least(table: Singles, chosen: npt.NDArray[np.int64], tiles: Codes, *, can_split: bool) -> Codes:
    """Return the choice of least time of some pairs: k in one piece unless its parts are faster."""
    whole = tiles + len(TILE_NAMES)
    if len(tiles) == 1 and not can_split:
        return np.full(len(chosen), whole[0, 0])
    pairs = take_pairs(table, chosen)
    best, least = _fastest(pairs, whole)
    idle = np.flatnonzero(may_split(pairs)) if can_split else chosen[:0]
    if len(idle):
        split, time_s = _fastest(take_pairs(table, chosen[idle]), tiles)
        best[idle] = np.where(time_s < least[idle], split, best[idle])
    return best


def _fastest(pairs: SimtPairs, choices: Codes) -> tuple[Codes, Singles]:
    """Return the fastest of the choices [t, 1] of each pair, and its time."""
    time_s = np.asarray(run_of(pairs, launch_of(pairs, choices)).kernel_s, dtype=np.float32)
    row = np.argmin(time_s, axis=0)
    return choices[row, 0], np.take_along_axis(time_s, row[None], axis=0)[0]
