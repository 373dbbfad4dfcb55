"""Matrix products with a quantised operand: fp8, block-scaled fp8, fp4, int8 and packed weights.

A product as `model` has it, by a kernel with an efficiency of its own; and the conversion of the activations before it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from ....arrays import Codes, Floats
from ....specs.fleet import Fleet
from ..frame.model import Estimate, Model
from ..frame.parameters import Parameter, Values
from .limits import Machine, machine_of
from .model import CLASSES, FEATURES, PARAMETERS, compact, gpu_class, simulate_on
from .problems import MatmulKernel, MatmulProblems

QUANTIZED_PARAMETERS: Final = (
    *PARAMETERS,
    Parameter(name="quantized_split_us", prior=30.0, spread=0.5),
    Parameter(name="fp8_efficiency", prior=0.85, spread=0.2),
    Parameter(name="fp8_block_efficiency", prior=0.8, spread=0.2, class_spread=0.3),
    Parameter(name="native_block_efficiency", prior=0.95, spread=0.2),
    Parameter(name="fp4_efficiency", prior=0.65, spread=0.2),
    Parameter(name="weight_only_efficiency", prior=0.85, spread=0.2),
    Parameter(name="int8_efficiency", prior=0.85, spread=0.2),
    Parameter(name="quantize_traffic", prior=1.2, spread=0.3),
    Parameter(name="quantize_fp8_us", prior=1.9, spread=0.3),
    Parameter(name="quantize_fp8_block_us", prior=1.9, spread=0.3),
    Parameter(name="quantize_fp4_us", prior=5.0, spread=0.3),
    Parameter(name="plugin_us", prior=3.0, spread=0.4),
)
KIND_EFFICIENCY: Final = (
    (MatmulKernel.FP8, "fp8_efficiency"),
    (MatmulKernel.FP8_BLOCK, "fp8_block_efficiency"),
    (MatmulKernel.FP4, "fp4_efficiency"),
    (MatmulKernel.WEIGHT_ONLY, "weight_only_efficiency"),
    (MatmulKernel.INT8, "int8_efficiency"),
)
QUANTIZE: Final = (
    (MatmulKernel.FP8, "quantize_fp8_us"),
    (MatmulKernel.FP8_BLOCK, "quantize_fp8_block_us"),
    (MatmulKernel.FP4, "quantize_fp4_us"),
    (MatmulKernel.WEIGHT_ONLY, "plugin_us"),
    (MatmulKernel.INT8, "plugin_us"),
)
KINDS: Final = ("plain", "fp8", "fp8 block", "fp4", "weight only", "int8")


def simulate(problems: MatmulProblems, fleet: Fleet, values: Values, choice: Codes | None) -> Estimate:
    """Return the time of the kernel that the library would launch, and of the conversion before it."""
    p = compact(problems)
    machine = machine_of(p, fleet, values)
    quantized = replace(machine, flops_per_clock=machine.flops_per_clock * kind_efficiency(p, machine, values))
    product = simulate_on(p, quantized, {**values, "split_us": split_us(p, values)}, choice)
    kinds = [np.broadcast_to((p.kind == kind) * 1.0, product.time_ns.shape) for kind in list(MatmulKernel)[1:]]
    return replace(
        product,
        time_ns=product.time_ns + conversion_s(p, machine, values) * 1e9,
        features=np.concatenate([product.features, np.stack(kinds, axis=-1)], axis=-1),
    )


def kind_efficiency(p: MatmulProblems, machine: Machine, values: Values) -> Floats:
    """Return the rate of the problem's kind of kernel over a plain one's.

    Data-centre Blackwell's matrix units apply the scales of blocks; elsewhere other instructions do.
    """
    result: Floats = np.ones(1)
    for kind, name in KIND_EFFICIENCY:
        result = np.where(p.kind == kind, values[name], result)
    is_native = (p.kind == MatmulKernel.FP8_BLOCK) & machine.has_tensor_memory
    return np.where(is_native, values["native_block_efficiency"], result)


def split_us(p: MatmulProblems, values: Values) -> Floats:
    """Return the hand-over of a split product; quantised kernels hardly ever split."""
    return np.where(p.kind == MatmulKernel.PLAIN, values["split_us"], values["quantized_split_us"])


def conversion_s(p: MatmulProblems, machine: Machine, values: Values) -> Floats:
    """Return seconds that go to converting activations, or to a plugin, before the product."""
    launch_us: Floats = np.zeros(1)
    for kind, name in QUANTIZE:
        launch_us = np.where(p.kind == kind, values[name], launch_us)
    is_float = (p.kind >= MatmulKernel.FP8) & (p.kind <= MatmulKernel.FP4)
    moved = np.where(is_float, p.batch * p.m * p.k * (2.0 + p.left_bytes), 0.0)
    seconds = launch_us * 1e-6 + values["quantize_traffic"] * moved / machine.bandwidth_bytes_per_s
    return np.where(p.quantized > 0, seconds, 0.0)


def group(problems: MatmulProblems) -> Codes:
    """Return the kind of each problem, whose errors differ."""
    return problems.kind


QUANTIZED: Final = Model(
    name="matmul_quantized",
    parameters=QUANTIZED_PARAMETERS,
    class_names=CLASSES,
    gpu_class=gpu_class,
    simulate=simulate,
    feature_names=(*FEATURES, *KINDS[1:]),
    group_names=KINDS,
    group=group,
)
