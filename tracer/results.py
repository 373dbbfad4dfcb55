"""Adds to the signatures of a measured trace what ops returned, where that is certain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..formats.column import MISSING
from ..formats.signature import Signature, TensorSpec
from ..formats.trace import Trace
from .event_tree import OpEvent, TensorKey
from .oplog import Interner

Call = tuple[int, int]


def with_results(trace: Trace, ops: Sequence[OpEvent], outputs: Sequence[tuple[TensorKey, ...]]) -> Trace:
    """Return the trace with the result in the signature of every call whose op returns exactly one tensor.

    The same call returns a tensor of the same form each time; where two were seen, neither is kept.
    """
    names, numbers = trace.ops.name.tolist(), trace.ops.signature.tolist()
    seen: dict[Call, TensorKey | None] = {}
    for op, returned in zip(ops, outputs, strict=True):
        if numbers[op.row] != MISSING and len(returned) == 1:
            call, form = (names[op.row], numbers[op.row]), returned[0]
            known = seen.setdefault(call, form)
            if known is not None and known is not form and _spec(known) != _spec(form):
                seen[call] = None
    signatures: Interner[Signature] = Interner()
    told = {
        (name, number): signatures.number(_told(trace.signatures[number], seen.get((name, number))))
        for name, number in dict.fromkeys(zip(names, numbers, strict=True))
        if number != MISSING
    }
    changed = [told.get(call, MISSING) for call in zip(names, numbers, strict=True)]
    column = np.array(changed, dtype=trace.ops.signature.dtype)
    return replace(trace, signatures=signatures.items(), ops=replace(trace.ops, signature=column))


def _told(signature: Signature, result: TensorKey | None) -> Signature:
    return signature if result is None else replace(signature, results=(_spec(result),))


def _spec(tensor: TensorKey) -> TensorSpec:
    return TensorSpec(str(tensor.dtype).removeprefix("torch."), tensor.sizes, tensor.strides)
