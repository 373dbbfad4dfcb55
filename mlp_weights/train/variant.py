"""Fit one model without some chips: the simulator's parameters by least squares, then the correction's network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...analyzer.measurements.samples import Samples
from ...analyzer.models.frame.correction import CLIP, Network, mean_network
from ...analyzer.models.frame.model import Model, kind_of
from ...analyzer.models.frame.parameters import prior_scale, resolve, theta_size
from ...analyzer.models.frame.problems import P, Problems, join_problems, take_problems
from ...arrays import Codes, Floats, Mask
from ...records import dataclass, replace
from ...specs.fleet import Fleet, build_fleet, take_gpus
from ...specs.gpu import Gpu, chip_of
from .recipe import Recipe

HOST_FLOOR = "host_floor_us"
BLOCK_ROWS = 4096
ROUNDS = 8
MOST_WEIGHT = 3.0
"""Of a row that trains a network: a chip of a few dozen rows would be learned by heart."""
ROUNDS_FROM_NEAR = 2
ROWS_FROM_NEAR = 0.4
"""Part of the rows that a fit from near by takes: it only calibrates, and starts where a whole fit ended."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pool:
    """Hold the samples of all tables of one model, joined; `chip` numbers `chips`."""

    problems: Problems
    gpus: tuple[Gpu, ...]
    gpu: npt.NDArray[np.int64]
    measured_ns: Floats
    share: Floats
    chips: tuple[str, ...]
    chip: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Variant:
    """Hold what was fitted without the excluded chips."""

    excluded: frozenset[str]
    theta: Floats
    network: Network | None


def join_samples(samples: Sequence[Samples[Any]]) -> Pool:
    """Join tables; their problems have the same columns."""
    names = sorted({gpu.name for item in samples for gpu in item.gpus})
    by_name = {gpu.name: gpu for item in samples for gpu in item.gpus}
    gpus = tuple(by_name[name] for name in names)
    gpu = np.concatenate([np.array([names.index(known.name) for known in item.gpus])[item.gpu] for item in samples])
    chips = tuple(sorted({chip_of(known) for known in gpus}))
    chip = np.array([chips.index(chip_of(known)) for known in gpus])[gpu]
    return Pool(
        problems=join_problems([item.problems for item in samples]),
        gpus=gpus,
        gpu=gpu,
        measured_ns=np.concatenate([item.measured_ns for item in samples]),
        share=np.concatenate([item.share for item in samples]),
        chips=chips,
        chip=chip,
    )


def fit_variant(
    recipe: Recipe[Any], pool: Pool, excluded: frozenset[str], seed: int, start: Floats | None = None
) -> Variant:
    """Fit without the rows of the excluded chips; only shapes below the recipe's share are used.

    No row counts as more than one measurement, so that a chip with a few dozen does not bend what all share. Where no
    chip is left, the priors stand.
    `start` is a theta near by, from which the fit needs fewer rounds and rows; default: the priors.
    """
    part = 1.0 if start is None else ROWS_FROM_NEAR
    wanted = np.array([chip not in excluded for chip in pool.chips])[pool.chip] & (pool.share < recipe.shape_share)
    most = [recipe.rows_of.get(chip_of(gpu), recipe.rows_per_gpu) for gpu in pool.gpus]
    is_many = np.array([chip_of(gpu) in recipe.rows_of for gpu in pool.gpus])[pool.gpu]
    by = np.where(recipe.by_kind & ~is_many, _place_in_kind(recipe.model, pool), pool.share)
    rows = first_per_gpu(pool, wanted, [int(part * item) for item in most], by)
    if not len(rows):
        return Variant(excluded=excluded, theta=_start(recipe.model, None, None)[0], network=None)
    problems, floor_us = fill_host_floor(pool, rows)
    theta, model = _start(recipe.model, floor_us, start)
    rounds = ROUNDS if start is None else ROUNDS_FROM_NEAR
    theta = fit_parameters(replace(recipe, model=model), theta, problems, pool, rows, rounds)
    variant = Variant(excluded=excluded, theta=theta, network=None)
    if not recipe.hidden or not recipe.model.size_names:
        return variant
    rows = first_per_gpu(pool, wanted, [int(part * recipe.network_rows_per_gpu)] * len(most), pool.share)
    problems, _ = fill_host_floor(pool, rows)
    time_ns, sizes = simulate_rows(recipe.model, theta, problems, pool, rows)
    residual = np.log(pool.measured_ns[rows] / time_ns)
    weight = np.minimum(balanced_weight(pool.chip[rows], float(len(rows))), MOST_WEIGHT)
    # The correction does not speak of sizes that are NaN. Rows off by more than its limit are of other kernels, and
    # would only bend their neighbours: 88 rows of one chip had doubled products of 72 to 216 columns on all.
    known = np.isfinite(sizes).all(axis=1) & (np.abs(residual) <= (np.inf if recipe.keeps_far else recipe.limit))
    given = (sizes[known], residual[known], weight[known], recipe.hidden)
    seeds = range(seed, seed + recipe.members)
    network = mean_network([train_network(*given, limit=recipe.limit, seed=item) for item in seeds])
    return replace(variant, network=network)


