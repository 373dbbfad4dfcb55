"""Compares ranks that computed on their hosts, and replays them together without each straggler."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ....arrays import Floats, Mask
from ....errors import InputError
from ....formats.trace.tables import KernelKind, Trace
from ....records import dataclass
from ...recorded.host_ranks import as_device
from ...recorded.recording import RecordedIteration
from ...recorded.waiting import AlignedRanks, align_ranks
from ...replay.host_steps import HostRank, host_rank, replay_hosts
from ...replay.iterations import iteration_rows
from .report import RankRow, RanksReport, Straggler
from .rows import (
    SharedTimes,
    check_clocks,
    choose_on_ranks,
    collective_rows,
    covered_ns,
    explain_straggler,
    interval_of,
    last_and_caused,
    loading_of,
    part_shared,
    wait_rows,
    worst_of,
)

_CPU = "CPU"
_MOST_ITERATIONS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _HostJob:
    """Hold the ranks of a job on hosts, in the iteration that is looked at."""

    chosen: tuple[RecordedIteration, ...]
    aligned: AlignedRanks
    inside: Mask
    """Which of the shared collectives run in it, [c]."""
    ranks: tuple[HostRank, ...]
    end_ns: Floats
    """When each collective ended: the earliest that a rank saw, [c]."""
    transfer_ns: Floats

    @property
    def zero_ns(self) -> float:
        """Return when the first of the ranks' iterations began."""
        return min(rank.begin_ns for rank in self.ranks)


def compare_hosts(traces: Sequence[Trace], iteration: int | str | None = None) -> RanksReport:
    """Say who waits for whom among ranks of one job that computed on CPUs.

    Raises InputError as `compare_ranks` does.
    """
    traces = [as_device(trace) for trace in traces]
    aligned = align_ranks(traces)
    job = _read_job(traces, aligned, iteration)
    lengths = _lengths(job)
    world = max((trace.meta.world_size or 0 for trace in traces), default=0) or None
    shared = part_shared(job.aligned, world, np.full(len(job.end_ns), np.nan))
    rows = _rank_rows(job, shared)
    iteration_ns = max(row.iteration_ns for row in rows)
    error = max(abs(length / row.iteration_ns - 1.0) for length, row in zip(lengths.tolist(), rows, strict=True))
    worst, more = worst_of(rows, iteration_ns)
    others = _other_jobs(traces, job) if worst else []
    return RanksReport(
        world_size=world,
        missing_rank_count=None if world is None else max(0, world - len(traces)),
        iteration=job.chosen[0].window.index,
        iteration_ns=iteration_ns,
        replay_error=error,
        clock_error_ns=job.aligned.clock_error_ns,
        ranks=rows,
        stragglers=tuple(_straggler(job, others, rows, at, error) for at in worst),
        more_straggler_count=more,
        collectives=collective_rows(job.aligned, job.inside, shared),
        waits=wait_rows(job.aligned, job.inside, shared, job.end_ns - job.zero_ns),
        jobs=(),
        is_on_hosts=True,
        warnings=check_clocks(job.aligned, iteration_ns),
    )


def _read_job(traces: Sequence[Trace], aligned: AlignedRanks, iteration: int | str | None) -> _HostJob:
    """Return the ranks in an iteration; `traces` are `as_device`, as aligned."""
    chosen = choose_on_ranks(traces, iteration)
    for at, item in enumerate(chosen):
        if item.window.duration_ns is None:
            raise InputError(f"rank {aligned.ranks[at]}: nothing was timed in the iteration")
    inside = np.zeros(len(aligned.name), dtype=bool)
    for at, item in enumerate(chosen):
        inside |= np.isin(aligned.kernel[:, at], item.window.kernel_rows)
    end = np.nanmin(aligned.end_ns, axis=1)
    arrival = _arrivals(aligned)
    latest = np.nanmax(arrival, axis=1)
    end = np.maximum(end, latest)
    return _HostJob(
        chosen=tuple(chosen),
        aligned=aligned,
        inside=inside,
        ranks=tuple(host_rank(item.trace, item.window, aligned, at) for at, item in enumerate(chosen)),
        end_ns=end,
        transfer_ns=end - latest,
    )


