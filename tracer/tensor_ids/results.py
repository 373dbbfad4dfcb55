"""Completes the signatures of a measured trace: what ops returned, and the dtypes of lists of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

import numpy as np

from ...formats.trace.column import MISSING
from ...formats.trace.interner import Interner
from ...formats.trace.signature import Argument, Signature, TensorSpec
from ...formats.trace.tables import Trace
from .events import OpEvent, TensorKey

Call = tuple[int, int, tuple[str, ...]]
"""Name, signature, and the dtypes of the tensors in lists: the profiler's file does not have those."""


def complete_signatures(trace: Trace, ops: Sequence[OpEvent], outputs: Sequence[tuple[TensorKey, ...]]) -> Trace:
    """Return the trace with the dtypes of listed tensors, and the result of every call that returns one tensor.

    The same call returns a tensor of the same form each time; where two were seen, neither is kept.
    """
    names, numbers = trace.ops.name.tolist(), trace.ops.signature.tolist()
    calls: list[Call] = [(name, number, ()) for name, number in zip(names, numbers, strict=True)]
    seen: dict[Call, TensorKey | None] = {}
    for op, returned in zip(ops, outputs, strict=True):
        if numbers[op.row] == MISSING:
            continue
        call = calls[op.row] = (names[op.row], numbers[op.row], _listed_dtypes(op))
        if len(returned) == 1:
            form = returned[0]
            known = seen.setdefault(call, form)
            if known is not None and known is not form and _spec(known) != _spec(form):
                seen[call] = None
    signatures = Interner[Signature]()
    told = {
        call: signatures[_told(_typed(trace.signatures[call[1]], call[2]), seen.get(call))]
        for call in dict.fromkeys(calls)
        if call[1] != MISSING
    }
    column = np.array([told.get(call, MISSING) for call in calls], dtype=trace.ops.signature.dtype)
    return replace(trace, signatures=tuple(signatures), ops=replace(trace.ops, signature=column))


def _listed_dtypes(op: OpEvent) -> tuple[str, ...]:
    """Return the dtypes of the tensors in lists; most ops have none."""
    listed = [tensor for at in op.lists for tensor in op.inputs[at]]
    return tuple([str(tensor.dtype).removeprefix("torch.") for tensor in listed])


def _typed(signature: Signature, dtypes: tuple[str, ...]) -> Signature:
    """Return the signature with the dtypes of its listed tensors, where there are as many."""
    listed = [value for value in signature.arguments if _is_list(value)]
    if not dtypes or sum(map(len, listed)) != len(dtypes):
        return signature
    rest = iter(dtypes)
    return replace(
        signature,
        arguments=tuple(
            tuple(replace(item, dtype=next(rest)) for item in value) if _is_list(value) else value
            for value in signature.arguments
        ),
    )


def _told(signature: Signature, result: TensorKey | None) -> Signature:
    return signature if result is None else replace(signature, results=(_spec(result),))


def _spec(tensor: TensorKey) -> TensorSpec:
    return TensorSpec(str(tensor.dtype).removeprefix("torch."), tensor.sizes, tensor.strides)


def _is_list(value: Argument) -> TypeGuard[tuple[TensorSpec, ...]]:
    return isinstance(value, tuple) and bool(value) and all(isinstance(item, TensorSpec) for item in value)
