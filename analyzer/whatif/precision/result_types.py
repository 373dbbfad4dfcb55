"""Keeps the table of tensors in step with what the changed signatures return."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ....formats.trace.tables import Trace
from ..calls import layout_of, operands_of


def with_result_types(trace: Trace) -> Trace:
    """Return the trace with every tensor that an op returns in the type that the op's signature says."""
    if not len(trace.operands.op):
        return trace
    strings = list(trace.strings)  # some may stand there twice
    number = {name: at for at, name in enumerate(strings)}
    results = [[spec.dtype for spec in layout_of(item).outputs] for item in trace.signatures]
    dtype = trace.tensors.dtype.copy()
    for signature, tensors in zip(trace.ops.signature.tolist(), operands_of(trace)[1], strict=True):
        if signature >= 0 and tensors and len(tensors) == len(results[signature]):
            for tensor, name in zip(tensors, results[signature], strict=True):
                if name not in number:
                    number[name] = len(strings)
                    strings.append(name)
                dtype[tensor] = number[name]
    return replace(
        trace,
        strings=tuple(strings),
        tensors=replace(trace.tensors, dtype=np.asarray(dtype, dtype=trace.tensors.dtype.dtype)),
    )
