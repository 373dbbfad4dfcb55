"""Compares the ranks of a job and replays them together, as recorded, without a straggler, and on other GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....arrays import Floats, Mask
from ....errors import InputError
from ....formats.iterations import host_steps
from ....formats.trace import KernelKind, Trace
from ....specs.cluster import USUAL, Cluster
from ....specs.fleet import build_fleet
from ....specs.gpu import Catalog, Gpu
from ...models.library import Library, load_library
from ...prediction.attention import as_recorded
from ...prediction.op_models import assign_rows, model_times
from ...recorded.devices import first_known_gpu
from ...recorded.host_ranks import is_host_rank
from ...recorded.waiting import AlignedRanks, align_ranks, waiting_by_row
from ...replay.iterations import iteration_nodes, iteration_position, iteration_rows
from ...replay.joint import JointReplay, RankGraph, rank_graph, replay_jointly
from ..analyze import run_analysis
from ..gpu_replay import replayed_window
from ..result import Analysis
from .causes import explain_straggler
from .hosts import compare_hosts
from .report import JobRow, RankRow, RanksReport, Straggler
from .rows import LEAST_CAUSED, SharedTimes, check_clocks, collective_rows, last_and_caused, part_shared, wait_rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Question:
    """Hold what was asked beside the traces."""

    catalog: Catalog
    targets: tuple[Gpu, ...]
    source: Gpu | None
    iteration: int | str | None
    library: Library
    cluster: Cluster


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Job:
    """Hold the ranks' results, all on the same GPUs, and how their collectives meet."""

    results: tuple[Analysis, ...]
    aligned: AlignedRanks
    cluster: Cluster
    source: int
    """The column of the GPU that was measured."""
    inside: Mask
    """Which of the shared collectives run in the iteration that is looked at, [c]."""


def compare_ranks(
    traces: Sequence[Trace],
    catalog: Catalog,
    *,
    targets: Sequence[Gpu] = (),
    source: Gpu | None = None,
    iteration: int | str | None = None,
    library: Library | None = None,
    cluster: Cluster = USUAL,
) -> RanksReport:
    """Say who waits for whom among ranks of one job, and how long its iteration takes on `targets`.

    `traces` are measured, one of each rank; ranks that are missing are waited for as in the recording. Raises
    InputError where they are not of one job, or hold no kernels of collectives that two of them share.
    """
    order = np.argsort([at if trace.meta.rank is None else trace.meta.rank for at, trace in enumerate(traces)])
    traces = [traces[at] for at in order.tolist()]
    _check_backends(traces, targets)
    if is_host_rank(traces[0]):
        return compare_hosts(traces, iteration)
    aligned = align_ranks(traces)
    asked = _Question(
        catalog=catalog,
        targets=tuple(targets),
        source=source,
        iteration=iteration,
        library=library or load_library(),
        cluster=cluster,
    )
    job = _analyse(traces, aligned, asked)
    measured = _replay(job, job.source)
    spans = _spans(job, measured)
    world = max((trace.meta.world_size or 0 for trace in traces), default=0) or None
    shared = part_shared(aligned, world, _modelled_transfer(job))
    rows = _rank_rows(job, shared)
    iteration_ns = max(row.iteration_ns for row in rows)
    error = max(abs(span / row.iteration_ns - 1.0) for span, row in zip(spans.tolist(), rows, strict=True))
    return RanksReport(
        world_size=world,
        missing_rank_count=None if world is None else max(0, world - len(traces)),
        iteration=job.results[0].iteration_index,
        iteration_ns=iteration_ns,
        replay_error=error,
        clock_error_ns=aligned.clock_error_ns,
        ranks=rows,
        stragglers=_stragglers(job, rows, iteration_ns),
        collectives=collective_rows(aligned, job.inside, shared),
        waits=wait_rows(aligned, job.inside, shared, np.nanmedian(aligned.end_ns, axis=1) - _zero(job)),
        jobs=tuple(_job_row(job, column) for column in range(len(job.results[0].prediction.fleet.gpus))),
        is_on_hosts=False,
        warnings=check_clocks(aligned, iteration_ns) + _warnings(job),
    )


def _check_backends(traces: Sequence[Trace], targets: Sequence[Gpu]) -> None:
    """Raise InputError unless all ranks are of one size of job, and their collectives timed, on GPUs or on hosts."""
    worlds = sorted({trace.meta.world_size for trace in traces if trace.meta.world_size is not None})
    if len(worlds) > 1:
        raise InputError(f"the files are of jobs of {' and '.join(map(str, worlds))} ranks: give those of one job")
    on_hosts = [is_host_rank(trace) for trace in traces]
    for trace, on_host in zip(traces, on_hosts, strict=True):
        if not trace.is_measured and not on_host:
            raise InputError(
                f"{_name(trace)} holds neither GPU kernels nor collectives that its host ran (gloo's): ranks are "
                "compared by the times of their collectives; record them with torch's profiler while they run together"
            )
    if any(on_hosts) and not all(on_hosts):
        one, other = traces[on_hosts.index(True)], traces[on_hosts.index(False)]
        raise InputError(f"{_name(one)} computed on its CPU, {_name(other)} on a GPU: they are not of one job")
    if any(on_hosts) and targets:
        raise InputError(
            "the ranks computed on CPUs: what their collectives take on GPUs is not known; leave --to out "
            "('wavecast analyze FILE --to GPU' predicts the ops of one rank)"
        )


