"""Sharpens the op models with a measurement table of the target, where that makes left-out measurements fit better.

Tries on left-out measurements of one GPU what the others teach: its rates first, then each model by itself.

Sharpen a model with a few measurements of the target: a Gaussian process on its log residuals.
"""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...arrays import Codes, Floats, Rows
from ...errors import InputError, parameter
from ...formats.measured.ops_file import read_ops
from ...records import dataclass, replace
from ...specs.fleet import Fleet, build_fleet, take_gpus
from ...specs.gpu import Catalog, Gpu
from ..models.frame.correction import Calibration, correction_factor, descriptors, design_matrix, likeness, proximity
from ..models.frame.model import kind_of
from ..models.frame.parameters import UNCHANGED, GpuFactors, factors_of, scale_gpus
from ..models.frame.problems import Problems, problem_count, take_problems
from ..models.library import Fitted, Library, corrected_ns, simulate
from ..models.registry import OP_MODELS
from .correction import Correction, RateCorrection
from .rates import GpuMeasurements, Slopes, fit_rates, solve_rates, take_slopes
from .readers import load_tables
from .samples import OPS, Samples

MOST_POINTS: Final = 1000
"""Measurements used per model and GPU: solving for them takes their number cubed, here a tenth of a second."""
LEAST_EVENT_TIME_NS: Final = 100e3
"""Times between CUDA events that are shorter tell more of the host than of the kernel (docs/evidence/accuracy.md)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CalibratedLibrary:
    """Hold a library with what measurements taught it, and what that was worth."""

    library: Library
    corrections: tuple[Correction, ...]
    rates: tuple[RateCorrection, ...] = ()
    warnings: tuple[str, ...] = ()
    """Which rows were left out, and whether a CPU's times were measured under the GPU's name."""


def calibrate_library(
    library: Library, path: Path, gpus: Collection[Gpu] = (), catalog: Catalog | None = None
) -> CalibratedLibrary:
    """Calibrate the models for the GPUs that a directory of tables, one of them, or a file of `wavecast measure` holds.

    First the GPU's rates, which all models share, those too that nothing measured; then each model by what is left.
    `gpus` limits it to these (default: all); `catalog` None: the built-in one. What does not make left-out measurements
    fit better, of a kind of kernel or of all, is not applied to them. Raises InputError where there is no such table,
    or where it measures none of `gpus`.

    >>> [(found.gpu, found.model, found.is_applied) for found in calibrate_library(library, tables).corrections]
    [('L4', 'matmul', True)]
    """
    directory, table = _locate(path)
    wanted = {gpu.name for gpu in gpus}
    evidence: dict[str, list[tuple[str, GpuMeasurements]]] = {}
    seen, warnings = set[str](), list[str]()
    for samples in load_tables(directory, catalog):
        if not samples.table.startswith(f"{OPS}/") or table not in (None, samples.table):
            continue
        warnings += samples.notes
        for at, gpu in enumerate(samples.gpus):
            seen.add(gpu.name)
            if (wanted and gpu.name not in wanted) or samples.model not in library.fitted:
                continue
            evidence.setdefault(gpu.name, []).append((samples.model, _gather(library, samples, at)))
    _check(path, seen, wanted, warnings)
    result = CalibratedLibrary(library=library, corrections=())
    for name, found in evidence.items():
        result = _calibrate(result, name, found)
    if directory.is_file() and read_ops(directory).device != "cuda":
        what = parameter("calibration")
        warnings.append(f"{what} holds times of a CPU under a GPU's name: they say nothing of that GPU")
    return replace(result, warnings=tuple(warnings))


def _locate(path: Path) -> tuple[Path, str | None]:
    """Return the directory that holds ops/ or file of `wavecast measure`, and the one table asked for; None: all."""
    if path.is_dir():
        return (path.parent, None) if path.name == OPS and not (path / OPS).is_dir() else (path, None)
    if not path.exists():
        raise InputError(f"{path}: no such table or directory")
    if path.suffix != ".parquet":
        return path, None
    if path.parent.resolve().name != OPS:
        raise InputError(f"{path}: expected a table DIR/{OPS}/NAME.parquet, or DIR, as 'wavecast score' reads them")
    return path.resolve().parent.parent, f"{OPS}/{path.name}"


def _check(path: Path, seen: Collection[str], wanted: Collection[str], left_out: Collection[str]) -> None:
    if not seen:
        found = "; ".join(left_out) or "no measurements of ops"
        raise InputError(f"{path}: {found}, expected {OPS}/*.parquet, or a file of 'wavecast measure'")
    if wanted and not set(wanted) & set(seen):
        raise InputError(
            f"{path}: measures {', '.join(sorted(seen))}, none of which is predicted: ask for one of them with "
            f"{parameter('to')}"
        )


def _gather(library: Library, samples: Samples[Any], gpu: int) -> GpuMeasurements:
    """Return the measurements of one GPU, in a random order, at most `MOST_POINTS`."""
    # Which measurements are of kernels, not of the host around them.
    floor = getattr(samples.problems, "host_floor_ns", np.zeros(len(samples.measured_ns)))
    is_event = getattr(samples.problems, "is_event_timed", floor != 0) != 0
    rows = np.flatnonzero((samples.gpu == gpu) & np.asarray(~is_event | (samples.measured_ns >= LEAST_EVENT_TIME_NS)))
    rows = np.random.default_rng(0).permutation(rows)[:MOST_POINTS]
    return GpuMeasurements(
        fitted=library.fitted[samples.model],
        problems=take_problems(samples.problems, rows),
        fleet=take_gpus(build_fleet(samples.gpus), samples.gpu[rows]),
        measured_ns=samples.measured_ns[rows],
    )


def _calibrate(so_far: CalibratedLibrary, gpu: str, found: Sequence[tuple[str, GpuMeasurements]]) -> CalibratedLibrary:
    """Return the library with what the measurements of one GPU are worth to it: its rates, then each model's own."""
    rates, folds = learn_rates(gpu, [item for _, item in found])
    factors = rates.factors if rates is not None and rates.is_applied else UNCHANGED
    library, corrections = so_far.library, list[Correction]()
    if factors != UNCHANGED:
        library = replace(library, factors={**library.factors, gpu: factors})
    for model, item in found:
        lesson = learn_model(gpu, model, item, factors, folds)
        corrections.append(lesson.correction)
        if lesson.calibration is not None:
            known = {**library.calibrations.get(model, {}), gpu: lesson.calibration}
            library = replace(library, calibrations={**library.calibrations, model: known})
        if lesson.is_spared:
            library = replace(library, spared=library.spared | {(model, gpu)})
    return CalibratedLibrary(
        library=library,
        corrections=(*so_far.corrections, *corrections),
        rates=so_far.rates if rates is None else (*so_far.rates, rates),
    )


