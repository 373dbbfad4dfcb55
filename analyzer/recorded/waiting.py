"""What of recorded collectives is transfer, and what waiting for other ranks."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np

from ...arrays import Floats, Rows
from ...errors import InputError
from ...formats.trace.column import MISSING, row_count
from ...formats.trace.tables import KernelKind, Trace
from ...records import dataclass

_FEWEST_RANKS: Final = 2
_CLOCK_PERCENTILE: Final = 95
_DEEPEST: Final = 4
"""Ops around a collective's kernel up to the one that issued it: torch has one between (`record_param_comms`)."""
_STRAGGLING_SHARE: Final = 0.5
"""A rank that comes last to more of the collectives than this, times what an even share would be more, is named."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AlignedRanks:
    """Compare the collectives that several ranks of one run recorded: c of them, on r ranks."""

    ranks: tuple[int, ...]
    name: tuple[str, ...]
    """Of each collective, such as `allreduce`."""
    kernel: Rows
    """The kernel of each on each rank, [c, r]; -1 where the rank takes no part. Two ranks or more take part in each."""
    group_size: Rows
    """Ranks in the group of each, [c]; -1 where the recording does not say."""
    transfer_ns: Floats
    """From the latest arrival to the end, [c]: the shortest of the ranks' times."""
    waiting_ns: Floats
    """Of each rank for the latest one, [c, r]; NaN where it takes no part."""
    end_ns: Floats
    """When each rank's kernel ended, on the first rank's clock, [c, r]; NaN where it takes no part."""
    clock_ns: Floats
    """By how much each rank's clock is ahead of the first one's, [r]: collectives end at once on all."""
    clock_error_ns: float
    """The 95th percentile of how far ends of one collective lie apart with clocks set so."""

    @property
    def last_count(self) -> Rows:
        """Return how often each rank came last, [r]."""
        last = np.where(np.isnan(self.waiting_ns), np.inf, self.waiting_ns).argmin(axis=1)
        return np.bincount(last, minlength=len(self.ranks)).astype(np.int64)

    @property
    def stragglers(self) -> tuple[int, ...]:
        """Return the ranks that the others wait for: last far more often than an even share of the collectives."""
        even = len(self.name) / len(self.ranks)
        found = np.flatnonzero(self.last_count > even * (1.0 + _STRAGGLING_SHARE))
        return tuple(self.ranks[at] for at in found.tolist())


def waiting_by_row(trace: Trace, row_of: Rows, count: int) -> Floats:
    """Return the mean time that kernels of each of `count` rows of equal calls wait for other ranks, ns.

    `row_of` is the row of each kernel of the trace, -1 for none. What a collective takes beyond the least of its equal
    calls, it waits. 0 for other kernels and for what ran once.

    >>> waiting_by_row(measured, np.array([0, 1]), 2)  # no collectives
    array([0., 0.])
    """
    kernels = trace.kernels
    found = np.zeros(count)
    at = np.flatnonzero((kernels.kind == KernelKind.COLLECTIVE) & (row_of >= 0))
    if not len(at):
        return found
    row, duration = row_of[at], kernels.duration_ns[at].astype(np.float64)
    least = np.full(count, np.inf)
    np.minimum.at(least, row, duration)
    size = np.bincount(row, minlength=count)
    mean = np.bincount(row, weights=duration, minlength=count) / np.maximum(size, 1)
    return np.where(size > 0, mean - np.where(size > 0, least, 0.0), 0.0)


def align_ranks(traces: Sequence[Trace]) -> AlignedRanks:
    """Align what several ranks of one run recorded by their collectives, whose group and number are the same.

    Clocks need not agree: a collective ends at once on all its ranks, so the rank that takes least time came last, and
    the others waited for as long as they took more. Without numbers, equal collectives of a group count in order.
    Raises InputError for fewer than two ranks, for two files of one rank, and where a rank shares no collective with
    the others.
    """
    if len(traces) < _FEWEST_RANKS:
        raise InputError("one rank's file tells nothing of others: give those of two ranks or more")
    ranks = tuple(at if trace.meta.rank is None else trace.meta.rank for at, trace in enumerate(traces))
    if len(set(ranks)) < len(ranks):
        raise InputError(f"ranks {', '.join(map(str, ranks))}: expected one file of each rank")
    calls = [_collective_calls(trace) for trace in traces]
    count = Counter(key for found in calls for key in found)
    common = [key for key in dict.fromkeys(key for found in calls for key in found) if count[key] >= _FEWEST_RANKS]
    kernel = np.array([[found.get(key, MISSING) for found in calls] for key in common], dtype=np.int64)
    kernel = kernel.reshape(-1, len(calls))
    length, end = np.full(kernel.shape, np.nan), np.full(kernel.shape, np.nan)
    for at, trace in enumerate(traces):
        table, rows = trace.kernels, np.flatnonzero(kernel[:, at] != MISSING)
        length[rows, at] = table.duration_ns[kernel[rows, at]]
        end[rows, at] = table.start_ns[kernel[rows, at]] + length[rows, at]
    clock = _set_clocks(end, ranks)
    transfer = np.nanmin(length, axis=1)
    apart = np.abs(end - clock - np.nanmedian(end - clock, axis=1)[:, None])
    return AlignedRanks(
        ranks=ranks,
        name=tuple(key[1] for key in common),
        kernel=kernel,
        group_size=np.array([key[5] for key in common], dtype=np.int64),
        transfer_ns=transfer,
        waiting_ns=length - transfer[:, None],
        end_ns=end - clock,
        clock_ns=clock,
        clock_error_ns=float(np.nanpercentile(apart, _CLOCK_PERCENTILE)),
    )