def _name(trace: Trace) -> str:
    return "a rank's file" if trace.meta.rank is None else f"the file of rank {trace.meta.rank}"


def _analyse(traces: Sequence[Trace], aligned: AlignedRanks, asked: _Question) -> _Job:
    """Analyse each rank on the same GPUs, all in the same iteration: the one that is chosen of the first rank's."""
    counts = {len(iteration_rows(trace)) for trace in traces}
    if len(counts) > 1:
        raise InputError(
            f"the ranks' files hold {', '.join(map(str, sorted(counts)))} iterations: record the same ones on each rank"
        )
    results: list[Analysis] = []
    for trace in traces:
        iteration = asked.iteration
        if results:
            rows = iteration_rows(trace)
            position = iteration_position(traces[0], results[0].iteration_index)
            iteration = int(rows[position]) if len(rows) and isinstance(iteration, int | None) else iteration
        results.append(_analyse_rank(trace, asked, iteration))
        _check_equal_gpus(aligned, results)
    names = [gpu.name for gpu in results[0].prediction.fleet.gpus]
    inside = np.zeros(len(aligned.name), dtype=bool)
    for at, result in enumerate(results):
        inside |= np.isin(aligned.kernel[:, at], result.window.kernel_rows)
    return _Job(
        results=tuple(results),
        aligned=aligned,
        cluster=asked.cluster,
        source=names.index(_origin(results[0]).name),
        inside=inside,
    )


def _analyse_rank(trace: Trace, asked: _Question, iteration: int | str | None) -> Analysis:
    targets = list(asked.targets)
    if not targets:
        known = asked.source or first_known_gpu(asked.catalog, trace)
        targets = [known] if known is not None else []
    return run_analysis(
        trace,
        asked.catalog,
        targets=targets,
        source=asked.source,
        iteration=iteration,
        library=asked.library,
        cluster=asked.cluster,
    )


def _origin(result: Analysis) -> Gpu:
    """Return the GPU that was measured. Raises InputError where the iteration holds no kernels."""
    if result.origin is None:
        raise InputError("the iteration holds no GPU kernels: ranks are compared by the times of their collectives")
    return result.origin


def _check_equal_gpus(aligned: AlignedRanks, results: Sequence[Analysis]) -> None:
    first, last = _origin(results[0]), _origin(results[-1])
    if first.name != last.name:
        raise InputError(
            f"rank {aligned.ranks[len(results) - 1]} ran on {last.name}, rank {aligned.ranks[0]} on {first.name}: "
            "ranks of unequal GPUs cannot be compared (say --from GPU where they are of one kind)"
        )


def _replay(job: _Job, column: int, heeded: Mask | None = None) -> JointReplay:
    """Replay all ranks on one of the GPUs."""
    ranks = [_rank(job, at, column) for at in range(len(job.results))]
    return replay_jointly(ranks, job.aligned.transfer_ns * _transfer_ratio(job, column), heeded)


def _rank(job: _Job, at: int, column: int) -> RankGraph:
    result = job.results[at]
    return rank_graph(
        result.graph, result.forecast.timing, column, job.aligned.kernel[:, at], float(job.aligned.clock_ns[at])
    )


def _transfer_ratio(job: _Job, column: int) -> Floats:
    """Return what each shared collective's transfer takes on a GPU relative to the recorded one, [c]."""
    found = np.full(len(job.aligned.name), np.nan)
    for at, result in enumerate(job.results):
        rows = result.workload.row_of
        waiting = waiting_by_row(result.recorded_trace, rows, len(result.workload.op))
        moved = result.workload.duration_ns - waiting
        time = result.prediction.time_ns
        ratio = (time[:, column] - waiting) / np.maximum(time[:, job.source] - waiting, 1.0)
        ratio[moved <= 0] = 1.0
        open_ = np.flatnonzero(np.isnan(found) & (job.aligned.kernel[:, at] >= 0))
        row = rows[job.aligned.kernel[open_, at]]
        found[open_] = np.where(row >= 0, np.append(ratio, 1.0)[row], 1.0)
    return found


def _spans(job: _Job, joint: JointReplay) -> Floats:
    """Return the length of the iteration of each rank in a joint replay, [r]."""
    found = []
    for result, end_ns in zip(job.results, joint.end_ns, strict=True):
        nodes = iteration_nodes(result.trace, result.graph)
        at = iteration_position(result.trace, replayed_window(result).index)
        start, finish = nodes.spans(end_ns[:, None])
        found.append(float(finish[at, 0] - start[at, 0]))
    return np.array(found)


