"""Weights of whole numbers, activations in half precision: kernels widen weights as they read them; inference only."""

from __future__ import annotations

from typing import Final

from ....errors import InputError, parameter
from ....formats.trace.tables import Phase, Trace
from .linear_layers import LinearFormat

GROUP: Final = 128
"""Elements of k that share a scale and a zero point: the usual choice of GPTQ and AWQ checkpoints, and the
default of torchao's `Int4WeightOnlyConfig`."""
COLUMN_ALIGNMENT: Final = 64
"""Marlin's kernels for packed weights need n in multiples of 64 (`vllm/model_executor/layers/quantization/utils/
marlin_utils.py`, GPTQ_MARLIN_MIN_THREAD_N)."""
SCALE_BYTES: Final = 2
"""In half precision."""


def refuse_training(trace: Trace, precision: str) -> None:
    """Raise InputError for a trace that trains."""
    if bool((trace.ops.phase == Phase.BACKWARD).any()):
        raise InputError(
            f"{parameter('precision', precision)} is for inference, and the trace trains: weights of whole numbers "
            "learn nothing"
        )


def _fits_groups(rows: int, n: int, k: int) -> bool:
    return rows > 0 and not (k % GROUP or n % COLUMN_ALIGNMENT)


def _fits_columns(rows: int, n: int, k: int) -> bool:
    return rows > 0 and min(n, k) > 1


def _packed_bytes(n: int, k: int) -> float:
    return n * k / 2 + n * (k // GROUP) * 2 * SCALE_BYTES


def _column_bytes(n: int, k: int) -> float:
    return float(n * k + n * SCALE_BYTES)


INT4_WEIGHTS: Final = LinearFormat(
    name="int4 weights", fits=_fits_groups, weights="int4", stored_bytes=_packed_bytes, keeps_tied=True
)
INT8_WEIGHTS: Final = LinearFormat(
    name="int8 weights", fits=_fits_columns, weights="int8", stored_bytes=_column_bytes, keeps_tied=True
)
"""A scale per column of the weights (torchao's `Int8WeightOnlyConfig`)."""
