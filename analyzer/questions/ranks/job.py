"""The ranks of a job, analysed on the same GPUs, and replayed together: as recorded, elsewhere, without some."""

from collections.abc import Sequence

import numpy as np

from ....arrays import Floats, Mask, Rows, at_rows
from ....errors import InputError, parameter
from ....formats.trace.iterations import host_steps
from ....formats.trace.tables import Trace
from ....records import dataclass
from ....specs.cluster import USUAL, Cluster
from ....specs.fleet import build_fleet
from ....specs.gpu import Catalog, Gpu, listed_name
from ....specs.nodes import Node
from ...graph.graph import Graph
from ...iteration.analyze import Asked, run_analysis
from ...iteration.result import Analysis
from ...prediction.attention import as_recorded
from ...prediction.op_models import assign_rows, model_times
from ...recorded.devices import first_known_gpu
from ...recorded.waiting import AlignedRanks, waiting_by_row
from ...replay.engine import on_gpus
from ...replay.iterations import iteration_nodes, iteration_position, iteration_rows
from ...replay.joint import JoinedRanks, JointReplay, join_ranks, replay_jointly


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankJob:
    """Hold the ranks' results, all on the same GPUs, and how their collectives meet."""

    results: tuple[Analysis, ...]
    aligned: AlignedRanks
    cluster: Cluster
    sources: tuple[int, ...]
    """The column of the GPU that each rank was measured on."""
    inside: Mask
    """Which of the shared collectives run in the iteration that is looked at, [c]."""
    joined: JoinedRanks

    @property
    def is_mixed(self) -> bool:
        """Say whether ranks ran on unequal GPUs."""
        return len(set(self.sources)) > 1

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs that all ranks are predicted on: columns."""
        return self.results[0].prediction.fleet.gpus


def analyse_job(traces: Sequence[Trace], aligned: AlignedRanks, catalog: Catalog, asked: Asked) -> RankJob:
    """Analyse each rank on the same GPUs, all in the same iteration: the one that is chosen of the first rank's."""
    counts = {len(iteration_rows(trace)) for trace in traces}
    if len(counts) > 1:
        raise InputError(
            f"the ranks' files hold {', '.join(map(str, sorted(counts)))} iterations: record the same ones on each rank"
        )
    known = [asked.get("source") or first_known_gpu(catalog, trace) for trace in traces]
    found = {gpu.name: gpu for gpu in (*asked.get("targets", ()), *known) if gpu is not None}
    results: list[Analysis] = []
    for trace in traces:
        iteration = asked.get("iteration")
        if results:
            rows = iteration_rows(trace)
            position = iteration_position(traces[0], results[0].recorded.index)
            iteration = int(rows[position]) if len(rows) and isinstance(iteration, int | None) else iteration
        of_rank: Asked = {**asked, "targets": list(found.values()), "iteration": iteration}
        results.append(run_analysis(trace, catalog, **of_rank))
        _check_gpus(aligned, results)
    names = [gpu.name for gpu in results[0].prediction.fleet.gpus]
    inside = np.zeros(len(aligned.name), dtype=bool)
    for at, result in enumerate(results):
        inside |= np.isin(aligned.kernel[:, at], result.window.kernel_rows)
    return RankJob(
        results=tuple(results),
        aligned=aligned,
        cluster=asked.get("cluster", USUAL),
        sources=tuple(names.index(_origin_of(result).name) for result in results),
        inside=inside,
        joined=join_ranks(
            [result.graph for result in results],
            [_nodes_of(result.graph, aligned.kernel[:, at]) for at, result in enumerate(results)],
        ),
    )


def _origin_of(result: Analysis) -> Gpu:
    """Return the GPU that was measured. Raises InputError where the iteration holds no kernels."""
    if result.origin is None:
        raise InputError("the iteration holds no GPU kernels: ranks are compared by the times of their collectives")
    return result.origin


