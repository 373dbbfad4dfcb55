"""Which fused attention runs where, and what it meets there: matrix units, a floor, DRAM behind L2."""

from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ....arrays import Codes, Floats, Mask
from ....specs.attention_kernels import AttentionKernel
from ....specs.fleet import Fleet
from ....specs.generations import (
    has_attention,
    has_tensor_memory,
    has_tf32,
    has_wide_head_blocks,
    is_amd,
    is_async,
    is_blackwell,
    is_hopper,
    prefers_composable_kernel,
    prefers_cudnn_attention,
)
from ..frame.gpu_physics import LAUNCH_PARAMETERS, STEP_US, launch_s
from ..frame.parameters import Values, priors
from ..frame.problems import HALF_BYTES
from .problems import ArithmeticFormat, AttentionProblems, Dispatch, operand_bytes

FLASH1, FLASH2, EFFICIENT = AttentionKernel.FLASH1, AttentionKernel.FLASH2, AttentionKernel.EFFICIENT
HALF_ONLY: Final = (FLASH1, FLASH2, AttentionKernel.FLASH3, AttentionKernel.CUDNN, AttentionKernel.CK)
OWN_INSTRUCTIONS: Final = (FLASH1, FLASH2, EFFICIENT)
"""Compiled for Ampere's matrix instructions, whatever GPU they run on."""
TORCH_KERNELS: Final = (AttentionKernel.CUDNN, AttentionKernel.FLASH2, AttentionKernel.EFFICIENT)
FLASH1_RATIO: Final = 1 / 1.4
"""Of FlashAttention-2's rate on A100, which is 1.3 to 1.5 times as fast (Dao, arXiv 2307.08691, section 4.1)."""
COLD_US: Final = 1.9
"""What a CTA's first loads wait longer for DRAM than for L2: trained shapes, cold less warm, 1.4 to 3 us at all sizes.
What TensorRT-LLM's wait stands in their floor."""
PLAN_US: Final = 1.8
"""Of the kernel by which FlashAttention-3 shares out paged sequences before it: vLLM's short calls on H100 take 1.4 to
2.4 us longer than those of A100 and L40S say."""
PACKED_COPIES, COPY_LAUNCHES = 0.5, 0.8
"""What a group takes longer than a head, over a copy: 1.3 us on A100, 1.0 on L40S, by no kernel known. A copy, over a
launch: of decodes, which tell prefills of single queries."""
NARROW_DIM, WIDE_DIM = 64.0, 192.0
MATH_LAUNCH_COUNT: Final = 4.0
"""Two products, the scaling and the softmax; a mask adds to the traffic only."""
PARAMETERS: Final = (*priors("attention kernels"), *(replace(item, spread=0.0) for item in LAUNCH_PARAMETERS))
"""Not fitted but cuDNN's: the tables of attention name TensorRT-LLM's, vLLM's and cuDNN's. FlashAttention-2 on H100
makes 329 TFLOP/s where cuDNN and FlashAttention-3 make 631 and 632 (PyTorch issue 142132: 24 heads of 4,608 tokens,
dim 128). On Ampere and Ada cuDNN's is within 25 % of FlashAttention-2 either way (PyTorch pull request 192799,
transformers 48163): taken as equal; the prior of `async_cudnn_ratio` was read off its forward passes on H200 and
GB200, with these two in sight. Memory-efficient: half of FlashAttention-2 on A100 (Dao, arXiv 2307.08691, figure 5).
Triton, CK: what their authors state of forward passes against flash attention's and the peak, no more than an order.
AMD's Triton kernel: three public traces of MI300X, with these in sight: 298 TFLOP/s for 4,096 tokens of dim 128, and
27 to 32 microseconds for 141 and 197 tokens of dim 64, which a GPU of NVIDIA's takes 9 to 10 for."""
WIDE_PRODUCT_COUNT: Final = 3.0
"""FP32 on TF32 units in memory-efficient attention: three products of halves of the mantissa (`OpMultiplyAddFastF32` in
xFormers' and PyTorch's `gemm_kernel_utils.h`)."""


def kernel_on(p: AttentionProblems, fleet: Fleet) -> Codes:
    """Return the `AttentionKernel` that runs on each GPU: the problem's own, or that GPU's default.

    A kernel that does not exist there, or not in the problem's format, gives way to the default. Where PyTorch chooses
    (`Dispatch`), so does any other: flash attention 2 from compute capability 8.0 on, cuDNN's where the version prefers
    it, memory-efficient kernels before, for FP32 and for masks; on AMD AOTriton.
    """
    is_wide = p.arithmetic == ArithmeticFormat.FP32
    was_flash = (p.kernel != AttentionKernel.EFFICIENT) & ~is_wide
    cudnn = (p.dispatch == Dispatch.CUDNN_FIRST) & prefers_cudnn_attention(fleet) & ~is_wide
    flash2 = has_attention(np.array(AttentionKernel.FLASH2), fleet) & was_flash
    default = np.where(
        has_attention(np.array(AttentionKernel.EFFICIENT), fleet), AttentionKernel.EFFICIENT, AttentionKernel.MATH
    )
    default = np.where(
        has_attention(np.array(AttentionKernel.TRITON), fleet) & is_amd(fleet), AttentionKernel.TRITON, default
    )
    default = np.where(flash2, AttentionKernel.FLASH2, default)
    default = np.where(cudnn, AttentionKernel.CUDNN, default)
    kernel = np.where(p.dispatch == Dispatch.SERVED, served_kernel(p.queries, fleet), p.kernel)
    is_free = np.isin(p.dispatch, (Dispatch.FLASH_FIRST, Dispatch.CUDNN_FIRST)) & (p.kernel != AttentionKernel.MATH)
    runs = has_attention(kernel, fleet) & ~(is_wide & np.isin(kernel, HALF_ONLY))
    return np.asarray(np.where(is_free | ~runs, default, kernel), dtype=np.int64)