def _zero(job: _Job) -> float:
    """Return when the first of the ranks' iterations began, on the first rank's clock."""
    return float(_begins(job).min())


def _begins(job: _Job) -> Floats:
    """Return when each rank's iteration began, on the first one's clock, [r]."""
    found = []
    for result in job.results:
        table, index = host_steps(result.recorded_trace.iterations), result.window.index
        found.append(0.0 if index is None else float(table.cpu_start_ns[index]))
    return np.array(found) - job.aligned.clock_ns


def _rank_rows(job: _Job, shared: SharedTimes) -> tuple[RankRow, ...]:
    aligned, starts = job.aligned, _begins(job) - _zero(job)
    inside = np.flatnonzero(job.inside)
    last, caused = last_and_caused(aligned, inside)
    rows = []
    for at, result in enumerate(job.results):
        part = inside[aligned.kernel[inside, at] >= 0]
        forecast, kernels = result.forecast, result.window.kernel_rows
        moves = result.recorded_trace.kernels.kind[kernels] == KernelKind.COLLECTIVE
        busy, sent = forecast.busy_ns[job.source], forecast.communication_ns[job.source]
        rows.append(
            RankRow(
                rank=aligned.ranks[at],
                gpu=result.prediction.fleet.gpus[job.source].name,
                iteration_ns=float(forecast.iteration_ns[job.source]),
                start_ns=float(starts[at]),
                compute_ns=float(busy - sent),
                transfer_ns=float(shared.transfer_ns[part].sum()),
                waiting_ns=float(aligned.waiting_ns[part, at].sum()),
                unseen_ns=float(np.nansum(shared.unseen_ns[part])),
                undivided_ns=float(np.nansum(shared.undivided_ns[part])),
                idle_ns=float(forecast.iteration_ns[job.source] - busy),
                kernel_count=int((~moves).sum()),
                last_count=int(last[at]),
                caused_ns=float(caused[at]),
            )
        )
    return tuple(rows)


def _stragglers(job: _Job, rows: tuple[RankRow, ...], iteration_ns: float) -> tuple[Straggler, ...]:
    """Return the ranks that others wait for beyond a share of the iteration, the worst first."""
    worst = sorted(
        (at for at, row in enumerate(rows) if row.caused_ns > LEAST_CAUSED * iteration_ns),
        key=lambda at: -rows[at].caused_ns,
    )
    found = []
    for at in worst:
        heeded = np.arange(len(rows)) != at
        without = _spans(job, _replay(job, job.source, heeded))[heeded].max()
        others = [row for place, row in enumerate(rows) if place != at]
        causes = explain_straggler(job.results[at].recorded_trace, job.results[at].window, rows[at], others)
        found.append(Straggler(rank=rows[at].rank, causes=causes, without_ns=float(without)))
    return tuple(found)


def _modelled_transfer(job: _Job) -> Floats:
    """Return what the links take for each shared collective at the most, [c]: the high end of the model's interval."""
    result = job.results[0]
    workload, gpus = result.workload, [_origin(result)]
    fleet = build_fleet(gpus, job.cluster.nodes_of(gpus))
    times = model_times(assign_rows(as_recorded(workload), result.library), len(workload.op), fleet, result.library)
    high = times.time_ns[:, 0] * np.exp(times.half_width[:, 0]) * workload.op_share
    kernel = job.aligned.kernel[:, 0]
    row = np.where(kernel >= 0, np.append(workload.row_of, -1)[kernel], -1)
    return np.where(row >= 0, np.append(high, np.nan)[row], np.nan)


def _job_row(job: _Job, column: int) -> JobRow:
    """Predict the job on one GPU; its interval is that of its slowest rank alone."""
    joint = _replay(job, column)
    spans = _spans(job, joint)
    slowest = int(spans.argmax())
    forecast = job.results[slowest].forecast
    low, high = (
        float(side[column] / forecast.iteration_ns[column] * spans[slowest])
        for side in (forecast.low_ns, forecast.high_ns)
    )
    waited = np.nansum(joint.waiting_ns[job.inside], axis=0)
    return JobRow(
        gpu=job.results[0].prediction.fleet.gpus[column].name,
        iteration_ns=float(spans[slowest]),
        low_ns=None if np.isnan(low) else low,
        high_ns=None if np.isnan(high) else high,
        slowest_rank=job.aligned.ranks[slowest],
        waiting_share=float(np.mean(waited / spans)),
        is_source=column == job.source,
    )


def _warnings(job: _Job) -> tuple[str, ...]:
    """Return what analyses of single ranks warn of, each once."""
    return tuple(dict.fromkeys(text for result in job.results for text in result.warnings))
