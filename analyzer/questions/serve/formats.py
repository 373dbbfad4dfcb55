"""Which number formats and kernels an engine runs a model's parts in, on each GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ....errors import InputError, parameter
from ....records import dataclass
from ....specs.attention_kernels import AttentionKernel
from ....specs.fleet import build_fleet
from ....specs.generations import generation_at, has_serving_kernels, prefers_composable_kernel
from ....specs.gpu import Gpu, Rate
from ...models.experts.problems import FORMAT_BYTES
from ...models.matmul.problems import FORMATS
from ...work.work import ExpertsFormat
from .sizes import ModelSizes

TENSORRT_LLM: Final = "trtllm"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFormats:
    """Name what products and experts are computed in: a key of `FORMATS`, and a format of experts."""

    products: str
    experts: ExpertsFormat


PRECISIONS: Final[Mapping[str, PartFormats]] = {
    "bf16": PartFormats(products="bf16", experts=ExpertsFormat.PLAIN),
    "fp16": PartFormats(products="fp16", experts=ExpertsFormat.PLAIN),
    "fp8": PartFormats(products="fp8_static", experts=ExpertsFormat.FP8),
    "fp8_block": PartFormats(products="fp8_block", experts=ExpertsFormat.FP8_BLOCK),
    "nvfp4": PartFormats(products="nvfp4", experts=ExpertsFormat.FP4),
    "mxfp4": PartFormats(products="bf16", experts=ExpertsFormat.W4A16),
    "int8": PartFormats(products="sq", experts=ExpertsFormat.W8A16),
    "int4": PartFormats(products="int4_wo", experts=ExpertsFormat.W4A16),
}
"""By what `--precision` calls them. mxfp4 is gpt-oss's: experts alone. The output product stays in 16 bits."""
WEIGHT_BYTES: Final[Mapping[str, float]] = {
    **{"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625, "int8": 1.0, "int4": 0.53125},
    "mxfp4": 0.53125,
}
"""Per weight with scales, of the parts that are quantised."""
QUANTIZED: Final = frozenset(PRECISIONS) - {"bf16", "fp16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStack:
    """Hold what GPUs that run alike have in common: formats of the parts, and whose attention."""

    products: str
    experts: ExpertsFormat
    attention: AttentionKernel
    fallback: str = ""
    """What the GPU lacks, and what it does instead; empty where it lacks nothing."""


def stack_of(gpu: Gpu, precision: str, engine: str) -> EngineStack:
    """Return how a GPU runs a precision. Raises InputError for an engine or a precision that does not run there.

    Where a GPU has no units for a format, engines hold the weights in it and widen them (Marlin): `weight only`.

    >>> stack_of(h100, "nvfp4", "vllm").fallback
    'no units for nvfp4: weights are widened to 16 bits'
    """
    why = why_not(gpu, engine)
    if why is not None:
        raise InputError(f"{gpu.name}: {why}")
    parts, rates = PRECISIONS[precision], gpu.peak_flops_per_s
    products, experts, lacks = parts.products, parts.experts, ""
    is_blackwell = generation_at(gpu.compute_capability).has_tensor_memory
    if precision == "nvfp4" and Rate.MATRIX_FP4 not in rates:
        products, experts, lacks = "int4_wo", ExpertsFormat.W4A16, precision
    elif precision in ("fp8", "fp8_block") and Rate.MATRIX_FP8 not in rates:
        products, experts, lacks = "int8_wo", ExpertsFormat.W8A16, precision
    elif precision == "int8" and Rate.MATRIX_INT8 not in rates:
        products, lacks = "int8_wo", precision
    elif precision == "mxfp4" and is_blackwell:
        experts = ExpertsFormat.W4A8
    if products == "bf16" and Rate.MATRIX_BF16 not in rates:
        products, lacks = "fp16", "bf16"
    fallback = "bf16 runs as fp16" if lacks == "bf16" else f"no units for {lacks}: weights are widened to 16 bits"
    return EngineStack(
        products=products,
        experts=experts,
        attention=_attention(gpu, engine, is_blackwell=is_blackwell),
        fallback=fallback if lacks else "",
    )


def why_not(gpu: Gpu, engine: str) -> str | None:
    """Return why an engine does not run on a GPU; None where it does.

    >>> why_not(h100, "trtllm") is None
    True
    """
    if engine == TENSORRT_LLM and gpu.vendor != "NVIDIA":
        return "TensorRT-LLM runs on NVIDIA's GPUs alone"
    if not {Rate.MATRIX_FP16, Rate.MATRIX_BF16} & set(gpu.peak_flops_per_s):
        return "has no matrix units that serving engines use"
    if not has_serving_kernels(build_fleet([gpu]))[0]:
        return f"{engine} has no kernels for {gpu.architecture}"
    return None


def _attention(gpu: Gpu, engine: str, *, is_blackwell: bool) -> AttentionKernel:
    if gpu.vendor == "NVIDIA":
        is_own = engine == TENSORRT_LLM or is_blackwell
        return AttentionKernel.TENSORRT_LLM if is_own else AttentionKernel.PAGED
    return AttentionKernel.CK if prefers_composable_kernel(build_fleet([gpu]))[0] else AttentionKernel.TRITON


def check_precision(precision: str) -> str:
    """Return a precision that is known. Raises InputError for another."""
    if precision not in PRECISIONS:
        raise InputError(f"{parameter('precision', precision)}: expected {', '.join(PRECISIONS)}")
    return precision


def weight_bytes(sizes: ModelSizes, precision: str) -> tuple[float, float, float]:
    """Return the bytes of attention and dense blocks, of experts, and of embedding and output tables.

    >>> from .sizes import read_model
    >>> [round(part / 1e9, 1) for part in weight_bytes(read_model("gpt-oss-20b"), "mxfp4")]
    [1.3, 10.2, 2.3]
    """
    wide, narrow = 2.0, WEIGHT_BYTES[precision]
    dense_layers = sizes.layers - sizes.expert_layers
    blocks = sizes.layers * sizes.attention_elements + dense_layers * 3 * sizes.hidden * sizes.intermediate
    blocks += sizes.expert_layers * 3 * sizes.hidden * sizes.shared_intermediate
    routers = sizes.expert_layers * sizes.hidden * sizes.experts
    experts = sizes.expert_layers * 3 * sizes.hidden * sizes.expert_intermediate * sizes.experts
    per_block = wide if FORMATS[PRECISIONS[precision].products].right_bytes == wide else narrow
    tables = sizes.vocab * sizes.hidden * (1 if sizes.is_tied else 2)
    return blocks * per_block + routers * wide, experts * narrow, tables * wide


def experts_bytes(kind: ExpertsFormat) -> tuple[float, float]:
    """Return bytes per element of experts' inputs and weights, with scales."""
    found = FORMAT_BYTES[kind]
    return found.inputs, found.weights
