"""Linear layers in fp8, as NVIDIA's Transformer Engine runs them: both operands quantised, results in bf16."""

from __future__ import annotations

from typing import Final

from .linear_layers import LinearFormat

ALIGNMENT: Final = 16
"""Transformer Engine's fp8 products need k and n in multiples of 16, and rows in multiples of 8:
https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/examples/fp8_primer.html"""
ROW_ALIGNMENT: Final = 8


def _fits(rows: int, n: int, k: int) -> bool:
    return not (k % ALIGNMENT or n % ALIGNMENT or rows % ROW_ALIGNMENT)


FP8: Final = LinearFormat(name="fp8", fits=_fits, weights="float8_e4m3fn", inputs="float8_e4m3fn")
"""A scale per tensor, which takes no room."""
