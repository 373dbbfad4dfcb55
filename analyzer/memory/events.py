"""Memory from the allocator's events."""

from typing import Final

import numpy as np
import numpy.typing as npt

from ...arrays import Rows, distinct
from ...formats.trace.column import MISSING, row_count, take_rows
from ...formats.trace.tables import MemoryTable, Phase, Trace
from ...records import dataclass
from ..recorded.window import Window, host_interval
from .use import MemoryCategory, MemoryMethod, MemoryUse

REASON: Final = "the allocator's totals at the recorded events"
_NEVER: Final = np.iinfo(np.int64).max
_UNKNOWN_PHASE: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blocks:
    """Hold the blocks of one device, n rows: what was allocated, by which event, and which event freed it."""

    size_bytes: Rows
    allocation: Rows
    """Row of the event; -1 where the block was allocated before the recording."""
    release: Rows
    """Row of the event; a row that no trace has where the block outlives the recording."""


def describe_events(trace: Trace, window: Window) -> MemoryUse | str:
    """Return the memory of the window from its device's allocator events, or why they do not tell it."""
    device = device_of(trace, window)
    events = take_rows(trace.memory, np.flatnonzero(trace.memory.device == device))
    if not row_count(events):
        return f"the recording has no memory events of device {device}"
    if (events.allocated_bytes == MISSING).any():
        return "the memory events lack the allocator's totals, so what was held before them is not known"
    rows = window_rows(trace, window, events)
    peak = int(rows[events.allocated_bytes[rows].argmax()])
    runs_an_op = peak >= _first_row(trace, window, events) and events.op[peak] != MISSING
    reserved = int(events.reserved_bytes[rows].max())
    return MemoryUse(
        peak_bytes=int(events.allocated_bytes[peak]),
        highest_bytes=int(events.allocated_bytes[peak]),
        allocated_peak_bytes=int(events.allocated_bytes[peak]),
        reserved_peak_bytes=None if reserved == MISSING else reserved,
        held=_held(trace, window, events, peak),
        at_op=int(events.op[peak]) if runs_an_op else None,
        method=MemoryMethod.ALLOCATION_EVENTS,
        reason=REASON,
        workspace_count=0,
    )


def device_of(trace: Trace, window: Window) -> int:
    """Return the device that worked; the only one with events, where the two accounts number devices differently.

    ROCm's profiler gives kernels the node's device number and allocations that of the process.
    """
    device = 0 if window.device is None else window.device
    found = distinct(trace.memory.device[trace.memory.device >= 0]).tolist()
    return int(found[0]) if len(found) == 1 else device


def window_rows(trace: Trace, window: Window, events: MemoryTable) -> Rows:
    """Return the events of the window, and the last one before it, whose total is what the window starts with."""
    begin, span = _first_row(trace, window, events), _span_ns(trace, window)
    end = row_count(events) if span is None else int(np.searchsorted(events.time_ns, span[1], side="right"))
    return np.arange(max(begin - 1, 0), max(end, 1))


def _first_row(trace: Trace, window: Window, events: MemoryTable) -> int:
    span = _span_ns(trace, window)
    return 0 if span is None else int(np.searchsorted(events.time_ns, span[0]))


def _span_ns(trace: Trace, window: Window) -> tuple[int, int] | None:
    """Return when the host ran the window; None where it is the whole recording."""
    return None if window.index is None else host_interval(trace, window.index)


def pair_events(events: MemoryTable) -> Blocks:
    """Join each allocation with the release of the same block that follows it; events are in order of time."""
    rows = np.arange(row_count(events))
    order = np.lexsort((rows, events.block))
    block, size = events.block[order], events.size_bytes[order]
    same = np.append(block[1:] == block[:-1], False)
    is_allocation = size > 0
    is_released = is_allocation & same & np.append(size[1:] < 0, False)
    follows = np.append(False, is_released[:-1])
    is_older = (size < 0) & ~follows
    release = np.append(order[1:], _NEVER)
    return Blocks(
        size_bytes=np.concatenate([size[is_allocation], -size[is_older]]),
        allocation=np.concatenate([order[is_allocation], np.full(int(is_older.sum()), MISSING)]),
        release=np.concatenate([np.where(is_released, release, _NEVER)[is_allocation], order[is_older]]),
    )


