"""Plays allocations through torch's caching allocator, to see how much its segments waste.

The rules are those that the comments of c10/cuda/CUDACachingAllocator.cpp state: requests are rounded to 512 bytes;
up to 1 MiB they share segments of 2 MiB, below 10 MiB segments of 20 MiB, larger ones get a segment of their own,
rounded to 2 MiB. A request takes the smallest free block that holds it; the rest is split off where it exceeds
512 bytes (small segments) or 1 MiB (large ones). Free neighbours merge. Streams and expandable segments are left out.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field

ROUND_BYTES = 512
SMALL_BYTES = 1 << 20
SMALL_SEGMENT_BYTES = 2 << 20
MIDDLE_BYTES = 10 << 20
MIDDLE_SEGMENT_BYTES = 20 << 20
SEGMENT_ROUND_BYTES = 2 << 20


@dataclass(eq=False, slots=True)
class Block:
    segment: int
    offset: int
    size: int
    is_small: bool
    is_free: bool = False
    before: Block | None = None
    after: Block | None = None


@dataclass(slots=True)
class Allocator:
    """Hold segments and count: what is allocated, what segments with a living block hold, and the peaks of both."""

    allocated: int = 0
    pinned: int = 0
    """Bytes of segments that hold a living block: the others go back to the driver before an allocation fails."""
    peak_allocated: int = 0
    peak_pinned: int = 0
    segment_sizes: list[int] = field(default_factory=list)
    _living: list[int] = field(default_factory=list)
    _free: dict[bool, list[tuple[int, int, int]]] = field(default_factory=lambda: {False: [], True: []})
    _at: dict[tuple[int, int], Block] = field(default_factory=dict)

    def allocate(self, size_bytes: int) -> Block:
        """Return a block of at least `size_bytes`."""
        size = -(-max(size_bytes, 1) // ROUND_BYTES) * ROUND_BYTES
        block = self._take(size, size <= SMALL_BYTES) or self._grow(size)
        self._split(block, size)
        block.is_free = False
        self.allocated += block.size
        self._living[block.segment] += 1
        if self._living[block.segment] == 1:
            self.pinned += self.segment_sizes[block.segment]
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        self.peak_pinned = max(self.peak_pinned, self.pinned)
        return block

    def release(self, block: Block) -> None:
        """Free a block and merge it with free neighbours."""
        self.allocated -= block.size
        self._living[block.segment] -= 1
        if not self._living[block.segment]:
            self.pinned -= self.segment_sizes[block.segment]
        for other in (block.before, block.after):
            if other is not None and other.is_free:
                self._forget(other)
                block = _merge(*sorted((block, other), key=lambda item: item.offset))
        self._remember(block)

    def _take(self, size: int, is_small: bool) -> Block | None:
        free = self._free[is_small]
        place = bisect_left(free, (size, -1, -1))
        if place == len(free):
            return None
        _, segment, offset = free[place]
        block = self._at[segment, offset]
        self._forget(block)
        return block

    def _grow(self, size: int) -> Block:
        is_small = size <= SMALL_BYTES
        if is_small:
            segment = SMALL_SEGMENT_BYTES
        elif size < MIDDLE_BYTES:
            segment = MIDDLE_SEGMENT_BYTES
        else:
            segment = -(-size // SEGMENT_ROUND_BYTES) * SEGMENT_ROUND_BYTES
        self.segment_sizes.append(segment)
        self._living.append(0)
        return Block(len(self.segment_sizes) - 1, 0, segment, is_small)

    def _split(self, block: Block, size: int) -> None:
        rest = block.size - size
        if rest < ROUND_BYTES if block.is_small else rest <= SMALL_BYTES:
            return
        remainder = Block(block.segment, block.offset + size, rest, block.is_small, before=block, after=block.after)
        if block.after is not None:
            block.after.before = remainder
        block.after, block.size = remainder, size
        self._remember(remainder)

    def _remember(self, block: Block) -> None:
        block.is_free = True
        self._at[block.segment, block.offset] = block
        insort(self._free[block.is_small], (block.size, block.segment, block.offset))

    def _forget(self, block: Block) -> None:
        free = self._free[block.is_small]
        del free[bisect_left(free, (block.size, block.segment, block.offset))]
        del self._at[block.segment, block.offset]
        block.is_free = False


def _merge(left: Block, right: Block) -> Block:
    left.size += right.size
    left.after = right.after
    if right.after is not None:
        right.after.before = left
    return left


def play(events: Iterable[tuple[int, int]]) -> Allocator:
    """Return the allocator after events of (block number, bytes; negative: freed), in order."""
    allocator, living = Allocator(), {}
    for number, size in events:
        if size >= 0:
            living[number] = allocator.allocate(size)
        elif number in living:
            allocator.release(living.pop(number))
    return allocator
