"""What a measurement of one's own teaches: the iteration's time on a GPU, and on those whose errors it shares.

With the errors' covariance C of `joint_errors`, the measured y = log(measured / predicted) of some GPUs o and a
measurement's own spread s, the others are expected to be off by C_ho (C_oo + s^2 I)^-1 y, and what is left of their
errors is C_hh - C_ho (C_oo + s^2 I)^-1 C_oh.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from ....arrays import Floats, Rows
from ....records import dataclass, replace
from ..report import AnalysisReport, GpuPrediction
from ..result import Analysis
from .joint_errors import HALF_WIDTH, OWN, JointErrors, joint_errors

MEASURED: Final = 0.02
"""Standard deviation, natural log, of a measurement of one's own: repeats of one iteration differ by 1 to 3 %."""
FAR_RATIO: Final = 3.0
"""A measurement so far from the prediction is asked about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Hold how long the iteration took on a GPU, as the user measured it."""

    gpu: str
    time_ns: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ObservedCorrection:
    """Say what observations change on m GPUs."""

    observations: tuple[Observation, ...]
    predicted_ns: tuple[float, ...]
    """What was predicted for each."""
    factor: Floats
    """On the iteration's time, [m]."""
    narrowing: Floats
    """On the width of its interval, [m]."""
    errors: JointErrors
    """What is left."""


def correct_by(
    observations: Sequence[Observation], names: Sequence[str], predicted_ns: Floats, errors: JointErrors
) -> ObservedCorrection:
    """Return what observations say of all GPUs; `names` are those of `predicted_ns` and `errors`."""
    at = np.array([names.index(item.gpu) for item in observations], dtype=np.int64)
    said_ns = predicted_ns[at]
    shift, left = condition(errors, at, np.log(np.array([item.time_ns for item in observations]) / said_ns))
    return ObservedCorrection(
        observations=tuple(observations),
        predicted_ns=tuple(said_ns.tolist()),
        factor=np.exp(shift),
        narrowing=left.deviation / errors.deviation,
        errors=left,
    )


def condition(errors: JointErrors, at: Rows, log_ratio: Floats) -> tuple[Floats, JointErrors]:
    """Return by how much all are expected to be off, natural log, [m], and the errors that are left.

    `log_ratio` is log(measured / predicted) of the GPUs `at`; what was measured is taken at its word.
    """
    known = errors.covariance
    seen = known[np.ix_(at, at)] + MEASURED**2 * np.eye(len(at))
    gain = np.linalg.solve(seen, known[at]).T
    shift = gain @ log_ratio
    rest = known - gain @ known[at]
    rest[at], rest[:, at] = 0.0, 0.0
    rest[at, at] = MEASURED**2
    shift[at] = log_ratio
    deviation = np.sqrt(np.maximum(np.diag(rest), (OWN / 2) ** 2))
    correlation = rest / np.outer(deviation, deviation)
    np.fill_diagonal(correlation, 1.0)
    ratio = deviation / errors.deviation
    fall, rise = (np.sqrt(np.square(side).sum(axis=0)) * ratio for side in (errors.fall, errors.rise))
    fall[at] = rise[at] = MEASURED
    return np.asarray(shift), JointErrors(fall=fall[None], rise=rise[None], correlation=correlation[None])


def correct_rows(report: AnalysisReport, result: Analysis, observations: Sequence[Observation]) -> AnalysisReport:
    """Return the report with its rows corrected and ranked anew; ops and the critical path stay as predicted.

    >>> seen = correct_rows(report, result, [Observation(gpu="A100 SXM4 80GB", time_ns=10e6)])
    >>> [(row.gpu, round(row.iteration_ns / 1e6), row.is_observed) for row in seen.predictions]
    [('H100 SXM5 80GB', 7, False), ('A100 SXM4 80GB', 10, True)]
    """
    if not observations:
        return report
    names = [gpu.name for gpu in result.prediction.fleet.gpus]
    correction = correct_by(observations, names, result.forecast.iteration_ns, joint_errors(result))
    place = {name: at for at, name in enumerate(names)}
    seen = {item.gpu: item.time_ns for item in correction.observations}
    rows = [
        _corrected(row, seen, float(correction.factor[place[row.gpu]]), float(correction.narrowing[place[row.gpu]]))
        for row in report.predictions
    ]
    ranked = sorted(rows, key=lambda row: (row.fits is False, row.iteration_ns))
    return replace(report, predictions=tuple(ranked), warnings=(*report.warnings, *_far_off(correction)))


def _corrected(row: GpuPrediction, seen: Mapping[str, float], factor: float, narrowing: float) -> GpuPrediction:
    """Return a row with its time, what adds up to it, and its interval; the parts keep their shares."""
    is_observed = row.gpu in seen
    time_ns = seen[row.gpu] if is_observed else row.iteration_ns * factor
    ratio = time_ns / row.iteration_ns if row.iteration_ns > 0 else 1.0

    def end(end_ns: float | None, side: float) -> float | None:
        if is_observed:
            return float(time_ns * np.exp(side * HALF_WIDTH * MEASURED))
        if end_ns is None or end_ns <= 0 or row.iteration_ns <= 0:
            return end_ns
        return float(time_ns * (end_ns / row.iteration_ns) ** narrowing)

    return replace(
        row,
        is_observed=is_observed,
        iteration_ns=time_ns,
        iteration_low_ns=end(row.iteration_low_ns, -1.0),
        iteration_high_ns=end(row.iteration_high_ns, 1.0),
        gpu_busy_ns=row.gpu_busy_ns * ratio,
        communication_ns=row.communication_ns * ratio,
        idle_ns={cause: spent * ratio for cause, spent in row.idle_ns.items()},
        speedup=row.speedup and row.speedup / ratio,
        samples_per_s=row.samples_per_s and row.samples_per_s / ratio,
        tokens_per_s=row.tokens_per_s and row.tokens_per_s / ratio,
    )


def _far_off(correction: ObservedCorrection) -> tuple[str, ...]:
    """Ask about what was observed far from what was predicted."""
    return tuple(
        f"{item.gpu} was observed at {factor:.3g} times the predicted time: is it the same iteration, of the same "
        "batch, and the right unit? GPUs that share its errors are moved along with it"
        for item, said_ns in zip(correction.observations, correction.predicted_ns, strict=True)
        if not 1 / FAR_RATIO <= (factor := item.time_ns / said_ns) <= FAR_RATIO
    )
