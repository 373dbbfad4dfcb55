"""Gives collectives of a CPU backend the times that its threads took for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ...arrays import Rows
from ..recording.rows import HostCollectiveRows
from ..recording.settle import Recording
from ..trace.column import MISSING, row_count
from ..trace.interner import Interner
from ..trace.tables import CollectiveTable, OpTable

_ONE_THREAD: Final = "mpi:"
"""Begins the names of the annotations of a backend that runs one collective after the other."""
_LOOSE: Final = ("_", "base", "coalesced", "intotensor", "tensor", "single")
"""What ops and the backend's annotations add to the name of one collective, each in its way."""


def time_host_collectives(table: CollectiveTable, ops: OpTable, recording: Recording) -> CollectiveTable:
    """Return the collectives with when threads of the host ran them, where the recording tells.

    A backend runs what it was given in order: each run is that of the earliest op of its name that has none yet. A run
    before every such op was issued before the recording began, and is left out.
    """
    runs = recording.host_collectives
    if not len(runs.name) or not row_count(table):
        return table
    runs = _one_at_a_time(runs, recording.collective_texts)
    number = Interner[str]()
    plain = [plain_name(text.rpartition(":")[2]) for text in recording.collective_texts]
    texts = np.append(number.number(plain), MISSING)
    called = number.number([plain_name(recording.names.texts[name]) for name in table.name.tolist()])
    issue_ns = np.append(ops.start_ns, np.iinfo(np.int64).max)[table.op]
    start, duration = (np.full(row_count(table), MISSING, dtype=np.int64) for _ in range(2))
    issued_of, run_of = _by_number(called, issue_ns), _by_number(texts[runs.name], runs.start_ns)
    for name, issued in issued_of.items():
        mine = run_of.get(name, issued[:0])
        pairs = _in_order(issue_ns[issued], runs.start_ns[mine])
        rows, of = issued[pairs[:, 0]], mine[pairs[:, 1]]
        start[rows], duration[rows] = runs.start_ns[of], runs.duration_ns[of]
    return replace(table, host_start_ns=start, host_duration_ns=duration)


def _one_at_a_time(runs: HostCollectiveRows, texts: Sequence[str]) -> HostCollectiveRows:
    """Return MPI's runs from when its one thread came to them: they are recorded from when they were issued.

    torch/csrc/distributed/c10d/Work.cpp begins the annotation as the work is queued, for MPI and for UCC; UCC runs
    several at once.
    """
    is_queued = np.array([*(text.startswith(_ONE_THREAD) for text in texts), False])[runs.name]
    rows = np.flatnonzero(is_queued)
    rows = rows[np.argsort(runs.start_ns[rows], kind="stable")]
    end = np.maximum.accumulate(runs.start_ns[rows] + runs.duration_ns[rows])
    start, duration = runs.start_ns.copy(), runs.duration_ns.copy()
    start[rows] = np.maximum(start[rows], np.append(start[rows][:1], end[:-1])[: len(rows)])
    duration[rows] = end - start[rows]
    return replace(runs, start_ns=start, duration_ns=duration)


def plain_name(name: str) -> str:
    """Return what ops and annotations of one collective are called alike.

    >>> plain_name("all_reduce"), plain_name("allreduce_coalesced"), plain_name("_allgather_base")
    ('allreduce', 'allreduce', 'allgather')
    """
    found = name.lower()
    for part in _LOOSE:
        found = found.replace(part, "")
    return found


def _by_number(number: Rows, time_ns: Rows) -> dict[int, Rows]:
    """Return the rows of each number, in order of time."""
    order = np.lexsort((time_ns, number))
    found, first = np.unique(number[order], return_index=True)
    return dict(zip(found.tolist(), np.split(order, first[1:]), strict=True))


def _in_order(issue_ns: Rows, start_ns: Rows) -> Rows:
    """Pair each run with the earliest op that was not after it and has none yet, both in order of time, [p, 2]."""
    pairs, next_op = [], 0
    for run, start in enumerate(start_ns.tolist()):
        if next_op < len(issue_ns) and issue_ns[next_op] <= start:
            pairs.append((next_op, run))
            next_op += 1
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)
