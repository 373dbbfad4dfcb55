"""Whole recurrent layers of cuDNN. No measurement covers them: every parameter is a prior, none is fitted.

A layer multiplies its inputs of all steps at once, then its state step by step (Appleyard, Kocisky, Blunsom,
"Optimizing performance of recurrent neural networks on GPUs", 2016):

    t = layers' input products + sequential steps * max(step's product, its weights from L2 or DRAM, floor)

Layers and directions overlap in part, which is taken off the number of sequential steps. Backward: the same steps
against the weights, plus the weights' gradient as one large product.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ....arrays import Codes
from ....specs.fleet import Fleet
from ....specs.gpu import Rate
from ..frame.model import Estimate, Model
from ..frame.parameters import Parameter, Values
from ..frame.units import peak_flops_per_s
from .problems import RecurrentProblems

PARAMETERS: Final = (
    Parameter(name="large_efficiency", prior=0.6, spread=0.0),
    Parameter(name="step_efficiency", prior=0.3, spread=0.0),
    Parameter(name="dram_ratio", prior=0.8, spread=0.0),
    Parameter(name="l2_bytes_per_cycle_per_sm", prior=40.0, spread=0.0),
    Parameter(name="l2_hot_ratio", prior=0.7, spread=0.0),
    Parameter(name="step_us", prior=5.0, spread=0.0),
    Parameter(name="sequential_share", prior=0.5, spread=0.0),
    Parameter(name="launch_us", prior=3.0, spread=0.0),
)
"""`step_us`: two dependent kernels, a product and the gates. `sequential_share`: what of a further layer or direction
does not run beside the first."""


def simulate(problems: RecurrentProblems, fleet: Fleet, values: Values, choice: Codes | None) -> Estimate:  # noqa: ARG001
    """Return kernel times; there are no candidates to choose from."""
    p = problems
    narrow = np.where(p.element_bytes > 4, fleet.flops_per_s[Rate.FP64], fleet.flops_per_s[Rate.FP32])
    peak = np.maximum(peak_flops_per_s(p.rate, fleet), narrow)
    dram = fleet.bandwidth_bytes_per_s * values["dram_ratio"]
    l2 = values["l2_bytes_per_cycle_per_sm"] * fleet.sm_count * fleet.clock_hz
    state_weights = p.gates * p.hidden_size**2
    input_weights = p.gates * p.hidden_size * (p.input_size + (p.layers - 1.0) * p.directions * p.hidden_size)
    large_weights = p.directions * (
        input_weights * (1.0 + p.large_products) + p.layers * state_weights * p.large_products
    )
    large_flops = 2.0 * p.steps * p.batch * large_weights
    streams = p.steps * p.batch * p.directions * p.layers * (p.gates + 2.0) * p.hidden_size * p.element_bytes
    large_s = np.maximum(large_flops / (peak * values["large_efficiency"]), streams / dram)
    step_bytes = state_weights * p.element_bytes
    is_hot = p.layers * p.directions * step_bytes < values["l2_hot_ratio"] * fleet.l2_cache_bytes
    step_s = np.maximum(
        2.0 * p.batch * state_weights / (peak * values["step_efficiency"]),
        np.where(is_hot, step_bytes / l2, step_bytes / dram),
    )
    chains = 1.0 + (p.layers * p.directions - 1.0) * values["sequential_share"]
    busy_s = np.maximum(p.layers * p.directions * p.steps * step_s, chains * p.steps * values["step_us"] * 1e-6)
    time_ns = 1e9 * (large_s + busy_s) + 1e3 * p.layers * values["launch_us"]
    return Estimate(time_ns=time_ns, features=np.zeros((*time_ns.shape, 0)))


def gpu_class(fleet: Fleet) -> Codes:
    """Return the one class of all GPUs."""
    return np.zeros(len(fleet.gpus), dtype=np.int64)


MODEL: Final = Model(
    name="recurrent",
    parameters=PARAMETERS,
    class_names=("all",),
    gpu_class=gpu_class,
    simulate=simulate,
)