def _check_gpus(aligned: AlignedRanks, results: Sequence[Analysis]) -> None:
    """Raise InputError where a rank is not predicted on the GPUs of the others: its file tells several apart badly."""
    names = [[gpu.name for gpu in result.prediction.fleet.gpus] for result in (results[0], results[-1])]
    if names[0] != names[1]:
        raise InputError(
            f"rank {aligned.ranks[len(results) - 1]} ran on {_origin_of(results[-1]).name}, of which its file's first "
            f"device tells nothing: name the ranks' GPU with {parameter('from')}"
        )


def replay_job(
    job: RankJob, column: int | None = None, heeded: Mask | None = None, transfer_ns: Floats | None = None
) -> JointReplay:
    """Replay all ranks on one of the GPUs; None: each on its own, as recorded.

    `transfer_ns` are other times of what the shared collectives move, [c].
    """
    columns = job.sources if column is None else (column,) * len(job.results)
    timings = [
        on_gpus(result.forecast.timing, slice(at, at + 1)) for result, at in zip(job.results, columns, strict=True)
    ]
    if transfer_ns is None:
        ratio = np.ones(len(job.aligned.name)) if column is None else _transfer_ratio(job, column)
        transfer_ns = job.aligned.transfer_ns * np.where(np.isnan(ratio), 1.0, ratio)
    return replay_jointly(job.joined, timings, transfer_ns, job.aligned.clock_ns, heeded)


def _nodes_of(graph: Graph, kernel: Rows) -> Rows:
    """Return the node of each kernel, -1 for none, [c]."""
    node_of = np.full(int(max(kernel.max(initial=-1), graph.nodes.row.max(initial=-1))) + 2, -1, dtype=np.int64)
    on_gpu = np.flatnonzero(graph.nodes.is_gpu)
    node_of[graph.nodes.row[on_gpu]] = on_gpu
    node_of[-1] = -1
    return node_of[kernel]


def _transfer_ratio(job: RankJob, column: int) -> Floats:
    """Return what each shared collective's transfer takes on a GPU relative to the recorded one, [c].

    Among unequal GPUs it was as slow as on the slowest of them.
    """
    found = np.full(len(job.aligned.name), np.nan)
    for at, (result, source) in enumerate(zip(job.results, job.sources, strict=True)):
        rows = result.workload.row_of
        waiting = waiting_by_row(result.recorded.trace, rows, len(result.workload.op))
        moved = result.workload.duration_ns - waiting
        time = result.prediction.time_ns
        ratio = (time[:, column] - waiting) / np.maximum(time[:, source] - waiting, 1.0)
        ratio[moved <= 0] = 1.0
        takes_part = job.aligned.kernel[:, at] >= 0
        open_ = np.flatnonzero(takes_part if job.is_mixed else takes_part & np.isnan(found))
        row = rows[job.aligned.kernel[open_, at]]
        found[open_] = np.fmin(found[open_], np.where(row >= 0, at_rows(ratio, row, 1.0), 1.0))
    return found


def modelled_transfer(job: RankJob) -> Floats:
    """Return what the links take for each shared collective at the most, [c]: the high end of the model's interval."""
    found = np.full(len(job.aligned.name), np.nan)
    for at, result in enumerate(job.results):
        takes_part = job.aligned.kernel[:, at] >= 0
        open_ = np.flatnonzero(takes_part if job.is_mixed else takes_part & np.isnan(found))
        if not len(open_):
            continue
        workload, gpus = result.workload, [_origin_of(result)]
        fleet = build_fleet(gpus, job.cluster.nodes_of(gpus))
        times = model_times(assign_rows(as_recorded(workload), result.library), len(workload.op), fleet, result.library)
        high = times.time_ns[:, 0] * np.exp(times.half_width[:, 0]) * workload.op_share
        row = at_rows(workload.row_of, job.aligned.kernel[open_, at])
        found[open_] = np.fmax(found[open_], np.where(row >= 0, at_rows(high, row, np.nan), np.nan))
    return found


def spans_of(job: RankJob, joint: JointReplay) -> Floats:
    """Return the length of the iteration of each rank in a joint replay, [r]."""
    at = [iteration_position(result.trace, result.replayed_window.index) for result in job.results]
    return np.array([lengths[place] for lengths, place in zip(_lengths(job, joint), at, strict=True)])


