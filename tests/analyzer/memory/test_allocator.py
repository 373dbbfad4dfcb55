"""The rules of torch's caching allocator."""

from __future__ import annotations

from itertools import permutations
from typing import Any

from hypothesis import given, strategies as st
from wavecast.analyzer.memory.describe import CachingAllocator

MIB = 1 << 20


def test_a_small_remainder_stays_with_its_block() -> None:
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(32 * MIB))
    allocator.allocate(31 * MIB + 512)
    assert allocator.allocated_bytes == 32 * MIB
    assert allocator.reserved_bytes == 32 * MIB


def test_a_large_remainder_is_handed_out_again() -> None:
    allocator = CachingAllocator()
    for _ in range(2):
        allocator.allocate(9 * MIB)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (18 * MIB, 20 * MIB)


def test_small_blocks_come_from_segments_of_their_own() -> None:
    allocator = CachingAllocator()
    allocator.allocate(100)
    allocator.allocate(12 * MIB)
    assert allocator.allocated_bytes == 512 + 12 * MIB
    assert allocator.reserved_bytes == 2 * MIB + 12 * MIB


def test_free_neighbours_join() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(5 * MIB) for _ in range(4)]
    for block in blocks:
        allocator.release(block)
    allocator.allocate(9 * MIB)
    allocator.allocate(9 * MIB)
    assert allocator.reserved_bytes == 20 * MIB


def test_the_limits_between_small_and_large_blocks_are_torchs() -> None:
    reserved = []
    for size in (MIB, MIB + 512, 10 * MIB - 512, 10 * MIB, 10 * MIB + 512):
        allocator = CachingAllocator()
        allocator.allocate(size)
        reserved.append(allocator.reserved_bytes // MIB)
    assert reserved == [2, 20, 20, 10, 12]


def test_what_is_left_of_a_block_is_cut_off_from_a_limit_on() -> None:
    small, large = CachingAllocator(), CachingAllocator()
    for size in (MIB, MIB - 512, 512):
        small.allocate(size)
    assert (small.allocated_bytes, small.reserved_bytes) == (2 * MIB, 2 * MIB)
    large.release(large.allocate(32 * MIB))
    large.allocate(31 * MIB)
    assert large.allocated_bytes == 32 * MIB


def test_neighbours_join_in_whatever_order_they_are_freed() -> None:
    for order in permutations(range(4)):
        allocator = CachingAllocator()
        blocks = [allocator.allocate(5 * MIB) for _ in range(4)]
        for place in order:
            allocator.release(blocks[place])
        allocator.allocate(19 * MIB + 512)
        assert allocator.reserved_bytes == 20 * MIB


@given(st.lists(st.tuples(st.integers(1, 50 * MIB), st.booleans()), max_size=60))
def test_what_is_reserved_holds_what_is_allocated(calls: list[tuple[int, bool]]) -> None:
    allocator = CachingAllocator()
    held: list[Any] = []
    asked: list[int] = []
    for size, is_release in calls:
        if is_release and held:
            allocator.release(held.pop(0))
            asked.pop(0)
        else:
            held.append(allocator.allocate(size))
            asked.append(size)
        assert sum(asked) <= allocator.allocated_bytes <= allocator.peak_bytes <= allocator.reserved_bytes
    for block in held:
        allocator.release(block)
    assert allocator.allocated_bytes == 0
