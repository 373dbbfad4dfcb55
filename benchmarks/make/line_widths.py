"""Measures whether intervals hold where all of a line of GPUs is missing, and whether families err together on a GPU.

Usage: python -m benchmarks.make.line_widths DATA_DIR [--model NAME]...

Needs torch and scipy; about ten minutes. Every op model is trained as mlp_weights/train does, without one chip and
without all chips of one line: boards with GDDR, boards with HBM, AMD. Its intervals, chosen from further chips left
out, predict the chips that are missing. `needed` is the factor on the half-widths that holds 90 % of a chip's rows, `h`
their mean, `bias` the mean of log(measured / predicted) of rows over 100 us. At the end: the factor that holds 90 % in
nine of ten cells of model and chip; the root mean square of `bias`; and how the `bias` of two models correlates over
the chips that both predict, each in units of its half-width: 1 where one GPU's errors are common to its families.

Last, the vector model without all measurements of one kind of kernel: the 90 % quantile of |log(measured / predicted)|
of that kind's rows over 20 us, mean and largest over GPUs.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from wavecast.analyzer.models.frame.intervals import half_width
from wavecast.analyzer.models.frame.problems import problem_columns, take_problems
from wavecast.analyzer.models.library import Fitted, fitted_of, prepare
from wavecast.analyzer.models.store import StoredModel, load_stored
from wavecast.analyzer.models.vector.problems import VectorKernel
from wavecast.mlp_weights.train.calibrate import HeldOut
from wavecast.mlp_weights.train.driver import RECIPES, SEED, assemble, find_recipe, fit_and_predict, load_pool
from wavecast.mlp_weights.train.recipe import Recipe
from wavecast.mlp_weights.train.variant import Pool, fill_host_floor, fit_variant, simulate_rows
from wavecast.specs.fleet import build_fleet

LINES: Mapping[str, tuple[str, ...]] = {
    "GDDR": ("GP104", "TU104", "AD102"),
    "HBM": ("GP100", "GV100", "GA100", "GH100", "GB100"),
    "AMD": ("Arcturus",),
}
"""Chips of the measured boards."""
COVERAGE = 0.9
LONG_NS = 100e3
SHORT_NS = 20e3
FEWEST_ROWS = 30
VECTOR = "vector"
KINDS: Mapping[str, tuple[VectorKernel, ...]] = {
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
    model: str
    missing: str
    is_line: bool
    chip: str
    needed: float
    half_width: float
    bias: float
    """NaN where few rows are long."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--model", action="append", choices=sorted(RECIPES))
    options = parser.parse_args()
    print(f"{'model':18} {'missing':9} {'chip':9} {'needed':>6} {'h':>5} {'bias':>6}")
    cells = []
    for name in options.model or RECIPES:
        for cell in cells_of(name, (options.data_dir,)):
            cells.append(cell)
            print(
                f"{name:18} {cell.missing:9} {cell.chip:9} {cell.needed:6.2f} {cell.half_width:5.2f} {cell.bias:6.2f}"
            )
    for title, is_line in (("one chip", False), ("a line", True)):
        print_cells(title, [cell for cell in cells if cell.is_line == is_line])
    print_shared([cell for cell in cells if not cell.is_line])
    if not options.model or VECTOR in options.model:
        print_kinds((options.data_dir,))


def cells_of(name: str, data: tuple[Path, ...]) -> Iterator[Cell]:
    recipe, pool = find_recipe(name), load_pool(name, data)
    lines = {line: frozenset(chips) & frozenset(pool.chips) for line, chips in LINES.items()}
    for missing, chips in (*((chip, frozenset({chip})) for chip in pool.chips), *lines.items()):
        if chips and len(frozenset(pool.chips) - chips) > 1:
            for chip, cell in _missing(name, data, recipe, pool, chips):
                yield Cell(model=name, missing=missing, is_line=missing in LINES, chip=chip, **cell)


