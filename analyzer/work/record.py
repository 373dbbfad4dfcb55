"""What one op must compute and move, at least."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Family(StrEnum):
    """Group ops that the same model can predict."""

    MATMUL = "matmul"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    RECURRENT = "recurrent"
    NORMALIZATION = "normalization"
    SOFTMAX = "softmax"
    ELEMENTWISE = "elementwise"
    COPY = "copy"
    REDUCTION = "reduction"
    POOLING = "pooling"
    EMBEDDING = "embedding"
    INDEXING = "indexing"
    SORT = "sort"
    LOSS = "loss"
    OPTIMIZER = "optimizer"
    RANDOM = "random"
    COLLECTIVE = "collective"
    VIEW = "view"
    """Metadata only: launches nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Hold the minimum work of one op: arithmetic, and each tensor's bytes moved once.

    `flops` counts a multiply-add as 2 and comparisons or special functions as 1.
    `dtype` is the torch name of the operands' dtype, which decides the arithmetic rate.
    `is_matrix` says whether libraries run it on matrix (tensor) units where the dtype allows.
    """

    family: Family
    flops: float
    read_bytes: float
    written_bytes: float
    dtype: str
    is_matrix: bool = False

    @property
    def moved_bytes(self) -> float:
        """Return bytes read plus bytes written."""
        return self.read_bytes + self.written_bytes
