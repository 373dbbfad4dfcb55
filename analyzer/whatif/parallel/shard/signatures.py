"""The signature of a call on one rank: its tensors' shapes, and the sizes among its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .....formats.trace.signature import Argument, Signature, TensorSpec
from ...calls import replace_tensors
from .letters import ShapedCall
from .placement import Cut, local_spec

_SPLITS: Final = frozenset(["split", "split_with_sizes", "chunk"])
_BOUNDS: Final = {"slice": (2, 3), "narrow": (2, 3), "slice_backward": (3, 4)}
"""Where these ops say which part they take of a dim, named just before."""


def local_signature(call: ShapedCall, inputs: Sequence[Cut | None], outputs: Sequence[Cut | None]) -> Signature:
    """Return a call as one rank makes it. Raises InputError where a size cannot be divided."""
    if not any(inputs) and not any(outputs):
        return call.signature
    read = [local_spec(spec, place) for spec, place in zip(call.inputs, inputs, strict=True)]
    made = [local_spec(spec, place) for spec, place in zip(call.outputs, outputs, strict=True)]
    changed = [pair for pair in (*zip(call.outputs, made, strict=True), *zip(call.inputs, read, strict=True))
               if pair[0] is not pair[1]]  # fmt: skip
    arguments = [_scale_sizes(item, changed) for item in call.signature.arguments]
    _scale_numbers(call, arguments, inputs, made)
    return Signature(replace_tensors(tuple(arguments), read), replace_tensors(call.signature.results, made))


def _scale_sizes(item: Argument, changed: Sequence[tuple[TensorSpec, TensorSpec]]) -> Argument:
    """Return a list of sizes or strides as those of the changed tensor that it belongs to (-1: any size)."""
    if not isinstance(item, tuple) or not item or not all(type(part) is int for part in item):
        return item
    count = len(item)
    for old, new in changed:
        if len(old.shape) == count and all(a in (-1, b) for a, b in zip(item, old.shape, strict=True)):
            return tuple(a if a == -1 else b for a, b in zip(item, new.shape, strict=True))
        if old.strides == item and count > 1 and new.strides is not None:
            return new.strides
        if 0 < count < len(old.shape) and old.shape[-count:] == item:
            return new.shape[-count:]
    return item


def _scale_numbers(
    call: ShapedCall, arguments: list[Argument], inputs: Sequence[Cut | None], made: Sequence[TensorSpec]
) -> None:
    """Scale, in place, single numbers that are sizes of the divided dim."""
    if call.name == "embedding_dense_backward" and made and len(arguments) > 2:
        arguments[2] = made[0].shape[0]
        return
    place = inputs[0] if inputs else None
    if place is None or not call.inputs:
        return
    before = call.inputs[0].shape[place.dim]
    if call.name in _SPLITS and made and len(arguments) > 1:
        value, rank = arguments[1], len(made[0].shape)
        along = arguments[2] if len(arguments) > 2 else 0
        if isinstance(along, int) and along % rank == place.dim:
            if isinstance(value, tuple):
                arguments[1] = tuple(spec.shape[place.dim] for spec in made)
            elif isinstance(value, int) and call.name != "chunk":
                arguments[1] = made[0].shape[place.dim]
    if call.name in _BOUNDS and made:
        first, last = _BOUNDS[call.name]
        cut = arguments[first - 1] if first <= len(arguments) else None
        rank = len(call.inputs[0].shape)
        if isinstance(cut, int) and rank and cut % rank == place.dim:
            for at in (first, last):
                value = arguments[at] if at < len(arguments) else None
                if isinstance(value, int) and 0 < value <= before:
                    arguments[at] = value // place.state.degree
