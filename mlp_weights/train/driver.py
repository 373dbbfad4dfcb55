"""Train a model: all chips, each chip left out, and pairs left out, from which the rest is calibrated."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...analyzer.measurements.readers import by_library, table_of
from ...analyzer.measurements.samples import has_rows
from ...analyzer.models.frame.correction import correct
from ...analyzer.models.frame.intervals import GPU_CLASSES, SIZE_EDGES_NS, gpu_positions
from ...analyzer.models.frame.model import group_of
from ...analyzer.models.frame.parameters import resolve, theta_size
from ...analyzer.models.frame.problems import problem_columns, take_problems
from ...analyzer.models.registry import OP_MODELS, load_model
from ...analyzer.models.store import save_model, variant_name
from ...analyzer.questions.score.rows import mixed_keys
from ...arrays import Floats
from ...errors import InputError
from ...specs.catalog import load_catalog
from ...specs.fleet import build_fleet
from ...specs.gpu import chip_of
from .calibrate import HeldOut, choose_shrink, errors_of, fit_anchor
from .half_widths import UNMEASURED_HALF_WIDTH, fit_intervals
from .recipe import Recipe, find_recipe, given_sources
from .variant import Pool, Variant, first_per_gpu, fit_variant, join_samples, simulate_rows

RECIPES: Final = tuple(name for name, model in OP_MODELS.items() if model.is_measured)
"""Models that have a recipe, in the order in which they are trained."""
PRIORS: Final = tuple(name for name in OP_MODELS if name not in RECIPES)
"""Models that no measurement covers: stored with their priors and a declared interval."""
HELD_OUT_ROWS_PER_GPU: Final = 6000
SEED: Final = 20260101
NVIDIA: Final = "NVIDIA"
"""The vendor of most chips."""

Fits = tuple[Variant, tuple[HeldOut, ...]]
_Pending = Mapping[frozenset[str], Future[Fits]]
_Shipped = tuple[Recipe[Any], Pool, _Pending]


@lru_cache(maxsize=1)
def load_pool(name: str, data: tuple[Path, ...]) -> Pool:
    """Read the table of a model from each directory, or file of `wavecast measure`, that has it.

    Kept, since each worker fits several variants. Raises InputError where none has it.
    """
    recipe, table = find_recipe(name), table_of(OP_MODELS[name])
    found = (item for folder in data if has_rows(folder / table) for item in recipe.load(folder))
    # Of a model's other library nothing; a recipe may add samples of other models, as quantised products plain ones.
    parts = ((item, part) for item in found for part in by_library(item) if len(part.measured_ns))
    samples = [part for item, part in parts if OP_MODELS[item.model].amd is None or part.model == name]
    if not samples:
        places = ", ".join(str(folder) for folder in data)
        raise InputError(f"no measurements for model {name}: expected {table} with rows in {places}")
    return join_samples(samples)


def fit_and_predict(name: str, data: tuple[Path, ...], excluded: frozenset[str], start: Floats | None = None) -> Fits:
    """Fit one variant and predict the chips that it never saw."""
    import torch

    torch.set_num_threads(1)
    recipe, pool = find_recipe(name), load_pool(name, data)
    variant = fit_variant(recipe, pool, excluded, SEED, start)
    return variant, tuple(_hold_out(recipe, pool, variant, chip) for chip in sorted(excluded))


def _hold_out(recipe: Recipe[Any], pool: Pool, variant: Variant, chip: str) -> HeldOut:
    # Those of largest share first: shapes that training drew last, or never.
    rows = first_per_gpu(
        pool, pool.chip == pool.chips.index(chip), [HELD_OUT_ROWS_PER_GPU] * len(pool.gpus), -pool.share
    )
    problems = take_problems(pool.problems, rows)
    time_ns, sizes = simulate_rows(recipe.model, variant.theta, problems, pool, rows)
    network = None if variant.network is None else replace(variant.network, limit=np.inf)
    return HeldOut(
        chip=chip,
        excluded=variant.excluded,
        rows=rows,
        log_ratio=np.log(pool.measured_ns[rows] / time_ns),
        correction=correct(network, sizes) if network is not None else np.zeros(len(rows)),
        simulated_ns=time_ns,
        group=group_of(recipe.model, problems),
        key=mixed_keys(column for name, column in problem_columns(problems).items() if name != "host_floor_ns"),
    )


def train_models(
    names: Sequence[str], data: tuple[Path, ...], folder: Path, jobs: int
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Train models and write their weights; yield each with its manifest entry.

    The next model's first fits queue behind the last ones of a model, so that no worker waits for another, and each
    reads a model's tables once. A model's file and entry are written whole or not at all, and nothing written is read.
    """
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as workers:
        following: _Shipped | None = None
        for place, name in enumerate(names):
            recipe, pool, pending = following or _begin(workers, name, data)
            fits = {chips: future.result() for chips, future in pending.items()}
            pairs = [frozenset(chips) for chips in combinations(pool.chips, 2)]
            near = [fits[frozenset({min(chips)})][0].theta for chips in pairs]
            more = _fit_all(workers, name, data, pairs, near)
            following = _begin(workers, names[place + 1], data) if place + 1 < len(names) else None
            shipped = list(fits)
            fits |= {chips: future.result() for chips, future in more.items()}
            variants = {variant_name(chips): assemble(recipe, pool, fits, chips) for chips in shipped}
            entry = _manifest_entry(recipe, pool, fits, variants)
            save_model(name, variants, entry, folder)
            yield name, entry


