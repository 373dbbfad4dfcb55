"""Measure whether intervals hold where all of a line of GPUs is missing, and whether families err together on a GPU.

    python -m wavecast.mlp_weights.train.line_widths DATA [--model NAME]...

Every op model is trained as the weights are, without one chip and without all chips of one line: boards with GDDR,
boards with HBM, AMD. Its intervals, chosen from further chips left out, predict the chips that are missing. `needed` is
the factor on the half-widths that holds 90 % of a chip's rows, `h` their mean, `bias` the mean of
log(measured / predicted) of rows over 100 us. At the end: the factor that holds 90 % in nine of ten cells of model and
chip; the root mean square of `bias`; and how the `bias` of two models correlates over the chips that both predict, each
in units of its half-width: 1 where one GPU's errors are common to its families.

Last, the vector model without all measurements of one kind of kernel: the 90 % quantile of |log(measured / predicted)|
of that kind's rows over 20 us, mean and largest over GPUs.

Fits nothing: the evidence for what half_widths.py declares, that of NVIDIA's lines a missing one asks for no wider rule
than a missing chip, and a missing vendor for `FOREIGN_FACTOR`. About ten minutes of CPU time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from ...analyzer.models.frame.intervals import half_width
from ...analyzer.models.frame.problems import problem_columns, take_problems
from ...analyzer.models.library import Fitted, fitted_of, prepare
from ...analyzer.models.store import StoredModel, load_stored
from ...analyzer.models.vector.problems import VectorKernel
from ...errors import InputError
from ...records import dataclass, replace
from ...specs.fleet import build_fleet
from .calibrate import COVERAGE, HeldOut
from .constants import Program, data_argument
from .driver import RECIPES, SEED, assemble, fit_and_predict, load_pool
from .recipe import Recipe, find_recipe
from .variant import Pool, fill_host_floor, fit_variant, simulate_rows

LINES: Final[Mapping[str, tuple[str, ...]]] = {
    "GDDR": ("GP104", "TU104", "AD102", "GB202"),
    "HBM": ("GP100", "GV100", "GA100", "GH100", "GB100"),
    "AMD": ("Arcturus",),
}
"""Chips of the measured boards."""
LONG_NS: Final = 100e3
SHORT_NS: Final = 20e3
FEWEST_ROWS: Final = 30
VECTOR: Final = "vector"
KINDS: Final[Mapping[str, tuple[VectorKernel, ...]]] = {
    "elementwise": (VectorKernel.ELEMENTWISE,),
    "layer norm": (VectorKernel.ROW_NORM,),
    "softmax": (VectorKernel.SOFTMAX,),
    "gather": (VectorKernel.GATHER, VectorKernel.GATHER_SHARD),
    "RMS norm": (VectorKernel.TOKEN_NORM,),
    "activation": (VectorKernel.TOKEN_GATED, VectorKernel.TOKEN_GELU),
    "rotary embedding": (VectorKernel.TOKEN_ROPE,),
    "quantise": (VectorKernel.QUANTIZE, VectorKernel.QUANTIZE_DYNAMIC),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Hold what a model that never saw some chips says of one of them."""

    model: str
    missing: str
    is_line: bool
    chip: str
    needed: float
    half_width: float
    bias: float
    """NaN where few rows are long."""


@click.command(cls=Program, help=__doc__)
@data_argument
@click.option("--model", "models", multiple=True, type=click.Choice(sorted(RECIPES)))
def main(data: Path, models: tuple[str, ...]) -> None:
    """Print every cell, then the figures."""
    click.echo(f"{'model':18} {'missing':9} {'chip':9} {'needed':>6} {'h':>5} {'bias':>6}")
    cells = []
    for name in models or RECIPES:
        for cell in cells_of(name, data):
            cells.append(cell)
            click.echo(
                f"{name:18} {cell.missing:9} {cell.chip:9} {cell.needed:6.2f} {cell.half_width:5.2f} {cell.bias:6.2f}"
            )
    values = figures_of(cells)
    if not models or VECTOR in models:
        values["without_kind"] = dict(kind_errors(data))
    for key, value in values.items():
        click.echo(f"{key}: {value}")


def cells_of(name: str, data: Path) -> Iterator[Cell]:
    """Yield the cells of one model: every chip missing alone, and with its line."""
    recipe, pool = find_recipe(name), load_pool(name, (data,))
    known = frozenset(pool.chips)
    lines = {line: frozenset(chips) & known for line, chips in LINES.items()}
    for missing, chips in (*((chip, frozenset({chip})) for chip in sorted(known)), *lines.items()):
        if chips and len(known - chips) > 1:
            for chip, figures in _missing(name, data, recipe, pool, chips):
                yield Cell(model=name, missing=missing, is_line=missing in LINES, chip=chip, **figures)


