"""What a simulator says of n problems on m GPUs."""

from collections.abc import Callable, Sequence
from typing import Generic

import numpy as np

from ....arrays import Codes, Floats
from ....records import dataclass
from ....specs.fleet import Fleet
from .parameters import Parameter, Values
from .problems import P, problem_shape


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Estimate:
    """Hold a simulated time and what explains it, arrays of the problems' shape broadcast with the fleet's."""

    time_ns: Floats
    """Kernel time: on the GPU, without the host's launch."""
    features: Floats | Callable[[], Floats]
    """What tells problems on one GPU apart, dimensionless, [..., f]: measurements there speak for others like them
    (`measurements/gaussian_process`); f may be 0. Where they take long, what returns them."""
    sizes: Floats | None = None
    """What the learned correction sees, [..., s]: sizes of the problems alone. It is the same on every GPU, so that no
    better GPU is slower by it. None: no correction; NaN: none of that problem."""
    size_column: Codes | None = None
    """Where kernels are of several libraries: `sizes` are [n, libraries, s], and this says whose each GPU runs, [m]."""
    choice: Codes | None = None
    """The candidate (tile, split, algorithm) that gave the least time; None where there are no candidates.
    Passed back to `simulate`, it fixes the candidates, so that derivatives cost one candidate each."""
    unstated: Floats | None = None
    """90 % half-width, natural log, of what a machine's description leaves open, beside what GPUs left out show."""

    def described(self) -> Floats:
        """Return the features."""
        return self.features() if callable(self.features) else self.features


Simulate = Callable[[P, Fleet, Values, Codes | None], Estimate]
"""(problems, fleet, parameters, choice or None) -> Estimate.

Problems are columns, [n, 1] against a fleet of m GPUs, or [n] against a fleet of n (`take_gpus`).
"""


def one_class(fleet: Fleet) -> Codes:
    """Return the same class for every GPU."""
    return np.zeros(len(fleet.gpus), dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model(Generic[P]):
    """Describe an op model: its simulator and what is fitted in it."""

    name: str
    """Also the name of its weights file."""
    parameters: tuple[Parameter, ...]
    class_names: tuple[str, ...] = ("all",)
    """Classes of GPU that may differ by an offset, e.g. how their matrix units are fed."""
    gpu_class: Callable[[Fleet], Codes] = one_class
    """Index into `class_names` per GPU."""
    is_by_class: bool = False
    """Whether it simulates the GPUs of one class at a time."""
    simulate: Simulate[P]
    feature_names: Sequence[str] = ()
    size_names: Sequence[str] = ()
    """Of `Estimate.sizes`."""
    group_names: tuple[str, ...] = ("all",)
    """Kinds of problem whose errors are of different size: intervals and anchoring are learned for each."""
    group: Callable[[P], Codes] | None = None
    """Index into `group_names` per problem; None: one group."""
    kind: Callable[[P], Codes] | None = None
    """Which kernel runs per problem: measurements of it speak for others of it, whatever their size (`calibration`).
    Negative: for no other problem. None: the features say it."""


def group_of(model: Model[P], problems: P) -> Codes:
    """Return the group of each problem."""
    if model.group is None:
        return np.zeros(problem_shape(problems), dtype=np.int64)
    return model.group(problems)


def kind_of(model: Model[P], problems: P) -> Codes:
    """Return the kind of kernel of each problem; -1 where the model tells kinds apart by features, or not at all.

    >>> kind_of(library.fitted["matmul"].model, problems)[:2]
    array([-1, -1])
    """
    if model.kind is None:
        return np.full(problem_shape(problems), -1)
    return model.kind(problems)
