"""Holds that no report has a time that is none: the one place that every analysis passes before anything is said."""

from __future__ import annotations

import numpy as np

from ...arrays import Floats
from ...errors import WavecastError
from ..replay.causes import CAUSES
from .result import Analysis


def check_times(result: Analysis) -> None:
    """Raise WavecastError, naming op and GPU, where a predicted time is NaN, infinite or negative.

    >>> check_times(result)  # nothing to say
    """
    time_ns = result.prediction.time_ns
    wrong = np.argwhere(~(np.isfinite(time_ns) & (time_ns >= 0.0)))
    if len(wrong):
        row, column = wrong[0].tolist()
        raise _failure(result, f"{_name(result, row)} is predicted to take {time_ns[row, column]:g} ns", column)
    forecast = result.forecast
    totals: dict[str, Floats] = {
        "the iteration": forecast.iteration_ns,
        "the GPU's busy time": forecast.busy_ns,
        "the time of communication": forecast.communication_ns,
        **{f"idle time ({cause.value})": forecast.idle_ns[:, at] for at, cause in enumerate(CAUSES)},
    }
    ends = {"the interval's low end": forecast.low_ns, "the interval's high end": forecast.high_ns}
    for what, values in (*totals.items(), *ends.items()):
        # Of an interval, NaN says that nothing is known.
        bad = np.flatnonzero(np.isinf(values) if what in ends else ~np.isfinite(values))
        if len(bad):
            raise _failure(result, f"{what} comes to {values[bad[0]]:g} ns", int(bad[0]))


def _name(result: Analysis, row: int) -> str:
    trace, workload = result.trace, result.workload
    op = int(workload.op[row])
    if op >= 0:
        return f"{trace.strings[int(trace.ops.name[op])]} (op {op})"
    return trace.strings[int(trace.kernels.name[workload.kernel[row]])]


def _failure(result: Analysis, found: str, column: int) -> WavecastError:
    gpu = result.prediction.fleet.gpus[column].name
    return WavecastError(f"{found} on {gpu}: no report may hold that; this is a fault of a model, please report it")
