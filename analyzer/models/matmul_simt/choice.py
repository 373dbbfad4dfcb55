"""The library's choice of a tile for an fp32 product: that of least time among those that it has for a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
"""(problems, fleet, parameters, choice) -> seconds of the kernel."""


def choose_tile(problems: MatmulSimtProblems, fleet: Fleet, values: Values, time_of: TimeOf) -> Codes:
    """Return the choice of least time on each GPU's menu, [n, m], or [n] on a paired fleet; `launch_of` reads it.

    A GPU that is better in some figure is not slower by its choice: what it chooses costs no more than what the other
    one chose. A single product's k may be split or not.
    """
    is_grid = problems.m.ndim == 2
    found = np.zeros(np.broadcast_shapes(problems.m.shape, fleet.sm_count.shape), dtype=np.int64)
    for rows, gpus, choices in _menus(problems, fleet):
        mine = rows if is_grid else np.intersect1d(rows, gpus)
        here = gpus if is_grid else mine
        if not len(mine) or not len(here):
            continue
        some, values_here = take_gpus(fleet, here), {name: value[here] for name, value in values.items()}
        asked = take_problems(problems, mine)
        best = np.full(np.broadcast_shapes(asked.m.shape, here.shape), choices[0])
        if len(choices) > 1:
            least = time_of(asked, some, values_here, np.array(choices[0]))
            for choice in choices[1:]:
                time_s = time_of(asked, some, values_here, np.array(choice))
                best, least = np.where(time_s < least, choice, best), np.minimum(time_s, least)
        found[np.ix_(mine, here) if is_grid else mine] = best
    return found


def _menus(problems: MatmulSimtProblems, fleet: Fleet) -> Iterator[tuple[Rows, Rows, tuple[int, ...]]]:
    """Yield each menu's problems, GPUs and choices."""
    library = sgemm_kernels(fleet)
    layout = np.ravel(np.where(problems.batch > 1, 0, 1 + problems.contiguous))
    for code in np.unique(library).tolist():
        for row in np.unique(layout).tolist():
            tiles = tuple(TILE_NAMES.index(name) for name in MENUS[SgemmKernels(code)][row])
            whole = tuple(tile + len(TILE_NAMES) for tile in tiles)
            yield np.flatnonzero(layout == row), np.flatnonzero(library == code), whole + tiles if row else whole