FOLDS: Final = 5
"""Parts of the measurements, each left out once and predicted from the others."""
FEWEST_FOR_RATES: Final = 20
"""Measurements, of all models together, from which rates are fitted."""
FEWEST_FAMILIES: Final = 2
"""Families of models."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lesson:
    """Hold what measurements of one GPU taught one model."""

    correction: Correction
    calibration: Calibration | None
    """None: nothing beyond the GPU's rates."""
    is_spared: bool
    """The GPU's rates, which help others, make this model no better."""


def learn_rates(gpu: str, evidence: Sequence[GpuMeasurements]) -> tuple[RateCorrection | None, list[GpuFactors]]:
    """Return what the measurements teach of the GPU's rates, and what they teach without each fold.

    None where they are too few, or of models of one family alone: its own error would pass for the GPU's.
    """
    few = [UNCHANGED] * FOLDS
    told = [item for item in evidence if len(item.measured_ns)]
    families = {OP_MODELS[item.fitted.model.name].family for item in told}
    if sum(len(item.measured_ns) for item in told) < FEWEST_FOR_RATES or len(families) < FEWEST_FAMILIES:
        return None, few
    slopes = fit_rates(told)
    folds = [factors_of(solve_rates([_without(item, part) for item in slopes])) for part in range(FOLDS)]
    errors = [(_error(item, few), _error(item, folds)) for item in told]
    before, after = np.mean(errors, axis=0).tolist()
    rates = RateCorrection(
        gpu=gpu,
        point_count=sum(len(item.residual) for item in slopes),
        factors=factors_of(solve_rates(slopes)),
        error_before=before,
        error_after=after,
    )
    return rates, folds if rates.is_applied else few


