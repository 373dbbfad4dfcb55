"""What layers of experts meet on each GPU, and the parameters of each library's kernels."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from ....arrays import Codes, Floats, Mask
from ....records import dataclass
from ....specs.experts_kernels import ExpertsKernel
from ....specs.fleet import Fleet
from ....specs.generations import has_square_tiles, has_tensor_memory, has_tf32, is_async, is_nvidia
from ....specs.gpu import Rate
from ...work.work import ExpertsFormat
from ..frame.gpu_physics import dram_bytes_per_s, l2_bytes_per_s, launch_s, matrix_joule_per_flop
from ..frame.parameters import Parameter, Values
from ..frame.problems import peak_flops_per_s
from .problems import ExpertsProblems


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPriors:
    """Hold what a library's kernels are expected to be like."""

    efficiency: float
    """Share of the matrix rate."""
    stream: float
    """Share of the rate at which DRAM is read."""
    launches: float
    """Kernels of a layer."""
    expert_ns: float = 10.0
    """What each expert here costs beside its work."""


KERNEL_PRIORS: Final[Mapping[ExpertsKernel, KernelPriors]] = {
    ExpertsKernel.TRITON: KernelPriors(efficiency=0.7, stream=1.0, launches=7.0),
    ExpertsKernel.CUTLASS: KernelPriors(efficiency=0.85, stream=1.0, launches=7.0),
    ExpertsKernel.TRTLLM_GEN: KernelPriors(efficiency=0.85, stream=1.0, launches=5.0),
    ExpertsKernel.DEEP_GEMM: KernelPriors(efficiency=0.85, stream=1.0, launches=8.0, expert_ns=250.0),
    ExpertsKernel.MARLIN: KernelPriors(efficiency=0.6, stream=1.0, launches=7.0),
    ExpertsKernel.CUTE_DSL: KernelPriors(efficiency=0.95, stream=1.0, launches=2.5),
    ExpertsKernel.TRITON_FIXED: KernelPriors(efficiency=0.5, stream=1.0, launches=7.0),
    ExpertsKernel.GROUPED_MM: KernelPriors(efficiency=0.85, stream=1.0, launches=1.0),
}
"""Generated kernels, DeepGEMM's and CuTe's were measured on data-centre Blackwell alone: what of theirs differs from
CUTLASS's here was chosen with B200's rows in sight. `grouped_mm` was not measured: CUTLASS's."""
PAIRS: Final = (
    (ExpertsKernel.TRTLLM_GEN, ExpertsFormat.FP8, 1.0),
    (ExpertsKernel.TRTLLM_GEN, ExpertsFormat.FP8_BLOCK, 0.4),
    (ExpertsKernel.TRTLLM_GEN, ExpertsFormat.FP4, 1.0),
    (ExpertsKernel.TRITON, ExpertsFormat.FP8_BLOCK, 1.0),
    (ExpertsKernel.TRITON_FIXED, ExpertsFormat.FP8, 1.0),
    (ExpertsKernel.TRITON_FIXED, ExpertsFormat.FP8_BLOCK, 1.0),
)
"""Kernels that are faster or slower in a format than others of theirs; 0.4 with B200's rows in sight."""
FORMAT_EFFICIENCY: Final[Mapping[ExpertsFormat, str]] = {
    ExpertsFormat.FP8: "fp8_efficiency",
    ExpertsFormat.FP8_BLOCK: "fp8_block_efficiency",
    ExpertsFormat.FP4: "fp4_efficiency",
    ExpertsFormat.W4A8: "fp8_efficiency",
    ExpertsFormat.W4A16: "weight_only_efficiency",
    ExpertsFormat.W8A16: "weight_only_efficiency",
}


def kernel_parameters() -> tuple[Parameter, ...]:
    """Return the parameters that each library's kernels have of their own."""
    found: list[Parameter] = []
    for kernel, prior in KERNEL_PRIORS.items():
        name, known = kernel.name.lower(), float(kernel is not ExpertsKernel.GROUPED_MM)
        found += [
            Parameter(name=f"{name}_efficiency", prior=prior.efficiency, spread=0.2 * known),
            Parameter(name=f"{name}_stream", prior=prior.stream, spread=0.05 * known),
            Parameter(name=f"{name}_launches", prior=prior.launches, spread=0.4 * known),
            Parameter(name=f"{name}_passes", prior=1.0, spread=0.3 * known),
            Parameter(name=f"{name}_expert_ns", prior=prior.expert_ns, spread=known),
        ]
    pairs = (Parameter(name=_pair_name(kernel, kind), prior=prior, spread=0.3) for kernel, kind, prior in PAIRS)
    return (*found, *pairs)


