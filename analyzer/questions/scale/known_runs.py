"""Anchors for plans: a measured step of some plan, or a recording of one GPU with its times."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ....arrays import Floats, Mask, Rows, at_rows
from ....errors import InputError, parameter
from ....formats.trace.column import MISSING, row_count
from ....formats.trace.tables import KernelKind, Phase, Trace
from ....specs.fleet import build_fleet
from ....specs.gpu import Gpu
from ...graph.build import build_graph
from ...graph.graph import Graph, NodeKind
from ...host.costs import load_host_costs
from ...host.timeline import synthesize_timeline
from ...models.library import Library
from ...prediction.predict import predict_measured, predict_shapes
from ...prediction.sum_interval import busy_interval_ns
from ...prediction.workload import measured_workload, shape_workload
from ...recorded.recording import RecordedIteration, untimed
from ...recorded.window import Window
from ...replay.profiler_slowdown import find_slowdown
from ...whatif.parallel.insert import last_inside
from ...whatif.parallel.plan import ParallelPlan
from ...whatif.parallel.ranks import RankTrace
from ...work import Family
from ...work.lookup import WorkLookup
from .forecast import predict_plan
from .parts import LINKS, PlanPart
from .pieces import PlanAnchor, PlanGpus
from .predictor import Question

_OTHER_PLAN_LOG_WIDTH: Final = 0.13
"""Half-width, natural log, of what is left where a plan is anchored at another one of the same model and GPU: the study
of many GPUs found a mean error of 6.4 %, and 90 % of normal errors lie within 2.06 times their mean."""
_NO_INTERVAL_LOG_WIDTH: Final = 0.3
"""Of kernels too many of which have no interval, as in forecast.py."""
_ROUNDS: Final = 16
_NEAR: Final = 1e-4
_LEAST_SLOPE: Final = 0.05
"""Of a step that changes by all that its part does: less, and it is left as it is."""


def anchor_at_step(
    measured_ns: float, ranks: Sequence[RankTrace], plan: ParallelPlan, place: PlanGpus, *, micro_batches: int
) -> PlanAnchor:
    """Return the factor on compute (on the host, where that is most of it) by which a plan takes as long as measured.

    It starts at the anchor of `place`, which is of one GPU. Raises InputError where no factor does: communication and
    what else stays take longer alone.
    """
    anchor = place.anchor or PlanAnchor()
    former: tuple[float, float] | None = None
    scale, start, is_host = 1.0, anchor, False
    for turn in range(_ROUNDS):
        found = predict_plan(ranks, plan, replace(place, anchor=anchor), micro_batches=micro_batches)
        predicted_ns = float(found.step_ns[0])
        if abs(predicted_ns / measured_ns - 1.0) < _NEAR:
            break
        host_ns = float(found.parts[PlanPart.HOST][0])
        if not turn:
            is_host = host_ns > predicted_ns / 2.0
        links_ns = sum(float(found.parts[part][0]) for part in LINKS)
        slope = (host_ns if is_host else predicted_ns - links_ns - host_ns) / scale
        if former is not None and former[0] != scale:
            # What runs beside it takes up a part of a change: as much as it did the last time. Where it takes up all,
            # the other one is what the step hangs on.
            seen = (predicted_ns - former[1]) / (scale - former[0])
            if seen < _LEAST_SLOPE * slope:
                is_host, scale, former = not is_host, 1.0, None
                anchor = start
                continue
            slope = seen
        former = scale, predicted_ns
        wanted = scale + (measured_ns - predicted_ns) / max(slope, 1.0)
        scale = min(max(wanted, 0.1 * scale), 10.0 * scale)
        if is_host:
            anchor = replace(anchor, host_ratio=start.host_ratio * scale)
        else:
            anchor = replace(anchor, compute_factor=start.compute_factor * scale)
    else:
        raise InputError(
            f"a step of {measured_ns / 1e6:.4g} ms on {place.gpus[0].name}: {predicted_ns / 1e6:.4g} ms were expected, "
            f"so it is of another model, batch or plan; check {parameter('measured_step')}, the plan and the batch "
            "that go with it"
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


def anchor_at_trace(recorded: RecordedIteration, origin: Gpu, gpus: Sequence[Gpu], library: Library) -> PlanAnchor:
    """Return what a measured recording of one GPU teaches of plans that are derived from its ops.

    Per op, measured over modelled time on the GPU that was recorded, carried to others as single kernels' are; the
    host's pace; and of the whole step what is then left. Ops are those of the recording `without_times`.
    Raises InputError where the recording holds no GPU times, or its ops do not explain them.

    >>> anchor_at_trace(recorded, a100, [a100, h100], library).op_factor.shape[1]
    2
    """
    trace, window = recorded.trace, recorded.window
    if not len(window.kernel_rows) or window.duration_ns is None:
        raise InputError(
            f"the trace holds no GPU times to anchor at: record on a GPU, or give {parameter('measured_step')}"
        )
    if not len(window.op_rows):
        raise InputError(
            "the recording holds kernels and no ops, and a plan divides ops among GPUs: record with "
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] and record_shapes=True"
        )
    shapes = untimed(recorded).trace
    carried_ns, here = _op_times(trace, window, origin, [*gpus, origin], library)
    everywhere = _op_factors(shapes, carried_ns[window.op_rows], [*gpus, origin], library)
    graph = build_graph(trace, architecture=origin.architecture)
    slowdown = find_slowdown(graph, trace, window)
    synthetic = build_graph(synthesize_timeline(shapes, load_host_costs()))
    pace = _host_ns(graph, window.index) * slowdown.host_ratio * slowdown.stretch_ratio
    host_ratio = pace / max(_host_ns(synthetic, 0), 1.0) or 1.0
    alone = PlanAnchor(op_factor=everywhere[:, -1:], host_ratio=host_ratio)
    place = PlanGpus(gpus=[origin], library=library, anchor=alone)
    fitted = anchor_at_step(window.duration_ns, [single_rank(shapes)], ParallelPlan(), place, micro_batches=1)
    return PlanAnchor(
        op_factor=everywhere[:, :-1],
        compute_factor=fitted.compute_factor,
        host_ratio=fitted.host_ratio,
        log_width=np.hypot(here[:-1], _OTHER_PLAN_LOG_WIDTH),
    )


def _op_times(
    trace: Trace, window: Window, origin: Gpu, gpus: Sequence[Gpu], library: Library
) -> tuple[Floats, Floats]:
    """Return the time of each op's measured kernels in the window, moved to each GPU, collectives left out, [ops, m].

    Beside it the half-width of their sum, natural log, [m]. Kernels without an op are left out.
    """
    workload = measured_workload(trace, window)
    moved = predict_measured(trace, workload, build_fleet([origin]), build_fleet(gpus), library)
    kernels = window.kernel_rows[trace.kernels.kind[window.kernel_rows] != KernelKind.COLLECTIVE]
    kernels = kernels[workload.row_of[kernels] >= 0]
    owner = at_rows(WorkLookup(trace).owners(), trace.kernels.op[kernels])
    found = np.zeros((row_count(trace.ops) + 1, len(gpus)))
    np.add.at(found, owner, moved.time_ns[workload.row_of[kernels]])
    is_link = workload.is_family(Family.COLLECTIVE)
    low, high = busy_interval_ns(replace(moved, weight=moved.weight * ~is_link), workload.family)
    width = np.where(low > 0, np.log(np.maximum(high, 1.0) / np.maximum(low, 1.0)) / 2.0, 0.0)
    return found[:-1], np.nan_to_num(width, nan=_NO_INTERVAL_LOG_WIDTH)


def _op_factors(shapes: Trace, carried_ns: Floats, gpus: Sequence[Gpu], library: Library) -> Floats:
    """Return by what the modelled time of each op is multiplied to be the one that was carried, [ops, m].

    What ops took whose time no model gives is added to that of ops beside them, so that nothing is lost.
    """
    workload = shape_workload(shapes)
    modelled = predict_shapes(workload, gpus, library).time_ns
    rows = workload.row_of
    is_told = at_rows((modelled > 0).all(axis=1), rows, False)
    factor = np.ones((len(modelled) + 1, len(gpus)))
    if not is_told.any():
        return factor[rows]
    # Where a row of the workload holds ops of one phase alone, none of its time goes to another phase.
    phase = shapes.ops.phase.astype(np.int64)
    low, high = np.full(int(rows.max(initial=-1)) + 2, len(Phase)), np.full(int(rows.max(initial=-1)) + 2, -1)
    np.minimum.at(low, rows, phase)
    np.maximum.at(high, rows, phase)
    taker = _takers(shapes, is_told, is_told & np.asarray(low[rows] == high[rows]))
    total = np.zeros_like(modelled)
    np.add.at(total, rows[taker], carried_ns)
    known = np.flatnonzero((total > 0).all(axis=1))
    factor[known] = total[known] / (workload.count[known, None] * modelled[known])
    return factor[rows]


def _takers(trace: Trace, is_told: Mask, may_take: Mask) -> Rows:
    """Return for each op the one that takes its time: itself where it is told, else inside it, before it, or after.

    Of ops before and after those of its own phase come first; only those take that `may_take`, if any.
    """
    phase, count = trace.ops.phase, row_count(trace.ops)
    rows, told = np.arange(count), np.flatnonzero(may_take if may_take.any() else is_told)
    place = np.searchsorted(told, rows)
    after = np.append(told, count)[place]
    before = np.where(place > 0, told[np.maximum(place - 1, 0)], MISSING)
    is_inside = after <= last_inside(trace.ops)
    has_after, has_before = after < count, before >= 0
    alike_before = has_before & (at_rows(phase, before) == phase)
    alike_after = has_after & (at_rows(phase, after) == phase)
    choices = [is_told, is_inside, alike_before, alike_after, has_before]
    return np.asarray(np.select(choices, [rows, after, before, after, before], default=after))


def _host_ns(graph: Graph, iteration: int | None) -> float:
    """Return the time that the host of an iteration takes by itself, on all its threads that launch."""
    nodes = graph.nodes
    mine = ~nodes.is_gpu & ((nodes.iteration == iteration) if iteration is not None else True)
    lanes = np.unique(nodes.lane[mine & (nodes.kind == NodeKind.LAUNCH)])
    mine &= np.isin(nodes.lane, lanes)
    return float((nodes.lag_ns + nodes.cost_ns)[mine].sum())


def find_anchor(question: Question, source: Gpu | None, measured_step_ns: float | None) -> PlanAnchor | None:
    """Return what the known run of one GPU teaches of plans; None where nothing is known.

    Raises InputError for a step that was measured beside a recording with times, or on no GPU.
    """
    result = question.result
    if result.origin is not None:
        return _anchor_of_recording(question, result.origin, measured_step_ns)
    if measured_step_ns is None:
        return None
    if source is None:
        raise InputError(
            f"{parameter('measured_step')} says how long one GPU takes: say which with {parameter('from', 'GPU')}"
        )
    found = anchor_at_step(
        measured_step_ns,
        [single_rank(question.shapes)],
        ParallelPlan(),
        PlanGpus(gpus=[source], library=question.library, nodes=[question.cluster.node_of(source)]),
        micro_batches=1,
    )
    return replace(found, compute_factor=np.asarray(found.compute_factor).reshape(-1)[:1])


def _anchor_of_recording(question: Question, origin: Gpu, measured_step_ns: float | None) -> PlanAnchor | None:
    result = question.result
    if measured_step_ns is not None:
        raise InputError(f"{parameter('measured_step')} is for recordings without times: this one has its own")
    if result.scenario.changes_work:
        return None  # its ops are others than those that were timed
    return anchor_at_trace(result.recorded, origin, question.gpus, question.library)
