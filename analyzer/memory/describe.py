"""How much memory an iteration takes, and what holds it.

What torch's caching allocator takes from the driver for an iteration whose storages and their lives are known.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from itertools import chain, zip_longest
from typing import Final

import numpy as np

from ...arrays import Rows, group_by
from ...formats.trace.column import row_count
from ...formats.trace.tables import Phase, Trace
from ...records import dataclass, field
from ..recorded.window import Window
from ..work import Family, are_of_family
from .events import describe_events
from .lifetimes import ALLOCATION_BYTES, Bytes, Mask, Storages, find_storages, has_lifetimes
from .roles import CATEGORIES, find_roles
from .temporaries import temporary_bytes
from .use import MemoryCategory, MemoryMethod, MemoryUse

RECORDED_REASON: Final = "every storage held from the op that creates it until the recording saw it dropped"
TRAINING_REASON: Final = "every storage held from the op that creates it to the last one that uses it"
INFERENCE_REASON: Final = (
    f"{TRAINING_REASON}; without a backward pass, Python variables may hold some longer: the upper end counts them"
)
NOTHING: Final = "the recording has neither memory events nor tensor identities: record it with wavecast's own tracer"
HOST_ONLY: Final = "the recording holds host memory alone, and not what was allocated before it"


def describe_memory(trace: Trace, window: Window) -> MemoryUse | None:
    """Return the peak memory of the window and what holds it; None where the trace does not tell.

    `explain_missing_memory` then says why. Allocator events win over shapes and lifetimes.

    >>> round(describe_memory(trace, window).peak_bytes / 2**20)
    642
    """
    found = _describe(trace, window)
    return None if isinstance(found, str) else found


def explain_missing_memory(trace: Trace, window: Window) -> str | None:
    """Return why `describe_memory` has no answer; None where it has one."""
    found = _describe(trace, window)
    return found if isinstance(found, str) else None


def _describe(trace: Trace, window: Window) -> MemoryUse | str:
    if (trace.memory.device >= 0).any() and not has_lifetimes(trace):
        found = describe_events(trace, window)
        # Ops of measured recordings lie inside one another, and not all that they return is known.
        if isinstance(found, MemoryUse) or trace.is_measured or not row_count(trace.operands):
            return found
    if not row_count(trace.operands):
        return HOST_ONLY if row_count(trace.memory) else NOTHING
    if not (trace.tensors.device >= 0).any():
        return HOST_ONLY
    return _describe_lifetimes(trace, window)


def _describe_lifetimes(trace: Trace, window: Window) -> MemoryUse | str:
    storages = find_storages(trace, window.op_rows)
    if not storages.size_bytes.any():
        return "no op of the iteration uses a tensor of the accelerator"
    temporaries = temporary_bytes(trace, window.op_rows)
    beside = temporaries[1]
    level = levels(storages, storages.last, len(window.op_rows)) + beside
    peak = int(level.argmax())
    alive = (storages.first <= peak) & (storages.last >= peak)
    roles = find_roles(trace, window.op_rows, storages)
    sizes = np.bincount(roles[alive], weights=storages.size_bytes[alive], minlength=len(CATEGORIES))
    sizes[CATEGORIES.index(MemoryCategory.TEMPORARIES)] += beside[peak]
    peaks = play(storages, temporaries, is_late=roles == CATEGORIES.index(MemoryCategory.OPTIMIZER_STATE))
    # Count the threads that multiply matrices: autograd runs backward on one of its own, with its own handle.
    multiplies = are_of_family(trace.strings, Family.MATMUL)
    phase = trace.ops.phase[window.op_rows[multiplies[trace.ops.name[window.op_rows]]]]
    return MemoryUse(
        peak_bytes=int(level[peak]),
        highest_bytes=int((levels(storages, storages.latest, len(window.op_rows)) + beside).max()),
        allocated_peak_bytes=peaks.allocated_bytes,
        reserved_peak_bytes=peaks.reserved_bytes,
        held={category: int(size) for category, size in zip(CATEGORIES, sizes, strict=True) if size},
        at_op=int(window.op_rows[peak]),
        method=MemoryMethod.SHAPES_AND_LIFETIMES,
        reason=_explain(storages),
        workspace_count=int((phase == Phase.BACKWARD).any()) + int((phase != Phase.BACKWARD).any()),
    )


def _explain(storages: Storages) -> str:
    if storages.is_recorded:
        return RECORDED_REASON
    return TRAINING_REASON if (storages.uses.phase == Phase.BACKWARD).any() else INFERENCE_REASON


def levels(storages: Storages, last: Rows, op_count: int) -> Bytes:
    """Return the bytes held while each op runs: its results and all that it or a later one still needs."""
    change = np.zeros(op_count + 1, dtype=np.int64)
    np.add.at(change, storages.first, storages.size_bytes)
    np.add.at(change, last + 1, -storages.size_bytes)
    return np.cumsum(change)[:op_count]


_MIB: Final = 1 << 20
SMALL_BYTES: Final = _MIB
"""Up to this a block is cut from segments of 2 MiB (kSmallSize, kSmallBuffer in c10/cuda/CUDACachingAllocator)."""
_SMALL_SEGMENT_BYTES: Final = 2 * _MIB
_LARGE_SEGMENT_BYTES: Final = 20 * _MIB
"""Of blocks below 10 MiB (kMinLargeAlloc, kLargeBuffer); larger ones are rounded up to 2 MiB (kRoundLarge)."""
_LEAST_ALONE_BYTES: Final = 10 * _MIB
_ITERATIONS: Final = 3
"""As many as free blocks take to settle: the first starts without gradients and makes the optimizer's state."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """Say what the allocator held at most, bytes."""

    allocated_bytes: int
    """Handed out, with what was too little to be cut off blocks: torch's counter of allocated memory."""
    reserved_bytes: int
    """Taken from the driver, free blocks included."""


