"""What every rank of a job does in the iteration, on one clock: computes, sends, waits and for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ....arrays import Floats, Rows
from ....formats.trace.column import Interner
from ....formats.trace.iterations import host_steps
from ....formats.trace.tables import KernelKind, Trace
from ...recorded.host_ranks import as_device, is_host_rank
from ...recorded.waiting import AlignedRanks, align_ranks
from ...recorded.window import Window
from .report import CollectiveWait
from .rows import choose_on_ranks, covered_by_group

NOBODY: Final = -1


class RankState(IntEnum):
    """Say what the GPU of a rank does."""

    COMPUTES = 0
    SENDS = 1
    WAITS = 2
    """In a collective, for a rank that came later."""
    SENDS_UNSEEN = 3
    """In a collective that no other recorded rank shares: what of it is waiting is not known."""
    WAITS_UNSEEN = 4
    """In a collective, for ranks that no file is of."""
    UNDIVIDED = 5
    """In a collective of unknown size, of which ranks are missing: sends, or waits for them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankActivity:
    """Hold s stretches of r ranks in one iteration, and who waited for whom; ns on the first rank's clock, the earliest
    rank's start at 0."""

    ranks: tuple[int, ...]
    iteration: int | None
    begin_ns: Floats
    """When each rank's host begins the iteration, [r]."""
    rank: Rows
    """Position of each stretch's rank, [s]."""
    state: Rows
    """`RankState`, [s]."""
    start_ns: Floats
    end_ns: Floats
    waited_for: Rows
    """Position of the rank that a stretch waits for, -1 for nobody, [s]."""
    waiting_ns: Floats
    """How long each rank (row) waited for each other (column), [r, r]."""
    collective: Rows
    """Number of each stretch's collective among those that the files share, -1 for none, [s]."""
    stream: Rows
    name: Rows
    """Of what runs, among `names`, [s]."""
    names: tuple[str, ...]
    iteration_end_ns: Floats
    """When each rank's iteration ends, [r]."""


def rank_activity(
    traces: Sequence[Trace], iteration: int | str | None = None, waits: Sequence[CollectiveWait] = ()
) -> RankActivity:
    """Return what the ranks do in an iteration, chosen as `compare_ranks` chooses it.

    `waits` are its report's: what they tell of ranks without a file is shown.

    Raises InputError as `align_ranks` does, and where there is no such iteration.
    """
    order = np.argsort([at if trace.meta.rank is None else trace.meta.rank for at, trace in enumerate(traces)])
    traces = [traces[at] for at in order.tolist()]
    traces = [as_device(trace) if is_host_rank(trace) else trace for trace in traces]
    aligned = align_ranks(traces)
    chosen = choose_on_ranks(traces, iteration)
    unseen, undivided = _after_last(aligned, waits)
    begin = np.array([_begin(item.trace, item.window) for item in chosen])
    begin -= aligned.clock_ns
    names = Interner[str]()
    parts = [
        _stretches(item.trace, item.window, aligned, at, unseen, undivided, names) for at, item in enumerate(chosen)
    ]
    rank, state, start, end, target, shared, stream, name = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    rank, state, target, shared, stream, name = (
        column.astype(np.int64) for column in (rank, state, target, shared, stream, name)
    )
    waiting = np.zeros((len(traces), len(traces)))
    held = state == RankState.WAITS
    pair = rank[held] * len(traces) + target[held]
    waiting.reshape(-1)[:] = covered_by_group(start[held], end[held], pair, waiting.size)
    zero = begin.min()
    return RankActivity(
        ranks=aligned.ranks,
        iteration=chosen[0].window.index,
        begin_ns=begin - zero,
        rank=rank,
        state=state,
        start_ns=start - zero,
        end_ns=end - zero,
        waited_for=target,
        waiting_ns=waiting,
        collective=shared,
        stream=stream,
        name=name,
        names=tuple(names),
        iteration_end_ns=np.array([_end(item.trace, item.window) for item in chosen] - aligned.clock_ns - zero),
    )


def _after_last(aligned: AlignedRanks, waits: Sequence[CollectiveWait]) -> tuple[Floats, Floats]:
    """Return how long each collective waits for ranks without a file, and what may be that or transfer, [c] each."""
    unseen, undivided = np.zeros(len(aligned.name)), np.zeros(len(aligned.name))
    for item in waits:
        unseen[item.number], undivided[item.number] = item.unseen_ns or 0.0, item.undivided_ns or 0.0
    return unseen, undivided


def _begin(trace: Trace, window: Window) -> float:
    if window.index is not None:
        return float(host_steps(trace.iterations).cpu_start_ns[window.index])
    return float(trace.kernels.start_ns[window.kernel_rows].min(initial=0))


def _end(trace: Trace, window: Window) -> float:
    if window.index is not None:
        return float(trace.iterations.end_ns[window.index])
    rows = window.kernel_rows
    return float((trace.kernels.start_ns[rows] + trace.kernels.duration_ns[rows]).max(initial=0))


def _stretches(
    trace: Trace,
    window: Window,
    aligned: AlignedRanks,
    at: int,
    unseen_ns: Floats,
    undivided_ns: Floats,
    names: Interner[str],
) -> tuple[npt.NDArray[Any], ...]:
    """Return the columns of the GPU activities of one rank's iteration, from `rank` to `name`."""
    kernels, rows = trace.kernels, window.kernel_rows
    start = kernels.start_ns[rows] - aligned.clock_ns[at]
    end = start + kernels.duration_ns[rows]
    shared = np.full(len(kernels.kind), NOBODY, dtype=np.int64)
    known = np.flatnonzero(aligned.kernel[:, at] >= 0)
    shared[aligned.kernel[known, at]] = known
    of = shared[rows]
    sends = kernels.kind[rows] == KernelKind.COLLECTIVE
    waited = np.where(of >= 0, aligned.waiting_ns[of, at], 0.0)
    reached = start + waited
    begins = np.minimum(reached + np.where(of >= 0, unseen_ns[of], 0.0), end)
    last = np.where(np.isnan(aligned.waiting_ns), np.inf, aligned.waiting_ns).argmin(axis=1)
    after = np.where(undivided_ns[of] > 0, RankState.UNDIVIDED, RankState.SENDS)
    state = np.where(of >= 0, after, np.where(sends, RankState.SENDS_UNSEEN, RankState.COMPUTES))
    waits, others = np.flatnonzero(waited > 0), np.flatnonzero(begins > reached)
    which = np.concatenate((np.arange(len(rows)), waits, others))
    number = names.number([trace.strings[name] for name in kernels.name[rows].tolist()])
    return (
        np.full(len(which), at),
        np.concatenate((state, np.full(len(waits), RankState.WAITS), np.full(len(others), RankState.WAITS_UNSEEN))),
        np.concatenate((begins, start[waits], reached[others])),
        np.concatenate((end, reached[waits], begins[others])),
        np.concatenate((np.full(len(rows), NOBODY), last[of[waits]], np.full(len(others), NOBODY))),
        of[which],
        kernels.stream[rows][which],
        number[which],
    )
