"""Implementations of attention; which generations of GPU have them, says `generations.toml`."""

from enum import IntEnum


class AttentionKernel(IntEnum):
    """Name whose fused attention runs; each has its own instructions, splits and groups."""

    FLASH2 = 0
    """FlashAttention-2 on dense tensors, as PyTorch's scaled dot-product attention calls it."""
    PAGED = 1
    """vLLM's flash attention on a paged cache: 3 on Hopper, else 2."""
    TENSORRT_LLM = 2
    """TensorRT-LLM's: also applies the rotary embedding and writes the cache."""
    FLASH3 = 3
    """FlashAttention-3, Hopper's own instructions."""
    CUDNN = 4
    EFFICIENT = 5
    """The memory-efficient kernels (xFormers, CUTLASS): any NVIDIA GPU, FP32, masks."""
    MATH = 6
    """No fused kernel: two batched products and a softmax between them."""
    TRITON = 7
    """Written in Triton: AOTriton, ROCm's default; inductor's; vLLM's on AMD."""
    CK = 8
    """AMD's composable kernels, or aiter's assembly."""
    FLASH1 = 9
    """The first FlashAttention in Triton, as of 2022: Ampere's instructions."""