def served_kernel(queries: Floats, fleet: Fleet) -> Codes:
    """Return the `AttentionKernel` that vLLM takes on each GPU; on AMD's its own decodes, as composable kernels do.

    >>> served_kernel(np.ones((1, 1)), fleet).tolist()
    [[1, 1]]
    """
    composable = (queries <= 1) | prefers_composable_kernel(fleet)
    amd = np.where(composable, AttentionKernel.CK, AttentionKernel.TRITON)
    paged = np.where(has_tensor_memory(fleet), AttentionKernel.TENSORRT_LLM, AttentionKernel.PAGED)
    return np.where(is_amd(fleet), amd, paged)


def as_run(p: AttentionProblems, fleet: Fleet) -> AttentionProblems:
    """Return the problems with the kernel that runs on each GPU; without a fused one the masked half is computed."""
    kernel = kernel_on(p, fleet)
    return replace(p, kernel=kernel, is_causal=np.where(kernel == AttentionKernel.MATH, 0, p.is_causal))


def flash_efficiency(p: AttentionProblems, fleet: Fleet, v: Values) -> Floats:
    """Return the share of the matrix units' rate that FlashAttention reaches where nothing else limits it."""
    own = v["matrix_efficiency"] * v["flash_matrix_ratio"]
    return np.where(_goes_through_registers(p, fleet), v["register_flash_efficiency"], own)


def fed_flops_per_cycle(p: AttentionProblems, element_bytes: Floats, fleet: Fleet, v: Values) -> Floats:
    """Return the FLOP per clock that operands on their way through registers feed; inf where that is not known apart.

    Instructions of Hopper and later take operands from shared memory; what older ones lose there is in `speed_ratio`,
    what TensorRT-LLM's kernels lose in their efficiency.
    """
    ratio = np.select([p.kernel == EFFICIENT, p.kernel == FLASH1], [v["efficient_ratio"], FLASH1_RATIO], 1.0)
    fed = v["fed_flops_per_cycle"] * ratio * (HALF_BYTES / element_bytes)
    return np.where(_goes_through_registers(p, fleet) & ~is_trtllm(p), fed, np.inf)


def _goes_through_registers(p: AttentionProblems, fleet: Fleet) -> Mask:
    """Say where both rates above are known: they are of 16-bit operands, and FP32's kernels split each in two."""
    return np.asarray(~is_async(fleet) & ~is_amd(fleet) & (p.arithmetic != ArithmeticFormat.FP32))


def speed_ratio(p: AttentionProblems, kernel: Codes, fleet: Fleet, v: Values, is_fed: Mask | bool = False) -> Floats:
    """Return what share of the products' rate each kernel reaches of the one that was fitted on a GPU of its class.

    `is_fed`: where memory-efficient kernels lose theirs in `fed_flops_per_cycle`.
    """
    efficient, triton = kernel == AttentionKernel.EFFICIENT, kernel == AttentionKernel.TRITON
    older = np.where(has_tensor_memory(fleet), 1.0 / v["legacy_ratio"], v["older_instructions_ratio"])
    ratio = np.where(is_async(fleet) & np.isin(kernel, OWN_INSTRUCTIONS), older, 1.0)
    ratio = np.where(is_async(fleet) & (kernel == AttentionKernel.CUDNN), v["async_cudnn_ratio"], ratio)
    wide = efficient & (p.arithmetic == ArithmeticFormat.FP32) & has_tf32(fleet)
    slower = [efficient & ~np.asarray(is_fed), kernel == FLASH1]
    less = np.select(slower, [v["efficient_ratio"], FLASH1_RATIO], 1.0)
    ratio = ratio * less / np.where(wide, WIDE_PRODUCT_COUNT, 1.0)
    amd = np.where(kernel == AttentionKernel.CK, v["ck_ratio"], v["amd_triton_ratio"])
    return np.asarray(np.where(is_amd(fleet), amd, ratio * np.where(triton, v["triton_ratio"], 1.0)))


def is_trtllm(p: AttentionProblems) -> Mask:
    """Say which kernels are TensorRT-LLM's."""
    return np.asarray(p.kernel == AttentionKernel.TENSORRT_LLM)