def simulate_rows(
    model: Model[Any], theta: Floats, problems: Problems, pool: Pool, rows: npt.NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """Return simulated time [n] and sizes [n, s] of `problems`, which belong to these rows of the pool."""
    fleet = build_fleet(pool.gpus)
    values = resolve(model.parameters, theta, len(model.class_names), model.gpu_class(fleet))
    times, sizes = [], []
    for begin in range(0, len(rows), BLOCK_ROWS):
        block = np.arange(begin, min(begin + BLOCK_ROWS, len(rows)))
        gpu = pool.gpu[rows[block]]
        part = {name: value[gpu] for name, value in values.items()}
        estimate = model.simulate(take_problems(problems, block), take_gpus(fleet, gpu), part, None)
        times.append(estimate.time_ns)
        shape = (*estimate.time_ns.shape, len(model.size_names))
        sizes.append(np.zeros(shape) if estimate.sizes is None else np.broadcast_to(estimate.sizes, shape))
    return np.concatenate(times), np.concatenate(sizes)


def fill_host_floor(pool: Pool, rows: npt.NDArray[np.int64]) -> tuple[Problems, float | None]:
    """Return the rows' problems with unknown host floors replaced by what their GPU's host shows; and their mean, us.

    The floor of a host is the 2 % quantile of its event-timed measurements.
    """
    problems = take_problems(pool.problems, rows)
    floor = getattr(problems, "host_floor_ns", None)
    if floor is None or not np.isnan(floor).any():
        return problems, None
    filled, seen = floor.copy(), []
    for gpu in np.unique(pool.gpu[rows]):
        unknown = (pool.gpu[rows] == gpu) & np.isnan(floor)
        if unknown.any():
            filled[unknown] = float(np.quantile(pool.measured_ns[rows][unknown], 0.02))
            seen.append(filled[unknown][0])
    return replace(problems, host_floor_ns=filled), float(np.exp(np.mean(np.log(seen)))) / 1e3


def _start(model: Model[Any], floor_us: float | None, near: Floats | None) -> tuple[Floats, Model[Any]]:
    """Return theta to start from, and the model with the host floor fixed at its mean where there is one."""
    theta = np.zeros(theta_size(model.parameters, len(model.class_names))) if near is None else near.copy()
    names = [item.name for item in model.parameters]
    if floor_us is None or HOST_FLOOR not in names:
        return theta, model
    row = names.index(HOST_FLOOR)
    theta[row] = np.log(floor_us / model.parameters[row].prior)
    fixed = tuple(replace(item, spread=0.0) if item.name == HOST_FLOOR else item for item in model.parameters)
    return theta, replace(model, parameters=fixed)


def first_per_gpu(pool: Pool, wanted: Mask, limits: Sequence[int], by: Floats) -> npt.NDArray[np.int64]:
    """Return at most so many wanted rows of each GPU, those of least `by`: the same shapes on every GPU."""
    chosen = []
    for gpu, limit in enumerate(limits):
        rows = np.flatnonzero(wanted & (pool.gpu == gpu))
        chosen.append(rows[np.argsort(by[rows], kind="stable")[:limit]])
    return np.sort(np.concatenate(chosen))


def _place_in_kind(model: Model[Any], pool: Pool) -> Floats:
    """Return each row's place by share among the rows of its GPU and kind of kernel, and its share."""
    kind = np.unique(np.stack([pool.gpu, kind_of(model, pool.problems)]), axis=1, return_inverse=True)[1].ravel()
    order, place = np.lexsort((pool.share, kind)), pool.share.copy()
    place[order] += np.arange(len(kind)) - np.searchsorted(kind[order], kind[order])
    return place


EPOCHS: Final = 60
BATCH: Final = 512
LEARNING_RATE: Final = 3e-3
WEIGHT_DECAY: Final = 1e-2
HUBER_DELTA: Final = 0.15
"""Residuals beyond this count linearly, natural log."""


def train_network(
    features: Floats,
    residual: Floats,
    weight: Floats,
    hidden: Sequence[int],
    *,
    limit: float,
    seed: int,
) -> Network:
    """Return a network whose output approximates `residual` [n] from `features` [n, f]; deterministic for a seed.

    The output is not yet shrunk: `shrink` is 1 until the driver has chosen it on GPUs that were left out.
    """
    import torch

    torch.manual_seed(seed)
    mean, scale = features.mean(axis=0), np.maximum(features.std(axis=0), 1e-3)
    inputs = torch.from_numpy(np.clip((features - mean) / scale, -CLIP, CLIP).astype(np.float32))
    target = torch.from_numpy(residual.astype(np.float32))
    importance = torch.from_numpy((weight / weight.mean()).astype(np.float32))
    sizes = [features.shape[1], *hidden, 1]
    layers: list[torch.nn.Module] = []
    for width_in, width_out in pairwise(sizes):
        layers += [torch.nn.Linear(width_in, width_out), torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    steps = EPOCHS * -(-len(inputs) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(inputs)).split(BATCH):
            optimizer.zero_grad()
            output = network(inputs[rows])[:, 0]
            loss = torch.nn.functional.huber_loss(output, target[rows], reduction="none", delta=HUBER_DELTA)
            (loss * importance[rows]).mean().backward()
            optimizer.step()
            schedule.step()
    linear = [layer for layer in network if isinstance(layer, torch.nn.Linear)]
    return Network(
        mean=mean.astype(np.float32),
        scale=scale.astype(np.float32),
        weights=tuple(layer.weight.detach().numpy().T.copy() for layer in linear),
        biases=tuple(layer.bias.detach().numpy().copy() for layer in linear),
        shrink=1.0,
        limit=limit,
    )


STEP = 1e-3
"""Finite-difference step, in natural-log units."""
LARGE_STEP = 0.5
"""In natural-log units, up or down, by which a parameter that matters to a class of GPU changes some time of it."""
CONVERGED = 3e-3
"""Largest change of a parameter, in natural-log units, after which no candidate is chosen anew."""


def fit_parameters(
    recipe: Recipe[P], start: Floats, problems: P, pool: Pool, rows: npt.NDArray[np.int64], rounds: int
) -> Floats:
    """Return theta that minimises sum of weight * softL1((log t - log measured) / noise) plus the ridge to the priors.

    Each round freezes the chosen candidates, which makes the problem smooth, and solves it; then chooses again. Classes
    that share no parameter are solved apart: what one measures must not end another's fit elsewhere in a flat valley.
    Weights sum to about the number of independent measurements that the rows of the pool are worth.
    """
    from scipy.optimize import least_squares

    model, noise = recipe.model, recipe.noise
    weight = np.minimum(balanced_weight(pool.chip[rows], recipe.points), 1.0)
    scale = prior_scale(model.parameters, len(model.class_names))
    free = np.flatnonzero(scale > 0)
    theta = start.copy()
    root, target = np.sqrt(weight), np.log(pool.measured_ns[rows])
    parts = _parts_of(model, problems, pool, rows)

    def log_time(vector: Floats, part: _Part, choice: Codes | None) -> tuple[Floats, Codes | None]:
        theta[free] = vector
        resolved = resolve(model.parameters, theta, len(model.class_names), part.classes)
        estimate = model.simulate(part.problems, part.fleet, resolved, choice)
        return np.log(estimate.time_ns), estimate.choice

    def misfit(choices: Mapping[int, Codes | None], vector: Floats, place: int) -> Floats:
        part = parts[place]
        ratio = (log_time(vector, part, choices[place])[0] - target[part.at]) / noise
        # Their squares are the soft-L1 loss 2 (sqrt(1 + r^2) - 1).
        softened = np.sign(ratio) * np.sqrt(2 * (np.sqrt(1 + ratio**2) - 1))
        return np.asarray(softened * root[part.at])

    def choose(vector: Floats, places: Sequence[int]) -> _Misfit:
        return partial(misfit, {place: log_time(vector, parts[place], None)[1] for place in places})

    def residuals(vector: Floats, chosen: _Misfit, places: Sequence[int]) -> Floats:
        return np.concatenate([*(chosen(vector, place) for place in places), vector / scale[free]])

    first, solved = theta[free], np.zeros(len(free))
    touched = _touched(choose(first, range(len(parts))), first, len(parts))
    jacobian = partial(_jacobian, touched, 1.0 / scale[free])
    for places, columns in _apart(touched):
        own = np.where(np.isin(np.arange(len(free)), list(columns)), first, 0.0)
        for _ in range(rounds):
            given = (choose(own, places), places)
            before = own
            own = least_squares(residuals, own, jacobian, x_scale=scale[free], max_nfev=6, args=given).x
            if np.abs(own - before).max() < CONVERGED:
                break
        solved += own
    theta[free] = solved
    return theta


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Part:
    """Hold the rows of one class of GPU; `at` are their places among those of a fit."""

    at: npt.NDArray[np.int64]
    problems: Any
    fleet: Fleet
    classes: Codes


def _parts_of(model: Model[Any], problems: Problems, pool: Pool, rows: npt.NDArray[np.int64]) -> list[_Part]:
    fleet = take_gpus(build_fleet(pool.gpus), pool.gpu[rows])
    classes = model.gpu_class(fleet)
    places = [np.flatnonzero(classes == code) for code in np.unique(classes)]
    return [
        _Part(at=at, problems=take_problems(problems, at), fleet=take_gpus(fleet, at), classes=classes[at])
        for at in places
    ]


def _touched(misfit: _Misfit, vector: Floats, parts: int) -> list[list[_Together]]:
    """Return, for each class, parameters that may be moved together: those that move different rows.

    A kernel has parameters of its own, so that a few differences tell of all of them.
    """
    found: list[list[_Together]] = []
    for place in range(parts):
        here, groups = misfit(vector, place), list[_Together]()
        for row in range(len(vector)):
            steps = (np.where(np.arange(len(vector)) == row, step, 0.0) for step in (LARGE_STEP, -LARGE_STEP))
            up, down = (misfit(vector + step, place) != here for step in steps)
            moved = up | down
            free = (group for group in groups if not any((moved & other).any() for _, other in group))
            if moved.any() and (group := next(free, None)) is not None:
                group.append((row, moved))
            elif moved.any():
                groups.append([(row, moved)])
        found.append(groups)
    return found


_Misfit = Callable[[Floats, int], Floats]
"""Parameters and the place of a class -> what its rows are off by, weighed."""
_Together = list[tuple[int, Mask]]
"""Parameters, each with the rows that it moves."""


def _apart(touched: Sequence[Sequence[_Together]]) -> list[tuple[list[int], set[int]]]:
    """Return sets of classes that share no parameter, and the parameters of each."""
    found: list[tuple[list[int], set[int]]] = []
    for place, groups in enumerate(touched):
        places, columns = [place], {row for group in groups for row, _ in group}
        for other in [item for item in found if item[1] & columns]:
            found.remove(other)
            places, columns = [*other[0], *places], other[1] | columns
        found.append((places, columns))
    return found


def _jacobian(
    touched: Sequence[Sequence[_Together]], ridge: Floats, vector: Floats, misfit: _Misfit, places: Sequence[int]
) -> Floats:
    """Differentiate by finite differences of a fixed size, which parameters in log units allow."""
    blocks = []
    for place in places:
        here = misfit(vector, place)
        block = np.zeros((len(here), len(vector)))
        for group in touched[place]:
            moved = vector.copy()
            moved[[row for row, _ in group]] += STEP
            change = (misfit(moved, place) - here) / STEP
            for row, rows in group:
                block[rows, row] = change[rows]
        blocks.append(block)
    return np.concatenate([*blocks, np.diag(ridge)])


def balanced_weight(groups: npt.NDArray[np.int64], total: float) -> Floats:
    """Return weights that give every group the same sum, together `total`."""
    counts = np.bincount(groups)
    present = int((counts > 0).sum())
    return np.asarray(total / present / counts[groups], dtype=np.float64)
