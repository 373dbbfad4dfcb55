"""Tries on left-out measurements of one GPU what the others teach: its rates first, then each model by itself."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from ...arrays import Codes, Floats, Rows
from ...records import dataclass, replace
from ...specs.fleet import Fleet
from ..models.frame.correction import Calibration
from ..models.frame.model import kind_of
from ..models.frame.parameters import UNCHANGED, GpuFactors, factors_of, scale_gpus
from ..models.library import corrected_ns, simulate
from ..models.registry import OP_MODELS
from .correction import Correction, RateCorrection
from .gaussian_process import FEWEST_POINTS, calibrated_ns, fit_calibration
from .rates import GpuMeasurements, Slopes, fit_rates, solve_rates, take_slopes

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
