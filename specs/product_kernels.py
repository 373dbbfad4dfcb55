"""Whose kernels multiply matrices on a generation: each library's have their own tiles."""

from enum import IntEnum


class SgemmKernels(IntEnum):
    """Name the generation whose kernels cuBLAS runs for fp32 matrix products on vector units."""

    PASCAL = 0
    VOLTA = 1
    TURING = 2
    AMPERE = 3
    """Ada runs Ampere's too."""
    HOPPER = 4
    """CUTLASS's kernels for vector units and others with its tiles (`cutlass_80_simt_sgemm`, `sm80_xmma_gemm_f32f32`),
    which cuBLAS runs from compute capability 9.0 on, in place of `ampere_sgemm`."""
    AMD_MATRIX = 5
    """Tensile's for matrix units that take fp32."""
    OTHER = 6
    """Another library, or one that nobody looked at."""


class QuantizedKernels(IntEnum):
    """Name the generation whose kernels multiply quantised operands: each has its own tiles."""

    NONE = 0
    """No such units, or nobody looked."""
    ADA = 1
    HOPPER = 2
    BLACKWELL = 3
    """Of data centres."""
    GB20X = 4
    """Blackwell of consumers and workstations."""
    CDNA = 5
