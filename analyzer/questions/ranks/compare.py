"""Compares the ranks of a job and replays them together, as recorded, without a straggler, and on other GPUs."""

from collections import Counter
from collections.abc import Sequence
from typing import Final, Unpack

import numpy as np

from ....arrays import Floats
from ....errors import InputError, parameter
from ....formats.trace.tables import KernelKind, Trace
from ....specs.gpu import Catalog
from ....specs.nodes import Node
from ...iteration.analyze import Asked
from ...recorded.host_ranks import is_host_rank
from ...recorded.waiting import align_ranks
from ...replay.joint import JointReplay
from .hosts import compare_hosts
from .job import (
    MovedTransfers,
    OtherMachine,
    RankJob,
    all_spans_of,
    analyse_job,
    begins_of,
    find_machine,
    modelled_transfer,
    move_transfers,
    replay_job,
    spans_of,
)
from .report import JobRow, RankRow, RanksReport, Straggler
from .rows import (
    SharedTimes,
    check_clocks,
    collective_rows,
    explain_straggler,
    interval_of,
    last_and_caused,
    loading_of,
    part_shared,
    wait_rows,
    worst_of,
)

_SAME_SPAN: Final = 1e-6
"""Ranks that end together: the one that waits least is the slowest."""


def compare_ranks(
    traces: Sequence[Trace], catalog: Catalog, machines: Sequence[OtherMachine] = (), **asked: Unpack[Asked]
) -> RanksReport:
    """Say who waits for whom among ranks of one job, and how long its iteration takes on the targets.

    `traces` are measured, one of each rank; ranks that are missing are waited for as in the recording. `machines` says
    where else the ranks' own GPUs are to stand. Raises
    InputError where traces are not of one job, or hold no kernels of collectives that two of them share.
    """
    order = np.argsort([at if trace.meta.rank is None else trace.meta.rank for at, trace in enumerate(traces)])
    traces = [traces[at] for at in order.tolist()]
    _check_backends(traces, parameter("to") if asked.get("targets") else machines[0].asked if machines else None)
    if is_host_rank(traces[0]):
        return compare_hosts(traces, asked.get("iteration"))
    aligned = align_ranks(traces)
    job = analyse_job(traces, aligned, catalog, asked)
    nodes = [find_machine(job, other) for other in machines]
    spans = spans_of(job, replay_job(job))
    world = max((trace.meta.world_size or 0 for trace in traces), default=0) or None
    shared = part_shared(aligned, world, modelled_transfer(job))
    elsewhere = [(node, move_transfers(job, node, shared.transfer_ns)) for node in nodes]
    rows = _rank_rows(job, shared)
    iteration_ns = max(row.iteration_ns for row in rows)
    error = max(abs(span / row.iteration_ns - 1.0) for span, row in zip(spans.tolist(), rows, strict=True))
    end_ns = np.nanmedian(aligned.end_ns, axis=1) - begins_of(job).min()
    worst, more = worst_of(rows, iteration_ns)
    return RanksReport(
        world_size=world,
        missing_rank_count=None if world is None else max(0, world - len(traces)),
        iteration=job.results[0].recorded.index,
        iteration_ns=iteration_ns,
        replay_error=error,
        clock_error_ns=aligned.clock_error_ns,
        ranks=rows,
        stragglers=tuple(_straggler(job, rows, at, error) for at in worst),
        more_straggler_count=more,
        collectives=collective_rows(aligned, job.inside, shared),
        waits=wait_rows(aligned, job.inside, shared, end_ns),
        jobs=_job_rows(job) + tuple(_moved_row(job, node, moved) for node, moved in elsewhere),
        is_on_hosts=False,
        warnings=check_clocks(aligned, iteration_ns) + _warnings(job) + _unmoved([moved for _, moved in elsewhere]),
    )


def _check_backends(traces: Sequence[Trace], predicted: str | None) -> None:
    """Raise InputError unless all ranks are of one size of job, and their collectives timed, on GPUs or on hosts.

    `predicted` is the option, if any, that asks for a job on GPUs.
    """
    worlds = sorted({trace.meta.world_size for trace in traces if trace.meta.world_size is not None})
    if len(worlds) > 1:
        raise InputError(f"the files are of jobs of {' and '.join(map(str, worlds))} ranks: give those of one job")
    on_hosts = [is_host_rank(trace) for trace in traces]
    for trace, on_host in zip(traces, on_hosts, strict=True):
        if not trace.is_measured and not on_host:
            raise InputError(
                f"{_name(trace)} holds neither GPU kernels nor collectives that its host ran (gloo's, MPI's or UCC's): "
                "ranks are compared by the times of collectives; record them with torch's profiler while they run "
                "together"
            )
    if any(on_hosts) and not all(on_hosts):
        one, other = traces[on_hosts.index(True)], traces[on_hosts.index(False)]
        raise InputError(f"{_name(one)} computed on its CPU, {_name(other)} on a GPU: they are not of one job")
    if any(on_hosts) and predicted is not None:
        raise InputError(
            f"the ranks computed on CPUs: what their collectives take on GPUs is not known; leave {predicted} out "
            "('wavecast analyze FILE --to GPU' predicts the ops of one rank)"
        )


def _name(trace: Trace) -> str:
    return "a rank's file" if trace.meta.rank is None else f"the file of rank {trace.meta.rank}"


