"""How sure the ratio of two predicted iterations is: errors that both share cancel.

ln(new / old) changes by sum_i c_i e_i, where e_i is the error of the natural logarithm of op i's time and
c_i = p_new T_new,i / L_new - p_old T_old,i / L_old: T the kernel time of the op on either side, L the iteration, and p
the part of a change of kernel time that reaches the iteration (0 where the host hides it, by a replay with slower
kernels). An op that both sides run alike, by the same method, has one error: where nothing changed, all c are 0. Errors
then add up as `prediction.sum_interval` adds those of one iteration: within a family fully correlated (times from
shapes: by FAMILY_SHARE), between families independent, and all times from shapes share one error per GPU besides.
"""

from collections.abc import Hashable
from dataclasses import replace
from typing import Final

import numpy as np

from ....arrays import Floats
from ...iteration.result import Analysis
from ...prediction.prediction import METHODS, Method
from ...prediction.sum_interval import COMMON, FAMILY_SHARE, UNKNOWN_SHARE
from ...replay.forecast import iteration_lengths

_PROBE: Final = 0.05
"""By which part kernels are slowed to see how much of it reaches the iteration."""


def change_half_widths(old: Analysis, new: Analysis, columns: tuple[int, int]) -> tuple[float, float] | None:
    """Return how far ln(new / old) may be under and over, 90 %; None where too much has no interval."""
    merged: dict[Hashable, list[float]] = {}
    about: dict[Hashable, tuple[str, float, float, bool]] = {}
    shared = 0.0
    for sign, result, column in ((-1.0, old, columns[0]), (1.0, new, columns[1])):
        weights = _weights(result, column)
        prediction = result.prediction
        fall, width = prediction.fall(column=column), prediction.half_width[:, column]
        for row in np.flatnonzero(weights).tolist():
            method = METHODS[prediction.method[row, column]]
            if method is Method.MEASURED:
                continue
            key = (*_identity(result, row), method, None if result.origin is None else result.origin.name)
            merged.setdefault(key, []).append(sign * float(weights[row]))
            family = "ratio" if method in COMMON else str(result.workload.family[row])
            down = -float(np.log1p(-min(fall[row], 0.999))) if fall[row] == fall[row] else np.nan
            about[key] = (family, down, float(width[row]), method is Method.OP_MODEL)
    down, up, unknown = _combine(merged, about)
    of_shapes = sum(sum(parts) for key, parts in merged.items() if about[key][3])
    shared = abs(of_shapes) * float(new.prediction.shared_half_width[columns[1]])
    if unknown > UNKNOWN_SHARE:
        return None
    host = _host_change(old, new, columns)
    return float(np.sqrt(down + shared**2 + host**2)), float(np.sqrt(up + shared**2 + host**2))


def _combine(
    merged: dict[Hashable, list[float]], about: dict[Hashable, tuple[str, float, float, bool]]
) -> tuple[float, float, float]:
    """Return the squares of the falls and rises of independent parts, and the share that has no interval."""
    groups: dict[str, list[float]] = {}
    down = up = unknown = 0.0
    for key, parts in merged.items():
        family, fall, rise, is_from_shapes = about[key]
        change = sum(parts)
        if not np.isfinite(rise) or not np.isfinite(fall):
            unknown += abs(change)
            continue
        share = FAMILY_SHARE if is_from_shapes else 1.0
        ends = sorted((change * rise, -change * fall))
        rest = 1.0 - share**2
        down, up = down + rest * ends[0] ** 2, up + rest * ends[1] ** 2
        found = groups.setdefault(family, [0.0, 0.0])
        found[0] += share * change * rise
        found[1] -= share * change * fall
    for found in groups.values():
        low, high = min(*found, 0.0), max(*found, 0.0)
        down, up = down + low**2, up + high**2
    return down, up, unknown


def _identity(result: Analysis, row: int) -> tuple[Hashable, ...]:
    """Return what makes two rows the same: op, arguments' types and sizes, and kernel."""
    workload, trace = result.workload, result.trace
    op, kernel = int(workload.op[row]), int(workload.kernel[row])
    name = trace.strings[int(trace.ops.name[op])] if op >= 0 else ""
    number = int(trace.ops.signature[op]) if op >= 0 else -1
    tensors = trace.signatures[number].tensors() if number >= 0 else ()
    shapes = tuple((item.dtype, item.shape) for item in tensors)
    return name, shapes, trace.strings[int(trace.kernels.name[kernel])] if kernel >= 0 else ""


def _weights(result: Analysis, column: int) -> Floats:
    """Return each row's part of the iteration, as far as a change of it would reach that, [n]."""
    length = float(result.forecast.iteration_ns[column])
    busy = result.prediction.busy_ns(column)
    total = float(busy.sum())
    if length <= 0 or total <= 0:
        return np.zeros(len(busy))
    slower = _probe(result, column, kernels=1.0 + _PROBE)
    passed = float(np.clip((slower - length) / (_PROBE * total), 0.0, 1.0))
    return np.asarray(busy * passed / length)


def _probe(result: Analysis, column: int, *, kernels: float = 1.0, host: float = 1.0) -> float:
    """Return the iteration with slower kernels or a slower host."""
    timing = result.forecast.timing
    window = result.replayed_window
    changed = replace(timing, factor=timing.factor * kernels, host_ratio=timing.host_ratio * host)
    return float(iteration_lengths(result.trace, window, result.graph, changed)[column])


def _host_change(old: Analysis, new: Analysis, columns: tuple[int, int]) -> float:
    """Return how far the ratio moves with the host's speed, natural log: one host where both are of a kind."""
    effects = []
    for result, column in ((old, columns[0]), (new, columns[1])):
        half_width = float(result.host_half_width[column])
        length = float(result.forecast.iteration_ns[column])
        slower = _probe(result, column, host=float(np.exp(half_width))) if half_width > 0 else length
        effects.append(float(np.log(slower / length)) if length > 0 and slower > 0 else 0.0)
    if (old.origin is None) == (new.origin is None):
        return effects[1] - effects[0]
    return float(np.hypot(effects[0], effects[1]))