def all_spans_of(job: RankJob, joint: JointReplay) -> Floats:
    """Return the length of every iteration that all ranks recorded, [i, r]."""
    lengths = _lengths(job, joint)
    fewest = min(map(len, lengths))
    return np.stack([found[:fewest] for found in lengths], axis=1)


def _lengths(job: RankJob, joint: JointReplay) -> list[Floats]:
    found = []
    for result, end_ns in zip(job.results, joint.end_ns, strict=True):
        start, finish = iteration_nodes(result.trace, result.graph).spans(end_ns[:, None])
        found.append((finish - start)[:, 0])
    return found


def begins_of(job: RankJob) -> Floats:
    """Return when each rank's iteration began, on the first one's clock, [r]."""
    found = []
    for result in job.results:
        table, index = host_steps(result.recorded.trace.iterations), result.window.index
        found.append(0.0 if index is None else float(table.cpu_start_ns[index]))
    return np.array(found) - job.aligned.clock_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherMachine:
    """Hold a machine to which the ranks' own GPUs are moved, as it was asked for."""

    asked: str
    cluster: Cluster
    """With a machine for each GPU that it says something of."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MovedTransfers:
    """Hold what c shared collectives' transfers take in another machine, ns."""

    usual_ns: Floats
    low_ns: Floats
    """Ends of their 90 % intervals."""
    high_ns: Floats
    unknown_count: int
    """Collectives of the iteration whose transfer stays as recorded, since their sizes were not."""


def find_machine(job: RankJob, other: OtherMachine) -> Node:
    """Return the machine for the job's GPUs.

    Raises InputError where ranks ran on unequal GPUs, and for a machine of other GPUs.
    """
    if job.is_mixed:
        raise InputError(f"{other.asked}: the ranks ran on unequal GPUs, which no one machine holds: leave it out")
    gpu = _origin_of(job.results[0])
    node = other.cluster.nodes.get(listed_name(gpu))
    if node is None:
        held = ", ".join(other.cluster.nodes)
        raise InputError(
            f"{other.asked} holds {held}, the ranks ran on {gpu.name}: name a machine of theirs, or {parameter('to')}"
        )
    return node


def move_transfers(job: RankJob, node: Node, moving_ns: Floats) -> MovedTransfers:
    """Return the transfers, [c], changed as the model of links says of `node` and the machine that was recorded.

    `moving_ns` is what of them the recorded links took; what a kernel has beyond that is waiting, and stays. Ends are
    the model's in either machine, independent of each other; none where it says the same of both.
    """
    ratio, width = np.full(len(moving_ns), np.nan), np.zeros(len(moving_ns))
    for at, result in enumerate(job.results):
        open_ = np.flatnonzero((job.aligned.kernel[:, at] >= 0) & np.isnan(ratio))
        if len(open_):
            row = at_rows(result.workload.row_of, job.aligned.kernel[open_, at])
            one, half = _changes(job, result, node)
            ratio[open_], width[open_] = at_rows(one, row, np.nan), at_rows(half, row, 0.0)
    rest, known = job.aligned.transfer_ns - moving_ns, np.where(np.isnan(ratio), 1.0, ratio)
    return MovedTransfers(
        usual_ns=moving_ns * known + rest,
        low_ns=moving_ns * known * np.exp(-width) + rest,
        high_ns=moving_ns * known * np.exp(width) + rest,
        unknown_count=int((np.isnan(ratio) & job.inside).sum()),
    )


def _changes(job: RankJob, result: Analysis, node: Node) -> tuple[Floats, Floats]:
    """Return by how much longer each row of a rank's workload takes in another machine, and the half-width of that."""
    gpu, workload = _origin_of(result), result.workload
    rows = assign_rows(as_recorded(workload), result.library)
    before, after = (
        model_times(rows, len(workload.op), build_fleet([gpu], [place]), result.library)
        for place in (job.cluster.node_of(gpu), node)
    )
    ratio = after.time_ns[:, 0] / before.time_ns[:, 0]
    width = np.hypot(before.half_width[:, 0], after.half_width[:, 0])
    return ratio, np.where(np.isnan(width) | (ratio == 1.0), 0.0, width)
