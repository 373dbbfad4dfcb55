"""Sharpens the op models with a measurement table of the target, where that makes left-out measurements fit better."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...arrays import Codes, Floats, Rows
from ...errors import InputError
from ...specs.fleet import build_fleet, take_gpus
from ...specs.gpu import Catalog, Gpu
from ..models.frame.correction import Calibration
from ..models.frame.model import kind_of
from ..models.frame.problems import take_problems
from ..models.library import Fitted, Library, corrected_ns, simulate
from .correction import Correction
from .gaussian_process import FEWEST_POINTS, calibrated_ns, fit_calibration
from .readers import load_tables
from .samples import Samples

FOLDS: Final = 5
"""Parts of the measurements, each left out once and predicted from the others."""
MOST_POINTS: Final = 1000
"""Measurements used per model and GPU: solving for them takes their number cubed, here a tenth of a second."""
LEAST_EVENT_TIME_NS: Final = 100e3
"""Times between CUDA events that are shorter tell more of the host than of the kernel (docs/accuracy.md)."""
OPS: Final = "ops"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CalibratedLibrary:
    """Hold a library with what measurements taught it, and what that was worth."""

    library: Library
    corrections: tuple[Correction, ...]


def calibrate_library(
    library: Library, path: Path, gpus: Collection[Gpu] = (), catalog: Catalog | None = None
) -> CalibratedLibrary:
    """Calibrate the models by the tables of a directory (or one of its tables) for the GPUs that they measure.

    `gpus` limits it to these (default: all); `catalog` None: the built-in one. A correction that does not make left-out
    measurements fit better, of a kind of kernel or of all, is not applied to them. Raises InputError where there is no
    such table, or where it measures none of `gpus`.

    >>> [(found.gpu, found.model, found.is_applied) for found in calibrate_library(library, tables).corrections]
    [('L4', 'matmul', True)]
    """
    directory, table = _locate(path)
    wanted = {gpu.name for gpu in gpus}
    calibrations: dict[str, dict[str, Calibration]] = {}
    corrections, seen = list[Correction](), set[str]()
    for samples in load_tables(directory, catalog):
        if not samples.table.startswith(f"{OPS}/") or table not in (None, samples.table):
            continue
        for at, gpu in enumerate(samples.gpus):
            seen.add(gpu.name)
            if (wanted and gpu.name not in wanted) or samples.model not in library.fitted:
                continue
            correction, found = _calibrate(library.fitted[samples.model], samples, at)
            corrections.append(correction)
            if found is not None:
                calibrations.setdefault(samples.model, {})[gpu.name] = found
    _check(path, seen, wanted)
    return CalibratedLibrary(library=replace(library, calibrations=calibrations), corrections=tuple(corrections))


def _locate(path: Path) -> tuple[Path, str | None]:
    """Return the directory that holds ops/, and the one table asked for; None: all of them."""
    if path.is_dir():
        return (path.parent, None) if path.name == OPS and not (path / OPS).is_dir() else (path, None)
    if not path.exists():
        raise InputError(f"{path}: no such table or directory")
    if path.parent.resolve().name != OPS:
        raise InputError(f"{path}: expected a table DIR/{OPS}/NAME.parquet, or DIR, as 'wavecast score' reads them")
    return path.resolve().parent.parent, f"{OPS}/{path.name}"


def _check(path: Path, seen: Collection[str], wanted: Collection[str]) -> None:
    if not seen:
        raise InputError(f"{path}: no measurements of ops, expected {OPS}/*.parquet as 'wavecast score' reads them")
    if wanted and not set(wanted) & set(seen):
        raise InputError(
            f"{path}: measures {', '.join(sorted(seen))}, none of which is predicted: ask for one of them with --to"
        )


def _calibrate(fitted: Fitted, samples: Samples[Any], gpu: int) -> tuple[Correction, Calibration | None]:
    """Return what the measurements of one GPU are worth to a model, and the correction where it is worth something."""
    rows = np.flatnonzero((samples.gpu == gpu) & tells_of_kernels(samples))
    rows = np.random.default_rng(0).permutation(rows)[:MOST_POINTS]
    name = samples.gpus[gpu].name
    if len(rows) * (FOLDS - 1) // FOLDS < FEWEST_POINTS:
        return Correction(gpu=name, model=samples.model, point_count=len(rows)), None
    measured = samples.measured_ns[rows]
    before = _plain_ns(fitted, samples, rows)
    after = np.empty_like(before)
    for taught, left in _folds(len(rows)):
        after[left] = _taught_ns(fitted, samples, rows[taught], rows[left])
    errors = [np.abs(predicted / measured - 1.0) for predicted in (before, after)]
    kinds = kind_of(fitted.model, take_problems(samples.problems, rows))
    spared = _spared_kinds(kinds, errors[1] - errors[0])
    errors[1] = np.where(np.isin(kinds, spared), errors[0], errors[1])
    found = replace(_fit(fitted, samples, rows), spared_kinds=spared)
    factor = _calibrated_ns(found, fitted, samples, rows) / before
    correction = Correction(
        gpu=name,
        model=samples.model,
        point_count=len(rows),
        factor=float(np.median(factor)),
        error_before=float(errors[0].mean()),
        error_after=float(errors[1].mean()),
    )
    return correction, found if correction.is_applied else None


def _spared_kinds(kinds: Codes, growth: Floats) -> Codes:
    """Return the kinds of kernel whose left-out measurements fit no better; few of a kind are judged with all others.

    `growth`: of each measurement's error by the correction.
    """
    names, counts = np.unique(kinds[kinds >= 0], return_counts=True)
    judged = names[counts >= FEWEST_POINTS]
    return np.array([kind for kind in judged if growth[kinds == kind].mean() >= 0.0], dtype=np.int64)


def tells_of_kernels(samples: Samples[Any]) -> Rows:
    """Say which measurements are of kernels, not of the host around them."""
    floor = getattr(samples.problems, "host_floor_ns", np.zeros(len(samples.measured_ns)))
    is_event = getattr(samples.problems, "is_event_timed", floor != 0) != 0
    return np.asarray(~is_event | (samples.measured_ns >= LEAST_EVENT_TIME_NS))


def _folds(count: int) -> Iterator[tuple[Rows, Rows]]:
    """Yield what teaches and what is left out."""
    fold = np.arange(count) % FOLDS
    for part in range(FOLDS):
        yield np.flatnonzero(fold != part), np.flatnonzero(fold == part)


def _plain_ns(fitted: Fitted, samples: Samples[Any], rows: Rows) -> Floats:
    fleet = take_gpus(build_fleet(samples.gpus), samples.gpu[rows])
    return corrected_ns(fitted, simulate(fitted, take_problems(samples.problems, rows), fleet))


def _fit(fitted: Fitted, samples: Samples[Any], rows: Rows) -> Calibration:
    fleet = take_gpus(build_fleet(samples.gpus), samples.gpu[rows])
    return fit_calibration(fitted, take_problems(samples.problems, rows), fleet, samples.measured_ns[rows])


def _calibrated_ns(found: Calibration, fitted: Fitted, samples: Samples[Any], rows: Rows) -> Floats:
    fleet = take_gpus(build_fleet(samples.gpus), samples.gpu[rows])
    return calibrated_ns(found, fitted, take_problems(samples.problems, rows), fleet)


def _taught_ns(fitted: Fitted, samples: Samples[Any], taught: Rows, left: Rows) -> Floats:
    return _calibrated_ns(_fit(fitted, samples, taught), fitted, samples, left)
