"""Simulate a fleet class by class, so that what is fitted for a class is one number wherever it is used."""

from collections.abc import Callable

import numpy as np

from ....arrays import Codes, Floats, distinct
from ....specs.fleet import Fleet, take_gpus
from .parameters import Values
from .problems import P, problem_shape, take_problems


def time_by_class(
    timed: Callable[[P, Fleet, Values], Floats], problems: P, fleet: Fleet, values: Values, classes: Codes
) -> Floats:
    """Return times of problems, [n, 1] against a fleet of m GPUs or [n] against one of n, from those of each class.

    `timed` is given the GPUs of one class at a time, with their values; `classes` says each GPU's class, [m] or [n].
    """
    codes = distinct(classes)
    if len(codes) < 2:
        return timed(problems, fleet, values)
    shape = problem_shape(problems)
    times = np.empty(np.broadcast_shapes(shape, classes.shape))
    for code in codes:
        at = np.flatnonzero(classes == code)
        part = take_problems(problems, at) if shape == classes.shape else problems
        times[..., at] = timed(part, take_gpus(fleet, at), {name: value[at] for name, value in values.items()})
    return times
