"""On which stream each op runs, and which waits for another stream: collectives run beside the ops around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ...arrays import Mask, Rows
from ...formats.column import MISSING, row_count
from ...formats.trace import Trace
from ..work import Family, family_of

STREAM: Final = 7
"""The default stream as CUPTI numbers it."""
_FIRST_GROUP: Final = 20
"""Stream of collectives without a group; those of group g run on the g-th after it."""
_SIDE: Final = {"fsdp::all_gather_copy_in": 18, "fsdp::chunk_cat": 19}
"""Streams of what FSDP2 packs for its collectives (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py: each on a
stream of its own, so that neither waits for the layers around it)."""
WAITING_OPS: Final = frozenset({"_c10d_functional::wait_tensor", "c10d_functional::wait_tensor"})
"""Ops that make the compute stream wait for a result and do nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamPlan:
    """Hold the stream of each op, and w waits of one op's stream for what another op launched."""

    stream: Rows
    """Of each op of the trace."""
    is_collective: Mask
    source: Rows
    """The op whose kernels are waited for, [w]."""
    target: Rows
    """The op before whose kernels its stream waits, [w]."""
    on_stream: Rows
    """The stream that waits, [w]."""


def plan_streams(trace: Trace, launches: Rows) -> StreamPlan:
    """Return where the ops of a trace run and what waits for what, given how many kernels each op launches.

    A collective runs on its group's stream after what it reads was written, and whatever reads its result waits, or
    the op that says so does. Where the recording names no tensors, it runs after everything launched before it, and
    what comes after waits for it: from the next op, or, of asynchronous ones, from the next op that waits.
    """
    count = row_count(trace.ops)
    family = np.array([family_of(name) is Family.COLLECTIVE for name in trace.strings], dtype=bool)
    is_wait = np.array([name.split(".")[0] in WAITING_OPS for name in trace.strings], dtype=bool)[trace.ops.name]
    is_collective = family[trace.ops.name] & (launches > 0)
    stream = _streams(trace, is_collective)
    if not is_collective.any():
        none = np.zeros(0, dtype=np.int64)
        return StreamPlan(stream=stream, is_collective=is_collective, source=none, target=none, on_stream=none)
    acts = (launches > 0) | is_wait
    source, target = _data_waits(trace, stream, launches > 0, acts, is_collective)
    named = np.zeros(count, dtype=bool)
    named[trace.operands.op] = True
    more = _order_waits(trace, stream, launches > 0, is_wait, is_collective & ~named)
    source, target = np.concatenate((source, more[0])), np.concatenate((target, more[1]))
    on_stream = np.where(is_wait[target], STREAM, stream[target])
    source, target, on_stream = _needed(source, target, on_stream, stream)
    return StreamPlan(stream=stream, is_collective=is_collective, source=source, target=target, on_stream=on_stream)


def _streams(trace: Trace, is_collective: Mask) -> Rows:
    group = np.full(row_count(trace.ops), MISSING, dtype=np.int64)
    table = trace.collectives
    known = table.op != MISSING
    group[table.op[known]] = table.group[known]
    side = np.array([_SIDE.get(name.split(".")[0], STREAM) for name in trace.strings], dtype=np.int64)
    stream = side[trace.ops.name] if len(group) else np.zeros(0, dtype=np.int64)
    return np.where(is_collective, _FIRST_GROUP + 1 + group, stream)


def _data_waits(trace: Trace, stream: Rows, runs: Mask, acts: Mask, is_collective: Mask) -> tuple[Rows, Rows]:
    """Return which op waits for which on another stream, as they write and read storages.

    `runs`: ops that launch kernels; `acts`: these, and those that only wait.
    """
    operands = trace.operands
    op, storage = operands.op.astype(np.int64), trace.tensors.storage[operands.tensor].astype(np.int64)
    writes = operands.is_output.astype(bool) | (_writes_all(trace, is_collective)[op])
    used = acts[op]
    op, storage, writes = op[used], storage[used], (writes & runs[op])[used]
    # In order of storage, then op, an op's reads before its writes.
    order = np.lexsort((writes, op, storage))
    op, storage, writes = op[order], storage[order], writes[order]
    at = np.maximum.accumulate(np.where(writes, np.arange(len(op)), MISSING)) if len(op) else op
    before = np.append(MISSING, at[:-1])[: len(op)]
    is_same = (before >= 0) & (storage[before] == storage) & (op[before] != op)
    reader, writer = op[is_same], op[before[is_same]]
    apart = np.flatnonzero((stream[reader] != stream[writer]) | ~runs[reader])
    return writer[apart], reader[apart]


def _writes_all(trace: Trace, is_collective: Mask) -> Mask:
    """Mark collectives of which the recording tells no results: they write to what they are given."""
    has_output = np.zeros(len(is_collective), dtype=bool)
    has_output[trace.operands.op[trace.operands.is_output.astype(bool)]] = True
    return is_collective & ~has_output


def _order_waits(trace: Trace, stream: Rows, runs: Mask, is_wait: Mask, chosen: Mask) -> tuple[Rows, Rows]:
    """Return the waits of some collectives as the order of issue has them."""
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return rows, rows
    is_async = np.zeros(len(runs), dtype=bool)
    table = trace.collectives
    issued = table.op[(table.op != MISSING) & table.is_async.astype(bool)]
    is_async[issued] = True
    is_async |= np.array([name.startswith("_c10d_functional::") for name in trace.strings], dtype=bool)[trace.ops.name]
    computing = np.flatnonzero(runs & (stream == STREAM))
    at = np.searchsorted(computing, rows)
    before, after = np.append(computing, MISSING)[at - 1], np.append(computing, MISSING)[at]
    before = np.where(at > 0, before, MISSING)
    waits = np.flatnonzero(is_wait)
    waiting = np.append(waits, MISSING)[np.searchsorted(waits, rows)]
    reader = np.where(is_async[rows], waiting, after)
    return (
        np.concatenate((before[before >= 0], rows[reader >= 0])),
        np.concatenate((rows[before >= 0], reader[reader >= 0])),
    )


def _needed(source: Rows, target: Rows, on_stream: Rows, stream: Rows) -> tuple[Rows, Rows, Rows]:
    """Leave out waits that earlier ones on the same stream, or later sources on the same other stream, imply."""
    order = np.lexsort((-source, target, stream[source], on_stream))
    source, target, on_stream = source[order], target[order], on_stream[order]
    # By pair of streams, targets in order, the latest source of each first: needed where it raises the latest so far.
    pair = np.unique(np.stack((on_stream, stream[source])), axis=1, return_inverse=True)[1].ravel()
    step = source.max(initial=0) + 2
    latest = np.maximum.accumulate(pair * step + source) if len(source) else source
    is_new = np.append(True, latest[1:] > latest[:-1])[: len(source)]
    is_apart = stream[source] != on_stream
    kept = is_new & is_apart
    return source[kept], target[kept], on_stream[kept]
