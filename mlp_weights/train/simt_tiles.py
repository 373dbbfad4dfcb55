"""Fit the rule by which cuBLAS chooses the tile of an fp32 product to the kernels that GPUs launched.

    python -m wavecast.mlp_weights.train.simt_tiles DATA [--first-collection] [--write]

The fp32 rows of ops/matmul.parquet carry the names of the kernels, which say their tiles. A menu holds the tiles that
the library of an architecture launched in more than 1 % of its products, by layout. The constants maximise the
likelihood of the tiles launched, log p = score / spread - log sum exp(score / spread) over the menu, each GPU and
layout counting alike. For given blocks per round the score is linear in all the others, so that Newton's method finds
the one best; blocks per round are searched one tile at a time, from those in use and from one block each.

Prints how often a rule names the tile launched, of the products whose tile the rule knows: the rule in use, the fitted
one, one fitted without the GPU (with its menu), and one whose menus never saw the GPU either (those of its
architecture's other GPUs, else all tiles of any other). `unknown` are products whose tile the rule does not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
import numpy.typing as npt

from ...analyzer.measurements.matmul_simt import load_samples
from ...analyzer.measurements.samples import Samples, pick, read_table
from ...analyzer.models.frame.problems import take_problems
from ...analyzer.models.matmul_simt.problems import MatmulSimtProblems
from ...analyzer.models.matmul_simt.tiles import (
    AREA,
    KERNELS,
    LAYOUTS,
    SLICES,
    TILE_NAMES,
    TileRule,
    choose_tile,
    reads_cost,
    rounds_of,
    rule_of,
    tile_rule,
)
from ...arrays import Codes, Floats, Rows
from ...specs.fleet import Fleet, build_fleet, take_gpus
from ...specs.generations import SgemmKernels, sgemm_kernels
from ...specs.gpu import chip_of
from .constants import FittedConstants, Program, data_argument, hash_files, save_constants, write_options
from .first_collection import OPTION, first_collection_option, later_chips

NAME: Final = "simt_tiles"
OTHER: Final = KERNELS[SgemmKernels.OTHER]
TABLE: Final = "ops/matmul.parquet"
ABOUT: Final = (
    "Which tile cuBLAS launches for an fp32 product on vector units. tiles: together, the blocks per multiprocessor "
    "that count as one round, and merit, the log efficiency that the library seems to credit a tile with. depth_area, "
    "depth_sliced: how much a long k favours large and sliced tiles. reads_weight: how much counts that small "
    "accumulators read more from shared memory. menus: tiles seen in more than 1 % of an architecture's products, by "
    "layout; `other` is declared. counts: products by GPU."
)
MODEL: Final = "matmul_simt"
OTHER_MENU: Final = TILE_NAMES[:5]
"""Declared for what no names tell of: all tiles but the sliced ones."""
LEAST_SHARE: Final = 0.01
TOGETHER: Final = (1, 2, 4, 8)
ROWS_PER_CELL: Final = 1500
"""Of a GPU and layout, for the fit; the first by `Samples.share`, the same shapes on every GPU."""
RIDGE: Final = 1e-6
"""Holds what adds the same to every tile."""
UNKNOWN, UNNAMED = -1, -2
_NAME: Final = re.compile(r"(?:sgemm_|tilesize)(\d+x\d+)(?:x8_|_8x\d)?(_sliced1x4)?")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Launched:
    """Hold n products and the tiles that GPUs launched for them."""

    samples: Samples[MatmulSimtProblems]
    tile: Codes
    """Row of `TILE_NAMES`, UNKNOWN or UNNAMED, [n]."""

    def rows_of(self, gpu: int) -> Rows:
        """Return the products of a GPU whose tile is known."""
        return np.flatnonzero((self.samples.gpu == gpu) & (self.tile >= 0))

    def fleet(self, rows: Rows) -> Fleet:
        """Return one GPU per row."""
        return take_gpus(build_fleet(self.samples.gpus), self.samples.gpu[rows])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choices:
    """Hold what the choice among tiles is fitted on: n products, [n, tiles, columns]."""

    problems: MatmulSimtProblems
    fleet: Fleet
    tile: Codes
    weight: Floats
    """Sums to 1, each GPU and layout alike."""
    is_listed: npt.NDArray[np.bool_]
    """[n, tiles]: on the menu."""
    columns: Floats
    """What merits, depth_area, depth_sliced and reads_weight are multiplied with, 0 off the menu."""


@click.command(cls=Program, help=__doc__)
@data_argument
@first_collection_option
@write_options
def main(data: Path, first_collection: bool, write: bool, keep: str | None) -> None:
    """Print how often rules name the tile, by GPU."""
    launched = read_launched(data)
    known = fitted_gpus(launched, first_collection)
    values = fit_rule(launched, known)
    header = f"{'GPU':24}{'products':>9}{'unknown':>9}{'in use':>8}{'fitted':>8}{'left out':>9}{'menu too':>9}"
    click.echo(header)
    rows_by_gpu = {gpu: launched.rows_of(gpu) for gpu in range(len(launched.samples.gpus))}
    shares = {
        gpu: _print_gpu(launched, known, gpu, rows, rule_of(values)) for gpu, rows in rows_by_gpu.items() if len(rows)
    }
    means = np.mean([shares[gpu] for gpu in known], axis=0)
    click.echo(f"{'mean of those fitted':42}" + "".join(f"{share:>8.1%} " for share in means.tolist()).rstrip())
    click.echo(f"{ {key: item for key, item in values.items() if key != 'menus'} }")
    if write:
        counts = {launched.samples.gpus[gpu].name: len(launched.rows_of(gpu)) for gpu in known}
        fitted = FittedConstants(values=values, counts=counts, inputs=hash_files(data, [data / TABLE]))
        save_constants(NAME, ABOUT, fitted, options=OPTION if first_collection else "", keep=keep)


def _print_gpu(launched: Launched, known: Sequence[int], gpu: int, rows: Rows, fitted: TileRule) -> list[float]:
    """Print and return the agreement of the rules on a GPU; those without it are NaN where it was not fitted."""
    shares = [agreement(launched, rows, tile_rule()), agreement(launched, rows, fitted), np.nan, np.nan]
    if gpu in known:
        others = [other for other in known if other != gpu]
        values = fit_rule(launched, others, is_quick=True)
        unseen = values | {"menus": unseen_menus(launched, others)}
        seen = values | {"menus": menus_of(launched, known)}
        shares[2:] = [agreement(launched, rows, rule_of(rule)) for rule in (seen, unseen)]
    named = (launched.samples.gpu == gpu) & (launched.tile != UNNAMED)
    unknown = float(np.mean(launched.tile[named] == UNKNOWN))
    cells = "".join(f"{share:>8.1%} " if np.isfinite(share) else f"{'–':>8} " for share in shares)
    click.echo(f"{launched.samples.gpus[gpu].name:24}{int(named.sum()):>9}{unknown:>9.1%}{cells}".rstrip())
    return shares


def read_launched(data: Path) -> Launched:
    """Read the products and their tiles."""
    (samples,) = load_samples(data)
    table = read_table(data / TABLE, ["dtype", "suspect", "kernel"])
    table = pick(table, (table["dtype"].astype(str) == "fp32") & ~table["suspect"].astype(bool))
    names, index = np.unique(table["kernel"].astype(str), return_inverse=True)
    return Launched(samples=samples, tile=np.array([tile_of(name) for name in names.tolist()])[index])


def tile_of(kernel: str) -> int:
    """Return the row of the tile that a kernel's name says; UNKNOWN where the rule has none such."""
    found = _NAME.search(kernel)
    if found is None:
        return UNNAMED
    name = found[1] + (found[2] or "")
    return TILE_NAMES.index(name) if name in TILE_NAMES else UNKNOWN


