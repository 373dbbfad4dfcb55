"""How ranks share a tensor: what of it one rank holds, and the shape that it has there."""

from collections.abc import Sequence
from enum import IntEnum
from math import prod
from typing import Final

from .....errors import InputError
from .....formats.trace.signature import TensorSpec
from .....records import dataclass, replace


class Share(IntEnum):
    """Say what a rank holds of a tensor."""

    WHOLE = 0
    FEATURES = 1
    """A part of the heads, hidden features or vocabulary."""
    TOKENS = 2
    """A part of the tokens of each sample."""
    EXPERTS = 3
    """Some of the experts' weights."""
    PARTIAL = 4
    """A summand of each element: products of parts of the features."""
    GRADIENT = 5
    """A summand of a parameter's gradient: a sum over a part of the tokens."""
    DISPATCHED = 6
    """Rows that were sent to the ranks of their experts: others than the rank's own, as many of them."""


PARTS: Final = (Share.FEATURES, Share.TOKENS, Share.EXPERTS)
"""Shares that make tensors smaller."""


@dataclass(frozen=True, slots=True)
class State:
    """Hold how a storage is shared. A part is the outermost dim below `extent`, divided by `degree`.

    `extent` counts elements: the distance in memory between neighbours on the next outer dim. As for strides, all views
    of a storage agree on it.
    """

    share: Share = Share.WHOLE
    extent: int = 0
    degree: int = 1
    step: int = 1
    """Elements between neighbours on the shared dim where it was given: dims that reach no further lie inside it."""
    is_uneven: bool = False
    """Whether the part may be rounded up, as a vocabulary is padded."""
    is_added_up: bool = False
    """Of summands: whether their sum is known as well."""

    @property
    def is_part(self) -> bool:
        """Say whether ranks hold less than the whole."""
        return self.share in PARTS


STACKED_COUNT: Final = 3
"""Queries, keys and values, stacked in a dim of their own by torch's attention layer: what lies inside is shared."""
WHOLE: Final = State()


@dataclass(frozen=True, slots=True)
class Cut:
    """Hold which dim of a tensor is shared: `inner` elements of it lie together, and each rank has a part of these."""

    dim: int
    inner: int
    state: State


def strides_of(spec: TensorSpec) -> tuple[int, ...]:
    """Return the strides, those of a contiguous tensor where none were recorded."""
    if spec.strides is not None:
        return spec.strides
    return tuple(prod(spec.shape[dim + 1 :]) for dim in range(len(spec.shape)))


def place_of(spec: TensorSpec, state: State) -> Cut | None:
    """Return where a view of a storage is shared; None where it is not: it holds no more than one step of it."""
    if not state.is_part:
        return None
    steps = [
        (stride, dim)
        for dim, (size, stride) in enumerate(zip(spec.shape, strides_of(spec), strict=True))
        if 0 < stride < state.extent and size * stride > state.step and size > 1
    ]
    first: Cut | None = None
    for stride, dim in sorted(steps, reverse=True):
        inner = min(state.extent // stride, spec.shape[dim])
        inner = spec.shape[dim] if spec.shape[dim] % inner else inner
        first = first or Cut(dim, inner, state)
        if not inner % state.degree:
            return Cut(dim, inner, state)
        if inner > STACKED_COUNT and state.share is not Share.TOKENS:
            break
    return first


def state_at(spec: TensorSpec, place: Cut) -> State:
    """Return the state of a storage of which a tensor is shared so."""
    stride = max(strides_of(spec)[place.dim], 1)
    return replace(place.state, extent=stride * place.inner, step=stride)


def part_of(size: int, degree: int) -> int:
    """Return the largest part of a size."""
    return -(-size // degree)


def local_size(spec: TensorSpec, place: Cut) -> int:
    """Return the size that a rank has of the shared dim. Raises InputError where it cannot be divided."""
    size, inner, degree = spec.shape[place.dim], place.inner, place.state.degree
    if inner % degree and not place.state.is_uneven and place.state.share is not Share.TOKENS:
        what = "experts" if place.state.share is Share.EXPERTS else "heads or features"
        raise InputError(f"{inner} {what} cannot be shared by {degree} ranks: take a degree that divides {inner}")
    return size // inner * part_of(inner, degree)


def local_spec(spec: TensorSpec, place: Cut | None) -> TensorSpec:
    """Return the tensor that a rank has."""
    if place is None:
        return spec
    size = local_size(spec, place)
    shape = (*spec.shape[: place.dim], size, *spec.shape[place.dim + 1 :])
    if spec.strides is None:
        return replace(spec, shape=shape)
    step = spec.strides[place.dim]
    extent, local = step * place.inner, step * part_of(place.inner, place.state.degree)
    extent = max(extent, place.state.extent) if extent and not place.state.extent % extent else extent
    local = extent // place.inner * part_of(place.inner, place.state.degree) if place.inner else local
    strides = tuple(
        item if not extent or item < extent else item // extent * local + item % extent for item in spec.strides
    )
    return replace(spec, shape=shape, strides=strides)


def outer_count(shape: Sequence[int], place: Cut) -> int:
    """Return how many pieces of memory a rank's part is of the whole, contiguous tensor."""
    return prod(shape[: place.dim]) * (shape[place.dim] // max(place.inner, 1))
