"""Layers of experts: two grouped products over the rows of each expert, and the passes around them.

    t         = product(hidden, columns) + product(intermediate, hidden) + passes + experts * t1 + launches * t0
    product   = min over tiles of (T_math^p + T_dram^p + T_cache^p)^(1/p)
    T_math    = waves * (cycles of a tile + its end) / clock, stretched by the power limit
    T_dram    = weights of the experts that have rows / DRAM rate of the kernel + rows in and out / DRAM rate
    T_cache   = max(bytes that all tiles ask for / L2 rate, waves * bytes of a tile / an SM's port)

Experts' rows are padded to whole tiles, so that few rows per expert compute for nothing and read all weights of the
experts that they hit (`routing`).

The forms and priors were chosen while reading the errors of all five measured GPUs, each left out.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from ....arrays import Codes
from ....specs.experts_kernels import ExpertsKernel
from ....specs.fleet import Fleet
from ....specs.generations import is_amd, is_async
from ...work.work import ExpertsFormat
from ..frame.gpu_physics import DRAM_PARAMETERS, L2_PARAMETERS, LAUNCH_PARAMETERS, POWER_PARAMETERS
from ..frame.model import Estimate, Model
from ..frame.parameters import Values, priors
from .machine import kernel_parameters, machine_of
from .problems import ExpertsProblems
from .products import TILES, passes_s, product_of, product_s

ASYNC, SYNC, AMD = range(3)
CLASS_NAMES: Final = ("asynchronous", "synchronous", "AMD")
GROUPS: Final = ("16-bit", "fp8", "fp8 block", "fp4", "weight only")
_GROUP_OF: Final[Mapping[ExpertsFormat, int]] = {
    ExpertsFormat.PLAIN: 0,
    ExpertsFormat.FP8: 1,
    ExpertsFormat.FP8_BLOCK: 2,
    ExpertsFormat.FP4: 3,
    ExpertsFormat.W4A8: 4,
    ExpertsFormat.W4A16: 4,
    ExpertsFormat.W8A16: 4,
}
_GROUPS_BY_FORMAT: Final = np.array([_GROUP_OF[item] for item in ExpertsFormat])
NAMED_KERNELS: Final = (ExpertsKernel.TRITON, ExpertsKernel.TRITON_FIXED, ExpertsKernel.MARLIN)
"""That the correction tells apart: those of data-centre Blackwell alone would mean nothing to one trained without."""
SIZES: Final = (
    *("log rows per expert", "log busy experts", "log tokens", "log hidden", "log columns", "log intermediate"),
    *("log experts here", "log busiest over mean"),
    *GROUPS[1:3],
    *(item.name.lower() for item in NAMED_KERNELS),
)
PARAMETERS: Final = (
    *DRAM_PARAMETERS,
    *L2_PARAMETERS,
    *(replace(item, spread=0.05) for item in POWER_PARAMETERS),
    *(replace(item, spread=0.1) for item in LAUNCH_PARAMETERS),
    *kernel_parameters(),
    *priors("experts"),
)
"""Shared ones start where matrix products have them. `legacy_flops_per_clock`: the instruction that Marlin's kernels
are written with, by which A100 reaches its rate (2048) and later GPUs a part of theirs (Marlin's rows on B200 in
sight). `half_l2_share`: large caches beside HBM are in two halves."""


def simulate(problems: ExpertsProblems, fleet: Fleet, values: Values, choice: Codes | None) -> Estimate:
    """Return the time of the layer by the kernel asked for, or by the one that each GPU's libraries would take."""
    p = problems
    machine = machine_of(p, fleet, values)
    tiles = (None, None) if choice is None else (choice % len(TILES), choice // len(TILES))
    first, first_tile = product_s(p, machine, values, product_of(p, machine, p.hidden, p.columns), tiles[0])
    second, second_tile = product_s(p, machine, values, product_of(p, machine, p.intermediate, p.hidden), tiles[1])
    products, passes = first + second, passes_s(p, machine)
    overhead = (
        2.0 * values["start_us"] * 1e-6 + machine.expert_s * p.local_experts + machine.launches * machine.launch_s
    )
    total = products + passes + overhead
    mean = p.rows / np.maximum(p.busy, 1.0)
    uneven = p.most / np.maximum(mean, 1e-9)
    logs = (mean, p.busy, p.tokens, p.hidden, p.columns, p.intermediate, p.local_experts, uneven)
    columns = [np.log2(np.maximum(item, 0.5)) for item in logs]
    columns += [(group(p) == item) * 1.0 for item in (1, 2)]
    columns += [(p.kernel == item) * 1.0 for item in NAMED_KERNELS]
    return Estimate(
        time_ns=total * 1e9,
        features=np.stack(np.broadcast_arrays(products / total, passes / total), axis=-1),
        sizes=np.stack(np.broadcast_arrays(*columns), axis=-1),
        choice=np.broadcast_to(first_tile + len(TILES) * second_tile, total.shape),
    )


def group(problems: ExpertsProblems) -> Codes:
    """Return the kind of format of each problem, whose errors differ."""
    return np.asarray(_GROUPS_BY_FORMAT[problems.format])


def gpu_class(fleet: Fleet) -> Codes:
    """Return how matrix units are fed."""
    return np.where(is_amd(fleet), AMD, np.where(is_async(fleet), ASYNC, SYNC)).astype(np.int64)


MODEL: Final = Model(
    name="experts",
    parameters=PARAMETERS,
    class_names=CLASS_NAMES,
    gpu_class=gpu_class,
    simulate=simulate,
    size_names=SIZES,
    feature_names=("share of products", "share of passes"),
    group_names=GROUPS,
    group=group,
)
