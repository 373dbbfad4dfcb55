"""The library's choice of a tile for an fp32 product: that of least time among those that it has for a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from ....arrays import Codes, Floats, Rows
from ....specs.fleet import Fleet, take_gpus
from ....specs.generations import sgemm_kernels
from ....specs.product_kernels import SgemmKernels
from ..frame.parameters import Values
from ..frame.problems import take_problems
from .problems import MatmulSimtProblems
from .tiles import MENUS, TILE_NAMES

TimeOf = Callable[[MatmulSimtProblems, Fleet, Values, Codes], Floats]
"""(problems, fleet, parameters, tile) -> seconds of the kernel."""
ONE_PRODUCT: Final = 1.0 + 1e-9
"""A batch of one whose k no library splits."""


def choose_tile(problems: MatmulSimtProblems, fleet: Fleet, values: Values, time_of: TimeOf) -> Codes:
    """Return the row of the tile of least time on each GPU's menu, [n, m], or [n] on a paired fleet.

    A GPU that is better in some figure is not slower by its choice: what it chooses costs no more than what the other
    one chose. Tensile, AMD's, looks its tile up by the sizes of one product, however many the batch holds (seen in the
    names of MI100's kernels, the only ones at hand).
    """
    is_grid = problems.m.ndim == 2
    found = np.zeros(np.broadcast_shapes(problems.m.shape, fleet.sm_count.shape), dtype=np.int64)
    for kernels, rows, gpus, tiles in _menus(problems, fleet):
        mine = rows if is_grid else np.intersect1d(rows, gpus)
        here = gpus if is_grid else mine
        if not len(mine) or not len(here):
            continue
        some, values_here = take_gpus(fleet, here), {name: value[here] for name, value in values.items()}
        asked = take_problems(problems, mine)
        if kernels == SgemmKernels.AMD_MATRIX:
            asked = replace(asked, batch=np.minimum(asked.batch, ONE_PRODUCT))
        best = np.full(np.broadcast_shapes(asked.m.shape, here.shape), tiles[0])
        if len(tiles) > 1:
            least = time_of(asked, some, values_here, np.array(tiles[0]))
            for tile in tiles[1:]:
                time_s = time_of(asked, some, values_here, np.array(tile))
                best, least = np.where(time_s < least, tile, best), np.minimum(time_s, least)
        found[np.ix_(mine, here) if is_grid else mine] = best
    return found


def _menus(problems: MatmulSimtProblems, fleet: Fleet) -> Iterator[tuple[SgemmKernels, Rows, Rows, tuple[int, ...]]]:
    """Yield each menu's library, problems, GPUs and tiles."""
    library = sgemm_kernels(fleet)
    layout = np.ravel(np.where(problems.batch > 1, 0, 1 + problems.contiguous))
    for code in np.unique(library).tolist():
        kernels = SgemmKernels(code)
        for row in np.unique(layout).tolist():
            tiles = tuple(TILE_NAMES.index(name) for name in MENUS[kernels][row])
            yield kernels, np.flatnonzero(layout == row), np.flatnonzero(library == code), tiles
