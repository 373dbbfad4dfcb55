"""What every rank of a job does in the iteration, on one clock: computes, sends, waits and for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from ....arrays import Floats, Rows
from ....formats.iterations import host_steps
from ....formats.trace import KernelKind, Trace
from ...recorded.choice import choose_iteration
from ...recorded.waiting import AlignedRanks, align_ranks
from ...recorded.window import Window, select_window
from ...replay.iterations import iteration_position, iteration_rows

NOBODY: Final = -1


class RankState(IntEnum):
    """Say what the GPU of a rank does."""

    COMPUTES = 0
    SENDS = 1
    WAITS = 2
    """In a collective, for a rank that came later."""
    SENDS_UNSEEN = 3
    """In a collective that no other recorded rank shares: what of it is waiting is not known."""


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


def rank_activity(traces: Sequence[Trace], iteration: int | str | None = None) -> RankActivity:
    """Return what the ranks do in an iteration, chosen as `compare_ranks` chooses it.

    Raises InputError as `align_ranks` does, and where there is no such iteration.
    """
    order = np.argsort([at if trace.meta.rank is None else trace.meta.rank for at, trace in enumerate(traces)])
    traces = [traces[at] for at in order.tolist()]
    aligned = align_ranks(traces)
    chosen, windows = list[Trace](), list[Window]()
    for trace in traces:
        asked = iteration
        if windows and isinstance(iteration, int | None):
            position, rows = iteration_position(chosen[0], windows[0].index), iteration_rows(trace)
            asked = int(rows[position]) if position < len(rows) else iteration
        one, choice = choose_iteration(trace, asked)
        chosen.append(one)
        windows.append(select_window(one, choice.index))
    traces = chosen
    begin = np.array([_begin(trace, window) for trace, window in zip(traces, windows, strict=True)])
    begin -= aligned.clock_ns
    parts = [
        _stretches(trace, window, aligned, at) for at, (trace, window) in enumerate(zip(traces, windows, strict=True))
    ]
    rank, state, start, end, target = (np.concatenate(column) for column in zip(*parts, strict=True))
    rank, state, target = (column.astype(np.int64) for column in (rank, state, target))
    waiting = np.zeros((len(traces), len(traces)))
    waits = state == RankState.WAITS
    np.add.at(waiting, (rank[waits], target[waits]), (end - start)[waits])
    zero = begin.min()
    return RankActivity(
        ranks=aligned.ranks,
        iteration=windows[0].index,
        begin_ns=begin - zero,
        rank=rank,
        state=state,
        start_ns=start - zero,
        end_ns=end - zero,
        waited_for=target,
        waiting_ns=waiting,
    )


def _begin(trace: Trace, window: Window) -> float:
    if window.index is not None:
        return float(host_steps(trace.iterations).cpu_start_ns[window.index])
    return float(trace.kernels.start_ns[window.kernel_rows].min(initial=0))


def _stretches(trace: Trace, window: Window, aligned: AlignedRanks, at: int) -> tuple[Floats, ...]:
    """Return rank, state, start, end and who is waited for, of the GPU activities of one rank's iteration."""
    kernels, rows = trace.kernels, window.kernel_rows
    start = kernels.start_ns[rows] - aligned.clock_ns[at]
    end = start + kernels.duration_ns[rows]
    shared = np.full(len(kernels.kind), NOBODY, dtype=np.int64)
    known = np.flatnonzero(aligned.kernel[:, at] >= 0)
    shared[aligned.kernel[known, at]] = known
    of = shared[rows]
    sends = kernels.kind[rows] == KernelKind.COLLECTIVE
    waited = np.where(of >= 0, aligned.waiting_ns[of, at], 0.0)
    last = np.where(np.isnan(aligned.waiting_ns), np.inf, aligned.waiting_ns).argmin(axis=1)
    state = np.where(of >= 0, RankState.SENDS, np.where(sends, RankState.SENDS_UNSEEN, RankState.COMPUTES))
    waits = np.flatnonzero(waited > 0)
    columns = (
        (np.full(len(rows), at), np.full(len(waits), at)),
        (state, np.full(len(waits), RankState.WAITS)),
        (start + waited, start[waits]),
        (end, start[waits] + waited[waits]),
        (np.full(len(rows), NOBODY), last[of[waits]]),
    )
    return tuple(np.concatenate(pair).astype(np.float64) for pair in columns)
