"""The few fitted numbers of a simulator: positive, shared by all GPUs, with small offsets per class of GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ....arrays import Floats

Values = Mapping[str, Floats]
"""A simulator's parameters by name, each with one element per GPU of the fleet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """Describe one positive parameter, fitted as its logarithm around a prior."""

    name: str
    prior: float
    """In the unit that `name` states."""
    spread: float = 0.5
    """Standard deviation of the prior, in natural-log units; 0 fixes the parameter."""
    class_spread: float = 0.0
    """Standard deviation of a class's offset from the shared value; 0: the same for every class."""


def theta_size(parameters: Sequence[Parameter], class_count: int) -> int:
    """Return the number of elements of the fitted vector: one per parameter, then one per class where it varies."""
    return len(parameters) + class_count * sum(item.class_spread > 0 for item in parameters)


def prior_scale(parameters: Sequence[Parameter], class_count: int) -> Floats:
    """Return the prior's standard deviation of every element of theta; 0 for fixed ones."""
    offsets = [item.class_spread for item in parameters if item.class_spread > 0 for _ in range(class_count)]
    return np.array([item.spread for item in parameters] + offsets, dtype=np.float64)


def resolve(
    parameters: Sequence[Parameter], theta: Floats, class_count: int, gpu_class: npt.NDArray[np.int64]
) -> dict[str, Floats]:
    """Return each parameter's value per GPU: prior * exp(shared + offset of the GPU's class).

    `theta` holds deviations from the log priors, as `theta_size` lays them out; zeros give the priors.
    """
    if len(theta) != theta_size(parameters, class_count):
        raise ValueError(f"theta has {len(theta)} elements, {theta_size(parameters, class_count)} expected")
    position = len(parameters)
    values: dict[str, Floats] = {}
    for row, item in enumerate(parameters):
        shared = np.log(item.prior) + theta[row]
        if item.class_spread > 0:
            values[item.name] = np.exp(shared + theta[position : position + class_count])[gpu_class]
            position += class_count
        else:
            values[item.name] = np.full(gpu_class.shape, np.exp(shared))
    return values


def prior_values(parameters: Sequence[Parameter], gpu_count: int) -> Values:
    """Return each parameter's prior per GPU: what holds where no model has fitted it."""
    return {item.name: np.full(gpu_count, item.prior) for item in parameters}
