"""What `wavecast recommender` says: how long an iteration takes on each type of GPU, and what on.

The busiest GPU's recording is predicted and replayed.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

import numpy as np

from ....arrays import Floats, Mask, Rows, at_rows
from ....errors import InputError
from ....formats.trace.tables import Trace
from ....records import dataclass, replace
from ....specs.cluster import USUAL, Cluster
from ....specs.gpu import Gpu
from ....specs.nodes import Node
from ...graph.build import build_graph
from ...graph.graph import Graph, NodeKind
from ...host.costs import HostCosts, load_host_costs, unknown_host_half_width
from ...host.timeline import synthesize_timeline
from ...iteration.decision.amounts import ENERGY, TIME
from ...iteration.decision.electricity import Electricity, JobEnergy, PowerDraw, whole_machines
from ...iteration.energy import workload_power
from ...models.library import Library
from ...prediction.predict import predict_shapes
from ...prediction.prediction import Prediction
from ...prediction.shared_error import iteration_kind, recommender_half_width
from ...prediction.sum_interval import busy_half_width
from ...prediction.workload import GpuWorkload, shape_workload
from ...replay.engine import replay
from ...replay.forecast import target_timing
from ...replay.overlap import collective_slowing, covered_before, slowed_timing
from ...whatif.parallel.plan import slowest_share
from ...work import Family
from .placement import FLOAT_BYTES, GB, place_tables
from .sizes import MEMORY_SHARE, HostWork, RecommenderSizes, Training, on_machines
from .write import ADAGRAD, write_iteration

NO_INTERVAL_LOG_WIDTH: Final = 0.5
"""90 % half-width, natural log, where nothing tells: declared, as for plans on many GPUs."""
TABLES_LOG_WIDTH: Final = 0.25
"""The same of lookups and updates where the model has none: the bar that its times are held to is 20 % on average."""


GRAPH_NODE_NS: Final = 50.0
"""Between nodes of a CUDA graph on the host: so little that no kernel waits for it, and enough to keep their order."""


class RecommenderPart(StrEnum):
    """Name what an iteration's time goes to; communication counts where no kernel runs beside it."""

    TABLES = "lookups and updates"
    DENSE = "layers"
    VECTORS = "vectors"
    GRADIENTS = "gradients"
    HOST = "host"
    STRAGGLERS = "waiting for the slowest rank"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecommenderForecast:
    """Hold what an iteration takes on m GPU types, many of each."""

    gpus: tuple[Gpu, ...]
    step_ns: Floats
    log_width: Floats
    """Half-width of the 90 % interval by errors of kernels, links, host and stragglers, natural log, [m]."""
    parts: Mapping[RecommenderPart, Floats]
    """[m] each; they add up to `step_ns`."""
    trace: Trace
    power: tuple[PowerDraw, ...]
    """What the busiest GPU draws, m of them."""

    def interval_ns(self, without: str = "") -> tuple[Floats, Floats]:
        """Return the ends of the 90 % interval, [m]: with what jobs differ by, as all submitters but one show it."""
        factor = np.exp(np.hypot(self.log_width, recommender_half_width(without)))
        return self.step_ns / factor, self.step_ns * factor


def forecast_recommender(
    sizes: RecommenderSizes,
    training: Training,
    gpus: Sequence[Gpu],
    library: Library,
    *,
    nodes: Sequence[Node] | None = None,
) -> RecommenderForecast:
    """Predict a training iteration from sizes alone.

    `nodes` is the machine of each GPU; default: its usual one. Raises InputError where tables do not fit.
    """
    trace = write_iteration(sizes, training, place_tables(sizes, training))
    return replay_recommender(trace, training, gpus, library, nodes=nodes)