def _begin(workers: ProcessPoolExecutor, name: str, data: tuple[Path, ...]) -> _Shipped:
    """Start the fits whose weights are stored: with all chips, and without each."""
    recipe = find_recipe(name)
    recipe = replace(recipe, sources=(*recipe.sources, *given_sources(data, name)))
    pool = load_pool(name, data)
    shipped = [frozenset(chips) for size in range(2) for chips in combinations(pool.chips, size)]
    return recipe, pool, _fit_all(workers, name, data, shipped, [None] * len(shipped))


def store_priors(name: str, folder: Path) -> None:
    """Write the weights of a model that nothing was fitted for."""
    model = load_model(OP_MODELS[name])
    groups, classes = len(model.group_names), np.arange(len(model.class_names))
    arrays = {
        "theta": np.zeros(theta_size(model.parameters, len(classes))),
        "interval.half_width": np.full((groups, len(SIZE_EDGES_NS) + 1), UNMEASURED_HALF_WIDTH),
        "interval.class_factor": np.ones((len(GPU_CLASSES), groups)),
        "interval.seen_ratio": np.ones((groups, 1)),
        "interval.reference": np.full(1, np.inf),
        "interval.positions": gpu_positions(build_fleet(load_catalog().gpus[:1])),
        "interval.is_declared": np.ones(groups, dtype=np.uint8),
        "anchor": np.ones(groups),
        "anchored_half_width": np.full(groups, UNMEASURED_HALF_WIDTH),
        "foreign_half_width": np.full(groups, np.nan),
    }
    values = resolve(model.parameters, arrays["theta"], len(classes), classes)
    entry = {
        "trained_chips": [],
        "classes": list(model.class_names),
        "parameters": {key: [float(f"{item:.5g}") for item in value] for key, value in values.items()},
        "note": "not fitted: physical priors and a declared interval",
    }
    save_model(name, {variant_name(frozenset()): arrays}, entry, folder)


def _fit_all(
    workers: ProcessPoolExecutor,
    name: str,
    data: tuple[Path, ...],
    left_out: Sequence[frozenset[str]],
    starts: Sequence[Floats | None],
) -> _Pending:
    """Start to fit one variant per set of chips left out, each from its start; None: from the priors."""
    pairs = zip(left_out, starts, strict=True)
    return {chips: workers.submit(fit_and_predict, name, data, chips, start) for chips, start in pairs}


def _inner(fits: Mapping[frozenset[str], Fits], excluded: frozenset[str]) -> list[HeldOut]:
    """Return what weights without the excluded chips and one more say of that one."""
    found = []
    for chips, (_, held_out) in fits.items():
        if len(chips) == len(excluded) + 1 and excluded < chips:
            (more,) = chips - excluded
            found += [item for item in held_out if item.chip == more]
    return found


