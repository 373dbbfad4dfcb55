"""The same job on the same GPUs in other machines: other links within them, other networks between."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....arrays import Floats, at_rows
from ....errors import InputError, parameter
from ....specs.cluster import Cluster
from ....specs.fleet import build_fleet
from ....specs.gpu import listed_name
from ....specs.nodes import Node
from ...iteration.result import Analysis
from ...prediction.attention import as_recorded
from ...prediction.op_models import assign_rows, model_times
from .job import RankJob, origin_of


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
    gpu = origin_of(job.results[0])
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
    gpu, workload = origin_of(result), result.workload
    rows = assign_rows(as_recorded(workload), result.library)
    before, after = (
        model_times(rows, len(workload.op), build_fleet([gpu], [place]), result.library)
        for place in (job.cluster.node_of(gpu), node)
    )
    ratio = after.time_ns[:, 0] / before.time_ns[:, 0]
    width = np.hypot(before.half_width[:, 0], after.half_width[:, 0])
    return ratio, np.where(np.isnan(width) | (ratio == 1.0), 0.0, width)