def replay_recommender(
    trace: Trace, training: Training, gpus: Sequence[Gpu], library: Library, *, nodes: Sequence[Node] | None = None
) -> RecommenderForecast:
    """Predict and replay what `write_iteration` wrote."""
    timed = synthesize_timeline(trace, _host_costs_of(training.host))
    workload = shape_workload(timed)
    kind = iteration_kind(workload, timed.meta, is_compiled=False)
    prediction = predict_shapes(workload, gpus, library, kind, nodes=nodes)
    graph = build_graph(timed)
    timing = target_timing(graph, timed, workload, prediction, None)
    slowing = collective_slowing(graph, timed, prediction.fleet.fabric.domain_gpu_count)
    timing = slowed_timing(graph, timing, slowing)
    end = replay(graph, timing)
    start = end - timing.node_ns(slice(None))
    parts = _share(graph, timed, workload, start, end)
    parts[RecommenderPart.STRAGGLERS] = slowest_share(training.gpus) * np.sum(list(parts.values()), axis=0)
    step_ns = np.asarray(np.sum(list(parts.values()), axis=0))
    # The half-width of the 90 % interval, natural log, [m]. Errors of kernels, links, host and stragglers are
    # independent of each other, but for the one that all kernels share.
    shared = prediction.shared_half_width
    prediction = replace(prediction, shared_half_width=np.zeros(len(gpus)))
    tables = workload.is_family(Family.EMBEDDING)
    links = workload.is_family(Family.COLLECTIVE)
    spread = (
        (parts[RecommenderPart.TABLES] + parts[RecommenderPart.DENSE]) * shared,
        parts[RecommenderPart.TABLES] * _width(prediction, workload, tables, TABLES_LOG_WIDTH),
        parts[RecommenderPart.DENSE] * _width(prediction, workload, ~tables & ~links, NO_INTERVAL_LOG_WIDTH),
        (parts[RecommenderPart.VECTORS] + parts[RecommenderPart.GRADIENTS])
        * _width(prediction, workload, links, NO_INTERVAL_LOG_WIDTH),
        parts[RecommenderPart.HOST] * unknown_host_half_width(),
        parts[RecommenderPart.STRAGGLERS],
    )
    return RecommenderForecast(
        gpus=tuple(gpus),
        step_ns=step_ns,
        log_width=np.asarray(np.sqrt(np.sum(np.square(spread), axis=0)) / np.maximum(step_ns, 1.0)),
        parts=parts,
        trace=trace,
        power=workload_power(workload, prediction, library),
    )


def _host_costs_of(host: HostWork) -> HostCosts:
    """Return what the host takes for each kernel: of a graph nothing, of C++ a launch, of eager PyTorch all it does."""
    costs = load_host_costs()
    if host is HostWork.EAGER:
        return costs
    bare = replace(
        costs, op_ns={}, family_op_ns={}, other_op_ns=0.0, custom_op_ns=0.0, lead_ns=dict.fromkeys(costs.lead_ns, 0.0)
    )
    return bare if host is HostWork.NATIVE else replace(bare, launch_ns=GRAPH_NODE_NS)


_ORDER: Final = (RecommenderPart.TABLES, RecommenderPart.DENSE, RecommenderPart.VECTORS, RecommenderPart.GRADIENTS)


def _share(
    graph: Graph, trace: Trace, workload: GpuWorkload, start: Floats, end: Floats
) -> dict[RecommenderPart, Floats]:
    """Return what the time up to the last kernel's end goes to: kernels first, the rest to links, then to the host."""
    part, is_gpu = _parts_of_nodes(graph, trace, workload), graph.nodes.is_gpu
    columns = range(end.shape[1])
    begin, done = start[is_gpu].min(axis=0), end[is_gpu].max(axis=0)
    found: dict[RecommenderPart, Floats] = {}
    before: Floats = np.zeros(end.shape[1])
    for at, name in enumerate(_ORDER):
        chosen = is_gpu & (part <= at)
        covered = np.array(
            [covered_before(start[chosen, at_], end[chosen, at_], done[at_ : at_ + 1])[0] for at_ in columns]
        )
        found[name] = covered - before
        before = covered
    found[RecommenderPart.HOST] = done - begin - before
    return found


def _parts_of_nodes(graph: Graph, trace: Trace, workload: GpuWorkload) -> Rows:
    """Return the place in `_ORDER` of each GPU node."""
    tables, dense = _ORDER.index(RecommenderPart.TABLES), _ORDER.index(RecommenderPart.DENSE)
    families = np.array([tables if item is Family.EMBEDDING else dense for item in (*workload.family, None)])
    of_op = families[workload.row_of]
    names = [trace.strings[name] for name in trace.groups.name.tolist()]
    links = np.array([_ORDER.index(RecommenderPart(name)) for name in names], dtype=np.int64)
    known = np.flatnonzero(trace.collectives.op >= 0)
    of_op[trace.collectives.op[known]] = links[trace.collectives.group[known]]
    nodes = graph.nodes
    op = at_rows(trace.kernels.op, np.where(nodes.is_gpu, nodes.row, -1))
    found = np.append(of_op, dense)[op]
    return np.asarray(np.where(nodes.kind == NodeKind.COLLECTIVE, found, np.minimum(found, dense)))


