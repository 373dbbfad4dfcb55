"""Memory over an iteration: how much each category holds from its start to its end."""

import numpy as np

from ...arrays import Floats
from ...formats.trace.column import MISSING, row_count, take_rows
from ...formats.trace.tables import MemoryTable, Trace
from ...records import dataclass
from ..recorded.window import Window
from .events import classify_blocks, device_of, pair_events, window_rows
from .lifetimes import find_storages
from .roles import CATEGORIES, find_roles
from .temporaries import temporary_bytes
from .use import MemoryCategory, MemoryMethod, MemoryUse


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryCurve:
    """Hold what the categories hold at p instants of an iteration."""

    at: Floats
    """Since its start: ns where allocations were recorded, else the number of the op that runs."""
    is_timed: bool
    categories: tuple[MemoryCategory, ...]
    """Those that ever hold something."""
    held_bytes: Floats
    """By instant and category, [p, c]."""


def trace_memory(trace: Trace, window: Window, use: MemoryUse) -> MemoryCurve:
    """Return the course of the memory whose peak `use` describes.

    >>> from wavecast.analyzer.memory.describe import describe_memory
    >>> use = describe_memory(trace, window)
    >>> bool(trace_memory(trace, window, use).held_bytes.sum(axis=1).max() == use.peak_bytes)
    True
    """
    by_events = use.method is MemoryMethod.ALLOCATION_EVENTS
    at, held = _by_events(trace, window) if by_events else _by_lifetimes(trace, window)
    kept = np.flatnonzero(held.any(axis=0))
    return MemoryCurve(
        at=at,
        is_timed=by_events,
        categories=tuple(CATEGORIES[code] for code in kept.tolist()),
        held_bytes=held[:, kept],
    )


def _by_lifetimes(trace: Trace, window: Window) -> tuple[Floats, Floats]:
    storages = find_storages(trace, window.op_rows)
    roles, count = find_roles(trace, window.op_rows, storages), len(window.op_rows)
    change = np.zeros((count + 1, len(CATEGORIES)))
    np.add.at(change, (storages.first, roles), storages.size_bytes)
    np.add.at(change, (storages.last + 1, roles), -storages.size_bytes)
    held = np.cumsum(change, axis=0)[:count]
    held[:, CATEGORIES.index(MemoryCategory.TEMPORARIES)] += temporary_bytes(trace, window.op_rows)[1]
    return np.arange(count, dtype=np.float64), held


def _by_events(trace: Trace, window: Window) -> tuple[Floats, Floats]:
    """Follow the allocator's totals; what they hold beyond the blocks that are known was there before and stays."""
    events = take_rows(trace.memory, np.flatnonzero(trace.memory.device == device_of(trace, window)))
    rows = window_rows(trace, window, events)
    total = events.allocated_bytes[rows].astype(np.float64)
    held = _known_bytes(trace, window, events)[rows]
    rest = total - held.sum(axis=1)
    if (rest < 0).any():  # events are missing: the totals stand, their division does not
        held[:], rest, rest_code = 0.0, total, CATEGORIES.index(MemoryCategory.OTHER)
    else:
        rest_code = CATEGORIES.index(MemoryCategory.PERSISTENT)
    held[:, rest_code] += rest
    time = events.time_ns[rows].astype(np.float64)
    return time - (time[0] if len(time) < 2 else time[1]), held


def _known_bytes(trace: Trace, window: Window, events: MemoryTable) -> Floats:
    """Return what the blocks hold after each event by category; nothing where events do not name their blocks."""
    count = row_count(events)
    change = np.zeros((count + 1, len(CATEGORIES)))
    if not (events.block == MISSING).any():
        blocks = pair_events(events)
        everything = np.ones(len(blocks.size_bytes), dtype=bool)
        for category, mask in classify_blocks(trace, window, events, blocks, everything):
            code = CATEGORIES.index(category)
            np.add.at(change[:, code], np.maximum(blocks.allocation[mask], 0), blocks.size_bytes[mask])
            np.add.at(change[:, code], np.minimum(blocks.release[mask], count), -blocks.size_bytes[mask])
    return np.asarray(np.cumsum(change, axis=0)[:count])
