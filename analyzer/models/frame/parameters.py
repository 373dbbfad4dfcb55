"""The few fitted numbers of a simulator, with small offsets per class of GPU; factors on a GPU's rates."""

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ....arrays import Floats
from ....records import astuple, dataclass, fields
from ....specs.fleet import Fleet, scale_rates

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
    only: int | None = None
    """The one class that has an offset; None: all have."""


def priors(section: str, class_names: Sequence[str] = ()) -> tuple[Parameter, ...]:
    """Return the parameters of a section of a family's `priors.csv`, in its order; one class's are of these names.

    A row's note holds for those that follow it as well, up to the next one.

    >>> priors("launch")[0]
    Parameter(name='launch_us', prior=1.0, spread=0.3, class_spread=0.0, only=None)
    """
    return tuple(
        Parameter(
            name=name,
            prior=float(prior),
            spread=float(spread),
            class_spread=float(class_spread or 0.0),
            only=class_names.index(only) if only else None,
        )
        for name, prior, spread, class_spread, only, _ in _sections()[section]
    )


@lru_cache(maxsize=1)
def _sections() -> Mapping[str, Sequence[Sequence[str]]]:
    found = defaultdict[str, list[list[str]]](list)
    for path in Path(__file__).parents[1].glob("*/priors.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            for section, *row in islice(csv.reader(file), 1, None):
                found[section].append(row)
    return found


def theta_size(parameters: Sequence[Parameter], class_count: int) -> int:
    """Return the number of elements of the fitted vector: one per parameter, then one per class that has an offset."""
    return len(parameters) + sum(_offset_count(item, class_count) for item in parameters)


def _offset_count(item: Parameter, class_count: int) -> int:
    if item.class_spread == 0:
        return 0
    return class_count if item.only is None else 1


def prior_scale(parameters: Sequence[Parameter], class_count: int) -> Floats:
    """Return the prior's standard deviation of every element of theta; 0 for fixed ones."""
    offsets = [item.class_spread for item in parameters for _ in range(_offset_count(item, class_count))]
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
        offsets, count = np.zeros(class_count), _offset_count(item, class_count)
        if count:
            at = slice(None) if item.only is None else slice(item.only, item.only + 1)
            offsets[at] = theta[position : position + count]
        values[item.name] = np.exp(shared + offsets)[gpu_class]
        position += count
    return values


def prior_values(parameters: Sequence[Parameter], gpu_count: int) -> Values:
    """Return each parameter's prior per GPU: what holds where no model has fitted it."""
    return {item.name: np.full(gpu_count, item.prior) for item in parameters}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFactors:
    """Hold the factors on a GPU's rates, all models' alike; 1: as the datasheet and the models have it."""

    clock: float = 1.0
    """The clock that arithmetic sustains, and all that goes with it."""
    bandwidth: float = 1.0
    """DRAM's; beside GDDR the second-level cache's as well, whose slices come with the memory's channels."""
    l2: float = 1.0
    """The second-level cache's rate, beyond what follows from the two."""
    launch: float = 1.0
    """The time that a kernel takes beside its work."""


FACTOR_NAMES = tuple(item.name for item in fields(GpuFactors))
UNCHANGED = GpuFactors()


def factors_of(logs: Floats) -> GpuFactors:
    """Return the factors whose natural logarithms these are, in the order of `FACTOR_NAMES`."""
    return GpuFactors(**dict(zip(FACTOR_NAMES, np.exp(logs).tolist(), strict=True)))


def scale_gpus(fleet: Fleet, known: Mapping[str, GpuFactors]) -> Fleet:
    """Return the fleet with the rates of the GPUs that are known by name; the same one where none is.

    >>> slow = scale_gpus(fleet, {"A100 SXM4 80GB": GpuFactors(bandwidth=0.5)})
    >>> (slow.bandwidth_bytes_per_s / fleet.bandwidth_bytes_per_s).tolist()
    [1.0, 0.5]
    """
    if not any(gpu.name in known for gpu in fleet.gpus):
        return fleet
    found = np.array([astuple(known.get(gpu.name, UNCHANGED)) for gpu in fleet.gpus])
    return scale_rates(fleet, *found.T)
