"""Implementations of a layer of experts: whose kernels multiply the rows of each expert with its weights."""

from enum import IntEnum


class ExpertsKernel(IntEnum):
    """Name whose grouped products run; each has its own tiles, launches and passes around them."""

    TRITON = 0
    """vLLM's and SGLang's `fused_moe`: rows sorted by expert and padded to blocks, products in Triton."""
    CUTLASS = 1
    """TensorRT-LLM's grouped CUTLASS kernels (FlashInfer's `cutlass_fused_moe` are the same): rows are copied in the
    order of experts, multiplied, activated, multiplied and added up."""
    TRTLLM_GEN = 2
    """TensorRT-LLM's generated kernels of data-centre Blackwell (FlashInfer's `trtllm_*_moe`): routing, gather and
    activation inside few launches."""
    DEEP_GEMM = 3
    """DeepGEMM's block-scaled fp8 products of contiguous or masked groups."""
    MARLIN = 4
    """Packed 4-bit or 8-bit weights widened in registers; activations stay 16 bits wide."""
    CUTE_DSL = 5
    """FlashInfer's masked groups in CuTe DSL, nvfp4."""
    GROUPED_MM = 6
    """PyTorch's `grouped_mm` between kernels of its own that sort, gather, activate and add up."""
    TRITON_FIXED = 7
    """Triton's by one of two tiles, whatever the sizes: vLLM to 0.14 and SGLang to 0.5.10, where no table was tuned for
    the GPU and the layer's sizes."""
