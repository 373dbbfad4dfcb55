"""Linear layers in fp8, as NVIDIA's Transformer Engine runs them: both operands quantised, results in bf16."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from ....formats.signature import Argument, Signature, TensorSpec
from ....formats.trace import Phase
from ..calls import Rewriter, short_name
from ..change import Casts, Whatif

FP8: Final = "float8_e4m3fn"
ALIGNMENT: Final = 16
"""Transformer Engine's fp8 products need k and n in multiples of 16, and rows in multiples of 8:
https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/examples/fp8_primer.html"""
ROW_ALIGNMENT: Final = 8
_OPERANDS: Final = {"mm": (0, 1), "addmm": (1, 2), "_addmm_activation": (1, 2), "linear": (0, 1)}


def with_fp8(whatif: Whatif, dtype: str) -> Whatif:
    """Return a half-precision what-if with its linear layers in fp8, quantisation of their operands added to the casts.

    Products of two activations (attention) and layers whose sizes do not fit stay as they are, and are counted.
    """
    trace = whatif.trace
    short = [short_name(item) for item in trace.strings]
    rewriter = Rewriter()
    quantized: list[tuple[int, int]] = []
    trains = bool((trace.ops.phase == Phase.BACKWARD).any())
    left_out = 0
    rows = zip(trace.ops.name.tolist(), trace.ops.signature.tolist(), trace.ops.phase.tolist(), strict=True)
    memory: dict[tuple[int, int], Signature | None] = {}
    for op, (name, number, phase) in enumerate(rows):
        key, signature = (name, number), trace.signatures[number] if number >= 0 else None
        if short[name] not in _OPERANDS or signature is None or phase == Phase.OPTIMIZER:
            rewriter.add(signature)
            continue
        if key not in memory:
            memory[key] = _in_fp8(short[name], signature, dtype)
        changed = memory[key]
        rewriter.add(changed or signature)
        left_out += changed is None
        if changed is not None:
            quantized += [(op, count) for count in _quantized_counts(short[name], signature, phase, trains)]
    warnings = (f"{left_out} products of linear layers do not fit fp8 and stay in {dtype}",) if left_out else ()
    return replace(
        whatif,
        trace=rewriter.apply(trace),
        casts=_joined(whatif.casts, quantized),
        warnings=(*whatif.warnings, *warnings),
    )


def _in_fp8(name: str, signature: Signature, dtype: str) -> Signature | None:
    first, second = (_tensor(signature, position) for position in _OPERANDS[name])
    if first is None or second is None or len(second.shape) != 2 or first.dtype != dtype:
        return None
    k, rows = first.shape[-1], first.element_count // max(first.shape[-1], 1)
    n = second.shape[0] if name == "linear" else second.shape[1]
    if k % ALIGNMENT or n % ALIGNMENT or rows % ROW_ALIGNMENT:
        return None
    arguments: list[Argument] = list(signature.arguments)
    for position, spec in zip(_OPERANDS[name], (first, second), strict=True):
        arguments[position] = replace(spec, dtype=FP8)
    return Signature(tuple(arguments), signature.results or (TensorSpec(dtype, (*first.shape[:-1], n)),))


def _tensor(signature: Signature, position: int) -> TensorSpec | None:
    found = signature.arguments[position] if position < len(signature.arguments) else None
    return found if isinstance(found, TensorSpec) else None


def _quantized_counts(name: str, signature: Signature, phase: int, trains: bool) -> list[int]:
    """Return the elements quantised for a product: forward both operands, backward half of the gradient.

    Both products of backward take the same gradient; the other operands were quantised in forward. In inference the
    weights are quantised beforehand.
    """
    specs = [_tensor(signature, position) for position in _OPERANDS[name]]
    counts = [spec.element_count for spec in specs if spec is not None]
    if phase == Phase.BACKWARD:
        return [counts[0] // 2]
    return counts if trains else counts[:1]


def _joined(casts: Casts, quantized: list[tuple[int, int]]) -> Casts:
    """Append conversions from 2 bytes to 1."""
    added = np.array(quantized, dtype=np.int64).reshape(-1, 2)
    return Casts(
        op=np.concatenate([casts.op, added[:, 0]]),
        element_count=np.concatenate([casts.element_count, added[:, 1]]),
        read_bytes=np.concatenate([casts.read_bytes, np.full(len(added), 2.0)]),
        written_bytes=np.concatenate([casts.written_bytes, np.full(len(added), 1.0)]),
    )
