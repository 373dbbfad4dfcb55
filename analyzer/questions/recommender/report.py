"""What `wavecast recommender` says: how long an iteration takes on each type of GPU, and what on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ....errors import InputError
from ....formats.trace.tables import Trace
from ....records import dataclass, replace
from ....specs.cluster import USUAL, Cluster
from ....specs.gpu import Gpu
from ....specs.nodes import Node
from ...iteration.decision.amounts import ENERGY, TIME
from ...iteration.decision.electricity import Electricity, JobEnergy, whole_machines
from ...models.library import Library
from .forecast import RecommenderForecast, RecommenderPart, replay_recommender
from .placement import FLOAT_BYTES, GB, place_tables
from .sizes import MEMORY_SHARE, RecommenderSizes, Training, on_machines
from .write import ADAGRAD, write_iteration

RECOMMENDER_FORMAT: Final = "wavecast.recommender"
RECOMMENDER_VERSION: Final = 1


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
        step = float(found.step_ns[0])
        rows.append(
            RecommenderRow(
                gpu=gpu.name,
                node=node.name,
                gpus_per_node=placed.gpus_per_node,
                step_ns=step,
                step_low_ns=float(found.low_ns[0]),
                step_high_ns=float(found.high_ns[0]),
                samples_per_s=training.global_batch / step * 1e9,
                parts_ns={part: float(time_ns[0]) for part, time_ns in found.parts.items()},
                table_bytes=float(placement.held_rows * row_bytes),
                gpu_memory_bytes=float(gpu.memory_bytes),
                energy=_energy(found, training, node, electricity),
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


def _energy(found: RecommenderForecast, training: Training, node: Node, electricity: Electricity | None) -> JobEnergy:
    return JobEnergy(
        power=found.power[0].of_job(training.gpus),
        time_ns=float(found.step_ns[0]),
        low_ns=float(found.low_ns[0]),
        high_ns=float(found.high_ns[0]),
        gpu_count=training.gpus,
        host_gpu_count=whole_machines(training.gpus, node.gpu_count),
        samples=float(training.global_batch),
        electricity=electricity or Electricity(),
    )