def fitted_gpus(launched: Launched, first_collection: bool) -> list[int]:
    """Return the GPUs whose names the rule is fitted to."""
    later = later_chips(MODEL) if first_collection else frozenset()
    gpus = enumerate(launched.samples.gpus)
    return [row for row, gpu in gpus if chip_of(gpu) not in later and len(launched.rows_of(row))]


def agreement(launched: Launched, rows: Rows, rule: TileRule) -> float:
    """Return the share of products whose tile a rule names."""
    p, fleet = take_problems(launched.samples.problems, rows), launched.fleet(rows)
    return float(np.mean(choose_tile(p.batch, p.m, p.n, p.k, p.contiguous, fleet, rule) == launched.tile[rows]))


def menus_of(launched: Launched, gpus: Sequence[int]) -> dict[str, dict[str, list[str]]]:
    """Return the tiles of each architecture and layout, its GPUs counting alike; none where no GPU tells."""
    menus: dict[str, dict[str, list[str]]] = {name: {layout: [] for layout in LAYOUTS} for name in KERNELS}
    for code, layouts in enumerate(menus.values()):
        for layout, name in enumerate(LAYOUTS):
            shares = [share for kernels, share in _tile_shares(launched, gpus, layout) if kernels == code]
            mean = np.mean(shares, axis=0) if shares else np.zeros(len(TILE_NAMES))
            layouts[name] = [tile for tile, share in zip(TILE_NAMES, mean, strict=True) if share > LEAST_SHARE]
    menus[OTHER] = {layout: list(OTHER_MENU) for layout in LAYOUTS}
    return menus


