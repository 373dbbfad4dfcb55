"""Anchors for plans: a measured step of some plan, or a recording of one GPU with its times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ....arrays import Floats
from ....errors import InputError
from ....formats.column import MISSING, row_count
from ....formats.trace import KernelKind, Phase, Trace
from ....specs.fleet import build_fleet
from ....specs.gpu import Gpu
from ....specs.nodes import Node
from ...graph.build import build_graph
from ...graph.graph import Graph, NodeKind
from ...graph.steps import with_iterations
from ...host.costs import load_host_costs
from ...host.timeline import synthesize_timeline
from ...models.frame.intervals import separations
from ...models.library import Library, carried_factor
from ...prediction.op_models import ModelTimes, assign_rows, model_times
from ...prediction.predict import predict_shapes
from ...prediction.workload import GpuWorkload, shape_workload
from ...recorded.untimed import without_times
from ...recorded.window import Window, select_window
from ...replay.profiler_slowdown import find_slowdown
from ...whatif.parallel.plan import ParallelPlan
from ...whatif.parallel.ranks import RankTrace
from ...work.lookup import WorkLookup
from .anchor import PlanAnchor
from .forecast import predict_plan
from .parts import LINKS, PlanPart

_OTHER_PLAN_LOG_WIDTH: Final = 0.13
"""Half-width, natural log, of what is left where a plan is anchored at another one of the same model and GPU: the study
of many GPUs found a mean error of 6.4 %, and 90 % of normal errors lie within 2.06 times their mean."""
_ROUNDS: Final = 10
_NEAR: Final = 1e-4


def anchor_at_step(
    measured_ns: float,
    ranks: Sequence[RankTrace],
    plan: ParallelPlan,
    gpu: Gpu,
    library: Library,
    *,
    micro_batches: int,
    node: Node | None = None,
    given: PlanAnchor | None = None,
) -> PlanAnchor:
    """Return the factor on compute (on the host, where that is most of it) by which a plan takes as long as measured.

    `given` is an anchor of this one GPU to start from. Raises InputError where none does: communication and what else
    stays take longer alone.
    """
    anchor, nodes = given or PlanAnchor(), None if node is None else [node]
    for _ in range(_ROUNDS):
        found = predict_plan(ranks, plan, [gpu], library, micro_batches=micro_batches, nodes=nodes, anchor=anchor)
        predicted_ns = float(found.step_ns[0])
        if abs(predicted_ns / measured_ns - 1.0) < _NEAR:
            break
        host_ns = float(found.parts[PlanPart.HOST][0])
        is_host = host_ns > predicted_ns / 2.0
        fixed = sum(float(found.parts[part][0]) for part in LINKS) + (0.0 if is_host else host_ns)
        moving = host_ns if is_host else predicted_ns - fixed
        fixed = predicted_ns - moving
        factor = min(max((measured_ns - fixed) / max(moving, 1.0), 0.1), 10.0)
        if is_host:
            anchor = replace(anchor, host_ratio=anchor.host_ratio * factor)
        else:
            anchor = replace(anchor, compute_factor=anchor.compute_factor * factor)
    else:
        raise InputError(
            f"a step of {measured_ns / 1e6:.4g} ms on {gpu.name}: {predicted_ns / 1e6:.4g} ms were expected, so it is "
            "of another model, batch or plan; check --measured-step, the plan and the batch that go with it"
        )
    return replace(anchor, log_width=np.full(1, _OTHER_PLAN_LOG_WIDTH))


def single_rank(recorded: Trace) -> RankTrace:
    """Return the one rank of a plan of one GPU: all that a recording of shapes holds.

    >>> single_rank(trace).pieces
    (0,)
    """
    count = row_count(recorded.ops)
    return RankTrace(
        trace=recorded,
        pieces=(0,),
        source_op=np.arange(count),
        is_last=(recorded.ops.phase == Phase.OPTIMIZER).astype(np.int64),
        sent_bytes=0.0,
    )


def anchor_at_trace(
    recorded: Trace, origin: Gpu, gpus: Sequence[Gpu], library: Library, *, iteration: int | None = None
) -> PlanAnchor:
    """Return what a measured recording of one GPU teaches of plans that are derived from its ops.

    Per op, measured over modelled time on the GPU that was recorded, carried to others as single kernels' are; the
    host's pace; and of the whole step what is then left. Ops are those of the recording `without_times`.
    Raises InputError where the recording holds no GPU times, or its ops do not explain them.

    >>> anchor_at_trace(measured, a100, [a100, h100], library).op_factor.shape[1]
    2
    """
    recorded = with_iterations(recorded)
    window = select_window(recorded, iteration)
    if not len(window.kernel_rows) or window.duration_ns is None:
        raise InputError("the trace holds no GPU times to anchor at: record on a GPU, or give --measured-step")
    untimed = without_times(recorded, window)
    measured_ns = _op_times(recorded, window)[window.op_rows]
    everywhere, here = _op_factors(untimed, measured_ns, [*gpus, origin], library)
    graph = build_graph(recorded, architecture=origin.architecture)
    slowdown = find_slowdown(graph, recorded, window)
    synthetic = build_graph(synthesize_timeline(untimed, load_host_costs()))
    pace = _host_ns(graph, window.index) * slowdown.host_ratio * slowdown.stretch_ratio
    host_ratio = pace / max(_host_ns(synthetic, 0), 1.0)
    alone = PlanAnchor(op_factor=everywhere[:, -1:], host_ratio=host_ratio)
    fitted = anchor_at_step(
        window.duration_ns, [single_rank(untimed)], ParallelPlan(), origin, library, micro_batches=1, given=alone
    )
    return PlanAnchor(
        op_factor=everywhere[:, :-1],
        compute_factor=fitted.compute_factor,
        host_ratio=fitted.host_ratio,
        log_width=np.hypot(here[:-1], _OTHER_PLAN_LOG_WIDTH),
    )


def _op_times(trace: Trace, window: Window) -> Floats:
    """Return the GPU time of each op's kernels in the window, collectives left out, [ops]; 0 for ops of none."""
    found = np.zeros(row_count(trace.ops) + 1)
    kernels = window.kernel_rows[trace.kernels.kind[window.kernel_rows] != KernelKind.COLLECTIVE]
    owner = np.append(WorkLookup(trace).owners(), MISSING)[trace.kernels.op[kernels]]
    np.add.at(found, owner, trace.kernels.duration_ns[kernels].astype(np.float64))
    return found[:-1]