def _lengths(job: _HostJob, heeded: Mask | None = None) -> Floats:
    """Return how long the iteration of each rank takes in the joint replay, [r]."""
    replayed = replay_hosts(job.ranks, job.end_ns, job.transfer_ns, heeded)
    return np.asarray(replayed.rank_end_ns - np.array([rank.begin_ns for rank in job.ranks]))


def _rank_rows(job: _HostJob, shared: SharedTimes) -> tuple[RankRow, ...]:
    aligned, inside = job.aligned, np.flatnonzero(job.inside)
    last, _ = last_and_caused(aligned, inside)
    caused, arrival = _caused(job), _arrivals(aligned)
    latest = job.end_ns - job.transfer_ns
    rows = []
    for at, (item, rank) in enumerate(zip(job.chosen, job.ranks, strict=True)):
        part = inside[aligned.kernel[inside, at] >= 0]
        kernels, mine = item.trace.kernels, item.window.kernel_rows
        start = kernels.start_ns[mine].astype(np.float64)
        end = start + kernels.duration_ns[mine]
        sends = kernels.kind[mine] == KernelKind.COLLECTIVE
        compute, busy = (covered_ns(start[which], end[which]) for which in (~sends, np.ones(len(mine), dtype=bool)))
        length, known = rank.end_ns - rank.begin_ns, part[np.isnan(shared.undivided_ns[part])]
        other = part[~np.isnan(shared.undivided_ns[part])]
        rows.append(
            RankRow(
                rank=aligned.ranks[at],
                gpu=_CPU,
                iteration_ns=length,
                start_ns=rank.begin_ns - job.zero_ns,
                compute_ns=compute,
                transfer_ns=covered_ns(latest[known], job.end_ns[known]),
                waiting_ns=covered_ns(arrival[part, at], latest[part]),
                unseen_ns=0.0,
                undivided_ns=covered_ns(latest[other], job.end_ns[other]),
                idle_ns=max(length - busy, 0.0),
                loading_ns=loading_of(item.trace, item.window),
                kernel_count=int((~sends).sum()),
                last_count=int(last[at]),
                caused_ns=float(caused[at]),
            )
        )
    return tuple(rows)


def _caused(job: _HostJob) -> Floats:
    """Return how long the next to come last waited for each rank, [r]; a host waits for several collectives at once."""
    inside, latest = np.flatnonzero(job.inside), job.end_ns - job.transfer_ns
    arrival = np.where(np.isnan(_arrivals(job.aligned)), -np.inf, _arrivals(job.aligned))[inside]
    last, second = arrival.argmax(axis=1), np.sort(arrival, axis=1)[:, -2]
    return np.array([covered_ns(second[last == at], latest[inside][last == at]) for at in range(len(job.ranks))])


def _arrivals(aligned: AlignedRanks) -> Floats:
    return np.asarray(aligned.end_ns - aligned.transfer_ns[:, None] - aligned.waiting_ns)


def _other_jobs(traces: Sequence[Trace], job: _HostJob) -> list[_HostJob]:
    """Return the same ranks in other iterations that all recorded, as many as tell how iterations vary."""
    rows = iteration_rows(traces[0])
    rows = rows[rows != job.chosen[0].window.index]
    step = max(len(rows) // _MOST_ITERATIONS, 1)
    return [_read_job(traces, job.aligned, row) for row in rows[::step][:_MOST_ITERATIONS].tolist()]


def _straggler(
    job: _HostJob, others: Sequence[_HostJob], rows: Sequence[RankRow], at: int, replay_error: float
) -> Straggler:
    """Return what a rank that others wait for does to the job."""
    heeded = np.arange(len(rows)) != at
    without = np.array([_lengths(item, heeded)[heeded].max() for item in (job, *others)])
    low, high = interval_of(float(without[0]), without, replay_error)
    return Straggler(
        rank=rows[at].rank,
        causes=explain_straggler(rows[at], [row for place, row in enumerate(rows) if place != at], is_on_host=True),
        without_ns=float(without[0]),
        without_low_ns=low,
        without_high_ns=high,
    )
