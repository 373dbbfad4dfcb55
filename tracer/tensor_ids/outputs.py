"""Finds which tensors ops returned: the profiler shows what they were given, and what they allocated."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from ...formats.trace.column import MISSING
from ...formats.trace.signature import Signature
from .events import Allocation, OpEvent, TensorKey
from .schemas import OpSchemas, Returns
from .views import Forms, view_forms

_ALLOCATORS: Final = frozenset({
    "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided",
    "aten::resize_", "aten::resize_as_", "aten::set_", "aten::as_strided_", "aten::empty_permuted",
})  # fmt: skip
"""Ops that provide memory: inside another op that fills it, that one makes the tensor."""


def find_outputs(
    ops: Sequence[OpEvent], allocations: Sequence[Allocation], signatures: Sequence[Signature | None]
) -> list[tuple[TensorKey, ...]]:
    """Return the tensors that each op returned, as far as a later op was given them.

    Arguments that the op writes and returns; storages that were allocated inside it and outlive it, in the form in
    which the first op afterwards gets them; and views, which appear later on a storage that a viewing op was given.
    `signatures` are those of the ops, None for ops without shapes.
    """
    schemas = OpSchemas()
    returns = [schemas.find(op.name, tuple(map(bool, op.inputs))) for op in ops]
    uses = _Uses(ops)
    found = [_written(op, spec) for op, spec in zip(ops, returns, strict=True)]
    for place, tensors in _made(ops, allocations, returns, uses).items():
        found[place] = found[place] or tensors
    for place, tensors in _viewed(ops, signatures, returns, uses).items():
        found[place] = found[place] or tensors
    return found


def _written(op: OpEvent, spec: Returns | None) -> tuple[TensorKey, ...]:
    if spec is None or any(not op.inputs[at] for at in spec.written):
        return ()
    return tuple(tensor for at in spec.written for tensor in op.inputs[at])


class _Uses:
    """Know which ops are given a storage, and in which form, in order of start."""

    def __init__(self, ops: Sequence[OpEvent]) -> None:
        self._starts: defaultdict[int, list[int]] = defaultdict(list)
        self._tensors: defaultdict[int, list[TensorKey]] = defaultdict(list)
        self.first: dict[TensorKey, int] = {}
        for place, op in enumerate(ops):
            for tensor in op.tensors:
                self._starts[tensor.storage].append(op.start_ns)
                self._tensors[tensor.storage].append(tensor)
                self.first.setdefault(tensor, place)

    def after(self, storage: int, time_ns: int) -> tuple[int, TensorKey] | None:
        """Return when, and as which tensor, an op first gets a storage from that time on."""
        starts = self._starts.get(storage, [])
        at = bisect_left(starts, time_ns)
        return (starts[at], self._tensors[storage][at]) if at < len(starts) else None


def _made(
    ops: Sequence[OpEvent], allocations: Sequence[Allocation], returns: Sequence[Returns | None], uses: _Uses
) -> dict[int, tuple[TensorKey, ...]]:
    """Return what ops return of the storages that were allocated inside them.

    An op may leave more behind than it returns (what autograd saves): those that are used first count.
    """
    left: defaultdict[int, list[tuple[int, TensorKey]]] = defaultdict(list)
    for storage, innermost, end_ns in allocations:
        for place in _leaving(ops, returns, innermost, end_ns):
            found = uses.after(storage, ops[place].end_ns)
            if found is not None:
                left[place].append(found)
    made: dict[int, tuple[TensorKey, ...]] = {}
    for place, items in left.items():
        spec = returns[place]
        limit = len(items) if spec is None or spec.count < 0 else spec.count
        chosen = sorted(range(len(items)), key=lambda at: items[at][0])[:limit]
        made[place] = tuple(items[at][1] for at in sorted(chosen))
    return made


def _leaving(ops: Sequence[OpEvent], returns: Sequence[Returns | None], innermost: int, end_ns: int) -> list[int]:
    """Return the ops, innermost first, that a storage outlives; what only provided the memory is left out.

    Around it, only ops of the registry return anything: others are nodes of autograd, or the user's spans.
    """
    found: list[int] = []
    place = innermost
    while place != MISSING and ops[place].end_ns <= end_ns:
        if place == innermost or returns[place] is not None:
            found.append(place)
        place = ops[place].parent
    fillers = [place for place in found if ops[place].name not in _ALLOCATORS]
    return fillers or found[-1:]


def _viewed(
    ops: Sequence[OpEvent], signatures: Sequence[Signature | None], returns: Sequence[Returns | None], uses: _Uses
) -> dict[int, tuple[TensorKey, ...]]:
    """Return the views that ops return: in the form that torch gives them, else those that appear afterwards."""
    found = {place: tuple(tensors) for place, tensors in _new_views(ops, returns, uses).items()}
    forms: dict[tuple[str, int, tuple[object, ...]], Forms | None] = {}
    for place, (op, spec) in enumerate(zip(ops, returns, strict=True)):
        if spec is None or not _views(op, spec):
            continue
        source = op.inputs[spec.viewed][0]
        key = (op.name, id(signatures[place]), source[1:])  # signatures are interned
        if key not in forms:
            forms[key] = view_forms(spec, signatures[place], source)
        known = forms[key]
        if known is not None:
            found[place] = tuple(source._replace(sizes=sizes, strides=strides) for sizes, strides in known)
    return found


def _new_views(ops: Sequence[OpEvent], returns: Sequence[Returns | None], uses: _Uses) -> dict[int, list[TensorKey]]:
    newcomers: defaultdict[int, list[TensorKey]] = defaultdict(list)
    for tensor, place in uses.first.items():
        newcomers[place].append(tensor)
    viewers: dict[int, int] = {}
    found: defaultdict[int, list[TensorKey]] = defaultdict(list)
    for place, (op, spec) in enumerate(zip(ops, returns, strict=True)):
        for tensor in newcomers.get(place, ()):
            viewer = viewers.get(tensor.storage, MISSING)
            while viewer != MISSING and ops[viewer].end_ns <= op.start_ns and _views(ops[viewer], returns[viewer]):
                found[viewer].append(tensor)
                viewer = ops[viewer].parent
        if spec is not None and _views(op, spec):
            viewers.update((tensor.storage, place) for tensor in op.inputs[spec.viewed])
    return found


def _views(op: OpEvent, spec: Returns | None) -> bool:
    return spec is not None and spec.viewed != MISSING and bool(op.inputs[spec.viewed])
