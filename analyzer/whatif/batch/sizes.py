"""Rescales shapes, strides and size arguments from one batch size to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from ....errors import InputError
from ....formats.signature import Argument, TensorSpec
from .rules import BatchedCall, Carry

_COUNT_POSITIONS = {"native_group_norm": 3, "native_group_norm_backward": 5}
"""Where group normalisation takes the number of samples."""
_VIEWS = ("view", "reshape", "_unsafe_view", "_reshape_alias")
_MEANS = ("div", "mul")
_SIZES_POSITIONS = {
    "expand": 1,
    "new_zeros": 1,
    "select_backward": 1,
    "slice_backward": 1,
    "upsample_nearest2d_backward": 2,
    "upsample_bilinear2d_backward": 2,
}
"""Where these ops take the sizes of their result, which begin with the batch."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Hold the batch size before and after."""

    before: int
    after: int

    def scale(self, size: int) -> int:
        """Return a size that holds the batch, rescaled; at least 1."""
        return max(1, size * self.after // self.before) if size else 0


def scale_spec(spec: TensorSpec, carry: Carry, ratio: Ratio) -> TensorSpec:
    """Return the spec with the dims that hold the batch rescaled, and the strides of those that span it."""
    if not any(carry):
        return spec
    if len(carry) != len(spec.shape):
        raise InputError(
            f"a tensor of {len(spec.shape)} dimensions stands where the ops before it made one of {len(carry)}: the "
            "trace's signatures do not fit its ops, so no other batch can be followed through them; record it again"
        )
    shape = tuple(ratio.scale(size) if inner else size for size, inner in zip(spec.shape, carry, strict=True))
    if spec.strides is None:
        return replace(spec, shape=shape)
    steps = [stride * inner for stride, inner in zip(spec.strides, carry, strict=True) if inner and stride]
    spans = min(steps) * ratio.before if steps else 0
    strides = tuple(ratio.scale(item) if spans and item >= spans else item for item in spec.strides)
    return replace(spec, shape=shape, strides=strides)


def scale_arguments(
    call: BatchedCall,
    results: Sequence[Carry],
    scaled_in: Sequence[TensorSpec],
    scaled_out: Sequence[TensorSpec],
    ratio: Ratio,
) -> tuple[Argument, ...]:
    """Return the arguments with sizes, strides and counts rescaled; tensors are left as they are."""
    pairs = [
        *zip(call.layout.outputs, scaled_out, strict=True),
        *((spec, scaled) for spec, scaled in zip(call.layout.inputs, scaled_in, strict=True)),
    ]
    changed = [pair for pair in pairs if pair[0] is not pair[1]]
    if not changed:
        return call.signature.arguments
    arguments = [
        _scale_list(item, changed) if isinstance(item, tuple) and not _holds_tensors(item) else item
        for item in call.signature.arguments
    ]
    if not call.layout.outputs and call.layout.inputs and any(call.carries[0]):
        arguments = [_view_sizes(item, call, ratio) for item in arguments]
    _scale_counts(call, arguments, scaled_in, ratio, results)
    return tuple(arguments)


def _holds_tensors(item: tuple[object, ...]) -> bool:
    return any(isinstance(part, TensorSpec) for part in item)


def _scale_list(item: Argument, changed: Sequence[tuple[TensorSpec, TensorSpec]]) -> Argument:
    """Return the shape or the strides of a rescaled tensor where the list is that of the original (−1: any)."""
    sizes = _whole_numbers(item)
    for old, new in changed if sizes else ():
        if len(old.shape) == len(sizes) and all(a in (-1, b) for a, b in zip(sizes, old.shape, strict=True)):
            return tuple(a if a == -1 else b for a, b in zip(sizes, new.shape, strict=True))
        if old.strides == sizes and len(sizes) > 1:
            return new.strides or item
    return item


def _whole_numbers(item: Argument) -> tuple[int, ...]:
    """Return a list of whole numbers; () for anything else."""
    if not isinstance(item, tuple):
        return ()
    numbers = tuple(part for part in item if isinstance(part, int) and not isinstance(part, bool))
    return numbers if len(numbers) == len(item) else ()


def _view_sizes(item: Argument, call: BatchedCall, ratio: Ratio) -> Argument:
    """Rescale the sizes of a view whose result was not recorded, from where the batch lies in a contiguous tensor."""
    listed = _whole_numbers(item)
    if len(listed) > 1 and listed[0] == ratio.before and item is call.argument(_SIZES_POSITIONS.get(call.name, -1)):
        return (ratio.after, *listed[1:])
    spec, carry = call.layout.inputs[0], call.carries[0]
    sizes = _complete(listed, spec.element_count)
    if not listed or prod(sizes) != spec.element_count or call.name not in _VIEWS:
        return item
    dim = next(place for place, inner in enumerate(carry) if inner)
    beyond, inner = prod(spec.shape[dim + 1 :]) * carry[dim], spec.element_count
    for place, size in enumerate(sizes):
        inner //= max(size, 1)
        if inner <= beyond < inner * size:
            scaled = -1 if listed[place] == -1 else ratio.scale(size)
            return (*listed[:place], scaled, *listed[place + 1 :])
    return item


def _complete(sizes: tuple[int, ...], element_count: int) -> tuple[int, ...]:
    """Return the sizes with a -1 replaced by what it stands for."""
    known = abs(prod(sizes))
    if sizes.count(-1) != 1 or not known:
        return sizes
    return tuple(element_count // known if size == -1 else size for size in sizes)


def _scale_counts(
    call: BatchedCall,
    arguments: list[Argument],
    scaled_in: Sequence[TensorSpec],
    ratio: Ratio,
    results: Sequence[Carry],
) -> None:
    """Rescale single numbers that count samples or elements, in place."""
    place = _COUNT_POSITIONS.get(call.name)
    if place is not None and place < len(arguments) and scaled_in:
        arguments[place] = next(spec.shape[0] for spec in scaled_in if len(spec.shape) > 1)
    if call.name in _MEANS and len(arguments) > 1 and any(call.carries[0]):
        count, divisor = call.layout.inputs[0].element_count, arguments[1]
        if isinstance(divisor, int | float) and not isinstance(divisor, bool) and divisor == count:
            arguments[1] = type(divisor)(scaled_in[0].element_count)
    if call.name == "arange" and any(map(any, results)):
        end = 1 if len(arguments) > 1 and isinstance(arguments[1], int) else 0
        value = arguments[end]
        if isinstance(value, int):
            arguments[end] = ratio.scale(value)
