"""Rescales shapes, strides and size arguments from one length of an axis to another."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ....errors import InputError
from ....formats.trace.signature import Argument, TensorSpec
from .axis import Axis, Carry
from .rules import AxisCall

_COUNT_POSITIONS = {"native_group_norm": 3, "native_group_norm_backward": 5}
"""Where group normalisation takes the number of samples."""
_VIEWS = ("view", "reshape", "_unsafe_view", "_reshape_alias")
_MEANS = ("div", "mul")
_BOUNDS = {"slice": 1, "narrow": 1, "select": 1, "slice_backward": 2, "select_backward": 2}
"""Where ops that take a part of one dimension say of which; the bounds follow."""
_SIZES_POSITIONS = {
    "expand": 1,
    "new_zeros": 1,
    "select_backward": 1,
    "slice_backward": 1,
    "upsample_nearest2d_backward": 2,
    "upsample_bilinear2d_backward": 2,
}
"""Where these ops take the sizes of their result, which begin with the batch."""


def scale_spec(spec: TensorSpec, carry: Carry, axis: Axis) -> TensorSpec:
    """Return the spec with the dims that hold the axis rescaled, and the strides of those that span it."""
    if not any(carry):
        return spec
    if len(carry) != len(spec.shape):
        raise InputError(
            f"a tensor of {len(spec.shape)} dimensions stands where the ops before it made one of {len(carry)}: the "
            f"trace's signatures do not fit its ops, so no other {axis.quantity} can be followed through them; record "
            "it again"
        )
    shape = tuple(axis.scale(size, inner) if inner else size for size, inner in zip(spec.shape, carry, strict=True))
    if spec.strides is None:
        return replace(spec, shape=shape)
    strides = list(spec.strides)
    for dim, inner in enumerate(carry):
        if inner and spec.strides[dim]:
            strides = _scale_strides(spec, strides, dim, inner, axis)
    return replace(spec, shape=shape, strides=tuple(strides))


def _scale_strides(spec: TensorSpec, strides: Sequence[int], dim: int, inner: int, axis: Axis) -> list[int]:
    """Rescale the strides that step over all that one dim holds of the axis."""
    before = spec.strides or ()
    step = before[dim] * inner
    if axis.is_batch:
        return [axis.scale(now) if old >= step * axis.before else now for old, now in zip(before, strides, strict=True)]
    own = next((pair for pair in axis.lengths if not spec.shape[dim] % (inner * pair[0])), axis.lengths[0])
    # A view of part of a longer tensor steps over that one's length.
    found = (own, *(pair for pair in axis.lengths if pair != own))
    changed = []
    for old, now in zip(before, strides, strict=True):
        lengths = next((pair for pair in found if not old % (step * pair[0])), None) if old >= step * own[0] else None
        changed.append(now if lengths is None else now // lengths[0] * lengths[1])
    return changed


def scale_arguments(
    call: AxisCall,
    results: Sequence[Carry],
    scaled_in: Sequence[TensorSpec],
    scaled_out: Sequence[TensorSpec],
    axis: Axis,
) -> tuple[Argument, ...]:
    """Return the arguments with sizes, strides and counts rescaled; tensors are left as they are."""
    pairs = [
        *zip(call.outputs, scaled_out, strict=True),
        *((spec, scaled) for spec, scaled in zip(call.inputs, scaled_in, strict=True)),
    ]
    changed = [pair for pair in pairs if pair[0] is not pair[1]]
    if not changed:
        return call.signature.arguments
    arguments = [
        _scale_list(item, changed) if isinstance(item, tuple) and not _holds_tensors(item) else item
        for item in call.signature.arguments
    ]
    if not call.outputs and call.inputs and any(call.carries[0]):
        arguments = [_view_sizes(item, call, axis) for item in arguments]
    _scale_counts(call, arguments, scaled_in, axis, results)
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


def _view_sizes(item: Argument, call: AxisCall, axis: Axis) -> Argument:
    """Rescale the sizes of a view whose result was not recorded, from where the batch lies in a contiguous tensor."""
    listed = _whole_numbers(item)
    if len(listed) > 1 and listed[0] == axis.before and item is call.argument(_SIZES_POSITIONS.get(call.name, -1)):
        return (axis.after, *listed[1:])
    spec, carry = call.inputs[0], call.carries[0]
    sizes = _complete(listed, spec.element_count)
    if not listed or prod(sizes) != spec.element_count or call.name not in _VIEWS:
        return item
    dim = next(place for place, inner in enumerate(carry) if inner)
    beyond, inner = prod(spec.shape[dim + 1 :]) * carry[dim], spec.element_count
    for place, size in enumerate(sizes):
        inner //= max(size, 1)
        if inner <= beyond < inner * size:
            scaled = -1 if listed[place] == -1 else axis.scale(size)
            return (*listed[:place], scaled, *listed[place + 1 :])
    return item


def _complete(sizes: tuple[int, ...], element_count: int) -> tuple[int, ...]:
    """Return the sizes with a -1 replaced by what it stands for."""
    known = abs(prod(sizes))
    if sizes.count(-1) != 1 or not known:
        return sizes
    return tuple(element_count // known if size == -1 else size for size in sizes)


def _scale_counts(
    call: AxisCall, arguments: list[Argument], scaled_in: Sequence[TensorSpec], axis: Axis, results: Sequence[Carry]
) -> None:
    """Rescale single numbers that count samples or elements, in place."""
    place = _COUNT_POSITIONS.get(call.name)
    if place is not None and place < len(arguments) and scaled_in:
        arguments[place] = next(spec.shape[0] for spec in scaled_in if len(spec.shape) > 1)
    if call.name in _MEANS and len(arguments) > 1 and any(call.carries[0]):
        count, divisor = call.inputs[0].element_count, arguments[1]
        if isinstance(divisor, int | float) and not isinstance(divisor, bool) and divisor == count:
            arguments[1] = type(divisor)(scaled_in[0].element_count)
    if not axis.is_batch:
        _scale_bounds(call, arguments, axis)
    if call.name == "arange" and any(map(any, results)):
        end = 1 if len(arguments) > 1 and isinstance(arguments[1], int) else 0
        value = arguments[end]
        if isinstance(value, int):
            arguments[end] = axis.scale(value)


def _scale_bounds(call: AxisCall, arguments: list[Argument], axis: Axis) -> None:
    """Rescale, in place, where a part of the axis begins and ends, and the lengths that attention is told."""
    first = 1 if "attention" in call.name else _BOUNDS.get(call.name, len(arguments) - 1) + 1
    lengths = dict(axis.lengths)
    for place in range(first, len(arguments)):
        value = arguments[place]
        if isinstance(value, int) and not isinstance(value, bool):
            arguments[place] = lengths.get(value, value)
