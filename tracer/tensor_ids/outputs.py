"""Finds which tensors ops returned, from what they were given and allocated, and from torch's schemas."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import torch

from ...arrays import group_by
from ...formats.trace.column import MISSING
from ...formats.trace.signature import Signature, TensorSpec, Unknown
from ...records import dataclass
from .events import Allocation, OpEvent, TensorKey

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
    find = cache(_find)  # once for each form in which an op is called
    returns = [find(op.name, tuple(map(bool, op.inputs))) for op in ops]
    uses = _Uses(ops)
    found = [  # what they write, where all of it is known
        tuple(tensor for at in spec.written for tensor in op.inputs[at])
        if spec is not None and all(op.inputs[at] for at in spec.written)
        else ()
        for op, spec in zip(ops, returns, strict=True)
    ]
    for place, tensors in _made(ops, allocations, returns, uses).items():
        found[place] = found[place] or tensors
    for place, tensors in _viewed(ops, signatures, returns, uses).items():
        found[place] = found[place] or tensors
    return found


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
    newcomers = group_by(uses.first, uses.first.__getitem__)
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


Forms = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
"""Sizes and strides of each result."""


def view_forms(spec: Returns, signature: Signature | None, source: TensorKey) -> Forms | None:
    """Return the sizes and strides of what a viewing op makes of `source`; None where the recording does not tell.

    None too where the op copied instead of viewing, as `reshape` and `to` may.
    """
    if signature is None:
        return None
    base = torch.empty_strided(source.sizes, source.strides, dtype=source.dtype, device="meta")
    values = list(signature.arguments)
    values[spec.viewed] = None
    if any(isinstance(value, Unknown | TensorSpec) for value in values):
        return None
    try:
        with torch.no_grad():
            result = _call(spec.schema, [base if at == spec.viewed else value for at, value in enumerate(values)])
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, NotImplementedError):
        return None
    views = result if isinstance(result, list | tuple) else (result,)
    address = base.untyped_storage()._cdata
    if any(not isinstance(view, torch.Tensor) or view.untyped_storage()._cdata != address for view in views):
        return None
    return tuple((tuple(view.size()), tuple(view.stride())) for view in views)


def _call(schema: Any, values: list[Any]) -> Any:
    namespace, _, name = schema.name.partition("::")
    op = getattr(getattr(getattr(torch.ops, namespace), name), schema.overload_name or "default")
    pairs = list(zip(schema.arguments, values, strict=True))
    positional = [value for argument, value in pairs if not argument.kwarg_only]
    return op(*positional, **{argument.name: value for argument, value in pairs if argument.kwarg_only})


_RESHAPERS: Final = frozenset({"aten::resize_", "aten::resize_as_", "aten::set_", "aten::as_strided_"})
"""Ops that return what they were given in another form, which their inputs do not show."""
_SILENT_VIEWS: Final = frozenset({"aten::_unsafe_view"})
"""Views whose schema does not say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Returns:
    """Say what an op returns: how many tensors, and for each the argument that it is, written in place, or views."""

    count: int
    """Tensors returned; -1 where the schema leaves it open (a list)."""
    written: tuple[int, ...] = ()
    """The arguments that the op writes and returns, in order of the results."""
    viewed: int = -1
    """The argument that the results are views of; -1 for none."""
    schema: Any = None
    """Of torch's registry."""


def _find(name: str, holds_tensors: tuple[bool, ...]) -> Returns | None:
    """Return what an op returns; `holds_tensors` says of each argument whether it was a tensor, or a list of some."""
    if "::" not in name or name in _RESHAPERS:
        return None
    fitting = [item for item in torch._C._jit_get_schemas_for_operator(name) if _fits(item, holds_tensors)]
    return _describe(fitting[0]) if fitting else None


def _fits(schema: Any, holds_tensors: Sequence[bool]) -> bool:
    if len(schema.arguments) != len(holds_tensors):
        return False
    pairs = zip(schema.arguments, holds_tensors, strict=True)
    return all("Tensor" in str(argument.type) for argument, holds in pairs if holds)


def _describe(schema: Any) -> Returns:
    kinds = [str(item.type) for item in schema.returns]
    is_open = any(kind.startswith("List") for kind in kinds)
    count = -1 if is_open else sum(kind == "Tensor" for kind in kinds)
    written = tuple(_source(schema, item) for item in schema.returns if item.alias_info and item.alias_info.is_write)
    viewed = next((_source(schema, item) for item in schema.returns if _is_view(item)), -1)
    if is_open and viewed < 0:
        viewed = next((at for at, item in enumerate(schema.arguments) if _is_view(item)), -1)
    if schema.name in _SILENT_VIEWS:
        viewed = 0
    return Returns(count=count, written=() if -1 in written else written, viewed=viewed, schema=schema)


def _is_view(item: Any) -> bool:
    return item.alias_info is not None and not item.alias_info.is_write


def _source(schema: Any, returned: Any) -> int:
    """Return the argument that shares its memory with a result."""
    names = returned.alias_info.before_set
    return next(
        (
            at
            for at, item in enumerate(schema.arguments)
            if item.alias_info is not None and item.alias_info.before_set & names
        ),
        -1,
    )