def _missing(
    name: str, data: Path, recipe: Recipe[Any], pool: Pool, out: frozenset[str]
) -> Iterator[tuple[str, dict[str, float]]]:
    """Train without the chips as the weights are trained, and judge the result on each."""
    rest, start = frozenset(pool.chips) - out, load_stored(name).arrays["theta"].astype(np.float64)
    wanted = [out, *(out | {chip} for chip in sorted(rest))]
    fits = {excluded: fit_and_predict(name, (data,), excluded, start) for excluded in wanted}
    arrays = assemble(recipe, pool, fits, out)
    stored = StoredModel(name=name, variant="", arrays=arrays, trained_chips=rest)
    fitted, shrink = fitted_of(stored), float(arrays.get("network.shrink", np.zeros(1))[0])
    for item in fits[out][1]:
        yield item.chip, _judge(pool, fitted, item, shrink, recipe.limit)


def _judge(pool: Pool, fitted: Fitted, item: HeldOut, shrink: float, limit: float) -> dict[str, float]:
    factor = prepare(fitted, build_fleet(pool.gpus)).width_factor[:, pool.gpu[item.rows]]
    width = half_width(fitted.interval, item.group, item.predicted_ns(shrink, limit), factor)
    residual, is_long = item.residual(shrink, limit), pool.measured_ns[item.rows] > LONG_NS
    enough = int(is_long.sum()) >= FEWEST_ROWS
    return {
        "needed": float(np.quantile(np.abs(residual) / width, COVERAGE)),
        "half_width": float(width.mean()),
        "bias": float(residual[is_long].mean()) if enough else float("nan"),
    }


def figures_of(cells: Sequence[Cell]) -> dict[str, Any]:
    """Return what the cells say together: without a chip, without a line, and of two models on one chip."""
    figures: dict[str, Any] = {}
    for title, is_line in (("without_a_chip", False), ("without_a_line", True)):
        mine = [cell for cell in cells if cell.is_line == is_line]
        if mine:
            needed, bias = (np.array([getattr(cell, name) for cell in mine]) for name in ("needed", "bias"))
            factor, off = float(np.quantile(needed, COVERAGE)), float(np.sqrt(np.nanmean(bias**2)))
            figures[title] = {"needed_factor": round(factor, 2), "bias": round(off, 3), "cells": len(mine)}
    pairs = _biases_of_pairs([cell for cell in cells if not cell.is_line])
    if len(pairs):
        left, right = np.array(pairs).T
        alike = float(left @ right / np.sqrt((left @ left) * (right @ right)))
        figures["bias_correlation"] = {"of_models_on_a_chip": round(alike, 2), "pairs": len(pairs)}
    return figures


def _biases_of_pairs(cells: Sequence[Cell]) -> list[tuple[float, float]]:
    """Return the biases of every two models on one chip, in units of their half-widths."""
    by_chip: dict[str, list[float]] = defaultdict(list)
    for cell in cells:
        if np.isfinite(cell.bias):
            by_chip[cell.chip].append(cell.bias / cell.half_width)
    return [pair for found in by_chip.values() for pair in combinations(found, 2)]


def kind_errors(data: Path) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield by kind of vector kernel how far off the model is that never saw one."""
    recipe, pool = find_recipe(VECTOR), load_pool(VECTOR, (data,))
    for name, kinds in KINDS.items():
        missing = np.isin(problem_columns(pool.problems)["kind"], kinds)
        rest = np.flatnonzero(~missing)
        columns = {name: getattr(pool, name)[rest] for name in ("gpu", "measured_ns", "share", "chip")}
        others = replace(pool, problems=take_problems(pool.problems, rest), **columns)
        variant = fit_variant(recipe, others, frozenset(), SEED)
        errors = []
        for gpu in np.unique(pool.gpu[missing]):
            rows = np.flatnonzero(missing & (pool.gpu == gpu) & (pool.measured_ns > SHORT_NS))
            if len(rows) >= FEWEST_ROWS:
                problems, _ = fill_host_floor(pool, rows)
                time_ns, _ = simulate_rows(recipe.model, variant.theta, problems, pool, rows)
                errors.append(float(np.quantile(np.abs(np.log(pool.measured_ns[rows] / time_ns)), COVERAGE)))
        if not errors:
            raise InputError(f"no rows of {name} over {SHORT_NS / 1e3:.0f} us")
        yield name, {"mean": round(float(np.mean(errors)), 2), "largest": round(max(errors), 2), "gpus": len(errors)}


if __name__ == "__main__":
    main()