def _tile_shares(launched: Launched, gpus: Sequence[int], layout: int) -> Iterator[tuple[int, Floats]]:
    """Yield the architecture of each GPU, as a row of `KERNELS`, and the shares of its tiles in one layout."""
    kernels = sgemm_kernels(build_fleet(launched.samples.gpus))
    for gpu in gpus:
        rows = launched.rows_of(gpu)
        tile = launched.tile[rows][launched.samples.problems.contiguous[rows] == layout]
        yield int(kernels[gpu]), np.bincount(tile, minlength=len(TILE_NAMES)) / max(len(tile), 1)


def unseen_menus(launched: Launched, gpus: Sequence[int]) -> dict[str, dict[str, list[str]]]:
    """Return menus in which an architecture without a GPU has every tile of any other."""
    menus = menus_of(launched, gpus)
    for layout in LAYOUTS:
        seen = {tile for name in KERNELS if name != OTHER for tile in menus[name][layout]}
        for name in KERNELS:
            menus[name][layout] = menus[name][layout] or [tile for tile in TILE_NAMES if tile in seen]
    return menus


def fit_rule(launched: Launched, gpus: Sequence[int], *, is_quick: bool = False) -> dict[str, Any]:
    """Return the values of a rule fitted to the kernels of some GPUs; `is_quick`: from the blocks in use alone."""
    menus = menus_of(launched, gpus)
    choices = choices_of(launched, gpus, menus)
    starts = [tile_rule().together.astype(np.float64), *([] if is_quick else [np.ones(len(TILE_NAMES))])]
    _, together, vector = max((search_together(choices, start) for start in starts), key=lambda found: found[0])
    return values_of(together, vector) | {"menus": menus}


def values_of(together: Floats, vector: Floats) -> dict[str, Any]:
    """Return blocks per round and (1, constants) / spread in the layout of the file, merits around 0; no menus."""
    constants = vector[1:] / vector[0]
    merit = constants[: len(TILE_NAMES)] - constants[: len(TILE_NAMES)].mean()
    depth_area, depth_sliced, reads_weight = (round(float(value), 2) for value in constants[len(TILE_NAMES) :])
    return {
        "tiles": {
            name: {"together": int(blocks), "merit": round(float(value), 2)}
            for name, blocks, value in zip(TILE_NAMES, together, merit, strict=True)
        },
        "depth_area": depth_area,
        "depth_sliced": depth_sliced,
        "reads_weight": reads_weight,
    }


