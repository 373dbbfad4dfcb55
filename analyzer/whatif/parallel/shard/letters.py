"""Which dimensions of an op's tensors are one and the same: a letter for each, as in Einstein's notation."""

from collections.abc import Sequence
from typing import Final

from .....formats.trace.signature import TensorSpec
from .....records import dataclass
from ...calls import ShapedCall, broadcasts

NONE: Final = 0
"""A dim that is not shared: of size 1, or of numbers that every rank makes for itself."""
Letters = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Naming:
    """Hold the letters of an op's tensors, and which of them a rank must have whole."""

    inputs: tuple[Letters, ...]
    outputs: tuple[Letters, ...]
    is_sum: bool = True
    """Whether a letter that no result has is summed over; else each rank makes its own of it."""
    kept_whole: frozenset[int] = frozenset()
    exchanged: int = 0
    """A letter that is kept apart at the price of exchanging a number per row, as softmax over a shared vocabulary."""
    exchanges: int = 0
    """How often."""


def letters_of(spec: TensorSpec, first: int = 1) -> Letters:
    """Return a letter for each dim, numbered from `first`."""
    return tuple(range(first, first + len(spec.shape)))


def name_elementwise(call: ShapedCall) -> Naming | None:
    """Align dims from the last one with those of the largest tensor, where all broadcast to it."""
    specs = (*call.inputs, *call.outputs)
    if not specs:
        return None
    largest = max(specs, key=lambda spec: (len(spec.shape), spec.element_count))
    shape = largest.shape
    if not all(broadcasts(spec, shape) for spec in specs):
        return _name_gated(call, shape)
    if call.outputs and not any(spec.shape == shape for spec in call.outputs):
        return None
    return Naming(
        tuple(_aligned(spec, shape) for spec in call.inputs), tuple(_aligned(spec, shape) for spec in call.outputs)
    )


def _name_gated(call: ShapedCall, shape: tuple[int, ...]) -> Naming | None:
    """Name the dims of a gate and what it gates, which lie side by side in tensors twice as wide as the others."""
    specs = (*call.inputs, *call.outputs)
    widths = (shape[-1], shape[-1] // 2)
    if not shape or any(spec.shape[:-1] != shape[:-1] or spec.shape[-1] not in widths for spec in specs):
        return None
    named = tuple(letters_of(spec) for spec in specs)
    return Naming(named[: len(call.inputs)], named[len(call.inputs) :], is_sum=False)


def _aligned(spec: TensorSpec, shape: tuple[int, ...]) -> Letters:
    offset = len(shape) - len(spec.shape)
    steps = spec.strides or (1,) * len(spec.shape)
    return tuple(
        offset + dim + 1 if size == shape[offset + dim] and (size == 1 or steps[dim]) else NONE
        for dim, size in enumerate(spec.shape)
    )


def pairs(letters: Sequence[int]) -> list[tuple[int, int]]:
    """Return the dims that have letters, with them."""
    return [(dim, letter) for dim, letter in enumerate(letters) if letter]


_VIEWS: Final = """
view _unsafe_view reshape _reshape_alias t transpose permute expand slice select split split_with_sizes chunk unbind
unsqueeze squeeze alias detach narrow as_strided movedim unflatten flatten view_as expand_as swapaxes mT numpy_T
lift_fresh diagonal unfold
"""
_MADE: Final = """
zeros ones full empty rand randn randint new_zeros new_ones new_empty new_full empty_strided new_empty_strided
zeros_like ones_like full_like empty_like arange linspace scalar_tensor eye tril_indices triu_indices
"""
VIEWS: Final = frozenset(_VIEWS.split())
"""Ops whose results lie where their first input lies, if they share its storage."""
MADE: Final = frozenset(_MADE.split())
"""Ops that make tensors of sizes alone."""