def _held(trace: Trace, window: Window, events: MemoryTable, peak: int) -> dict[MemoryCategory, int]:
    """Return bytes per category at the peak; what no event allocated or frees was there before and stays."""
    total = int(events.allocated_bytes[peak])
    if (events.block == MISSING).any():
        return {MemoryCategory.OTHER: total}
    blocks = pair_events(events)
    alive = (blocks.allocation <= peak) & (blocks.release > peak)
    held: dict[MemoryCategory, int] = {}
    for category, mask in classify_blocks(trace, window, events, blocks, alive):
        size = int(blocks.size_bytes[alive & mask].sum())
        if size:
            held[category] = size
    rest = total - sum(held.values())
    if rest < 0:  # events are missing: the totals stand, their division does not
        return {MemoryCategory.OTHER: total}
    if rest:
        held[MemoryCategory.PERSISTENT] = held.get(MemoryCategory.PERSISTENT, 0) + rest
    return held


def classify_blocks(
    trace: Trace, window: Window, events: MemoryTable, blocks: Blocks, alive: npt.NDArray[np.bool_]
) -> list[tuple[MemoryCategory, npt.NDArray[np.bool_]]]:
    """Divide the living blocks by the phases that allocate and free them: disjoint masks, one per category."""
    made, freed = _phases(trace, events, blocks.allocation), _phases(trace, events, blocks.release)
    spans = _spans_window(trace, window, events, blocks)
    trains = bool((trace.ops.phase[window.op_rows] == Phase.BACKWARD).any())
    temporary = _within_one_op(trace, events, blocks) | ((made == freed) & (made != Phase.FORWARD) & ~spans)
    temporary &= (made != _UNKNOWN_PHASE) & (made != Phase.OTHER)
    persistent = ~temporary & spans & (made != Phase.BACKWARD)
    state = (made == Phase.OPTIMIZER) & (blocks.release == _NEVER)
    saved = (made == Phase.FORWARD) | ((freed == Phase.BACKWARD) & np.bool_(trains))
    rules = [
        (MemoryCategory.TEMPORARIES, temporary),
        (MemoryCategory.OPTIMIZER_STATE, state),
        (MemoryCategory.PERSISTENT, persistent),
        (MemoryCategory.GRADIENTS, made == Phase.BACKWARD),
        (MemoryCategory.ACTIVATIONS, saved),
        (MemoryCategory.OTHER, alive),
    ]
    left, disjoint = alive.copy(), []
    for category, mask in rules:
        disjoint.append((category, left & mask))
        left &= ~mask
    return disjoint


def _phases(trace: Trace, events: MemoryTable, rows: Rows) -> Rows:
    """Return the phase of each event: its op's, else that of the op that started last; -1 where there is none."""
    known = (rows >= 0) & (rows < row_count(events))
    safe = np.where(known, rows, 0)
    op = events.op[safe].astype(np.int64)
    before = np.searchsorted(trace.ops.start_ns, events.time_ns[safe], side="right") - 1
    op = np.where(op == MISSING, before, op)
    if not row_count(trace.ops):
        return np.full(len(rows), _UNKNOWN_PHASE)
    return np.where(known & (op >= 0), trace.ops.phase[op], _UNKNOWN_PHASE).astype(np.int64)


def _spans_window(trace: Trace, window: Window, events: MemoryTable, blocks: Blocks) -> npt.NDArray[np.bool_]:
    """Say which blocks exist before the window and after it."""
    span = _span_ns(trace, window)
    if span is None:
        return np.asarray((blocks.allocation == MISSING) & (blocks.release == _NEVER), dtype=bool)
    begin, end = np.searchsorted(events.time_ns, span[0]), np.searchsorted(events.time_ns, span[1], side="right")
    return np.asarray((blocks.allocation < begin) & (blocks.release >= end), dtype=bool)


def _within_one_op(trace: Trace, events: MemoryTable, blocks: Blocks) -> npt.NDArray[np.bool_]:
    """Say which blocks are freed by the op that allocates them, or by one around it."""
    known = (blocks.allocation != MISSING) & (blocks.release != _NEVER)
    maker = events.op[np.where(known, blocks.allocation, 0)].astype(np.int64)
    freer = events.op[np.where(known, blocks.release, 0)].astype(np.int64)
    known &= (maker != MISSING) & (freer != MISSING)
    if not row_count(trace.ops):
        return np.asarray(known, dtype=bool)
    ops = trace.ops
    start, end = ops.start_ns, ops.start_ns + ops.duration_ns
    inside = (start[freer] <= start[maker]) & (end[freer] >= end[maker]) & (ops.thread[freer] == ops.thread[maker])
    return np.asarray(known & ((maker == freer) | (inside & (ops.duration_ns[freer] >= 0))), dtype=bool)