def learn_model(
    gpu: str, model: str, item: GpuMeasurements, factors: GpuFactors, folds: Sequence[GpuFactors]
) -> Lesson:
    """Return what the measurements teach one model, beyond the GPU's rates; `folds`: these without each fold."""
    count = len(item.measured_ns)
    if count * (FOLDS - 1) // FOLDS < FEWEST_POINTS:
        return Lesson(correction=Correction(gpu=gpu, model=model, point_count=count), calibration=None, is_spared=False)
    errors = [
        _errors(item, _left_out_ns(item, list(known), is_corrected=False)) for known in ([UNCHANGED] * FOLDS, folds)
    ]
    is_spared = bool(errors[1].mean() > errors[0].mean())
    if is_spared:
        factors, folds = UNCHANGED, [UNCHANGED] * FOLDS
    base = errors[0 if is_spared else 1]
    taught = _errors(item, _left_out_ns(item, folds, is_corrected=True))
    kinds = kind_of(item.fitted.model, item.problems)
    spared = _spared_kinds(kinds, taught - base)
    taught = np.where(np.isin(kinds, spared), base, taught)
    fleet = _scaled(item.fleet, factors)
    found = fit_calibration(item.fitted, item.problems, fleet, item.measured_ns)
    calibration = replace(found, spared_kinds=spared) if taught.mean() < base.mean() else None
    after_ns = _predicted_ns(item, fleet) if calibration is None else _calibrated_ns(calibration, item, fleet)
    correction = Correction(
        gpu=gpu,
        model=model,
        point_count=count,
        factor=float(np.median(after_ns / _predicted_ns(item, item.fleet))),
        error_before=float(errors[0].mean()),
        error_after=float(min(taught.mean(), base.mean())),
    )
    return Lesson(correction=correction, calibration=calibration, is_spared=is_spared)


def _spared_kinds(kinds: Codes, growth: Floats) -> Codes:
    """Return the kinds of kernel whose left-out measurements fit no better; few of a kind are judged with all others.

    `growth`: of each measurement's error by the correction.
    """
    names, counts = np.unique(kinds[kinds >= 0], return_counts=True)
    judged = names[counts >= FEWEST_POINTS]
    return np.array([kind for kind in judged if growth[kinds == kind].mean() >= 0.0], dtype=np.int64)


def _without(slopes: Slopes, part: int) -> Slopes:
    return take_slopes(slopes, np.flatnonzero(np.arange(len(slopes.residual)) % FOLDS != part))


def _folds(count: int) -> Iterator[tuple[Rows, Rows]]:
    """Yield what teaches and what is left out."""
    fold = np.arange(count) % FOLDS
    for part in range(FOLDS):
        yield np.flatnonzero(fold != part), np.flatnonzero(fold == part)


def _error(item: GpuMeasurements, folds: Sequence[GpuFactors]) -> float:
    return float(_errors(item, _left_out_ns(item, folds, is_corrected=False)).mean())


def _errors(item: GpuMeasurements, predicted_ns: Floats) -> Floats:
    return np.asarray(np.abs(predicted_ns / item.measured_ns - 1.0))


def _left_out_ns(item: GpuMeasurements, folds: Sequence[GpuFactors], *, is_corrected: bool) -> Floats:
    """Return predictions of each fold with the rates, and if so the correction, that the others teach."""
    result = np.empty(len(item.measured_ns))
    for (taught, left), factors in zip(_folds(len(result)), folds, strict=True):
        teacher, pupil = item.take(taught), item.take(left)
        fleet = _scaled(pupil.fleet, factors)
        if is_corrected:
            of_teacher = _scaled(teacher.fleet, factors)
            found = fit_calibration(item.fitted, teacher.problems, of_teacher, teacher.measured_ns)
            result[left] = _calibrated_ns(found, pupil, fleet)
        elif len(left):
            result[left] = _predicted_ns(pupil, fleet)
    return result


def _scaled(fleet: Fleet, factors: GpuFactors) -> Fleet:
    return scale_gpus(fleet, {fleet.gpus[0].name: factors}) if len(fleet.gpus) else fleet


def _predicted_ns(item: GpuMeasurements, fleet: Fleet) -> Floats:
    return corrected_ns(item.fitted, simulate(item.fitted, item.problems, fleet))


def _calibrated_ns(found: Calibration, item: GpuMeasurements, fleet: Fleet) -> Floats:
    return calibrated_ns(found, item.fitted, item.problems, fleet)


