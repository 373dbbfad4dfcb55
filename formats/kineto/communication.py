"""Reads collectives: what process groups report on ops and kernels, what ops alone tell, when host threads ran them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ...arrays import Rows
from ..recording.builder import GroupReport, Names
from ..recording.rows import CollectiveRows, HostCollectiveRows
from ..recording.settle import Recording
from ..trace.collectives import describe_collective, is_collective
from ..trace.column import MISSING, Interner, build_table, row_count
from ..trace.signature import Signature
from ..trace.tables import CollectiveTable, OpTable
from .events import Arguments, DistributedInfo, Header
from .values import check_range, read_identifiers, read_integers

_MAX_INT32: Final = 2**31 - 1
_MOST_RANKS: Final = 1 << 20
_RANKS: Final = re.compile(r"\[\s*\d+(?:\s*,\s*\d+)*\s*\]")
"""A list that is whole: torch cuts long ones short and writes dots."""
_TRUTHS: Final = (True, 1, "true", "True", "1")
_PREFIX: Final = "c10d::"
"""Torch's functional collectives call these in turn."""
_ONE_THREAD: Final = "mpi:"
"""Begins the names of the annotations of a backend that runs one collective after the other."""
_LOOSE: Final = ("_", "base", "coalesced", "intotensor", "tensor", "single")
"""What ops and the backend's annotations add to the name of one collective, each in its way."""


def read_collectives(
    arguments: Sequence[Arguments], texts: Interner[str], groups: dict[str, GroupReport], *, is_kernel: bool, first: int
) -> CollectiveRows | None:
    """Return the collectives among events, numbering texts and keeping what their groups report; None: none."""
    rows = [row for row, item in enumerate(arguments) if item.collective is not None]
    if not rows:
        return None
    items = [arguments[row] for row in rows]
    sizes = check_range(
        read_integers([item.group_size for item in items], "Group size"), "Group size", MISSING, _MAX_INT32
    )
    names = [str(item.group_id if item.group_name is None else item.group_name) for item in items]
    for name, item, size in zip(names, items, sizes.tolist(), strict=True):
        if name not in groups:
            groups[name] = _report(name, item, size)
    number_of = {name: number for number, name in enumerate(groups)}
    peers = [item.peer_after if item.peer_before is None else item.peer_before for item in items]
    return CollectiveRows(
        is_kernel=np.full(len(rows), is_kernel),
        row=np.array(rows, dtype=np.int64) + first,
        name=texts.number(read_identifiers([item.collective for item in items])),
        dtype=texts.number(read_identifiers([item.collective_dtype for item in items])),
        in_elements=read_integers([item.in_elements for item in items], "In msg nelems"),
        out_elements=read_integers([item.out_elements for item in items], "Out msg nelems"),
        group_size=sizes,
        group=np.array([number_of[name] for name in names], dtype=np.int64),
        sequence=np.maximum(read_integers([item.group_sequence for item in items], "Seq"), MISSING),
        is_async=np.array([item.is_async in _TRUTHS for item in items], dtype=bool),
        peer=check_range(np.maximum(read_integers(peers, "Dst Rank"), MISSING), "Dst Rank", MISSING, _MAX_INT32),
    )


def _report(name: str, item: Arguments, size: int) -> GroupReport:
    text = item.group_ranks if isinstance(item.group_ranks, str) else ""
    ranks = tuple(map(int, re.findall(r"\d+", text))) if _RANKS.fullmatch(text) else ()
    start, stride = (read_integers([value], "Global rank")[0] for value in (item.rank_start, item.rank_stride))
    if not ranks and start >= 0 and stride > 0 and 0 < size <= _MOST_RANKS:
        ranks = tuple(range(int(start), int(start + stride * size), int(stride)))
    whole = ranks if size in (MISSING, len(ranks)) and all(rank <= _MAX_INT32 for rank in ranks) else ()
    return GroupReport(name=name, size=size, description=str(item.group_description), ranks=whole)


def listed_groups(header: Header) -> Mapping[str, tuple[int, ...]]:
    """Return the ranks of the groups that the header lists whole."""
    group = header.distributed
    found = group.groups if group is not None and isinstance(group.groups, list) else []
    whole: dict[str, tuple[int, ...]] = {}
    for item in found:
        ranks = item.get("ranks") if isinstance(item, dict) else None
        if not isinstance(ranks, list) or not all(type(rank) is int and 0 <= rank <= _MAX_INT32 for rank in ranks):
            continue
        if item.get("pg_size", len(ranks)) == len(ranks):
            whole[str(item.get("pg_name"))] = tuple(ranks)
    return whole


def build_group_collectives(
    ops: OpTable, signatures: Sequence[Signature], names: Names, group: DistributedInfo | None
) -> CollectiveTable:
    """Return the collectives that ops of torch's process groups issued; `names` takes what they are called.

    An op does not say which group it is for: size and group are known where the process has one alone. Lists of lists
    have no shapes, and lists no dtype, in the profiler's files.
    """
    numbers = {
        number: text for number, text in enumerate(names.texts) if text.startswith(_PREFIX) and is_collective(text)
    }
    rows = np.flatnonzero(np.isin(ops.name, list(numbers)))
    is_alone = group is not None and group.group_count == 1
    size = (group.world_size or MISSING) if group is not None and is_alone else MISSING
    sizes = [
        describe_collective(numbers[name], signatures[number] if number >= 0 else None, size, lists_have_dtypes=False)
        for name, number in zip(ops.name[rows].tolist(), ops.signature[rows].tolist(), strict=True)
    ]
    return build_table(
        CollectiveTable,
        len(rows),
        op=rows,
        name=[names[item.name] for item in sizes],
        dtype=[MISSING if item.dtype is None else names[item.dtype] for item in sizes],
        in_element_count=[item.in_element_count for item in sizes],
        out_element_count=[item.out_element_count for item in sizes],
        group_size=np.full(len(rows), size),
        group=np.full(len(rows), 0 if is_alone else MISSING),
    )


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