def choices_of(launched: Launched, gpus: Sequence[int], menus: Mapping[str, Mapping[str, Sequence[str]]]) -> Choices:
    """Return a sample of what the GPUs launched from their menus."""
    listed = np.array(
        [[[tile in menus[name][layout] for tile in TILE_NAMES] for layout in LAYOUTS] for name in KERNELS]
    )
    kernels = sgemm_kernels(build_fleet(launched.samples.gpus))
    contiguous, share = launched.samples.problems.contiguous, launched.samples.share
    cells = []
    for gpu in gpus:
        rows = launched.rows_of(gpu)
        rows = rows[listed[kernels[gpu], contiguous[rows], launched.tile[rows]]]
        for layout in range(len(LAYOUTS)):
            mine = rows[contiguous[rows] == layout]
            cells.append(mine[np.argsort(share[mine], kind="stable")[:ROWS_PER_CELL]])
    rows = np.concatenate(cells)
    weight = np.concatenate([np.full(len(cell), 1.0 / max(len(cell), 1)) for cell in cells])
    fleet, problems = launched.fleet(rows), take_problems(launched.samples.problems, rows)
    is_listed = listed[sgemm_kernels(fleet), problems.contiguous]
    depth = np.log(problems.k / 512.0)[:, None]
    merits = np.broadcast_to(np.eye(len(TILE_NAMES)), (len(rows), len(TILE_NAMES), len(TILE_NAMES)))
    others = np.stack(np.broadcast_arrays(depth * AREA, depth * (SLICES > 1), -reads_cost(fleet)), axis=-1)
    return Choices(
        problems=problems,
        fleet=fleet,
        tile=launched.tile[rows],
        weight=weight / weight.sum(),
        is_listed=is_listed,
        columns=np.concatenate([merits, others], axis=-1) * is_listed[..., None],
    )


def search_together(choices: Choices, start: Floats) -> tuple[float, Floats, Floats]:
    """Return log likelihood, blocks per round and the other constants of the best rule, one tile changed at a time."""
    together = start
    best, vector = fit_constants(choices, together, None)
    is_moving = True
    while is_moving:
        is_moving = False
        for tile in range(len(TILE_NAMES)):
            for blocks in TOGETHER:
                trial = together.copy()
                trial[tile] = blocks
                found, there = fit_constants(choices, trial, vector)
                if found > best + 1e-5:
                    best, vector, together, is_moving = found, there, trial, True
    return best, together, vector


def fit_constants(choices: Choices, together: Floats, near: Floats | None) -> tuple[float, Floats]:
    """Return the greatest log likelihood and the vector (1, constants) / spread that reaches it."""
    p = choices.problems
    rounds = rounds_of(p.batch, p.m, p.n, choices.fleet, together.astype(np.float32))
    given = (-np.log(together) - AREA - np.log(rounds)) * choices.is_listed
    columns = np.concatenate([given[..., None], choices.columns], axis=-1)
    launched = columns[np.arange(len(choices.tile)), choices.tile]
    vector = np.eye(1, columns.shape[-1])[0] if near is None else near
    value, share = _likelihood(choices, columns, vector)
    for _ in range(60):
        mean = np.einsum("it,itj->ij", share, columns)
        slope = choices.weight @ (launched - mean) - RIDGE * vector
        spread = (columns * np.sqrt(share * choices.weight[:, None])[..., None]).reshape(-1, columns.shape[-1])
        weighted = mean * np.sqrt(choices.weight)[:, None]
        step = np.linalg.solve(spread.T @ spread - weighted.T @ weighted + RIDGE * np.eye(len(vector)), slope)
        while (found := _likelihood(choices, columns, vector + step))[0] < value and np.abs(step).max() > 1e-6:
            step /= 2
        gain = found[0] - value
        if gain > 0:
            vector, (value, share) = vector + step, found
        if gain < 1e-7:
            break
    return value, vector


def _likelihood(choices: Choices, columns: Floats, vector: Floats) -> tuple[float, Floats]:
    """Return the mean log likelihood, less the ridge, and each tile's probability, [n, tiles]."""
    score = np.where(choices.is_listed, columns @ vector, -np.inf)
    score -= score.max(axis=1, keepdims=True)
    share = np.exp(score)
    total = share.sum(axis=1)
    log_share = score[np.arange(len(score)), choices.tile] - np.log(total)
    return float(choices.weight @ log_share - RIDGE / 2 * vector @ vector), share / total[:, None]


if __name__ == "__main__":
    main()