OFFSET_SPREAD: Final = 0.2
"""Prior standard deviation of the GPU's common error, natural log: what the models show on GPUs left out."""
FEATURE_SPREAD: Final = 0.05
"""Of the error per standard deviation of a descriptor."""
LEAST_DEVIATION: Final = 1e-6
"""Standard deviation of a descriptor that tells measurements apart."""
NOISE: Final = 0.1
"""Of one measurement, library choices included."""
FEWEST_POINTS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Say what measurements are taken to have in common beside the GPU's common error and the features' trends.

    Chosen by the left-out rows of the A100s alone: few_shot.py --grid at f56f3bcf prints their errors. They
    vary little: by 3 % over local spreads of 0.15 to 0.3 with reaches of 0.35 and 0.5, by 1 % over kind spreads from
    0.1 on.
    """

    local_spread: float = 0.2
    """Standard deviation, natural log, of what only problems alike share: a measurement speaks for its neighbours."""
    reach: float = 0.5
    """Distance, in standard deviations of a descriptor, over which it does."""
    other_kind_ratio: float = 0.5
    """What a measurement says of neighbours of another kind of kernel, over what it says of its own. Any ratio from 0
    to 0.7 leaves the same errors (seen on all GPUs of `few_shot --rows`), 1 leaves a tenth more of vector ops'."""
    kind_spread: float = 0.1
    """Of what kernels of one kind share, in models that tell kinds apart (`Model.kind`); the fewer measurements of a
    kind, the more it leans on what all have in common."""


PRIOR: Final = Prior()


def fit_calibration(
    fitted: Fitted, problems: Problems, fleet: Fleet, measured_ns: Floats, prior: Prior = PRIOR
) -> Calibration:
    """Fit the correction to n measurements of the target; `fleet` holds the target n times.

    Gaussian process regression (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, eq. 2.25) with
    a linear covariance, a squared exponential one that is weaker between kinds of kernel, and one between kernels of a
    kind, reweighted so that outliers count less. 50 to 100 points suffice, more teach more; raises ValueError below 10,
    which would rather hurt.
    """
    if problem_count(problems) < FEWEST_POINTS:
        raise ValueError(f"{problem_count(problems)} measurements are too few to calibrate with; give {FEWEST_POINTS}")
    estimate = simulate(fitted, problems, fleet)
    time_ns, kind = corrected_ns(fitted, estimate), kind_of(fitted.model, problems)
    described = descriptors(problems, time_ns, estimate.described())
    columns = np.flatnonzero(described.std(axis=0) > LEAST_DEVIATION)
    described = described[:, columns]
    mean, scale = described.mean(axis=0), described.std(axis=0)
    design = design_matrix(described, mean, scale)
    taught = design[:, 1:]
    kinds, member = _memberships(kind)
    spread = np.r_[OFFSET_SPREAD, np.full(len(columns), FEATURE_SPREAD)]
    alike = likeness(proximity(taught, taught, prior.reach), kind, kind, prior.other_kind_ratio)
    covariance = (design * spread**2) @ design.T
    covariance = covariance + prior.local_spread**2 * alike + prior.kind_spread**2 * member @ member.T
    dual = _solve_robustly(covariance, np.log(measured_ns / time_ns))
    return Calibration(
        columns=columns,
        mean=mean,
        scale=scale,
        coefficients=spread**2 * (design.T @ dual),
        taught=taught,
        taught_kinds=kind,
        weights=prior.local_spread**2 * dual,
        reach=prior.reach,
        other_kind_ratio=prior.other_kind_ratio,
        kinds=kinds,
        kind_offsets=prior.kind_spread**2 * (member.T @ dual),
        spared_kinds=np.empty(0, dtype=np.int64),
    )


def _memberships(kind: Codes) -> tuple[Codes, Floats]:
    """Return the distinct kinds, [g], and 1 where a measurement is of one, [n, g]; negative ones are no kind."""
    kinds = np.unique(kind[kind >= 0])
    return kinds, (kind[:, None] == kinds).astype(np.float64)


def _solve_robustly(covariance: Floats, residual: Floats) -> Floats:
    """Return (covariance + noise)^-1 residual, with more noise for what is far from the fit."""
    weight = np.ones(len(residual))
    for _ in range(3):
        dual = np.linalg.solve(covariance + np.diag(NOISE**2 / weight), residual)
        weight = 1 / np.sqrt(1 + ((residual - covariance @ dual) / NOISE) ** 2)
    return np.asarray(dual)


def calibrated_ns(calibration: Calibration, fitted: Fitted, problems: Problems, fleet: Fleet) -> Floats:
    """Return predicted times with the correction."""
    estimate = simulate(fitted, problems, fleet)
    time_ns = corrected_ns(fitted, estimate)
    described = descriptors(problems, time_ns, estimate.described())
    return time_ns * correction_factor(calibration, described, kind_of(fitted.model, problems))
