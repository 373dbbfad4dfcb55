"""What measurements of one GPU say of the few rates that all its kernels share: factors on the datasheet's figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields

import numpy as np

from ....arrays import Floats
from ....specs.fleet import Fleet, scale_rates


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
