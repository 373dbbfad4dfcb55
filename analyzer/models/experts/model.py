"""Layers of experts: two grouped products over the rows of each expert, and the passes around them.

    t         = product(hidden, columns) + product(intermediate, hidden) + passes + launches * t0
    product   = min over tiles of (T_math^p + T_dram^p + T_cache^p)^(1/p)
    T_math    = waves * cycles of a tile / clock, stretched by the power limit
    T_dram    = (weights of the experts that have rows + rows in and out) / DRAM rate of the kernel
    T_cache   = waves * bytes of a tile / an SM's share of the L2 rate

Experts' rows are padded to whole tiles, so that few rows per expert compute for nothing and read all weights of the
experts that they hit (`routing`). A product that is not a layer (`grouped_mm`) has no second one and no passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ....arrays import Codes, Floats, Mask
from ....specs.experts_kernels import ExpertsKernel
from ....specs.fleet import Fleet
from ....specs.generations import has_square_tiles, is_amd, is_async
from ....specs.gpu import Rate
from ...work.work import ExpertsFormat
from ..frame.gpu_physics import (
    DRAM_PARAMETERS,
    L2_PARAMETERS,
    LAUNCH_PARAMETERS,
    POWER_PARAMETERS,
    dram_bytes_per_s,
    l2_bytes_per_s,
    launch_s,
    matrix_joule_per_flop,
    slow_down,
)
from ..frame.model import Estimate, Model
from ..frame.parameters import Parameter, Values
from ..frame.units import peak_flops_per_s
from .kernels import kernels_on
from .problems import ExpertsProblems

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
TILES: Final = ((16, 64), (16, 128), (32, 128), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256))
"""Rows and columns."""
OUT_BYTES: Final = 2.0
STEP_BYTES: Final = 128.0
FULL_TILE: Final = 16384.0

# Prior per kernel: share of the matrix rate, share of the DRAM rate, launches, passes over rows beside the products.
_PRIORS: Final[Mapping[ExpertsKernel, tuple[float, float, float, float]]] = {
    ExpertsKernel.TRITON: (0.7, 0.95, 7.0, 1.0),
    ExpertsKernel.CUTLASS: (0.85, 0.95, 7.0, 1.0),
    ExpertsKernel.TRTLLM_GEN: (0.85, 0.95, 5.0, 1.0),
    ExpertsKernel.DEEP_GEMM: (0.85, 0.95, 8.0, 1.0),
    ExpertsKernel.MARLIN: (0.6, 0.9, 7.0, 1.0),
    ExpertsKernel.CUTE_DSL: (0.85, 0.95, 4.0, 1.0),
    ExpertsKernel.TRITON_FIXED: (0.5, 0.9, 7.0, 1.0),
    ExpertsKernel.GROUPED_MM: (0.85, 0.9, 1.0, 1.0),
}
_PAIRS: Final = (
    (ExpertsKernel.TRTLLM_GEN, ExpertsFormat.FP8, 1.0),
    (ExpertsKernel.TRTLLM_GEN, ExpertsFormat.FP8_BLOCK, 1.0),
    (ExpertsKernel.TRTLLM_GEN, ExpertsFormat.W4A16, 1.0),
    (ExpertsKernel.TRTLLM_GEN, ExpertsFormat.FP4, 1.0),
    (ExpertsKernel.TRITON_FIXED, ExpertsFormat.FP8, 1.0),
    (ExpertsKernel.TRITON_FIXED, ExpertsFormat.FP8_BLOCK, 1.0),
    (ExpertsKernel.TRITON, ExpertsFormat.W4A16, 1.0),
    (ExpertsKernel.TRITON, ExpertsFormat.FP8_BLOCK, 1.0),
)


def _pair_name(kernel: ExpertsKernel, kind: ExpertsFormat) -> str:
    return f"{kernel.name}_{kind.name}_ratio".lower()


def _kernel_parameters() -> tuple[Parameter, ...]:
    found: list[Parameter] = []
    for kernel, (efficiency, stream, launches, passes) in _PRIORS.items():
        name, known = kernel.name.lower(), kernel is not ExpertsKernel.GROUPED_MM
        found += [
            Parameter(name=f"{name}_efficiency", prior=efficiency, spread=0.2 * known),
            Parameter(name=f"{name}_stream", prior=stream, spread=0.1 * known),
            Parameter(name=f"{name}_launches", prior=launches, spread=0.4 * known),
            Parameter(name=f"{name}_passes", prior=passes, spread=0.3 * known),
            Parameter(name=f"{name}_expert_ns", prior=10.0, spread=1.0 * known),
        ]
    found += [Parameter(name=_pair_name(*pair), prior=prior, spread=0.3) for *pair, prior in _PAIRS]
    return tuple(found)


PARAMETERS: Final = (
    *DRAM_PARAMETERS,
    *L2_PARAMETERS,
    *(replace(item, spread=0.05) for item in POWER_PARAMETERS),
    *(replace(item, spread=0.1) for item in LAUNCH_PARAMETERS),
    *_kernel_parameters(),
    Parameter(name="class_efficiency", prior=1.0, spread=0.0, class_spread=0.1),
    Parameter(name="fp8_efficiency", prior=0.8, spread=0.2),
    Parameter(name="fp8_block_efficiency", prior=0.7, spread=0.2),
    Parameter(name="fp4_efficiency", prior=0.6, spread=0.3),
    Parameter(name="weight_only_efficiency", prior=0.85, spread=0.2),
    Parameter(name="sharpness", prior=3.0, spread=0.15, class_spread=0.15),
    Parameter(name="async_l2_ratio", prior=1.5, spread=0.1),
    Parameter(name="cluster_traffic", prior=0.7, spread=0.15),
    Parameter(name="port_bytes_per_clock", prior=64.0, spread=0.3),
    Parameter(name="tail", prior=0.4, spread=0.3),
    Parameter(name="start_us", prior=2.0, spread=0.5),
    Parameter(name="epilogue_cycles", prior=2500.0, spread=0.3),
    Parameter(name="legacy_flops_per_clock", prior=2400.0, spread=0.15),
    Parameter(name="l2_share", prior=1.0, spread=0.05),
    Parameter(name="half_l2_share", prior=0.53, spread=0.15),
)
SIZES: Final = (
    *("log rows per expert", "log busy experts", "log tokens", "log hidden", "log columns", "log intermediate"),
    *("log experts here", "log busiest"),
    *GROUPS[1:],
    *(item.name.lower() for item in ExpertsKernel),
)


def simulate(problems: ExpertsProblems, fleet: Fleet, values: Values, choice: Codes | None) -> Estimate:
    """Return the time of the layer by the kernel asked for, or by the one that each GPU's libraries would take."""
    p = problems
    machine = _machine(p, fleet, values)
    first, first_choice = _product(p, machine, values, p.hidden, p.columns, choice, 1)
    second, second_choice = _product(p, machine, values, p.intermediate, p.hidden, choice, len(TILES))
    has_second = p.intermediate > 0
    products = first + np.where(has_second, second, 0.0)
    passes = np.where(has_second, _passes_s(p, machine), 0.0)
    groups = machine.expert_s * p.local_experts
    starts = np.where(has_second, 2.0, 1.0) * values["start_us"] * 1e-6
    total = products + passes + groups + starts + machine.launches * machine.launch_s
    chosen = first_choice + len(TILES) * second_choice
    shape = np.broadcast_shapes(total.shape, chosen.shape)
    features = np.stack(np.broadcast_arrays(products / total, passes / total), axis=-1)
    return Estimate(
        time_ns=np.broadcast_to(total * 1e9, shape),
        features=features,
        sizes=_size_columns(p),
        choice=np.broadcast_to(chosen, shape),
    )


