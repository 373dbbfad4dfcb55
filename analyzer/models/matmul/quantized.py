"""Matrix products with a quantised operand: fp8, block-scaled fp8, fp4, int8 and packed weights.

A product as `model` has it, by a kernel with an efficiency of its own; and the conversion of the activations before it.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from ....arrays import Codes, Floats
from ....specs.fleet import Fleet
from ....specs.generations import quantized_kernels, takes_int8_of_ck
from ....specs.product_kernels import QuantizedKernels
from ..frame.model import Estimate, Model
from ..frame.parameters import Values, prior_values, priors
from .feed import FEED_PARAMETERS, epilogue_values
from .limits import SQUARE_TRAFFIC, STEP_BYTES, Machine, cache_hit, machine_of
from .menus import RuledTiles, ruled_tiles
from .model import CLASSES, FEATURES, PARAMETERS, SIZES, compact, gpu_class, simulate_on
from .problems import MatmulKernel, MatmulProblems

UNFITTED: Final = prior_values(FEED_PARAMETERS, 1)
"""What unaligned rows and TF32 cost: priors, since no row here is such."""
UNUSED: Final = frozenset({"format_exponent", "cluster_traffic", *UNFITTED})
"""Parameters of plain products in whose place each kind here has its own, or the prior."""
QUANTIZED_PARAMETERS: Final = (*(item for item in PARAMETERS if item.name not in UNUSED), *priors("matmul, quantized"))
"""`cluster_traffic`: two blocks that share one operand, as libraries' plain kernels do. `async_l2_ratio`: the copy
engine asks for whole lines, 54 of a port's 64 bytes per clock where loads get 36 (H100 and B200 in sight).
`strip_l2_share`: an operand is reread once it is as large as the cache. `missing_row_ps`: H100 in sight.
`fp4_step_ratio`: scales pass through tensor memory at each step (B200 in sight). Energies over bf16's: what the longest
products of A100, L40S and B200 leave of their boards' power. `int8_efficiency`: AMD's kernels are another library's.
`quantize_row_ns`: a kernel that handles a row per warp (GB202 in sight). `block_quantize_traffic`: TensorRT-LLM's
`scale_1x128_kernel` loads two elements at a time. `step_cycles`, `..._kcycles`: fits without A100 and without L40S
agreed in cycles, not in time. `native_scales_kcycles`: a launch that packs blocks' scales for data-centre Blackwell's
matrix units; its prior, and that of fp4's conversion (as others'), were set with H100, L40S and GB202 in sight."""
KIND_EFFICIENCY: Final = (
    (MatmulKernel.FP8, "fp8_efficiency"),
    (MatmulKernel.FP8_BLOCK, "fp8_block_efficiency"),
    (MatmulKernel.FP4, "fp4_efficiency"),
    (MatmulKernel.WEIGHT_ONLY, "weight_only_efficiency"),
    (MatmulKernel.INT8, "int8_efficiency"),
)
KIND_ENERGY: Final = (
    (MatmulKernel.FP8, "fp8_energy"),
    (MatmulKernel.FP8_BLOCK, "fp8_energy"),
    (MatmulKernel.FP4, "fp4_energy"),
    (MatmulKernel.WEIGHT_ONLY, "weight_only_energy"),
    (MatmulKernel.INT8, "int8_energy"),
)
QUANTIZE: Final = (
    (MatmulKernel.FP8, "quantize_fp8_kcycles"),
    (MatmulKernel.FP8_BLOCK, "quantize_fp8_block_kcycles"),
    (MatmulKernel.FP4, "quantize_fp4_kcycles"),
    (MatmulKernel.WEIGHT_ONLY, "plugin_kcycles"),
    (MatmulKernel.INT8, "plugin_kcycles"),
)
LOW_TILE: Final = 64.0
"""Rows of a tile up to which missing ones cost nothing where there is one row of tiles."""
DIES_S: Final = 5e-7
"""By which kernels of two dies come later: the prior that elementwise ones have (`dies_us`)."""
FLOAT_BYTES: Final = 2.0
"""Of activations before their conversion."""
KINDS: Final = ("plain", "fp8", "fp8 block", "fp4", "weight only", "int8")


def simulate(problems: MatmulProblems, fleet: Fleet, values: Values, choice: Codes | None) -> Estimate:
    """Return the time of the kernel that the library would launch, and of the conversion before it."""
    p = compact(problems)
    plain = machine_of(p, fleet, {**values, **UNFITTED, "format_exponent": np.zeros(1)})
    machine = replace(
        plain,
        flops_per_clock=plain.flops_per_clock * kind_efficiency(p, plain, values),
        l2_bytes_per_s=plain.l2_bytes_per_s * np.where(plain.is_async, values["async_l2_ratio"], 1.0),
        joule_per_flop=plain.joule_per_flop * kind_energy(p, values),
    )
    kernels = quantized_kernels(fleet)
    # aiter's kernels split k (`splitK` of its tables), but for CK's.
    is_ck = (p.kind == MatmulKernel.INT8) & takes_int8_of_ck(fleet)
    splits = (p.kind == MatmulKernel.PLAIN) | (kernels == QuantizedKernels.CDNA) & ~is_ck
    ruled = ruled_tiles(p, kernels, machine.sm_count)
    pair = np.where(machine.has_square_tiles, SQUARE_TRAFFIC, 1.0)
    product_values = {
        **values,
        **UNFITTED,
        **epilogue_values(p, np.zeros(1, dtype=bool), UNFITTED),
        "split_us": np.where(splits, values["split_us"], values["quantized_split_us"]),
        "cluster_traffic": np.where(ruled.is_ruled, ruled.traffic / pair, values["cluster_traffic"]),
        "reread": values["reread"] * ruled.reread,
        "reread_l2_share": np.where(ruled.kept < 1.0, values["strip_l2_share"] / ruled.kept, values["reread_l2_share"]),
        "step_cycles": values["step_cycles"] * np.where(p.kind == MatmulKernel.FP4, values["fp4_step_ratio"], 1.0),
        "stage_overlap": values["stage_overlap"] * ruled.overlap,
    }
    product = simulate_on(p, machine, product_values, choice, ruled)
    seconds = product.time_ns * 1e-9
    features = product.described()
    read_s = features[..., FEATURES.index("share of reads")] * seconds
    edge_s = missing_rows_s(p, kernels, ruled, read_s, values)
    kinds = [np.broadcast_to((p.kind == kind) * 1.0, product.time_ns.shape) for kind in list(MatmulKernel)[1:]]
    return replace(
        product,
        time_ns=(seconds + edge_s + conversion_s(p, plain, kernels, values)) * 1e9,
        features=np.concatenate([features, np.stack(kinds, axis=-1)], axis=-1),
        sizes=_sizes(p, product),
    )


def _sizes(p: MatmulProblems, product: Estimate) -> Floats | None:
    """Return what the correction sees of plain products, and the kind."""
    if product.sizes is None:
        return None
    kinds = [np.broadcast_to((p.kind == kind) * 1.0, product.sizes.shape[:-1]) for kind in list(MatmulKernel)[1:]]
    return np.concatenate([product.sizes, np.stack(kinds, axis=-1)], axis=-1)


def kind_efficiency(p: MatmulProblems, machine: Machine, values: Values) -> Floats:
    """Return the rate of the problem's kind of kernel over a plain one's.

    Data-centre Blackwell's matrix units apply the scales of blocks; elsewhere other instructions do.
    """
    result: Floats = np.ones(1)
    for kind, name in KIND_EFFICIENCY:
        result = np.where(p.kind == kind, values[name], result)
    is_native = (p.kind == MatmulKernel.FP8_BLOCK) & machine.has_tensor_memory
    return np.where(is_native, values["native_block_efficiency"], result)


def kind_energy(p: MatmulProblems, values: Values) -> Floats:
    """Return the energy per FLOP of the problem's format over bf16's."""
    result: Floats = np.ones(1)
    for kind, name in KIND_ENERGY:
        result = np.where(p.kind == kind, values[name], result)
    return result


def missing_rows_s(p: MatmulProblems, kernels: Codes, ruled: RuledTiles, read_s: Floats, values: Values) -> Floats:
    """Return seconds that rows beyond the last cost.

    On H100 (in sight when this was chosen) 129 rows take up to twice as long as 256, by both libraries: each missing
    row, step of k and column of tiles costs the same whatever else runs, as if all went to one slice of the cache.
    Where there is one row of tiles, reads from DRAM hide it, and tiles of 64 rows show nothing; nor does B200.
    """
    rows = np.ceil(p.m / ruled.height)
    missing = rows * ruled.height - p.m
    columns = np.ceil(p.n / ruled.width) * p.batch
    seconds = missing * columns * (p.k * p.left_bytes / STEP_BYTES) * (values["missing_row_ps"] * 1e-12)
    hidden = np.where(ruled.height > LOW_TILE, np.hypot(read_s, seconds) - read_s, 0.0)
    is_hopper = ruled.is_ruled & (kernels == QuantizedKernels.HOPPER)
    return np.where(is_hopper, np.where(rows > 1.0, seconds, hidden), 0.0)


def conversion_s(p: MatmulProblems, machine: Machine, kernels: Codes, values: Values) -> Floats:
    """Return seconds that go to converting activations, or to a plugin, before the product.

    One scale per row takes two passes over the row: for its largest element, then to convert. Blocks and groups of 16
    take one, over activations that their benchmark shares.
    """
    kcycles: Floats = np.zeros(1)
    for kind, name in QUANTIZE:
        kcycles = np.where(p.kind == kind, values[name], kcycles)
    is_by_row = (p.kind == MatmulKernel.FP8_BLOCK) & (kernels == QuantizedKernels.GB20X)
    kcycles = np.where(is_by_row, values["quantize_fp8_kcycles"], kcycles)
    is_scaled = machine.has_tensor_memory & ((p.kind == MatmulKernel.FP8_BLOCK) | (p.kind == MatmulKernel.FP4))
    kcycles = kcycles + np.where(is_scaled, values["native_scales_kcycles"], 0.0)
    is_float = (p.kind >= MatmulKernel.FP8) & (p.kind <= MatmulKernel.FP4)
    elements = np.where(is_float, p.batch * p.m * p.k, 0.0)
    is_twice = p.kind == MatmulKernel.FP8
    touched = elements * (FLOAT_BYTES + p.left_bytes)
    stays = cache_hit(touched, machine, values)
    known = np.where(is_twice, cache_hit(p.copies * touched, machine, values), stays)
    read = elements * FLOAT_BYTES * (1.0 - known + np.where(is_twice, 1.0 - stays, 0.0))
    moved = read + elements * p.left_bytes * (1.0 - stays)
    asked = touched + np.where(is_twice, elements * FLOAT_BYTES, 0.0)
    bytes_s = np.hypot(moved / machine.bandwidth_bytes_per_s, asked / machine.l2_bytes_per_s)
    slower = values["quantize_traffic"] * np.where(
        p.kind == MatmulKernel.FP8_BLOCK, values["block_quantize_traffic"], 1.0
    )
    rows_s = np.where(is_by_row, p.batch * p.m * values["quantize_row_ns"] * 1e-9, 0.0)
    has_two_dies = machine.has_tensor_memory & machine.is_large
    start_s = kcycles * 1e3 / machine.clock_hz + np.where(has_two_dies, DIES_S, 0.0)
    return np.where(p.quantized > 0, start_s + np.maximum(slower * bytes_s, rows_s), 0.0)


def group(problems: MatmulProblems) -> Codes:
    """Return the kind of each problem, whose errors differ."""
    return problems.kind


def quantized_class(fleet: Fleet) -> Codes:
    """Return the class of each GPU: consumer Blackwell has kernels of its own."""
    return np.where(quantized_kernels(fleet) == QuantizedKernels.GB20X, len(CLASSES), gpu_class(fleet))


QUANTIZED: Final = Model(
    name="matmul_quantized",
    parameters=QUANTIZED_PARAMETERS,
    class_names=(*CLASSES, "consumer Blackwell"),
    gpu_class=quantized_class,
    simulate=simulate,
    feature_names=(*FEATURES, *KINDS[1:]),
    size_names=(*SIZES, *KINDS[1:]),
    group_names=KINDS,
    group=group,
)