def _set_clocks(end: Floats, ranks: Sequence[int]) -> Floats:
    """Return how far each rank's clock is ahead of the first one's, [r], from ends of collectives [c, r].

    Ranks that share none with the first one are set by one that is set already.
    """
    count = end.shape[1]
    clock, is_set = np.zeros(count), np.zeros(count, dtype=bool)
    is_set[0] = True
    waiting = [0]
    while waiting:
        known = waiting.pop(0)
        for other in np.flatnonzero(~is_set).tolist():
            apart = end[:, other] - end[:, known]
            apart = apart[~np.isnan(apart)]
            if len(apart):
                clock[other], is_set[other] = clock[known] + np.median(apart), True
                waiting.append(other)
    if not is_set.all():
        lost = [ranks[at] for at in np.flatnonzero(~is_set).tolist()]
        which = "no collective is common to the files" if len(lost) == count - 1 else f"ranks {lost} share none"
        raise InputError(f"{which}: they are of different runs, or hold no communication kernels")
    return clock


_Key = tuple[object, str, int, int, int, int]
"""Group, name, elements sent and received, number, ranks in the group."""


def _collective_calls(trace: Trace) -> dict[_Key, int]:
    """Return the kernel of each collective of a rank, by what it is called on all ranks."""
    table, found = trace.collectives, dict[_Key, int]()
    kernel_of = collective_kernels(trace)
    seen: dict[tuple[object, str, int, int], int] = defaultdict(int)
    groups = [_group_name(trace, row) for row in range(row_count(trace.groups))]
    for row in range(row_count(table)):
        kernel, group = int(kernel_of[row]), int(table.group[row])
        if kernel == MISSING:
            continue
        name = trace.strings[table.name[row]].lower()
        known: object = groups[group] if 0 <= group < len(groups) else group
        number = int(table.sequence[row])
        # What a rank sends to each other may be of its own size.
        is_told = number != MISSING or name.replace("_", "").startswith("alltoall")
        sizes = (0, 0) if is_told else (int(table.in_element_count[row]), int(table.out_element_count[row]))
        what = known, name, *sizes
        found[*what, seen[what] if number == MISSING else -2 - number, int(table.group_size[row])] = kernel
        seen[what] += 1
    return found


def _group_name(trace: Trace, group: int) -> object:
    """Return what a group is called on all its ranks: its members, else its size and name."""
    members = tuple(trace.members.rank[trace.members.group == group].tolist())
    name = int(trace.groups.name[group])
    return members or (int(trace.groups.size[group]), trace.strings[name] if name >= 0 else "")


def collective_kernels(trace: Trace) -> Rows:
    """Return the kernel of each row of `trace.collectives`: as recorded, else the only one in its op; -1: none.

    >>> collective_kernels(measured)
    array([], dtype=int64)
    """
    table, kernels = trace.collectives, trace.kernels
    found = table.kernel.astype(np.int64)
    is_issuer = np.zeros(row_count(trace.ops) + 1, dtype=bool)
    is_issuer[table.op] = True
    is_issuer[-1] = False
    rows = np.flatnonzero((kernels.kind == KernelKind.COLLECTIVE) & (kernels.op >= 0))
    parent = np.append(trace.ops.parent, MISSING)
    op = kernels.op[rows].astype(np.int64)
    for _ in range(_DEEPEST):
        op = np.where(is_issuer[op], op, parent[op])
    only = np.full(len(is_issuer), MISSING, dtype=np.int64)
    only[op] = rows
    only[np.bincount(op[op >= 0], minlength=len(only)) != 1] = MISSING
    only[-1] = MISSING
    return np.where(found == MISSING, only[table.op], found)