def held_ctas(p: AttentionProblems, fleet: Fleet) -> Floats:
    """Return how many CTAs of torch's kernels share a multiprocessor, as warps, registers or shared memory allow."""
    warps = np.where(p.arithmetic == ArithmeticFormat.FP32, 12.0, 16.0)
    efficient = np.floor(warps / np.where(p.query_dim <= NARROW_DIM, 4.0, 8.0))
    cudnn = np.select([p.query_dim <= NARROW_DIM, p.query_dim <= WIDE_DIM], [3.0, 2.0], 1.0)
    flash = (p.kernel == AttentionKernel.FLASH2) | ((p.kernel == AttentionKernel.CUDNN) & ~has_tensor_memory(fleet))
    kernels = [p.kernel == AttentionKernel.EFFICIENT, is_short_cudnn(p, fleet), flash & (operand_bytes(p) > 1)]
    return np.select(kernels, [efficient, cudnn, 2.0], 1.0)


def is_short_cudnn(p: AttentionProblems, fleet: Fleet) -> Mask:
    """Say where cuDNN's tiles are of 64 rows, as its kernels' names say of 16-bit formats on Hopper."""
    return np.asarray((p.kernel == AttentionKernel.CUDNN) & is_hopper(fleet) & (operand_bytes(p) > 1))


def has_tiles(p: AttentionProblems, fleet: Fleet, rows: Floats) -> Mask:
    """Say which tiles of `rows`, [r] from short to tall, kernels have, [..., r].

    FlashAttention-2 has tall ones alone; before Hopper TensorRT-LLM's narrow heads have tall ones in FP8, short ones in
    16 bits (its public list), or both on Blackwell of consumers: a key of 128 rows takes 57 cycles there, L40S 73.
    """
    flash, is_wide = p.kernel == AttentionKernel.FLASH2, p.query_dim > WIDE_DIM
    is_short = (p.kernel == AttentionKernel.EFFICIENT) | is_short_cudnn(p, fleet) | (flash & is_wide)
    is_older = is_trtllm(p) & ~is_async(fleet) & (p.query_dim <= NARROW_DIM)
    is_tall = is_older & (p.arithmetic == ArithmeticFormat.FP8)
    is_short = is_short | (is_older & ~is_tall & ~has_wide_head_blocks(fleet))
    return np.where(rows == rows[-1], ~lift(is_short), ~lift((flash & ~is_wide) | is_tall))


CLASS_NAMES: Final = ("sync", "async")
"""How matrix units are fed: by the warps' own registers, or asynchronously from shared memory (Hopper, Blackwell)."""
REFERENCE_DIM: Final = 128.0
US: Final = 1e3
KILO: Final = 1e3


def gpu_class(fleet: Fleet) -> Codes:
    """Return the index into `CLASS_NAMES` of each GPU."""
    return is_async(fleet).astype(np.int64)


def floor_ns(p: AttentionProblems, fleet: Fleet, v: Values) -> Floats:
    """Return what the shortest call takes: a serving library's with the kernels beside it, or one kernel's launch."""
    served = np.where(is_trtllm(p), v["floor_us"], v["flash_floor_us"] + is_async(fleet) * PLAN_US) * US
    served = served + is_blackwell(fleet) * STEP_US / 2.0 * US
    served = fleet.launch_ratio * (served + v["floor_kcycles"] * KILO / (fleet.clock_hz / 1e9))
    launches = np.where(p.kernel == AttentionKernel.MATH, MATH_LAUNCH_COUNT, 1.0)
    triton = np.where(is_amd(fleet) & (p.kernel == AttentionKernel.TRITON), v["amd_triton_us"], 0.0) * US
    is_served = is_trtllm(p) | (p.kernel == AttentionKernel.PAGED)
    return np.where(is_served, served, launches * launch_s(fleet, v) * 1e9 + triton)


def copy_ns(p: AttentionProblems, fleet: Fleet, v: Values, launches: Floats | float) -> Floats:
    """Return what FlashAttention-2 takes to put a group's heads beside each other, for vLLM's single queries.

    It copies queries and results, each in so many `launches`; of one sequence, or one KV head, views do.
    """
    copies = PACKED_COPIES + 2.0 * ((p.batch > 1) & (p.kv_heads > 1))
    is_packed = (p.kernel == AttentionKernel.PAGED) & (p.queries == 1) & (p.heads > p.kv_heads) & ~is_async(fleet)
    return np.where(is_packed, copies * launches * launch_s(fleet, v) * 1e9, 0.0)


def dram_bytes_per_s(fleet: Fleet, v: Values) -> Floats:
    """Return the DRAM rate that kernels reach.

    Own shares, by memory class alone: one query on a long cache reads 0.86 of the datasheet's bandwidth on L40S and
    0.82 on RTX PRO 6000, whose memories correct errors in different ways; with the shared rule both came out worse.
    """
    return np.where(fleet.has_hbm, v["hbm_efficiency"], v["gddr_efficiency"]) * fleet.bandwidth_bytes_per_s


def lift(value: Any) -> npt.NDArray[Any]:
    """Return the array with a last axis of one, along which candidates vary."""
    return np.asarray(value)[..., None]