def _alike(pool: Pool, inner: Sequence[HeldOut]) -> Sequence[HeldOut]:
    """Return those chips left out of whose vendor another trained; all where there are none.

    What a correction is worth on a vendor's kernels, weights that never saw one of them cannot tell: those that the
    choice is for, which lack one chip less, did.
    """
    vendor = {chip_of(gpu): gpu.vendor for gpu in pool.gpus}
    trained = {item.chip: {vendor[chip] for chip in pool.chips if chip not in item.excluded} for item in inner}
    return [item for item in inner if vendor[item.chip] in trained[item.chip]] or inner


def assemble(
    recipe: Recipe[Any], pool: Pool, fits: Mapping[frozenset[str], Fits], excluded: frozenset[str]
) -> dict[str, Any]:
    """Return the stored arrays of weights without the excluded chips, from fits that left these out, and one more."""
    variant, inner = fits[excluded][0], _inner(fits, excluded)
    groups = len(recipe.model.group_names)
    declared = recipe.shrink
    shrink = choose_shrink(_alike(pool, inner), recipe.limit, recipe.points) if declared is None else declared
    seen = [_hold_out(recipe, pool, variant, chip) for chip in pool.chips if chip not in excluded]
    interval = fit_intervals(pool, inner, seen, shrink, recipe.limit, groups, recipe.shape_share)
    foreign = frozenset(chip_of(gpu) for gpu in pool.gpus if gpu.vendor != NVIDIA)
    anchor = fit_anchor(inner, shrink, recipe.limit, groups, foreign)
    arrays = {
        "theta": variant.theta,
        "interval.half_width": interval.half_width,
        "interval.class_factor": interval.class_factor,
        "interval.seen_ratio": interval.seen_ratio,
        "interval.reference": np.array([interval.reference]),
        "interval.positions": interval.positions,
        "interval.is_declared": interval.is_declared.astype(np.uint8),
        "anchor": anchor.shared,
        "anchored_half_width": np.where(
            np.isnan(anchor.half_width), interval.half_width.max(axis=1), anchor.half_width
        ),
        "foreign_half_width": anchor.foreign_half_width,
    }
    if variant.network is not None and shrink > 0:
        network = variant.network
        arrays |= {
            "network.mean": network.mean,
            "network.scale": network.scale,
            "network.shrink": np.array([shrink]),
            "network.limit": np.array([recipe.limit]),
        }
        arrays |= {f"network.weight{layer}": weight for layer, weight in enumerate(network.weights)}
        arrays |= {f"network.bias{layer}": bias for layer, bias in enumerate(network.biases)}
    return arrays


def _manifest_entry(
    recipe: Recipe[Any], pool: Pool, fits: Mapping[frozenset[str], Fits], variants: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    model = recipe.model
    classes = np.arange(len(model.class_names))
    values = resolve(model.parameters, fits[frozenset()][0].theta, len(classes), classes)
    errors: dict[str, Any] = {}
    for chip in pool.chips:
        chips = frozenset({chip})
        shrink = float(variants[variant_name(chips)].get("network.shrink", np.zeros(1))[0])
        errors |= errors_of(pool, fits[chips][1][0], shrink, recipe.limit)
    return {
        "trained_chips": list(pool.chips),
        "gpus": {gpu.name: int((pool.gpu == row).sum()) for row, gpu in enumerate(pool.gpus)},
        "sources": list(recipe.sources),
        "shape_share": recipe.shape_share,
        "seed": SEED,
        "classes": list(model.class_names),
        "parameters": {name: [float(f"{item:.5g}") for item in value] for name, value in values.items()},
        "groups": list(model.group_names),
        "features": list(model.size_names),
        "hidden": list(recipe.hidden),
        "ranges": {
            name: [float(np.nanmin(column)), float(np.nanmax(column))]
            for name, column in problem_columns(pool.problems).items()
            if len(column) and not np.isnan(column.astype(np.float64)).all()
        },
        "held_out_errors": errors,
    }
