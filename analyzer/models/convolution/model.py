"""Convolutions: cuDNN's implicit matrix product, its two Winograd forms, and direct kernels for small groups.

Each is tiles of a product, shared out to the SMs (`convolution_tiles`):

    t = sqrt(Tc^2 + Td^2 + Tl^2) * slow-down by the power limit

Tc: rounds of blocks, at the pace of the units or of one block's chain of loads; Td: DRAM; Tl: L2. Winograd in
separate steps adds the transforms' traffic. cuDNN's choice is uncertain even where its heuristic is known to look for
the least time, so the times are averaged in logarithms, weighted by exp(-log time / temperature).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ....arrays import Codes, Floats
from ....specs.fleet import Fleet
from ....specs.generations import is_before_volta
from ....specs.gpu import Rate
from ..frame.event_timing import event_time_ns
from ..frame.gpu_physics import DRAM_PARAMETERS, L2_PARAMETERS, POWER_PARAMETERS
from ..frame.model import Estimate, Model
from ..frame.parameters import Parameter, Values
from ..frame.units import RATES
from .problems import ConvolutionProblems, kernel_kind
from .tiles import TILE_CODES, Setting, best_fused, best_implicit, best_separate, direct_time, setting_of

CLASS_NAMES: Final = ("before Volta", "Volta and later")


def gpu_class(fleet: Fleet) -> Codes:
    """Return which generation of cuDNN's vector kernels runs: those for Maxwell, or those for Volta."""
    return np.where(is_before_volta(fleet), 0, 1).astype(np.int64)


PARAMETERS: Final = (
    Parameter(name="implicit_efficiency", prior=0.9, spread=0.08),
    Parameter(name="fused_efficiency", prior=0.85, spread=0.08),
    Parameter(name="separate_efficiency", prior=0.88, spread=0.08),
    Parameter(name="edge_loss", prior=6.0, spread=0.3),
    Parameter(name="chain_cycles", prior=500.0, spread=0.25),
    Parameter(name="epilogue_k", prior=12.0, spread=0.4),
    Parameter(name="fused_epilogue_k", prior=15.0, spread=0.4),
    Parameter(name="start_cycles", prior=1500.0, spread=0.5),
    *DRAM_PARAMETERS,
    *L2_PARAMETERS,
    *POWER_PARAMETERS,
    Parameter(name="dram_ratio", prior=0.85, spread=0.15),
    Parameter(name="transform_ratio", prior=0.77, spread=0.2),
    Parameter(name="feed_ratio", prior=1.5, spread=0.3),
    Parameter(name="l2_hot_ratio", prior=0.7, spread=0.3),
    Parameter(name="launch_us", prior=2.0, spread=0.3),
    Parameter(name="throttle_ratio", prior=0.4, spread=0.3),
    Parameter(name="fused_preference", prior=1.0, spread=0.2),
    Parameter(name="separate_preference", prior=1.0, spread=0.2),
    Parameter(name="temperature", prior=0.15, spread=0.5),
    # What the measured calls add to their kernels: at least, and in the mean of the table's spread of delays.
    Parameter(name="call_floor_us", prior=60.0, spread=0.3),
    Parameter(name="call_delay_us", prior=200.0, spread=0.5, class_spread=0.4),
    # No measurement here covers what follows: priors from what is known of cuDNN, not fitted.
    Parameter(name="matrix_efficiency", prior=0.7, spread=0.0),
    Parameter(name="matrix_chain_cycles", prior=60.0, spread=0.0),
    Parameter(name="matrix_feed_ratio", prior=3.3, spread=0.0),
    Parameter(name="matrix_dram_ratio", prior=0.95, spread=0.0),
    Parameter(name="weight_gradient_cost", prior=1.1, spread=0.0),
    Parameter(name="direct_efficiency", prior=0.25, spread=0.0),
    Parameter(name="direct_dram_ratio", prior=0.55, spread=0.0),
    Parameter(name="direct_weight_gradient_cost", prior=3.0, spread=0.0),
)

VECTOR_RATES: Final = (RATES.index(Rate.FP32), RATES.index(Rate.MATRIX_FP32))
CALL_OVERLAP: Final = 1.0
"""No kernel starts before cuDNN has chosen it: all of a call's host time comes before the kernels."""


def simulate(problems: ConvolutionProblems, fleet: Fleet, values: Values, choice: Codes | None) -> Estimate:
    """Return kernel times (times of a call between events where the problems say so); `choice` holds the tiles."""
    setting = setting_of(problems, fleet, values)
    implicit, tile = best_implicit(setting, choice)
    busy_ns = implicit
    if problems.tiles.any():
        separate, separate_tile = best_separate(setting, choice)
        busy_ns = _average((implicit, best_fused(setting), separate), values)
        tile = tile + TILE_CODES * separate_tile
    if (problems.groups > 1).any():
        busy_ns = np.minimum(busy_ns, direct_time(setting))
    kernel_ns = problems.passes * (busy_ns * _gradient_cost(setting) + 1e3 * values["launch_us"])
    call_ns = event_time_ns(kernel_ns, 1e3 * (values["call_floor_us"] + values["call_delay_us"]), CALL_OVERLAP)
    time_ns = np.where(problems.is_event_timed > 0, call_ns, kernel_ns)
    return Estimate(time_ns=time_ns, features=np.zeros((*time_ns.shape, 0)), choice=tile)


def _average(times: Sequence[Floats], values: Values) -> Floats:
    """Return the mean, in logarithms, over what cuDNN may run: implicit, fused, in separate steps."""
    logs = [np.log(time) for time in times]
    preferences = (0.0, np.log(values["fused_preference"]), np.log(values["separate_preference"]))
    scores = [log + preference for log, preference in zip(logs, preferences, strict=True)]
    least = np.minimum(np.minimum(scores[0], scores[1]), scores[2])
    shares = [np.exp((least - score) / values["temperature"]) for score in scores]
    mean = sum(share * log for share, log in zip(shares, logs, strict=True)) / sum(shares)
    return np.asarray(np.exp(mean))


def _gradient_cost(setting: Setting) -> Floats:
    """Return the mean cost of the passes over that of the forward product."""
    values = setting.values
    is_grouped = setting.problems.groups > 1
    cost = np.where(is_grouped, values["direct_weight_gradient_cost"], values["weight_gradient_cost"])
    return np.asarray(1.0 + setting.problems.weight_share * (cost - 1.0))


def group(problems: ConvolutionProblems) -> Codes:
    """Return 0 for what the measurements cover, dense fp32 products, and 1 for what rests on priors."""
    is_vector = np.isin(problems.rate, VECTOR_RATES)
    return np.where(is_vector & (problems.groups == 1) & (problems.weight_share == 0), 0, 1).astype(np.int64)


MODEL: Final = Model(
    name="convolution",
    parameters=PARAMETERS,
    class_names=CLASS_NAMES,
    gpu_class=gpu_class,
    simulate=simulate,
    group_names=("fp32", "priors"),
    group=group,
    kind=kernel_kind,
)
