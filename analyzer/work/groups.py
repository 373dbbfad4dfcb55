"""Who takes part in a recorded collective: how many ranks, how they stand, and what the process group reported."""

import numpy as np

from ...arrays import Codes, Rows, group_rows
from ...formats.trace.column import MISSING, row_count
from ...formats.trace.signature import DTYPE_BYTES
from ...formats.trace.tables import Trace
from ...records import dataclass
from .communication import CollectiveFacts, CollectiveKind, kind_of_collective
from .registry import are_of_family
from .work import Family

DEFAULT_BYTES = 4.0
"""Of an element of a dtype that nobody recorded."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """Hold how the ranks of n collectives stand: runs of `run` neighbours whose first ones are `stride` apart."""

    ranks: Rows
    """-1: not known."""
    run: Rows
    stride: Rows


def place_collectives(trace: Trace) -> Placement:
    """Return how the ranks of each row of a trace's collectives stand; neighbours where members are not recorded.

    A send is a pair: its peer's distance, where that and the own rank are recorded.
    """
    table, groups = trace.collectives, trace.groups
    ranks = table.group_size.astype(np.int64)
    ranks = np.where(ranks > 0, ranks, trace.meta.world_size or MISSING)
    run, stride = ranks.copy(), np.ones(len(ranks), dtype=np.int64)
    known = np.flatnonzero((table.group >= 0) & (table.group < row_count(groups)))
    if len(known):
        shapes = np.array([_shape(trace, group) for group in range(row_count(groups))], dtype=np.int64)
        ranks[known], run[known], stride[known] = shapes[table.group[known]].T
    is_send = np.array([kind_of_collective(trace.strings[name]) is CollectiveKind.SEND_RECEIVE for name in table.name])
    for row in np.flatnonzero(is_send.astype(bool)).tolist():
        apart = _distance(trace, row)
        ranks[row], run[row], stride[row] = 2, 1 if apart > 1 else 2, apart
    return Placement(ranks=ranks, run=run, stride=stride)


def _shape(trace: Trace, group: int) -> tuple[int, int, int]:
    """Return the ranks of a group, the neighbours of its first run, and how far its second run is."""
    size = int(trace.groups.size[group])
    members = np.sort(trace.members.rank[trace.members.group == group].astype(np.int64))
    if len(members) != size or size < 2:
        return size, size, 1
    breaks = np.flatnonzero(np.diff(members) != 1)
    if not len(breaks):
        return size, size, 1
    run = int(breaks[0]) + 1
    return size, run, int(members[run] - members[0])


def _distance(trace: Trace, row: int) -> int:
    """Return how many ranks lie between a sender and its receiver, 1 for neighbours."""
    peer, group = int(trace.collectives.peer[row]), int(trace.collectives.group[row])
    if peer >= 0 and trace.meta.rank is not None:
        return max(1, abs(peer - trace.meta.rank))
    if 0 <= group < row_count(trace.groups):
        _, run, stride = _shape(trace, group)
        return stride if run == 1 else 1
    return 1


def facts_of_ops(trace: Trace) -> tuple[Codes, list[CollectiveFacts]]:
    """Return for each op which of the facts beside hold for it, -1 for ops that are no collectives, and the facts.

    A collective is recorded as a nest of ops, of which one has the row: all that enclose it, or lie in it, share it.
    """
    code = np.full(row_count(trace.ops), MISSING, dtype=np.int64)
    names, position = np.unique(trace.ops.name, return_inverse=True)
    is_collective = are_of_family([trace.strings[name] for name in names.tolist()], Family.COLLECTIVE)
    rows = np.flatnonzero(is_collective[position]) if len(names) else np.zeros(0, dtype=np.int64)
    if not len(rows):
        return code, []
    facts, own = _facts(trace)
    code[own >= 0] = own[own >= 0]
    default = len(facts)
    world = trace.meta.world_size or MISSING
    facts.append(CollectiveFacts(ranks=world, run=world, stride=1))
    parent = trace.ops.parent.tolist()
    known = {row: int(code[row]) for row in rows.tolist() if code[row] >= 0}
    for row, found in list(known.items()):
        above = parent[row]
        while above >= 0 and is_collective[position[above]] and above not in known:
            known[above] = found
            above = parent[above]
    for row in rows.tolist():
        if row not in known:
            known[row] = known.get(parent[row], default)
    code[list(known)] = list(known.values())
    return code, facts


def _facts(trace: Trace) -> tuple[list[CollectiveFacts], Codes]:
    """Return distinct facts, and which of them the rows of `trace.collectives` state of their ops."""
    table = trace.collectives
    own = np.full(row_count(trace.ops), MISSING, dtype=np.int64)
    if not row_count(table):
        return [], own
    place = place_collectives(trace)
    columns = (table.name, table.dtype, table.in_element_count, table.out_element_count)
    first, group = group_rows([*columns, place.ranks, place.run, place.stride])
    facts = []
    for row in first.tolist():
        dtype = trace.strings[table.dtype[row]] if table.dtype[row] >= 0 else "float32"
        size = DTYPE_BYTES.get(dtype, DEFAULT_BYTES)
        facts.append(
            CollectiveFacts(
                ranks=int(place.ranks[row]),
                run=int(place.run[row]),
                stride=int(place.stride[row]),
                kind=kind_of_collective(trace.strings[table.name[row]]),
                in_bytes=max(0, int(table.in_element_count[row])) * size,
                out_bytes=max(0, int(table.out_element_count[row])) * size,
                dtype=dtype,
            )
        )
    issued = np.flatnonzero(table.op >= 0)
    own[table.op[issued]] = group[issued]
    return facts, own
