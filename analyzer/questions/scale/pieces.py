"""How long a piece of a model takes on one rank: its trace replayed, and parted into passes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np

from ....arrays import Floats, Mask, Rows, at_rows
from ....formats.trace.tables import Phase, Trace
from ....records import dataclass, field, replace
from ....specs.gpu import Gpu
from ....specs.nodes import Node
from ...graph.build import build_graph
from ...graph.graph import EdgeKind, Graph, NodeKind
from ...graph.rules import LANE, lane_firsts
from ...host.costs import HostCosts, unknown_host_half_width
from ...host.launches import STREAM
from ...host.timeline import synthesize_timeline
from ...models.library import Library
from ...prediction.predict import predict_shapes
from ...prediction.prediction import Prediction
from ...prediction.shared_error import iteration_kind, job_half_widths
from ...prediction.sum_interval import busy_half_width
from ...prediction.workload import GpuWorkload, shape_workload
from ...recorded.compiled import find_compiled, names_tensors
from ...replay.causes import bind_nodes
from ...replay.engine import Timing, on_gpus, replay
from ...replay.overlap import WITHIN_SLOWING, collective_slowing, covered_before, slowed_timing
from ...whatif.apply import change_graph, changed_timing
from ...whatif.parallel.ranks import RankTrace
from ...whatif.scenario import Scenario
from ...work import Family
from ...work.work import MatmulDims
from .parts import LINKS, PlanPart, part_of_group
from .power import PiecePower, piece_power

PASSES: Final = ("forward", "backward", "last_backward", "tail", "optimizer")
"""The last backward pass sends gradients beside it; the tail is what of that is left at its end."""
EXPERTS_LOG_WIDTH: Final = 0.94
"""Of layers of experts, natural log: which kernels a framework has for them nothing tells, and of those that compute
the same layer nine of ten lie that near their mean (4,096 tokens or more, spread evenly; bf16 and fp8; the 3,131
problems of the measured table `ops/moe` with two kernels or more, on H100, B200, GB200 and L40S; without kernels for
few tokens). With products alone, 11 of the 18 measured iterations with experts lay within their intervals; that the
width is the whole layer's, as that table times it, was decided after that was seen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PieceTimes:
    """Say how long a piece's passes take on m GPUs, and what on; see `PlanPart`."""

    lead_ns: Floats
    """From the host's start to the first kernel's, [m]."""
    parts: Mapping[str, Mapping[PlanPart, Floats]]
    """By pass (`PASSES`), what its time goes to, [m] each; they add up to it."""
    compute_log_width: Floats
    """Half-width of the 90 % interval of its kernels' time together, natural log, [m]; NaN where nothing tells.
    Without the error that all of them share."""
    shared_log_width: Floats
    """The same of that error."""
    link_log_width: Floats
    """The same of its collectives."""
    power: PiecePower | None = None
    """What a rank draws that runs it; None: not asked."""

    def length_ns(self, name: str) -> Floats:
        """Return how long a pass takes, [m]."""
        return np.asarray(sum(self.parts[name].values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanHost:
    """Say how fast the hosts are that a plan runs on."""

    speed_ratio: float = 1.0
    """Relative to the one without it: the recorded one where a recording was measured, else the reference host."""
    log_width: float = field(default_factory=unknown_host_half_width)
    """How far its times may be off in 90 % of the cases, natural log."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanGpus:
    """Hold the GPUs that a plan is put on, and what is known of them there."""

    gpus: Sequence[Gpu]
    library: Library
    nodes: Sequence[Node] | None = None
    """The machine of each; None: its usual one."""
    anchor: PlanAnchor | None = None
    """What a known run taught."""
    host: PlanHost = field(default_factory=PlanHost)
    scenario: Scenario = field(default_factory=Scenario)
    """What becomes of a piece's launches: CUDA graphs make them, a compiler merges them."""


def replay_piece(rank: RankTrace, place: PlanGpus, costs: HostCosts, *, hides: Collection[PlanPart] = ()) -> PieceTimes:
    """Predict and replay the trace of a piece: a micro batch, and what comes with the last one.

    Of `hides`, tensor-parallel collectives run in pieces beside their product, context-parallel ones beside attention,
    those with experts beside another micro batch. Its ops of the last micro batch alone take no time in the passes of
    the others.
    """
    gpus, library, anchor = place.gpus, place.library, place.anchor
    scaled = costs if anchor is None else costs.at_speed(1.0 / anchor.host_ratio)
    scenario, is_merged = place.scenario, place.scenario.fuse_elementwise
    trace = synthesize_timeline(rank.trace, scaled, is_compiled=is_merged and names_tensors(rank.trace))
    is_merged |= bool(find_compiled(rank.trace).is_region.any())
    workload = shape_workload(trace)
    kind = iteration_kind(workload, trace.meta, is_compiled=is_merged)
    shared = job_half_widths(kind, workload.family, gpus, library.seen_chips)
    prediction = predict_shapes(workload, gpus, library, kind, nodes=place.nodes)
    prediction = replace(prediction, shared_half_width=np.zeros(len(gpus)))
    if anchor is not None:
        prediction = replace(prediction, time_ns=prediction.time_ns * _row_factors(anchor, rank, workload, len(gpus)))
    whole = build_graph(trace)
    changed = change_graph(whole, trace, workload, scenario)
    graph, timing = changed.graph, changed_timing(changed, trace, workload, prediction, None, library)
    is_last = _of_nodes(graph, trace, rank.is_last.astype(np.int64), 0) > 0
    timing = _both_ways(timing, graph, is_last)
    for part in (item for item in LINKS if item in hides):
        mine = np.flatnonzero(_links_of_nodes(graph, trace) == LINKS.index(part))
        sent = trace.kernels.op[graph.nodes.row[mine]]
        if part is PlanPart.EXPERT:
            ops, ratio = hide_beside_passes(trace, workload, prediction, sent)
        else:
            ops, ratio = hide_beside(trace, workload, prediction, sent, _BESIDE[part])
        timing = _stretched(timing, graph, trace, ops, ratio)
    slowing = np.tile(collective_slowing(graph, trace, prediction.fleet.fabric.domain_gpu_count), 2)
    timing = slowed_timing(graph, timing, slowing, rounds=1)
    end = replay(graph, timing)
    compute, link = _log_widths(prediction, workload)
    compute = np.hypot(compute, _experts_share(prediction, workload, trace, rank.is_last) * EXPERTS_LOG_WIDTH)
    lead, parts = _part(graph, trace, is_last, _held_since(graph, timing, end), end)
    is_once = (rank.is_last > 0) | (trace.ops.phase == Phase.OPTIMIZER)
    return PieceTimes(
        lead_ns=lead,
        parts=parts,
        compute_log_width=compute,
        shared_log_width=shared,
        link_log_width=link,
        power=piece_power(trace, whole, workload, prediction, changed, library, is_once),
    )


def _of_nodes(graph: Graph, trace: Trace, of_ops: Rows, other: int) -> Rows:
    """Return of each node its op's entry; `other` for the host's nodes, and kernels without an op."""
    nodes = graph.nodes
    op = at_rows(trace.kernels.op, np.where(nodes.is_gpu, nodes.row, -1))
    return np.asarray(at_rows(of_ops, op, other), dtype=np.int64)


def _both_ways(timing: Timing, graph: Graph, is_last: Mask) -> Timing:
    """Return the timing of 2 m columns: with all nodes, and with those of the last micro batch taking no time."""
    count = timing.latency_ns.shape[1]
    both = on_gpus(timing, np.tile(np.arange(count), 2))
    stretch = np.ones((len(graph.nodes.row), 2 * count), np.float32) if both.stretch is None else both.stretch.copy()
    stretch[is_last, count:] = 0.0
    return replace(both, stretch=stretch)


def _stretched(timing: Timing, graph: Graph, trace: Trace, ops: Rows, ratio: Floats) -> Timing:
    """Return the timing of 2 m columns with the kernels of some ops `ratio` [k, m] times as long."""
    place = np.full(len(trace.ops.name), -1, dtype=np.int64)
    place[ops] = np.arange(len(ops))
    at = _of_nodes(graph, trace, place, -1)
    nodes = np.flatnonzero(at >= 0)
    stretch = np.array(timing.stretch)
    stretch[nodes] *= np.tile(ratio[at[nodes]], 2)
    return replace(timing, stretch=stretch)


def _held_since(graph: Graph, timing: Timing, end: Floats) -> Floats:
    """Return since when each node holds its lane, [n, 2 m]: of a kernel, since the end of what it waited for last.

    That is the GPU's own gap, or another stream's work; only where a launch came last did it wait for the host.
    """
    start, rows = end - timing.node_ns(slice(None)), np.flatnonzero(graph.nodes.is_gpu)
    binding = bind_nodes(graph, timing, end, rows)
    by_edge = np.maximum(binding, LANE)
    by_host = at_rows(graph.edges.kind, by_edge, EdgeKind.LAUNCH) == EdgeKind.LAUNCH
    by_lane = (binding == LANE) & ~lane_firsts(graph.nodes)[rows, None]
    source = np.where(by_lane, rows[:, None] - 1, at_rows(graph.edges.source, by_edge, 0))
    since = np.take_along_axis(end, source, axis=0)
    start[rows] = np.where(by_lane | ~by_host, np.minimum(since, start[rows]), start[rows])
    return start


def _part(
    graph: Graph, trace: Trace, is_last: Mask, start: Floats, end: Floats
) -> tuple[Floats, dict[str, dict[PlanPart, Floats]]]:
    """Return when the first kernel starts, and what each pass's time goes to."""
    nodes, count = graph.nodes, end.shape[1] // 2
    phase = _of_nodes(graph, trace, trace.ops.phase.astype(np.int64), int(Phase.OTHER))
    links = _links_of_nodes(graph, trace)
    is_gpu = nodes.is_gpu
    stream = np.repeat([lane.stream for lane in graph.lanes], [lane.end - lane.begin for lane in graph.lanes])
    data = links == LINKS.index(PlanPart.DATA)
    forward = is_gpu & ((phase == Phase.FORWARD) | (phase == Phase.OTHER)) & ~data
    # What gradients are sent in runs on beside the next micro batch's passes.
    backward = is_gpu & (phase == Phase.BACKWARD) & ~is_last & ~data & ((stream == STREAM) | (links >= 0))
    closing = is_gpu & (phase == Phase.OPTIMIZER)
    lead = _first(start[:, :count], is_gpu & ~is_last)
    turns = _latest(end, forward, np.tile(lead, 2))
    usual = _latest(end[:, count:], backward, turns[count:])
    last = _latest(end[:, :count], backward, turns[:count])
    rest = _latest(end[:, :count], is_gpu & ~closing, last)
    done = _latest(end[:, :count], is_gpu, rest)
    spans = {
        "forward": (lead, turns[:count], 0),
        "backward": (turns[count:], usual, count),
        "last_backward": (turns[:count], last, 0),
        "tail": (last, rest, 0),
        "optimizer": (rest, done, 0),
    }
    parts: dict[str, dict[PlanPart, Floats]] = {}
    for at in (0, count):
        names = [name for name, span in spans.items() if span[2] == at]
        bounds = np.stack([span[:2] for span in (spans[name] for name in names)])
        found = _share(links, is_gpu, start[:, at : at + count], end[:, at : at + count], bounds)
        parts |= dict(zip(names, found, strict=True))
    parts["optimizer"][PlanPart.OPTIMIZER] = parts["optimizer"].pop(PlanPart.COMPUTE)
    return lead, parts


def _first(start: Floats, chosen: Mask) -> Floats:
    return np.asarray(start[chosen].min(axis=0)) if chosen.any() else np.zeros(start.shape[1])


def _latest(end: Floats, chosen: Mask, since: Floats) -> Floats:
    return np.maximum(end[chosen].max(axis=0), since) if chosen.any() else since


def _links_of_nodes(graph: Graph, trace: Trace) -> Rows:
    """Return the index into `LINKS` of each collective's node; -1 for others."""
    groups, table = trace.groups, trace.collectives
    parts = [part_of_group(trace.strings[name] if name >= 0 else "") for name in groups.name.tolist()]
    of_group = np.array([LINKS.index(part) for part in (*parts, PlanPart.DATA)], dtype=np.int64)
    of_op = np.full(len(trace.ops.name), len(parts), dtype=np.int64)
    known = np.flatnonzero(table.op >= 0)
    group = table.group[known]
    of_op[table.op[known]] = np.where((group >= 0) & (group < len(parts)), group, len(parts))
    found = _of_nodes(graph, trace, of_group[of_op], LINKS.index(PlanPart.DATA))
    return np.where(graph.nodes.kind == NodeKind.COLLECTIVE, found, -1)


def _share(links: Rows, is_gpu: Mask, start: Floats, end: Floats, bounds: Floats) -> list[dict[PlanPart, Floats]]:
    """Return what the time between two instants goes to on each of m GPUs: first to kernels, the rest to links.

    `bounds` are the two of each of s spans, [s, 2, m].
    """
    chosen = is_gpu & (links < 0)
    covered = _covered(start, end, chosen, bounds)
    found = {PlanPart.COMPUTE: covered}
    for at in np.unique(links[links >= 0]).tolist():
        chosen = chosen | (links == at)
        wider = _covered(start, end, chosen, bounds)
        found[LINKS[at]] = wider - covered
        covered = wider
    found[PlanPart.HOST] = bounds[:, 1] - bounds[:, 0] - covered
    return [{part: times[span] for part, times in found.items()} for span in range(len(bounds))]


def _covered(start: Floats, end: Floats, chosen: Mask, bounds: Floats) -> Floats:
    """Return how long some nodes ran within each span, [s, m]."""
    found = np.zeros((len(bounds), bounds.shape[2]))
    for column in range(bounds.shape[2]):
        reach = covered_before(start[chosen, column], end[chosen, column], bounds[:, :, column].ravel())
        found[:, column] = np.diff(reach.reshape(-1, 2), axis=1)[:, 0]
    return found


def _log_widths(prediction: Prediction, workload: GpuWorkload) -> tuple[Floats, Floats]:
    """Return the half-widths of the kernels' time together and of the collectives', natural log, [m] each."""
    is_link = workload.is_family(Family.COLLECTIVE)
    return busy_half_width(prediction, workload.family, ~is_link), busy_half_width(prediction, workload.family, is_link)


def _experts_share(prediction: Prediction, workload: GpuWorkload, trace: Trace, is_last: Rows) -> Floats:
    """Return which part of the time of a micro batch's kernels goes to layers of experts, [m].

    These are what the module of their products runs, and where that is called `experts`, what its parent does: the
    measured layers sort rows, multiply, and add up as well.
    """
    modules = trace.ops.module[workload.op]
    paths = {
        _layer_path(trace.strings[module])
        for module, work in zip(modules.tolist(), workload.works, strict=True)
        if module >= 0 and work is not None and isinstance(work.dims, MatmulDims) and work.dims.is_grouped
    }
    if not paths:
        return np.zeros(len(prediction.fleet.gpus))
    layers = np.array([_layer_path(path) in paths for path in trace.strings] + [False], dtype=bool)
    phase = trace.ops.phase[workload.op]
    is_link = workload.is_family(Family.COLLECTIVE)
    usual = ~is_link & ((phase == Phase.FORWARD) | (phase == Phase.BACKWARD)) & (is_last[workload.op] == 0)
    time_ns = prediction.time_ns * prediction.weight[:, None]
    mine = time_ns[usual & layers[modules]].sum(axis=0)
    return np.asarray(mine / np.maximum(time_ns[usual].sum(axis=0), 1.0))


def _layer_path(path: str) -> str:
    return re.sub(r"\.experts(\..*)?$", "", path)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanAnchor:
    """Hold by what a known run multiplies what the models say, on m GPUs."""

    op_factor: Floats = field(default_factory=lambda: np.ones((0, 1)))
    """Of each op of the recording that plans are derived from, [ops, m]."""
    compute_factor: Floats = field(default_factory=lambda: np.ones(1))
    """Of all kernels but collectives, [m] or [1]."""
    host_ratio: float = 1.0
    """The host's time over that of the synthetic one."""
    log_width: Floats | None = None
    """Half-width of the 90 % interval of the kernels' time that is left, natural log, [m] or [1]; None: as without."""


def _row_factors(anchor: PlanAnchor, rank: RankTrace, workload: GpuWorkload, gpu_count: int) -> Floats:
    """Return the factor of each row of a piece's workload, [d, m]: the mean of its ops'; 1 for collectives."""
    rows = workload.row_of
    known = np.flatnonzero((rows >= 0) & (rank.source_op >= 0) & (rank.source_op < len(anchor.op_factor)))
    total, count = np.zeros((len(workload.op), gpu_count)), np.zeros(len(workload.op))
    if len(known):
        np.add.at(total, rows[known], anchor.op_factor[rank.source_op[known]])
        np.add.at(count, rows[known], 1.0)
    mean = np.divide(total, count[:, None], out=np.ones_like(total), where=count[:, None] > 0)
    is_link = workload.is_family(Family.COLLECTIVE)
    return np.where(is_link[:, None], 1.0, mean * anchor.compute_factor)


_BESIDE: Final = {PlanPart.TENSOR: Family.MATMUL, PlanPart.CONTEXT: Family.ATTENTION}
"""What collectives that run in pieces run beside."""


def hide_beside(
    trace: Trace, workload: GpuWorkload, prediction: Prediction, collectives: Rows, family: Family
) -> tuple[Rows, Floats]:
    """Return ops and by what their time is multiplied, [k, m], where collectives run beside the next op of a family.

    Of p ranks, a gather ends with the first of p pieces to be multiplied (or, in a ring of keys and values, attended
    to) and what sums up waits for the last one: all but 1/p is hidden, as far as the op lasts, which takes longer by
    what it meets (Transformer Engine does so; the share is the study's of many GPUs). `collectives` are rows of
    `trace.ops`.
    """
    products = np.flatnonzero(at_rows(workload.is_family(family), workload.row_of, False))
    count = len(prediction.fleet.gpus)
    if not len(products) or not len(collectives):
        return np.zeros(0, dtype=np.int64), np.zeros((0, count))
    gathers = np.array(["gather" in name for name in trace.strings], dtype=bool)[trace.ops.name[collectives]]
    after = np.minimum(np.searchsorted(products, collectives), len(products) - 1)
    near = products[np.where(gathers, after, np.maximum(after - 1, 0))]
    ranks = np.ones(len(trace.ops.name))
    known = np.flatnonzero(trace.collectives.op >= 0)
    ranks[trace.collectives.op[known]] = np.maximum(trace.groups.size[trace.collectives.group[known]], 1)
    sent_ns = prediction.time_ns[workload.row_of[collectives]]
    product_ns = prediction.time_ns[workload.row_of[near]]
    hidden_ns = np.minimum(sent_ns * (1.0 - 1.0 / ranks[collectives])[:, None], product_ns)
    busy = np.unique(near)
    met_ns = np.zeros((len(busy), count))
    np.add.at(met_ns, np.searchsorted(busy, near), hidden_ns)
    own_ns = prediction.time_ns[workload.row_of[busy]]
    slower = 1.0 + (1.0 - 1.0 / WITHIN_SLOWING) * np.minimum(met_ns / np.maximum(own_ns, 1.0), 1.0)
    left = 1.0 - hidden_ns / np.maximum(sent_ns, 1.0)
    return np.concatenate((collectives, busy)), np.concatenate((left, slower))


def hide_beside_passes(
    trace: Trace, workload: GpuWorkload, prediction: Prediction, collectives: Rows
) -> tuple[Rows, Floats]:
    """Return ops and by what their time is multiplied, [k, m], where collectives run beside another micro batch.

    The forward pass of one and the backward pass of another run together, so that what one sends hides behind what the
    other computes, as long as that lasts (Megatron-Core's combined 1F1B, `overlap_moe_expert_parallel_comm`); it takes
    longer by what it meets. What the first and last micro batches send is taken to hide as well. `collectives` are
    rows of `trace.ops`.
    """
    count = len(prediction.fleet.gpus)
    passes = (trace.ops.phase == Phase.FORWARD) | (trace.ops.phase == Phase.BACKWARD)
    computing = np.flatnonzero(at_rows(~workload.is_family(Family.COLLECTIVE), workload.row_of, False) & passes)
    if not len(computing) or not len(collectives):
        return np.zeros(0, dtype=np.int64), np.zeros((0, count))
    sent_ns = prediction.time_ns[workload.row_of[collectives]].sum(axis=0)
    lasts_ns = prediction.time_ns[workload.row_of[computing]].sum(axis=0)
    hidden_ns = np.minimum(sent_ns, lasts_ns)
    left = 1.0 - hidden_ns / np.maximum(sent_ns, 1.0)
    slower = 1.0 + (1.0 - 1.0 / WITHIN_SLOWING) * hidden_ns / np.maximum(lasts_ns, 1.0)
    return (
        np.concatenate((collectives, computing)),
        np.concatenate((np.tile(left, (len(collectives), 1)), np.tile(slower, (len(computing), 1)))),
    )
