"""In which order ops walk through their operands' memory, also where a compiler lays images out channels innermost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Final

from ....formats.trace.signature import TensorSpec

_ORDERS: Final = 1 << 40
_IMAGE_RANK: Final = 4

Planes = tuple[int, int]
"""Channels and pixels of images that are recorded plane after plane, and that a compiler lays channels innermost."""


def order_of(operand: TensorSpec, result: TensorSpec | None) -> int:
    """Return a number below 0 for the order in which an op walks through an operand's memory; 0: from front to back.

    The op walks its result from front to back, or its operand's dimensions from first to last where their sizes differ.
    """
    if operand.strides is None:
        return 0
    walked = row_strides(operand.shape)
    if result is not None and result.strides is not None and len(result.shape) >= len(operand.shape):
        skipped = len(result.shape) - len(operand.shape)
        if all(size in (1, other) for size, other in zip(operand.shape, result.shape[skipped:], strict=True)):
            walked = result.strides[skipped:]
    dims = [
        (step, stride, size)
        for step, stride, size in zip(walked, operand.strides, operand.shape, strict=True)
        if size > 1 and stride
    ]
    dims.sort(key=lambda item: -item[0])
    rank = {at: place for place, at in enumerate(sorted(range(len(dims)), key=lambda at: -dims[at][1]))}
    merged: list[tuple[int, int]] = []
    for at, (*_, size) in enumerate(dims):
        if merged and rank[at] == rank[at - 1] + 1:
            merged[-1] = (merged[-1][0] * size, merged[-1][1])
        else:
            merged.append((size, rank[at]))
    return -1 - hash(tuple(merged)) % _ORDERS if len(merged) > 1 else 0


def row_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a tensor whose last dimension lies together.

    >>> row_strides((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(prod(shape[at + 1 :]) for at in range(len(shape)))


def in_memory(tensor: TensorSpec, planes: Planes | None) -> TensorSpec:
    """Return a tensor, or a view of it, with the strides that it has channels innermost.

    >>> in_memory(TensorSpec("float32", (2, 3, 4, 5), (60, 20, 5, 1)), (3, 20)).strides
    (60, 1, 15, 3)
    """
    if planes is None:
        return tensor
    channels, pixels = planes
    moved = []
    for stride in tensor.strides or row_strides(tensor.shape):
        image, rest = divmod(stride, channels * pixels)
        channel, pixel = divmod(rest, pixels)
        moved.append(image * channels * pixels + pixel * channels + channel)
    return replace(tensor, strides=tuple(moved))


def planes_of(tensor: TensorSpec) -> Planes | None:
    """Return channels and pixels of a tensor that is recorded as images, plane after plane."""
    if len(tensor.shape) != _IMAGE_RANK or tensor.strides not in (None, row_strides(tensor.shape)):
        return None
    _, channels, height, width = tensor.shape
    return (channels, height * width) if channels > 1 and height * width > 1 else None


def is_channels_innermost(tensor: TensorSpec) -> bool:
    """Say whether a tensor is images whose channels lie together, pixel after pixel."""
    if len(tensor.shape) != _IMAGE_RANK or tensor.strides is None:
        return False
    images, channels, height, width = tensor.shape
    wanted = (channels * height * width, 1, width * channels, channels)
    is_told = channels > 1 and height * width > 1
    sizes = (images, channels, height, width)
    return is_told and all(
        size == 1 or stride == other for size, stride, other in zip(sizes, tensor.strides, wanted, strict=True)
    )
