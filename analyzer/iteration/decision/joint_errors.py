"""How far off the iteration's times on several GPUs may be together: their errors, and how these go along.

What one op model misses on a GPU it misses on the GPU's twin too, and what a ratio makes of the source's time is off on
all targets alike. mlp_weights/train/rank_errors.py measures how alike, by the kind of prediction and by what two GPUs
have in common; `joint_errors` adds it up over what an iteration's interval comes from:

    cov(g, h) = sum over groups f of ops of  c_f(g, h) s_fg s_fh  +  c_host s_hostg s_hosth  (+ own^2 where g = h)

with s the standard deviations of the logarithm of the iteration's time, and c_f the correlation of errors of f's kind:
1 for one card under several caps, clocks or divisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from ....arrays import Codes, Floats, Mask, Rows
from ....formats.files.constants import read_constants
from ....records import dataclass
from ....specs.gpu import Gpu, chip_of
from ...prediction.prediction import METHODS, Method
from ...prediction.sum_interval import RATIO, SHARED, error_groups
from ..result import Analysis

CONSTANTS: Final = "rank_errors"
LEVELS: Final = ("any", "vendor", "architecture", "chip")
"""What two GPUs have in common, the least first."""
SHAPES: Final = "shapes"
ANCHORED: Final = "anchored"
NETWORK: Final = "network"
KINDS: Final = (SHAPES, ANCHORED, RATIO, NETWORK)
"""How a group's times came about: an op model from shapes; anchored at a measured time; a ratio of datasheet figures;
and the error that times from shapes share on a GPU."""
HALF_WIDTH: Final = 1.645
"""Of a 90 % interval, in standard deviations."""
OWN: Final = 0.015
"""Standard deviation, natural log, of what no prediction tells: measurements of one iteration on one GPU differ by 1 to
3 %, and by so much the replay is not exact."""
UNKNOWN: Final = 0.81 / HALF_WIDTH
"""The same of a GPU on which too much of the time has no interval: as groups of ops that nothing measured."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JointErrors:
    """Hold standard deviations of log(true / predicted) of m iterations in p independent parts, and their correlation.

    The parts are what the kernels' times are off by, the host's, and what is each GPU's own; after an observation, one.
    """

    fall: Floats
    """Towards shorter times, [p, m]."""
    rise: Floats
    """Towards longer ones, [p, m]."""
    correlation: Floats
    """[p, m, m], positive semidefinite each."""

    @property
    def middle(self) -> Floats:
        """Return the standard deviation of each part, both sides together, [p, m]."""
        return np.asarray((self.fall + self.rise) / 2)

    @property
    def covariance(self) -> Floats:
        """Return the covariance of the errors, [m, m]."""
        return np.asarray(np.einsum("pij,pi,pj->ij", self.correlation, self.middle, self.middle))

    @property
    def deviation(self) -> Floats:
        """Return the standard deviation of the errors, [m]."""
        return np.asarray(np.sqrt(np.square(self.middle).sum(axis=0)))

    def of(self, columns: Rows) -> JointErrors:
        """Return the errors of some of the iterations."""
        return JointErrors(
            fall=self.fall[:, columns],
            rise=self.rise[:, columns],
            correlation=self.correlation[:, columns[:, None], columns],
        )


def levels(gpus: Sequence[Gpu]) -> Codes:
    """Return what every two GPUs have in common, as an index into `LEVELS`, [m, m].

    >>> levels([h100, a100])
    array([[3, 1],
           [1, 3]])
    """
    found = np.zeros((len(gpus), len(gpus)), dtype=np.int64)
    shared = ((gpu.vendor, f"{gpu.vendor} {gpu.architecture}", chip_of(gpu)) for gpu in gpus)
    for level, column in enumerate(zip(*shared, strict=True), 1):
        found[_is_same(column)] = level
    return found


def _is_same(names: Sequence[str]) -> Mask:
    codes = np.unique(np.array(names, dtype=np.str_), return_inverse=True)[1]
    return np.asarray(codes[:, None] == codes)


def joint_errors(result: Analysis) -> JointErrors:
    """Return the errors of the iteration's predicted time on every GPU of an analysis, in its order.

    >>> joint_errors(result).correlation.shape
    (3, 2, 2)
    """
    constants: Mapping[str, Any] = read_constants(CONSTANTS)
    gpus, forecast = result.prediction.fleet.gpus, result.forecast
    known = ~np.isnan(forecast.reach_ns).any(axis=0)
    reach = np.where(known, forecast.reach_ns / np.maximum(forecast.iteration_ns, 1.0), 0.0)
    side = np.stack((-np.log1p(-np.minimum(reach[::2], 0.99)), np.log1p(reach[1::2]))) / HALF_WIDTH
    kernels, host = side[:, 0], side[:, 1]
    kinds, shares = _kinds_and_shares(result)
    spread = np.array([float(constants["spread"][kind]) for kind in kinds])
    widened = shares * np.square(spread)[:, None]
    kernels = kernels * np.sqrt(widened.sum(axis=0))
    parts = np.sqrt(np.divide(widened, widened.sum(axis=0), out=np.zeros_like(widened), where=widened > 0))
    common, is_same_card = levels(gpus), _is_same([gpu.base_name or gpu.name for gpu in gpus])
    alike = np.zeros((len(gpus), len(gpus)))
    for kind in dict.fromkeys(kinds):
        mine = parts[[item == kind for item in kinds]]
        by_level = np.array([float(constants["correlation"][kind][level]) for level in LEVELS])
        alike += np.where(is_same_card, 1.0, by_level[common]) * (mine.T @ mine)
    np.fill_diagonal(alike, 1.0)
    # Nothing was timed: one host runs all, its costs are off alike. Recorded: each GPU stands in a machine of its own.
    hosts = np.ones_like(alike) if result.origin is None else np.eye(len(gpus))
    own = np.where(known, OWN, UNKNOWN)
    fall, rise = (np.stack((kernels[at], host[at], own)) for at in (0, 1))
    return JointErrors(fall=fall, rise=rise, correlation=np.stack((alike, hosts, np.eye(len(gpus)))))


def _kinds_and_shares(result: Analysis) -> tuple[list[str], Floats]:
    """Return the kind of each group of errors, and its part of the variance on each GPU, [groups, m]."""
    prediction = result.prediction
    groups = error_groups(prediction, result.workload.family)
    from_shapes = bool((prediction.method == METHODS.index(Method.OP_MODEL)).any())
    of_families = SHAPES if from_shapes else ANCHORED
    kinds = [{RATIO: RATIO, SHARED: NETWORK}.get(name, of_families) for name in groups.names]
    total = groups.variance.sum(axis=0)
    return kinds, np.divide(groups.variance, total, out=np.zeros_like(groups.variance), where=total > 0)