@dataclass(slots=True, eq=False)
class _Block:
    number: int
    size_bytes: int
    is_small: bool
    is_used: bool = False
    before: _Block | None = None
    after: _Block | None = None


@dataclass(slots=True, eq=False)
class CachingAllocator:
    """Hand out blocks as torch does: the smallest free one that is large enough, cut where enough remains.

    Free neighbours join. Nothing goes back to the driver, as long as its memory suffices.

    >>> allocator = CachingAllocator()
    >>> block = allocator.allocate(3 << 20)
    >>> allocator.reserved_bytes >> 20
    20
    """

    allocated_bytes: int = 0
    reserved_bytes: int = 0
    peak_bytes: int = 0
    _blocks: list[_Block] = field(default_factory=list)
    _free: tuple[list[tuple[int, int]], list[tuple[int, int]]] = field(default_factory=lambda: ([], []))
    """Sizes and numbers of free blocks, large and small ones, ascending."""

    def allocate(self, size_bytes: int) -> _Block:
        """Return a block of at least this size."""
        size = max(-(-size_bytes // ALLOCATION_BYTES), 1) * ALLOCATION_BYTES
        is_small = size <= SMALL_BYTES
        free = self._free[is_small]
        place = bisect_left(free, (size, -1))
        block = self._blocks[free.pop(place)[1]] if place < len(free) else self._reserve(size, is_small=is_small)
        rest = block.size_bytes - size
        if rest >= ALLOCATION_BYTES if is_small else rest > SMALL_BYTES:
            tail = self._new(rest, is_small=is_small)
            tail.before, tail.after = block, block.after
            if tail.after is not None:
                tail.after.before = tail
            block.after, block.size_bytes = tail, size
            insort(free, (rest, tail.number))
        block.is_used = True
        self.allocated_bytes += block.size_bytes
        self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)
        return block

    def release(self, block: _Block) -> None:
        """Take a block back and join it with its free neighbours."""
        self.allocated_bytes -= block.size_bytes
        block.is_used = False
        free = self._free[block.is_small]
        for other in (block.before, block.after):
            if other is None or other.is_used:
                continue
            free.pop(bisect_left(free, (other.size_bytes, other.number)))
            block.size_bytes += other.size_bytes
            if other is block.before:
                block.before = other.before
                if block.before is not None:
                    block.before.after = block
            else:
                block.after = other.after
                if block.after is not None:
                    block.after.before = block
        insort(free, (block.size_bytes, block.number))

    def _reserve(self, size_bytes: int, *, is_small: bool) -> _Block:
        rounded = -(-size_bytes // _SMALL_SEGMENT_BYTES) * _SMALL_SEGMENT_BYTES
        segment = (
            _SMALL_SEGMENT_BYTES if is_small else _LARGE_SEGMENT_BYTES if size_bytes < _LEAST_ALONE_BYTES else rounded
        )
        self.reserved_bytes += segment
        return self._new(segment, is_small=is_small)

    def _new(self, size_bytes: int, *, is_small: bool) -> _Block:
        self._blocks.append(_Block(len(self._blocks), size_bytes, is_small))
        return self._blocks[-1]


def play(storages: Storages, temporary_bytes: Bytes, is_late: Mask) -> Peaks:
    """Return the peaks of several iterations played through the allocator's rules.

    What existed before is allocated first, in order of use; of it what `is_late` (the optimizer's state) when it is
    first used. Each op then gets its results, its own temporaries beside each, as cuDNN takes a workspace for every
    gradient, and gives back what no later op needs. `temporary_bytes` [2, n ops] is as the function returns it.
    What the iteration leaves behind, gradients say, takes the place of what it found and dropped.
    """
    allocator, held = CachingAllocator(), {}
    size, count = storages.size_bytes, temporary_bytes.shape[1]
    used = np.flatnonzero(size > 0)
    first_use = np.full(len(storages.size_bytes), max(count - 1, 0), dtype=np.int64)
    np.minimum.at(first_use, storages.uses.storage, storages.uses.op)
    lasts = storages.last == count - 1
    stays = np.where(storages.is_new, storages.is_kept, lasts)
    dropped, left = used[(~storages.is_new & ~lasts)[used]], used[(storages.is_new & ~storages.is_kept & lasts)[used]]
    for storage in used[(stays & ~is_late & ~storages.is_kept)[used]].tolist():
        held[storage] = allocator.allocate(int(size[storage]))
    made = (
        _by_op(used[(is_late | storages.is_kept)[used]], first_use),
        _by_op(used[(storages.is_new & ~storages.is_kept)[used]], storages.first),
    )
    freed = _by_op(used[(~stays & ~lasts)[used]], storages.last)
    for _ in range(_ITERATIONS):
        for op in sorted({*made[0], *made[1], *freed, *np.flatnonzero(temporary_bytes[1]).tolist()}):
            new = [storage for results in made for storage in results.get(op, ()) if storage not in held]
            first, last = temporary_bytes[:, op].tolist()
            for storage, beside in zip_longest(new, [first] * (len(new) - 1) + [last]):
                if storage is not None:
                    held[storage] = allocator.allocate(int(size[storage]))
                if beside:
                    allocator.release(allocator.allocate(beside))
            for storage in freed.get(op, ()):
                if storage in held:
                    allocator.release(held.pop(storage))
        _hand_on(allocator, held, size, left.tolist(), dropped.tolist())
    return Peaks(allocated_bytes=allocator.peak_bytes, reserved_bytes=allocator.reserved_bytes)


def _hand_on(
    allocator: CachingAllocator, held: dict[int, _Block], size: Bytes, left: list[int], dropped: list[int]
) -> None:
    """Give what an iteration left behind to what the next drops, by size; free the rest, allocate what lacks."""
    waiting: dict[int, list[_Block]] = defaultdict(list)
    for storage in left:
        if storage in held:
            waiting[int(size[storage])].append(held.pop(storage))
    lacking = []
    for storage in dropped:
        found = waiting[int(size[storage])]
        if found:
            held[storage] = found.pop()
        else:
            lacking.append(storage)
    for block in chain.from_iterable(waiting.values()):
        allocator.release(block)
    for storage in lacking:
        held[storage] = allocator.allocate(int(size[storage]))


def _by_op(storages: Rows, op: Rows) -> dict[int, list[int]]:
    return group_by(storages.tolist(), lambda storage: int(op[storage]))
