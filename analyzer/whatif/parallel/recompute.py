"""Forward ops that run again before the backward of their layer, so that their results need not be held."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ....arrays import Mask, Rows
from ....formats.trace.column import row_count
from ....formats.trace.tables import Phase, Trace
from ...work import Family, are_of_family
from .insert import Inserted, Insertion, Insertions, insert_ops
from .plan import RecomputeMode


def recompute(trace: Trace, of_op: Rows, layer_count: int, mode: RecomputeMode) -> Inserted:
    """Return the trace in which each layer's forward runs again before its backward: all of it, or attention alone.

    Later readers read the second results; the first ones are dropped after their last use in forward. Collectives run
    again with what is recomputed. `of_op` gives each op's layer, of `layer_count`; `source_op` of a repeated op is the
    op that it repeats.
    """
    insertions = Insertions(trace)
    phase, operands = trace.ops.phase, trace.operands
    bounds = np.searchsorted(operands.op, np.arange(row_count(trace.ops) + 1)).tolist()
    is_attention = _attention_ops(trace)
    uses = list(zip(operands.tensor.tolist(), operands.is_output.tolist(), strict=True))
    storage = trace.tensors.storage.tolist()
    for layer in np.unique(of_op[(of_op >= 0) & (of_op < layer_count)]).tolist():
        backward = np.flatnonzero((of_op == layer) & (phase == Phase.BACKWARD))
        chosen = (of_op == layer) & (phase != Phase.BACKWARD)
        forward = np.flatnonzero(chosen & is_attention if mode is RecomputeMode.SELECTIVE else chosen)
        if not len(backward) or not len(forward):
            continue
        at = int(backward[0])
        if mode is RecomputeMode.SELECTIVE:
            links = np.isin(trace.ops.forward[backward], forward)
            at = int(backward[links][0]) if links.any() else at
        uses_of = {op: uses[bounds[op] : bounds[op + 1]] for op in forward.tolist()}
        _repeat(insertions, uses_of, storage, at)
    return insert_ops(trace, insertions)


def _repeat(insertions: Insertions, uses: Mapping[int, list[tuple[int, int]]], storage_of: list[int], at: int) -> None:
    """Insert the ops again before op `at`: what they read of one another is new.

    `uses` are the tensors of each op, and whether it makes them.
    """
    trace = insertions.trace
    again: dict[int, int] = {}
    storages: dict[int, int] = {}
    for op, used in uses.items():
        reads = tuple(again.get(tensor, tensor) for tensor, output in used if not output)
        olds = [tensor for tensor, output in used if output]
        made = {storage_of[tensor] for tensor, output in used if not output}
        for old in olds:
            storage = storage_of[old]
            is_view = storage in made
            if is_view and storage not in storages:  # a view of a parameter or of the layer's input stays one
                again[old] = old
                continue
            dtype, count = trace.strings[trace.tensors.dtype[old]], int(trace.tensors.element_count[old])
            again[old] = insertions.tensor(dtype, count, storage=storages.get(storage))
            storages.setdefault(storage, insertions.storage(again[old]))
        news = [old for old in olds if again[old] != old]
        insertions.add(
            Insertion(
                at=at,
                is_after=False,
                name=trace.strings[trace.ops.name[op]],
                signature=trace.signatures[trace.ops.signature[op]],
                phase=Phase.BACKWARD,
                module=int(trace.ops.module[op]),
                reads=reads,
                writes=(*(again[old] for old in news), *(old for old in olds if again[old] == old)),
                replaces=tuple(news),
                source_op=op,
            )
        )


def _attention_ops(trace: Trace) -> Mask:
    """Mark the ops of attention itself: fused ones, and products of batches of matrices with what lies between."""
    fused = are_of_family(trace.strings, Family.ATTENTION)
    return np.asarray(fused[trace.ops.name])
