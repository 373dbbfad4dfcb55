"""What is rescaled: the batch, the tokens of a sequence, or the tokens in a cache."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from ....records import dataclass

Carry = tuple[int, ...]
"""Per dimension of a tensor: 0 where it does not hold the axis, else the elements of that dimension per step of the
axis that lie inside it, so that its size is a multiple of a length times this; 1 for a plain dimension."""


class Quantity(StrEnum):
    """Name an axis as reports do."""

    BATCH = "batch size"
    SEQUENCE = "sequence length"
    CACHE = "number of cached tokens"


NEAR_LENGTHS: Final = (0, 1, -1, 2, -2, 3, -3, 4, -4)
"""What models make of a length: labels shifted by a token, a token in front, a causal convolution's margin."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Hold the length of an axis before and after."""

    before: int
    after: int
    quantity: Quantity = Quantity.BATCH
    offsets: tuple[int, ...] = (0,)
    """What may be added to the length to give the size of a dimension, likeliest first."""
    samples: int = 0
    """The batch size beside an axis of tokens, 0 where it is not known: no first dimension of that size is the axis."""

    @property
    def is_batch(self) -> bool:
        """Say whether samples are counted: a tensor holds them in one dimension, tokens maybe in two."""
        return self.quantity is Quantity.BATCH

    @property
    def lengths(self) -> tuple[tuple[int, int], ...]:
        """Return what sizes before may be multiples of, each with what it becomes, likeliest first."""
        pairs = ((self.before + offset, self.after + offset) for offset in self.offsets)
        return tuple((before, max(after, 0)) for before, after in pairs if before > 1 or before == self.before)

    def holds(self, size: int, inner: int = 1) -> bool:
        """Say whether a size may be that of a dimension with `inner` elements per step of the axis."""
        return any(not size % (inner * length) for length, _ in self.lengths)

    def is_exact(self, size: int) -> bool:
        """Say whether a size is the axis' own, which is all that tells it where nothing is known of a tensor."""
        return size - self.before in (0, self.offsets[0])

    def dims_of(self, shape: Sequence[int]) -> Carry:
        """Return which dims of a tensor hold the axis by their sizes alone.

        Samples: the first dim of exactly that size. Tokens: every dim of their number, or of samples times that.
        """
        if self.is_batch:
            place = next((dim for dim, size in enumerate(shape) if size == self.before), None)
            return tuple(int(dim == place) for dim in range(len(shape)))
        first = len(shape) > 1 and shape[0] == self.samples
        rows = self.samples * self.before if self.samples > 1 else 0
        return tuple(
            int((self.is_exact(size) and not (first and dim == 0)) or (dim == 0 and size == rows > 0))
            for dim, size in enumerate(shape)
        )

    def scale(self, size: int, inner: int = 1) -> int:
        """Return a size that holds the axis, rescaled; at least 1."""
        if not size:
            return 0
        for before, after in self.lengths if not self.is_batch else ():
            if size == inner * before:
                return max(1, inner * after)
        for before, after in self.lengths if not self.is_batch else ():
            if not size % before:
                return max(1, size // before * after)
        return max(1, size * self.after // self.before)


def batch_axis(before: int, after: int) -> Axis:
    """Return the axis of samples."""
    return Axis(before, after)


def sequence_axis(before: int, after: int, samples: int | None = None) -> Axis:
    """Return the axis of tokens in a sequence."""
    return Axis(before, after, Quantity.SEQUENCE, NEAR_LENGTHS, samples or 0)


def cache_axis(before: int, after: int, query_count: int, samples: int | None = None) -> Axis:
    """Return the axis of cached tokens, beside which `query_count` new ones are seen."""
    return Axis(before, after, Quantity.CACHE, (query_count, 0), samples or 0)
