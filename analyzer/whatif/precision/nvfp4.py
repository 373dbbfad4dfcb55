"""Linear layers in nvfp4: both operands of 4 bits with an fp8 scale per 16 elements, results in half precision."""

from __future__ import annotations

from typing import Final

from .linear_layers import LinearFormat

ALIGNMENT: Final = 32
"""CUTLASS's nvfp4 products load 128 bits at a time, 32 elements of 4 bits, along k and along n:
https://docs.nvidia.com/cutlass/latest/media/docs/cpp/blackwell_functionality.html"""
BLOCK: Final = 16
"""Elements that share a scale of one byte; a second scale, of fp32, is of the whole tensor (same source)."""
ELEMENT_BYTES: Final = 0.5


def _fits(rows: int, n: int, k: int) -> bool:
    return rows > 0 and not (k % ALIGNMENT or n % ALIGNMENT)


def _stored_bytes(n: int, k: int) -> float:
    return n * k * (ELEMENT_BYTES + 1.0 / BLOCK)


NVFP4: Final = LinearFormat(
    name="nvfp4",
    fits=_fits,
    weights="float4_e2m1fn_x2",
    inputs="float4_e2m1fn_x2",
    converted_bytes=ELEMENT_BYTES,
    per_element=2,
    stored_bytes=_stored_bytes,
    keeps_tied=True,
)
"""As Transformer Engine trains and TensorRT Model Optimizer exports. The bytes of the scales that a conversion writes,
an eighth of what else it writes, are left out."""
