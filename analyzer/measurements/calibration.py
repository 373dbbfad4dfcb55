"""Sharpens the op models with a measurement table of the target, where that makes left-out measurements fit better."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...errors import InputError, parameter
from ...formats.measured.ops_file import read_ops
from ...records import dataclass, replace
from ...specs.fleet import build_fleet, take_gpus
from ...specs.gpu import Catalog, Gpu
from ..models.frame.parameters import UNCHANGED
from ..models.frame.problems import take_problems
from ..models.library import Library
from .correction import Correction, RateCorrection
from .rates import GpuMeasurements
from .readers import load_tables
from .samples import OPS, Samples
from .trial import learn_model, learn_rates

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
