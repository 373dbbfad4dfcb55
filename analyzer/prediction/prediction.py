"""The predicted time of every distinct kernel on every GPU."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from ...arrays import Floats, Rows
from ...records import dataclass, replace
from ...specs.fleet import Fleet, take_gpus
from .bounds import Bounds


class Method(StrEnum):
    """Name how a kernel's time on the target was obtained."""

    MEASURED = "measured"
    """The target is the source: the recorded time."""
    WAVE_SCALING = "wave_scaling"
    """Habitat's wave scaling of the measured time: the same kernel is assumed on the target."""
    BOUND_RATIO = "bound_ratio"
    """Measured time times the ratio of the op's roofline times: kernels that libraries choose per GPU."""
    BANDWIDTH_RATIO = "bandwidth_ratio"
    """Measured time times the ratio of memory bandwidths: copies and fills on the device."""
    LINK_RATIO = "link_ratio"
    """Measured time times the ratio of PCIe or GPU-to-GPU bandwidths."""
    ANCHORED_MODEL = "anchored_model"
    """Measured time moved by the op model of its family: what the source shows and the model misses carries over."""
    OP_MODEL = "op_model"
    """The op model of its family, from the shapes alone: nothing was measured."""
    ROOFLINE = "roofline"
    """Arithmetic or memory traffic at peak rate, whichever is longer: no op model covers it, real ones are slower."""
    UNMODELLED = "unmodelled"
    """Nothing models it: the measured time is kept as it is; without one it counts 0."""


METHODS: Final = tuple(Method)
_ALL: Final = slice(None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prediction:
    """Hold the time of n workload rows on m GPUs."""

    fleet: Fleet
    time_ns: Floats
    """Mean time of one kernel (or op) of the row, [n, m]."""
    weight: Floats
    """What a row's time counts in the GPU-busy time: its number of kernels, less where they overlap others, [n]."""
    method: npt.NDArray[np.int8]
    """Index into `METHODS`, [n, m]."""
    reason: tuple[str, ...]
    """Why the method was chosen, per row."""
    half_width: Floats
    """Of the 90 % interval of a row's time, natural log, [n, m]; 0 where measured, NaN where nothing tells."""
    shared_half_width: Floats
    """Of the error that all times from shapes alone share on each GPU, natural log, [m]."""
    bounds: Bounds
    bound_share: Floats
    """The part of its op's bound that a row's time cannot be under, [n]; 0 where no bound holds."""

    def on_gpu(self, column: int) -> Prediction:
        """Return the same of one GPU alone."""
        at = slice(column, column + 1)
        return replace(
            self,
            fleet=take_gpus(self.fleet, np.array([column])),
            time_ns=self.time_ns[:, at],
            method=self.method[:, at],
            half_width=self.half_width[:, at],
            shared_half_width=self.shared_half_width[at],
            bounds=Bounds(roofline_ns=self.bounds.roofline_ns[:, at], lower_ns=self.bounds.lower_ns[:, at]),
        )

    def busy_ns(self, column: int) -> Floats:
        """Return the GPU-busy time of each row on one GPU, overlap shared out as on the source, [n]."""
        return np.asarray(self.time_ns[:, column] * self.weight)

    def total_busy_ns(self) -> Floats:
        """Return the GPU-busy time on each GPU, [m]."""
        return np.asarray(np.einsum("i,ij->j", self.weight, self.time_ns))

    def fall(self, rows: Rows | slice = _ALL, column: int | slice = _ALL) -> Floats:
        """Return by which part of its time a row's low end is under it, [rows, m] or [rows]; NaN where it has none.

        The low end of the 90 % interval, but not under what the bound leaves.
        """
        time, width = self.time_ns[rows, column], self.half_width[rows, column]
        share = self.bound_share[rows, None] if isinstance(column, slice) else self.bound_share[rows]
        above = np.ones_like(time)
        np.divide(self.bounds.lower_ns[rows, column] * share, time, out=above, where=time > 0)
        np.subtract(1.0, above, out=above)
        np.maximum(above, 0.0, out=above)
        return np.asarray(np.minimum(-np.expm1(-width), above))