def _missing(
    name: str, data: tuple[Path, ...], recipe: Recipe[Any], pool: Pool, chips: frozenset[str]
) -> Iterator[tuple[str, dict[str, float]]]:
    """Train without the chips as the weights are trained, and judge the result on each."""
    rest, start = frozenset(pool.chips) - chips, load_stored(name).arrays["theta"].astype(np.float64)
    wanted = [chips, *(chips | {chip} for chip in sorted(rest))]
    fits = {excluded: fit_and_predict(name, data, excluded, start) for excluded in wanted}
    arrays = assemble(recipe, pool, fits, chips)
    stored = StoredModel(name=name, variant="", arrays=arrays, trained_chips=rest)
    fitted, shrink = fitted_of(stored), float(arrays.get("network.shrink", np.zeros(1))[0])
    for item in fits[chips][1]:
        yield item.chip, _judge(pool, fitted, item, shrink, recipe.limit)


def _judge(pool: Pool, fitted: Fitted, item: HeldOut, shrink: float, limit: float) -> dict[str, float]:
    growth = prepare(fitted, build_fleet(pool.gpus)).growth[pool.gpu[item.rows]]
    width = half_width(fitted.interval, item.group, item.predicted_ns(shrink, limit), growth)
    residual, is_long = item.residual(shrink, limit), pool.measured_ns[item.rows] > LONG_NS
    enough = int(is_long.sum()) >= FEWEST_ROWS
    return {
        "needed": float(np.quantile(np.abs(residual) / width, COVERAGE)),
        "half_width": float(width.mean()),
        "bias": float(residual[is_long].mean()) if enough else float("nan"),
    }


def print_cells(title: str, cells: Sequence[Cell]) -> None:
    needed, bias = (np.array([getattr(cell, name) for cell in cells]) for name in ("needed", "bias"))
    print(
        f"without {title}: {len(cells)} cells, factor for nine of ten {np.quantile(needed, COVERAGE):.2f}, "
        f"bias {np.sqrt(np.nanmean(bias**2)):.3f} (root mean square)"
    )


def print_shared(cells: Sequence[Cell]) -> None:
    by_chip: dict[str, list[float]] = defaultdict(list)
    for cell in cells:
        if np.isfinite(cell.bias):
            by_chip[cell.chip].append(cell.bias / cell.half_width)
    pairs = np.array([pair for found in by_chip.values() for pair in combinations(found, 2)])
    if len(pairs):
        left, right = pairs.T
        alike = float(left @ right / np.sqrt((left @ left) * (right @ right)))
        print(f"{len(pairs)} pairs of models on one chip: correlation {alike:.2f}")


def print_kinds(data: tuple[Path, ...]) -> None:
    recipe, pool = find_recipe(VECTOR), load_pool(VECTOR, data)
    for name, kinds in KINDS.items():
        missing = np.isin(problem_columns(pool.problems)["kind"], kinds)
        variant = fit_variant(recipe, _take(pool, np.flatnonzero(~missing)), frozenset(), SEED)
        errors = []
        for gpu in np.unique(pool.gpu[missing]):
            rows = np.flatnonzero(missing & (pool.gpu == gpu) & (pool.measured_ns > SHORT_NS))
            if len(rows) >= FEWEST_ROWS:
                problems, _ = fill_host_floor(pool, rows)
                time_ns, _ = simulate_rows(recipe.model, variant.theta, problems, pool, rows)
                errors.append(np.quantile(np.abs(np.log(pool.measured_ns[rows] / time_ns)), COVERAGE))
        print(f"without {name}: {np.mean(errors):.2f} mean over {len(errors)} GPUs, {max(errors):.2f} largest")


def _take(pool: Pool, rows: npt.NDArray[np.int64]) -> Pool:
    columns = {name: getattr(pool, name)[rows] for name in ("gpu", "measured_ns", "share", "chip")}
    return replace(pool, problems=take_problems(pool.problems, rows), **columns)


if __name__ == "__main__":
    main()
