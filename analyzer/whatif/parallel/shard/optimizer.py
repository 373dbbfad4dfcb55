"""How the optimizer's tensors are shared: as the parameters that stand at the same place of its lists."""

from collections.abc import Iterator

import numpy as np

from .....formats.trace.signature import Argument, Signature, TensorSpec
from .....formats.trace.tables import Phase
from .placement import WHOLE, Share, local_spec, place_of
from .roles import ReadTrace
from .walk import ShareWalk

Aligned = list[list[int]]
"""Storages that stand at one place of an op's lists, per place."""


def share_optimizer(subject: ReadTrace, walk: ShareWalk, own: frozenset[int] = frozenset()) -> None:
    """Give the optimizer's tensors their parameters' states, sum up gradients, and rewrite its signatures.

    `own`: storages that each rank has for itself, so that no gradient of theirs is summed up.
    """
    ops = subject.trace.ops
    rows = [int(row) for row in np.flatnonzero((ops.phase == Phase.OPTIMIZER) & (ops.signature >= 0))]
    if not rows:
        return
    groups = {op: _aligned(subject, op) for op in rows}
    for item in own:
        if walk.known[walk.states[item]].share is Share.GRADIENT:
            walk.states[item] = walk.state_row(WHOLE)
    _sum_gradients(subject, walk, rows[0], groups)
    states = walk.states
    is_given = subject.parameters - subject.made
    for _ in range(len(rows)):
        changed = False
        for aligned in groups.values():
            for storages in aligned:
                found = {states[item] for item in storages if states[item] and walk.known[states[item]].is_part}
                if not found:
                    continue
                row = next(
                    (states[item] for item in storages if item in is_given and states[item] in found), min(found)
                )
                for item in storages:
                    if states[item] != row:
                        states[item], changed = row, True
        if not changed:
            break
    memory: dict[tuple[TensorSpec, int], TensorSpec] = {}
    for op in rows:
        walk.column[op] = walk.signatures.setdefault(_local(subject, walk, op, memory), len(walk.signatures))


def _lists(arguments: tuple[Argument, ...]) -> Iterator[list[TensorSpec]]:
    for item in arguments:
        if isinstance(item, TensorSpec):
            yield [item]
        elif isinstance(item, tuple) and item and isinstance(item[0], TensorSpec):
            yield [part for part in item if isinstance(part, TensorSpec)]


def _aligned(subject: ReadTrace, op: int) -> Aligned:
    """Return the storages that an op reads, and returns, at the same place of its lists, if of the same shape."""
    number = int(subject.trace.ops.signature[op])
    signature = subject.trace.signatures[number]
    inputs, outputs = subject.inputs[op], subject.outputs[op]
    lists = list(_lists(signature.arguments))
    length = max(map(len, lists), default=0)
    results = [part for item in _lists(signature.results) for part in item]
    if sum(map(len, lists)) != len(inputs) or not length:
        return []
    found: Aligned = [[] for _ in range(length)]
    shapes: list[tuple[int, ...] | None] = [None] * length
    begin = 0
    for specs in lists:
        if len(specs) == length:
            for place, spec in enumerate(specs):
                if shapes[place] is None:
                    shapes[place] = spec.shape
                if spec.shape == shapes[place] and spec.shape:
                    found[place].append(subject.storages[inputs[begin + place]])
        begin += len(specs)
    if len(results) == len(outputs) == length:
        for place, tensor in enumerate(outputs):
            if results[place].shape == shapes[place]:
                found[place].append(subject.storages[tensor])
    return found


def _sum_gradients(subject: ReadTrace, walk: ShareWalk, first: int, groups: dict[int, Aligned]) -> None:
    """Sum up over ranks, before the optimizer, the gradients of parameters that all of them hold whole."""
    used = {storage for aligned in groups.values() for places in aligned for storage in places}
    partial = [item for item in sorted(used) if walk.known[walk.states[item]].share is Share.GRADIENT]
    if not partial or not walk.rules.splits_tokens or walk.exchanges.gathers_again:
        return
    tensor_of: dict[int, tuple[int, TensorSpec]] = {}
    for op in groups:
        call = subject.trace.signatures[int(subject.trace.ops.signature[op])].tensors()
        for tensor, spec in zip(subject.inputs[op], call, strict=False):
            tensor_of.setdefault(subject.storages[tensor], (tensor, TensorSpec(spec.dtype, spec.shape)))
    by_dtype: dict[str, list[int]] = {}
    for item in partial:
        by_dtype.setdefault(tensor_of[item][1].dtype, []).append(item)
        walk.states[item] = walk.state_row(WHOLE)
    for items in by_dtype.values():
        walk.exchanges.add_gradients(
            first, [tensor_of[item][0] for item in items], [tensor_of[item][1] for item in items]
        )


def _local(subject: ReadTrace, walk: ShareWalk, op: int, memory: dict[tuple[TensorSpec, int], TensorSpec]) -> Signature:
    signature = subject.trace.signatures[int(subject.trace.ops.signature[op])]
    known, states, storages = walk.known, walk.states, subject.storages
    reads, writes = iter(subject.inputs[op]), iter(subject.outputs[op])

    def swap(item: Argument, tensors: Iterator[int]) -> Argument:
        if isinstance(item, TensorSpec):
            return _held(item, next(tensors, -1))
        if isinstance(item, tuple) and item and isinstance(item[0], TensorSpec):
            return tuple(_held(part, next(tensors, -1)) for part in item if isinstance(part, TensorSpec))
        return item

    def _held(spec: TensorSpec, tensor: int) -> TensorSpec:
        row = states[storages[tensor]] if tensor >= 0 else 0
        if not row:
            return spec
        found = memory.get((spec, row))
        if found is None:
            found = memory[spec, row] = local_spec(spec, place_of(spec, known[row]))
        return found

    return Signature(
        tuple(swap(item, reads) for item in signature.arguments),
        tuple(swap(item, writes) for item in signature.results),
    )