def _width(prediction: Prediction, workload: GpuWorkload, chosen: Mask, otherwise: float) -> Floats:
    found = busy_half_width(prediction, workload.family, chosen)
    return np.where(np.isfinite(found), found, otherwise)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommenderRow:
    """Hold what an iteration takes on GPUs of one type."""

    gpu: str
    node: str
    gpus_per_node: int
    step_ns: float
    step_low_ns: float
    """Ends of the 90 % interval."""
    step_high_ns: float
    samples_per_s: float
    parts_ns: Mapping[RecommenderPart, float]
    table_bytes: float
    """Of the GPU that holds most of tables and their optimizer's state."""
    gpu_memory_bytes: float
    energy: JobEnergy
    """Of an iteration on all GPUs, each taken to do as much as the busiest."""

    @property
    def fits(self) -> bool:
        """Say whether a GPU has the memory for its tables; layers and activations come on top."""
        return self.table_bytes <= self.gpu_memory_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommenderReport:
    """Hold an iteration of one recommender on several types of GPUs, first by `sort`: the fastest, or least energy."""

    sizes: RecommenderSizes
    training: Training
    rows: tuple[RecommenderRow, ...]
    left_out: tuple[tuple[str, str], ...]
    """GPUs on which tables do not fit their layout, and why."""
    trace: Trace
    """What the busiest GPU of the first type runs."""
    electricity: Electricity | None = None
    """What electricity costs, and what is counted beside boards and links; None where nobody said."""
    sort: str = TIME

    @property
    def asks_for_energy(self) -> bool:
        """Say whether energy was asked about."""
        return self.electricity is not None or self.sort == ENERGY


def report_recommender(
    sizes: RecommenderSizes,
    training: Training,
    gpus: Sequence[Gpu],
    library: Library,
    cluster: Cluster = USUAL,
    *,
    electricity: Electricity | None = None,
    sort: str = TIME,
) -> RecommenderReport:
    """Predict a training iteration on each type of GPU, ordered by `time` or `energy`.

    Raises InputError where tables do not fit on any of them.
    """
    rows, traces, left_out = [], [], []
    for gpu in gpus:
        node = cluster.node_of(gpu)
        room = min(training.table_gigabytes, MEMORY_SHARE * gpu.memory_bytes / GB)
        placed = replace(on_machines(training, node.gpu_count), table_gigabytes=room)
        try:
            placement = place_tables(sizes, placed)
        except InputError as error:
            left_out.append((gpu.name, str(error)))
            continue
        traces.append(write_iteration(sizes, placed, placement))
        found = replay_recommender(traces[-1], placed, [gpu], library, nodes=[node])
        row_bytes = sizes.width * FLOAT_BYTES * (2 if training.optimizer == ADAGRAD else 1)
        step, (low, high) = float(found.step_ns[0]), (float(end[0]) for end in found.interval_ns())
        rows.append(
            RecommenderRow(
                gpu=gpu.name,
                node=node.name,
                gpus_per_node=placed.gpus_per_node,
                step_ns=step,
                step_low_ns=low,
                step_high_ns=high,
                samples_per_s=training.global_batch / step * 1e9,
                parts_ns={part: float(time_ns[0]) for part, time_ns in found.parts.items()},
                table_bytes=float(placement.held_rows * row_bytes),
                gpu_memory_bytes=float(gpu.memory_bytes),
                energy=JobEnergy(
                    power=found.power[0].of_job(training.gpus),
                    time_ns=step,
                    low_ns=low,
                    high_ns=high,
                    gpu_count=training.gpus,
                    host_gpu_count=whole_machines(training.gpus, node.gpu_count),
                    samples=float(training.global_batch),
                    electricity=electricity or Electricity(),
                ),
            )
        )
    if not rows:
        raise InputError("; ".join(f"{gpu}: {reason}" for gpu, reason in left_out[:1]))
    order = sorted(range(len(rows)), key=lambda at: rows[at].energy.billed_j if sort == ENERGY else rows[at].step_ns)
    return RecommenderReport(
        sizes=sizes,
        training=training,
        rows=tuple(rows[at] for at in order),
        left_out=tuple(left_out),
        trace=traces[order[0]],
        electricity=electricity,
        sort=sort,
    )