def _pair_name(kernel: ExpertsKernel, kind: ExpertsFormat) -> str:
    return f"{kernel.name}_{kind.name}_ratio".lower()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpertsMachine:
    """Hold what problems meet, arrays of problems by GPUs."""

    fleet: Fleet
    kernel: Codes
    """`ExpertsKernel` that runs."""
    is_async: Mask
    has_square_tiles: Mask
    flops_per_s: Floats
    """Of one multiprocessor, by the kernel and the format."""
    dram_bytes_per_s: Floats
    stream_bytes_per_s: Floats
    """At which the kernel reads weights."""
    l2_bytes_per_s: Floats
    l2_bytes: Floats
    """That hold weights from one use to the next."""
    miss: Floats
    """Share of the weights that come from DRAM."""
    joule_per_flop: Floats
    passes: Floats
    """How often what passes move is moved."""
    expert_s: Floats
    launches: Floats
    launch_s: Floats


def machine_of(p: ExpertsProblems, fleet: Fleet, values: Values) -> ExpertsMachine:
    """Return the GPUs as the problems' kernels meet them."""
    kernel = kernels_on(p.kernel, p.format, fleet)
    gpu = np.arange(len(fleet.gpus))

    def own(part: str) -> Floats:
        table = np.stack([values[f"{item.name.lower()}_{part}"] for item in ExpertsKernel])
        return np.asarray(table[kernel, gpu])

    rate = np.maximum(peak_flops_per_s(p.rate, fleet), fleet.flops_per_s[Rate.FP32]) / fleet.sm_count
    legacy = values["legacy_flops_per_clock"] * fleet.clock_hz
    rate = np.where(kernel == ExpertsKernel.MARLIN, np.minimum(rate, legacy), rate)
    dram = dram_bytes_per_s(fleet, values)
    l2_bytes = fleet.l2_cache_bytes * np.where(fleet.has_hbm, values["half_l2_share"], values["l2_share"])
    asked = np.minimum(p.copies * p.busy * p.weight_bytes * p.hidden * (p.columns + p.intermediate) / l2_bytes, 1e3)
    wide = np.where(is_async(fleet), values["async_l2_ratio"], 1.0)
    return ExpertsMachine(
        fleet=fleet,
        kernel=kernel,
        is_async=is_async(fleet),
        has_square_tiles=has_square_tiles(fleet),
        flops_per_s=rate * own("efficiency") * _format_efficiency(p, kernel, values),
        dram_bytes_per_s=dram,
        stream_bytes_per_s=dram * own("stream"),
        l2_bytes_per_s=l2_bytes_per_s(fleet, values) * wide,
        l2_bytes=l2_bytes,
        miss=asked**4 / (1.0 + asked**4),
        joule_per_flop=matrix_joule_per_flop(fleet, values, 0.5 * (p.input_bytes + p.weight_bytes)),
        passes=own("passes"),
        expert_s=own("expert_ns") * 1e-9,
        launches=own("launches"),
        launch_s=launch_s(fleet, values),
    )


def _format_efficiency(p: ExpertsProblems, kernel: Codes, values: Values) -> Floats:
    """Return the rate of the format's kernels over what 16-bit ones make of the unit, by the class of GPU."""
    ratio = values["class_efficiency"]
    for kind, name in FORMAT_EFFICIENCY.items():
        ratio = np.where(p.format == kind, values["class_efficiency"] * values[name], ratio)
    for item, kind, _ in PAIRS:
        ratio = np.where((p.format == kind) & (kernel == item), ratio * values[_pair_name(item, kind)], ratio)
    return np.asarray(ratio)


def has_generated(fleet: Fleet) -> Mask:
    """Say which GPUs have TensorRT-LLM's generated kernels and FlashInfer's in CuTe."""
    return has_tensor_memory(fleet)


def kernels_on(kernel: Codes, formats: Codes, fleet: Fleet) -> Codes:
    """Return the `ExpertsKernel` that runs each problem on each GPU, arrays broadcast; negative: none is asked for.

    Generated and CuTe kernels exist on data-centre Blackwell, DeepGEMM's since Hopper, Marlin's since Ampere, CUTLASS's
    on NVIDIA's GPUs, Triton's everywhere. Where nothing is asked for: Marlin for weights alone in 4 bits, generated
    kernels for the other narrow formats where they exist, else Triton's, which vLLM and SGLang run by default.
    """
    is_narrow = (formats != ExpertsFormat.PLAIN) & (formats != ExpertsFormat.W4A16) & (formats != ExpertsFormat.W8A16)
    default = np.where(is_narrow & has_generated(fleet), ExpertsKernel.TRTLLM_GEN, ExpertsKernel.TRITON)
    default = np.where((formats == ExpertsFormat.W4A16) & has_tf32(fleet), ExpertsKernel.MARLIN, default)
    found = np.where(kernel >= 0, kernel, default)
    is_generated = (found == ExpertsKernel.TRTLLM_GEN) | (found == ExpertsKernel.CUTE_DSL)
    found = np.where(is_generated & ~has_generated(fleet), ExpertsKernel.CUTLASS, found)
    found = np.where((found == ExpertsKernel.DEEP_GEMM) & ~is_async(fleet), ExpertsKernel.CUTLASS, found)
    found = np.where((found == ExpertsKernel.MARLIN) & ~has_tf32(fleet), ExpertsKernel.TRITON, found)
    found = np.where((found == ExpertsKernel.CUTLASS) & ~is_nvidia(fleet), ExpertsKernel.TRITON, found)
    return found.astype(np.int64)
