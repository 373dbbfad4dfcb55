"""Whose grouped products run on a GPU: the ones asked for where they exist, else what libraries fall back to."""

from __future__ import annotations

import numpy as np

from ....arrays import Codes, Mask
from ....specs.experts_kernels import ExpertsKernel
from ....specs.fleet import Fleet
from ....specs.generations import has_tensor_memory, has_tf32, is_async, is_nvidia
from ...work.work import ExpertsFormat


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