def _op_factors(untimed: Trace, measured_ns: Floats, gpus: Sequence[Gpu], library: Library) -> tuple[Floats, Floats]:
    """Return the factor of each op, [ops, m], and the half-width of their time together, natural log, [m].

    The GPU that was measured is the last one.
    """
    workload = shape_workload(untimed, select_window(untimed))
    modelled = predict_shapes(workload, gpus, library).time_ns
    rows, count = workload.row_of, np.maximum(workload.count, 1)
    mean_ns = np.bincount(rows[rows >= 0], weights=measured_ns[rows >= 0], minlength=len(count)) / count
    source_ns = modelled[:, -1]
    known = np.flatnonzero((mean_ns > 0) & (source_ns > 0))
    fleet, origin = build_fleet(gpus), build_fleet(gpus[-1:])
    times = model_times(assign_rows(workload, library), len(count), fleet, library)
    covered = times.is_covered[known]
    share = np.where(covered, times.anchor[known], 1.0)[:, None]
    width = np.where(covered, times.half_width[known, -1], 0.0)[:, None]
    factor = np.ones((len(count) + 1, len(gpus)))
    factor[known] = carried_factor(
        mean_ns[known, None], source_ns[known, None], share, width, separations(fleet, origin)
    )
    return factor[rows], _joint_width(workload, times, modelled * factor[:-1])


def _joint_width(workload: GpuWorkload, times: ModelTimes, time_ns: Floats) -> Floats:
    """Return the half-width of the sum of anchored times, [m]: one error per family, independent of the others'."""
    total = workload.count[:, None] * time_ns
    spread = np.nan_to_num(total * times.anchored_half_width)
    names = np.unique([str(family) for family in workload.family], return_inverse=True)[1]
    parts = [spread[names == name].sum(axis=0) for name in np.unique(names)]
    return np.asarray(np.sqrt(np.square(parts).sum(axis=0)) / np.maximum(total.sum(axis=0), 1.0))


def _host_ns(graph: Graph, iteration: int | None) -> float:
    """Return the time that the host of an iteration takes by itself, on all its threads that launch."""
    nodes = graph.nodes
    mine = ~nodes.is_gpu & ((nodes.iteration == iteration) if iteration is not None else True)
    lanes = np.unique(nodes.lane[mine & (nodes.kind == NodeKind.LAUNCH)])
    mine &= np.isin(nodes.lane, lanes)
    return float((nodes.lag_ns + nodes.cost_ns)[mine].sum())