def _size_columns(p: ExpertsProblems) -> Floats:
    """Return what the correction sees: the sizes, the format and whose kernels are asked for."""
    mean = p.rows / np.maximum(p.busy, 1.0)
    logs = (mean, p.busy, p.tokens, p.hidden, p.columns, p.intermediate, p.local_experts, p.most / np.maximum(mean, 1e-9))
    columns = [np.log2(np.maximum(item, 0.5)) for item in logs]
    groups = _GROUPS_BY_FORMAT[p.format]
    columns += [(groups == item) * 1.0 for item in range(1, len(GROUPS))]
    columns += [(p.kernel == item) * 1.0 for item in ExpertsKernel]
    return np.stack(np.broadcast_arrays(*columns), axis=-1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Machine:
    """Hold what problems meet, arrays of problems by GPUs."""

    sm_count: Floats
    flops_per_s: Floats
    """Of one multiprocessor, by the kernel and format."""
    dram_bytes_per_s: Floats
    stream_bytes_per_s: Floats
    """That the kernel reads weights at."""
    l2_bytes_per_s: Floats
    l2_bytes: Floats
    joule_per_flop: Floats
    fleet: Fleet
    miss: Floats
    """Share of the weights that come from DRAM."""
    kernel: Codes
    is_async: Mask
    has_square_tiles: Mask
    passes: Floats
    expert_s: Floats
    launches: Floats
    launch_s: Floats


def _machine(p: ExpertsProblems, fleet: Fleet, values: Values) -> _Machine:
    kernel = kernels_on(p.kernel, p.format, fleet)
    gpu = np.arange(len(fleet.gpus))

    def own(part: str) -> Floats:
        table = np.stack([values[f"{item.name.lower()}_{part}"] for item in ExpertsKernel])
        return np.asarray(table[kernel, gpu])

    rate = np.maximum(peak_flops_per_s(p.rate, fleet), fleet.flops_per_s[Rate.FP32])
    legacy = values["legacy_flops_per_clock"] * fleet.clock_hz
    per_sm = rate / fleet.sm_count
    per_sm = np.where(kernel == ExpertsKernel.MARLIN, np.minimum(per_sm, legacy), per_sm)
    dram = dram_bytes_per_s(fleet, values)
    l2_bytes = fleet.l2_cache_bytes * np.where(fleet.has_hbm, values["half_l2_share"], values["l2_share"])
    weights = p.busy * p.weight_bytes * p.hidden * (p.columns + p.intermediate)
    asked = p.copies * weights / l2_bytes
    return _Machine(
        sm_count=fleet.sm_count,
        flops_per_s=per_sm * own("efficiency") * _format_efficiency(p, kernel, values),
        dram_bytes_per_s=dram,
        stream_bytes_per_s=dram * np.minimum(own("stream"), 1.0),
        l2_bytes_per_s=l2_bytes_per_s(fleet, values) * np.where(is_async(fleet), values["async_l2_ratio"], 1.0),
        l2_bytes=l2_bytes,
        joule_per_flop=matrix_joule_per_flop(fleet, values, 0.5 * (p.input_bytes + p.weight_bytes)),
        fleet=fleet,
        miss=asked**4 / (1.0 + asked**4),
        kernel=kernel,
        is_async=is_async(fleet),
        has_square_tiles=has_square_tiles(fleet),
        passes=own("passes"),
        expert_s=own("expert_ns") * 1e-9,
        launches=own("launches"),
        launch_s=launch_s(fleet, values),
    )


def _format_efficiency(p: ExpertsProblems, kernels: Codes, values: Values) -> Floats:
    ratio = values["class_efficiency"]
    for kind, name in (
        (ExpertsFormat.FP8, "fp8_efficiency"),
        (ExpertsFormat.FP8_BLOCK, "fp8_block_efficiency"),
        (ExpertsFormat.FP4, "fp4_efficiency"),
        (ExpertsFormat.W4A8, "fp8_efficiency"),
        (ExpertsFormat.W4A16, "weight_only_efficiency"),
        (ExpertsFormat.W8A16, "weight_only_efficiency"),
    ):
        ratio = np.where(p.format == kind, values["class_efficiency"] * values[name], ratio)
    for kernel, kind, _ in _PAIRS:
        is_pair = (p.format == kind) & (kernels == kernel)
        ratio = np.where(is_pair, ratio * values[_pair_name(kernel, kind)], ratio)
    return np.asarray(ratio)


def _product(
    p: ExpertsProblems,
    machine: _Machine,
    values: Values,
    depth: Floats,
    columns: Floats,
    choice: Codes | None,
    place: int,
) -> tuple[Floats, Codes]:
    """Return seconds of a grouped product by its best tile, and which tile that is."""
    read = p.busy * depth * columns * p.weight_bytes * machine.miss
    own = p.rows * (depth * p.input_bytes + columns * OUT_BYTES)
    spilled = own**2 / (own + machine.l2_bytes)
    dram_s = read / machine.stream_bytes_per_s + spilled / machine.dram_bytes_per_s
    if choice is not None:
        tile = np.array(TILES)[choice // place % len(TILES)]
        blocks = np.stack([np.broadcast_to(getattr(p, f"blocks_{h}"), choice.shape) for h in (16, 32, 64, 128, 256)])
        row = np.searchsorted((16, 32, 64, 128, 256), tile[..., 0])
        height_blocks = np.take_along_axis(blocks, row[None], axis=0)[0]
        seconds = _tile_s(p, machine, values, depth, columns, dram_s, tile[..., 0], tile[..., 1], height_blocks)
        return seconds, choice // place % len(TILES)
    best: Floats | None = None
    chosen: Codes = np.zeros(1, dtype=np.int64)
    for index, (height, width) in enumerate(TILES):
        seconds = _tile_s(
            p, machine, values, depth, columns, dram_s, height, width, getattr(p, f"blocks_{height}")
        )
        if best is None:
            best, chosen = seconds, np.zeros(seconds.shape, dtype=np.int64)
        else:
            chosen = np.where(seconds < best, index, chosen)
            best = np.minimum(seconds, best)
    assert best is not None
    return best, chosen


def _tile_s(p, machine, values, depth, columns, dram_s, height, width, row_blocks):  # type: ignore
    blocks = row_blocks * np.ceil(columns / width)
    filled = np.maximum(blocks / machine.sm_count, 1.0)
    waves = filled + values["tail"] * np.minimum(filled - 1.0, 1.0)
    padded = np.ceil(depth * p.input_bytes / STEP_BYTES) * STEP_BYTES / p.input_bytes
    flops = 2.0 * height * width * padded
    epilogue_s = values["epilogue_cycles"] * (height * width / FULL_TILE) / machine.fleet.clock_hz
    math_s = waves * (flops / machine.flops_per_s + epilogue_s)
    joule = blocks * flops * machine.joule_per_flop
    math_s = math_s * (1.0 + slow_down(joule, math_s, machine.fleet, values))
    tile_bytes = depth * (height * p.input_bytes + width * p.weight_bytes)
    tile_bytes = tile_bytes * np.where(machine.is_async & (np.asarray(height) >= 64), values["cluster_traffic"], 1.0)
    cache_s = np.maximum(
        blocks * tile_bytes / machine.l2_bytes_per_s,
        waves * tile_bytes / (values["port_bytes_per_clock"] * machine.fleet.clock_hz),
    )
    power = values["sharpness"]
    seconds = (math_s**power + dram_s**power + cache_s**power) ** (1.0 / power)
    return np.where(_is_offered(p, machine, height, width), seconds, np.inf)


def _is_offered(p, machine, height, width):  # type: ignore
    is_fixed = machine.kernel == ExpertsKernel.TRITON_FIXED
    is_triton = machine.kernel == ExpertsKernel.TRITON
    is_marlin = machine.kernel == ExpertsKernel.MARLIN
    fixed_height = np.where(p.tokens <= p.local_experts, 16, 64)
    fixed_width = np.where(p.format == ExpertsFormat.FP8_BLOCK, 128, 64)
    offered = np.where(is_fixed, (height == fixed_height) & (width == fixed_width), True)
    offered = offered & np.where(is_triton, (height <= 128) & (width <= 128), True)
    offered = offered & np.where(is_marlin, (height <= 64), True)
    is_tall = np.isin(machine.kernel, (ExpertsKernel.CUTLASS, ExpertsKernel.DEEP_GEMM, ExpertsKernel.CUTE_DSL))
    least = np.where(p.format == ExpertsFormat.FP4, 128, 64)
    offered = offered & np.where(is_tall & machine.is_async, (height >= least), True)
    return offered & ((np.asarray(height) * width < 65536) | machine.has_square_tiles)


def _passes_s(p: ExpertsProblems, machine: _Machine) -> Floats:
    """Return seconds of the passes: routing, rows copied by expert, activation, rows added up."""
    is_all = np.isin(machine.kernel, (ExpertsKernel.TRITON, ExpertsKernel.TRITON_FIXED, ExpertsKernel.MARLIN))
    is_local = machine.kernel == ExpertsKernel.CUTE_DSL
    tokens = np.where(is_local, np.minimum(p.tokens, p.rows), p.tokens)
    routing = np.where(is_local, 0.0, p.tokens * p.experts * 8.0 + p.choices * 32.0)
    quantize = np.where(p.quantized > 0, tokens * p.hidden * (OUT_BYTES + p.input_bytes), 0.0)
    gather = np.where(is_all, np.minimum(p.tokens, p.rows), p.rows) * p.hidden * 2.0 * p.input_bytes
    rows = np.where(is_all, p.choices, p.rows)
    activation = rows * (p.columns + p.intermediate) * OUT_BYTES
    combine = (rows + tokens) * p.hidden * OUT_BYTES
    moved = machine.passes * (routing + quantize + gather + activation + combine)
    spilled = moved**2 / (moved + 3.0 * machine.l2_bytes)
    return np.asarray(spilled / machine.dram_bytes_per_s + moved / machine.l2_bytes_per_s)


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