def _rank_rows(job: RankJob, shared: SharedTimes) -> tuple[RankRow, ...]:
    aligned, begins = job.aligned, begins_of(job)
    inside = np.flatnonzero(job.inside)
    last, caused = last_and_caused(aligned, inside)
    rows = []
    for at, (result, column) in enumerate(zip(job.results, job.sources, strict=True)):
        part = inside[aligned.kernel[inside, at] >= 0]
        forecast, kernels = result.forecast, result.window.kernel_rows
        moves = result.recorded.trace.kernels.kind[kernels] == KernelKind.COLLECTIVE
        busy, sent = forecast.busy_ns[column], forecast.communication_ns[column]
        rows.append(
            RankRow(
                rank=aligned.ranks[at],
                gpu=job.gpus[column].name,
                iteration_ns=float(forecast.iteration_ns[column]),
                start_ns=float(begins[at] - begins.min()),
                compute_ns=float(busy - sent),
                transfer_ns=float(shared.transfer_ns[part].sum()),
                waiting_ns=float(aligned.waiting_ns[part, at].sum()),
                unseen_ns=float(np.nansum(shared.unseen_ns[part])),
                undivided_ns=float(np.nansum(shared.undivided_ns[part])),
                idle_ns=float(forecast.iteration_ns[column] - busy),
                loading_ns=loading_of(result.recorded.trace, result.window),
                kernel_count=int((~moves).sum()),
                last_count=int(last[at]),
                caused_ns=float(caused[at]),
            )
        )
    return tuple(rows)


def _straggler(job: RankJob, rows: Sequence[RankRow], at: int, replay_error: float) -> Straggler:
    """Return what a rank that others wait for does to the job."""
    heeded = np.arange(len(rows)) != at
    joint = replay_job(job, None, heeded)
    without_ns = float(spans_of(job, joint)[heeded].max())
    low, high = interval_of(without_ns, all_spans_of(job, joint)[:, heeded].max(axis=1), replay_error)
    others = [row for place, row in enumerate(rows) if place != at]
    return Straggler(
        rank=rows[at].rank,
        causes=explain_straggler(rows[at], others),
        without_ns=without_ns,
        without_low_ns=low,
        without_high_ns=high,
    )


def _job_rows(job: RankJob) -> tuple[JobRow, ...]:
    """Return the job on each GPU alone, and before them, where its ranks ran on unequal ones, as recorded."""
    rows = [_job_row(job, column) for column in range(len(job.gpus))]
    return (_job_row(job, None), *rows) if job.is_mixed else tuple(rows)


def _job_row(job: RankJob, column: int | None) -> JobRow:
    """Predict the job on one GPU, or replay it as recorded; its interval is that of its slowest rank.

    Where ranks ran on unequal GPUs, some are predicted and some are not: it is the widest of the ranks'.
    """
    joint = replay_job(job, column)
    spans, waited, slowest = _slowest_of(job, joint)
    columns = job.sources if column is None else (column,) * len(spans)
    doubtful = range(len(spans)) if job.is_mixed else (slowest,)
    found = [(job.results[at].forecast, columns[at]) for at in doubtful]
    low = spans[slowest] * np.min([item.low_ns[at] / item.iteration_ns[at] for item, at in found])
    high = spans[slowest] * np.max([item.high_ns[at] / item.iteration_ns[at] for item, at in found])
    counts = Counter(job.gpus[item].name for item in job.sources)
    return JobRow(
        gpu=", ".join(f"{count} × {name}" for name, count in counts.most_common())
        if column is None
        else job.gpus[column].name,
        iteration_ns=float(spans[slowest]),
        low_ns=None if np.isnan(low) else float(low),
        high_ns=None if np.isnan(high) else float(high),
        slowest_rank=job.aligned.ranks[slowest],
        waiting_share=float(np.mean(waited / spans)),
        is_source=column is None or set(job.sources) == {column},
    )


def _slowest_of(job: RankJob, joint: JointReplay) -> tuple[Floats, Floats, int]:
    """Return each rank's iteration in a replay and how long it waits in it, [r], and which rank is the slowest."""
    spans = spans_of(job, joint)
    waited = np.nansum(joint.waiting_ns[job.inside], axis=0)
    is_last = spans >= (1.0 - _SAME_SPAN) * spans.max()
    return spans, waited, int(np.where(is_last, waited, np.inf).argmin())


def _moved_row(job: RankJob, node: Node, moved: MovedTransfers) -> JobRow:
    """Predict the job on its own GPUs in another machine: kernels and hosts as recorded, what links move as there."""
    joint = replay_job(job, transfer_ns=moved.usual_ns)
    spans, waited, slowest = _slowest_of(job, joint)
    low, high = (
        float(spans_of(job, replay_job(job, transfer_ns=item)).max()) for item in (moved.low_ns, moved.high_ns)
    )
    return JobRow(
        gpu=job.gpus[job.sources[0]].name,
        node=node.name,
        iteration_ns=float(spans[slowest]),
        low_ns=low,
        high_ns=high,
        slowest_rank=job.aligned.ranks[slowest],
        waiting_share=float(np.mean(waited / spans)),
        is_source=False,
    )


def _unmoved(moved: Sequence[MovedTransfers]) -> tuple[str, ...]:
    """Return what to warn of collectives that stay as recorded in another machine."""
    count = max((item.unknown_count for item in moved), default=0)
    if not count:
        return ()
    return (
        f"{count:,} collectives that ranks share do not say how much they move: in another machine they take as long "
        "as recorded",
    )


def _warnings(job: RankJob) -> tuple[str, ...]:
    """Return what analyses of single ranks warn of, each once."""
    return tuple(dict.fromkeys(text for result in job.results for text in result.warnings))
