"""From which op to which a recording of shapes holds its storages: read from its memory events, and written back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ....arrays import Floats, Mask, Rows, at_rows
from ....formats.trace.column import MISSING, build_table, row_count
from ....formats.trace.tables import MemoryTable, Trace
from ....records import dataclass, replace
from ...prediction.workload import tensor_bytes

UNLISTED_ELEMENT_BYTES = 4.0
"""What an element of a dtype counts that no table lists, as in `TensorSpec.size_bytes`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lives:
    """Hold the storages that the iteration creates or drops, n rows."""

    storage: Rows
    made: Rows
    """Op that creates it; -1: it existed before."""
    dropped: Rows
    """Last op before it is dropped; -1: it lives on."""
    is_made_late: Mask
    """Whether it is made, but by an op that is gone: its first use makes it."""
    is_dropped_late: Mask
    """Whether it is dropped, but after an op that is gone or no longer the last: its last use drops it."""
    size_bytes: Rows

    def renumbered(self, number: Rows, is_rewired: Mask) -> Lives:
        """Return the lives with ops renumbered; one whose last op is gone, or which is rewired, ends with its uses."""
        lookup = np.append(number, MISSING)
        dropped = np.where(is_rewired, MISSING, lookup[self.dropped])
        made, begins = lookup[self.made], (self.made >= 0) | self.is_made_late
        ends = (self.dropped >= 0) | self.is_dropped_late
        return replace(
            self, made=made, dropped=dropped, is_made_late=begins & (made < 0), is_dropped_late=ends & (dropped < 0)
        )


def find_lives(trace: Trace) -> Lives | None:
    """Return the storages' lives; None where the recording does not tell them, or only with times."""
    events = trace.memory
    if not row_count(events) or not (events.time_ns == MISSING).all():
        return None
    count = int(max(events.block.max(), trace.tensors.storage.max(initial=-1))) + 1
    made, dropped = (np.full(count, MISSING, dtype=np.int64) for _ in range(2))
    size = np.zeros(count, dtype=np.int64)
    rows = np.flatnonzero((events.block >= 0) & (events.device >= 0))
    allocated, freed = rows[events.size_bytes[rows] > 0], rows[events.size_bytes[rows] < 0]
    made[events.block[allocated]], dropped[events.block[freed]] = events.op[allocated], events.op[freed]
    size[events.block[freed]], size[events.block[allocated]] = -events.size_bytes[freed], events.size_bytes[allocated]
    lives = np.zeros(count, dtype=bool)
    lives[events.block[rows]] = True
    storage = np.flatnonzero(lives)
    return Lives(
        storage=storage,
        made=made[storage],
        dropped=dropped[storage],
        is_made_late=np.zeros(len(storage), dtype=bool),
        is_dropped_late=np.zeros(len(storage), dtype=bool),
        size_bytes=size[storage],
    )


def write_lives(trace: Trace, lives: Lives | None, new_storages: Rows, lasts: Mapping[int, int] | None = None) -> Trace:
    """Return the trace with these lives, those of storages that nothing uses left out.

    `new_storages` live from the first op that uses them, where it writes them (else they existed before), to the last.
    `lasts` gives the op after which a storage is dropped, whatever uses it.
    """
    # Memory events are the only place where a trace says how long a storage lives. After ops were inserted, taken or
    # renumbered, each storage's events are written anew: old ones where the recording had them, unless their use moved
    # past that; new ones from their first write to their last use. At one op, what is made comes before what is dropped
    # (the sort key), so that a peak within an op is seen.
    if lives is None:
        return trace
    first, last, is_made = _uses(trace)
    storage = np.concatenate([lives.storage, new_storages])
    used = (storage < len(first)) & (at_rows(first, np.minimum(storage, len(first))) >= 0)
    old = len(lives.storage)
    first, last = (at_rows(column, np.minimum(storage, len(column))) for column in (first, last))
    is_made = at_rows(is_made, np.minimum(storage, len(is_made)), False)
    sizes = storage_bytes(trace)
    new_size = at_rows(sizes, np.minimum(new_storages, len(sizes)), 0.0)
    made, dropped = np.full(len(storage), MISSING, dtype=np.int64), np.full(len(storage), MISSING, dtype=np.int64)
    made[:old] = np.where(lives.is_made_late, first[:old], lives.made)
    dropped[:old] = np.where(lives.is_dropped_late, last[:old], lives.dropped)
    made[old:] = np.where(is_made[old:], first[old:], MISSING)
    dropped[old:] = np.where(is_made[old:], last[old:], MISSING)
    if lasts:
        known = np.array(sorted(lasts), dtype=np.int64)
        at = np.minimum(np.searchsorted(known, storage), len(known) - 1)
        ends = np.array([lasts[item] for item in known.tolist()], dtype=np.int64)[at]
        dropped = np.where(known[at] == storage, ends, dropped)
    size = np.concatenate([lives.size_bytes, np.rint(new_size).astype(np.int64)])
    is_made_here, is_dropped_here = used & (made >= 0), used & (dropped >= 0)
    op = np.concatenate([made[is_made_here], dropped[is_dropped_here]])
    block = np.concatenate([storage[is_made_here], storage[is_dropped_here]])
    change = np.concatenate([size[is_made_here], -size[is_dropped_here]])
    order = np.argsort(2 * op + (change < 0), kind="stable")
    memory = build_table(
        MemoryTable,
        len(order),
        time_ns=np.full(len(order), MISSING),
        block=block[order],
        size_bytes=change[order],
        op=op[order],
    )
    return replace(trace, memory=memory)


def storage_bytes(trace: Trace) -> Floats:
    """Return the bytes of each storage: those of its largest tensor."""
    tensors = trace.tensors
    sizes: Floats = np.zeros(int(tensors.storage.max(initial=-1)) + 1)
    np.maximum.at(sizes, tensors.storage, tensor_bytes(trace))
    return sizes


def _uses(trace: Trace) -> tuple[Rows, Rows, Mask]:
    """Return per storage the first and last op that use it, -1: none; and whether the first one writes it alone."""
    operands, count = trace.operands, int(trace.tensors.storage.max(initial=-1)) + 1
    storage = trace.tensors.storage[operands.tensor].astype(np.int64)
    first, last = (np.full(count, MISSING, dtype=np.int64) for _ in range(2))
    is_made = np.zeros(count, dtype=bool)
    backwards = storage[::-1]  # of several uses the one that is written last stays: the first
    first[backwards], is_made[backwards] = operands.op[::-1], operands.is_output[::-1]
    np.maximum.at(last, storage, operands.op)
    return first, last, is_made
