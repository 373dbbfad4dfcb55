"""A measured iteration predicted: its model synthesised, the plan's ranks derived from it, replayed and scheduled."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any, Final, cast

import numpy as np

from .....arrays import Floats
from .....records import dataclass, replace
from .....specs.fabric import usual_node
from .....specs.gpu import Gpu
from ....host.costs import load_host_costs
from ....models.library import Library
from ....prediction.shared_error import IterationKind, job_half_widths
from ....whatif.parallel.data_parallel import megatron_bucket
from ....whatif.parallel.derive import Shard, derive_ranks
from ....whatif.parallel.grammar import format_plan
from ....whatif.parallel.pieces import count_layers
from ....whatif.parallel.plan import GradientBuckets, ParallelPlan, check_plan
from ....whatif.parallel.ranks import RankTrace
from ....whatif.parallel.shard.shard import shard_tensors
from ...scale.forecast import Pipeline, PlanForecast, schedule_pieces
from ...scale.parts import PlanPart, hidden_parts
from ...scale.pieces import PASSES, PieceTimes, PlanGpus, replay_piece
from .rows import IterationRow, kernels_of, node_of, plan_of, publisher_of, sizes_of
from .sizes import Kernels, TransformerSizes
from .transformer import synthesise

JOB: Final = IterationKind(is_half=True, is_training=True, is_compiled=False)
"""What all measured iterations are."""
COMPUTING: Final = (PlanPart.COMPUTE, PlanPart.OPTIMIZER, PlanPart.BUBBLE)
"""Parts that go with the speed of kernels; a bubble is other stages' work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowForecast:
    """Hold what is predicted of a measured iteration."""

    plan: str
    step_ns: float
    low_ns: float
    high_ns: float
    shares: Mapping[str, float]
    """Of the step, by what it goes to."""

    def anchored_ns(self, measured_ns: float, its: RowForecast) -> float:
        """Return the step with kernels as much slower than predicted as another row's were, all else as predicted."""
        return self.step_ns * (1.0 + self._computing * (its.kernel_factor(measured_ns) - 1.0))

    def kernel_factor(self, measured_ns: float) -> float:
        """Return by what all kernels take longer than predicted where the whole step's error is theirs."""
        rest = 1.0 - self._computing
        return max((measured_ns / self.step_ns - rest) / max(self._computing, 1e-9), 0.1)

    @property
    def computing_share(self) -> float:
        """Return the share of the step that goes with the speed of kernels."""
        return sum(self.shares.get(part, 0.0) for part in COMPUTING)

    @property
    def _computing(self) -> float:
        return self.computing_share / max(1.0 - self.shares.get(PlanPart.STRAGGLERS, 0.0), 1e-9)


def forecast_row(
    row: IterationRow, gpu: Gpu, library: Library, known: Known, *, shared_log_width: float | None = None
) -> RowForecast:
    """Return the forecast of a row. Raises InputError for what is not known of it.

    `shared_log_width` is the half-width of the error that all kernels share, natural log; None: what the jobs of all
    other sources show.
    """
    plan = plan_of(row, gpu)
    place = PlanGpus(gpus=[gpu], library=library, nodes=[node_of(row, gpu)])
    found = _predict(sizes_of(row), kernels_of(row, gpu), row, plan, place, known, shared_log_width)
    step = float(found.step_ns[0])
    return RowForecast(
        plan=format_plan(plan),
        step_ns=step,
        low_ns=float(found.low_ns[0]),
        high_ns=float(found.high_ns[0]),
        shares={str(part): float(time_ns[0]) / step for part, time_ns in found.parts.items()},
    )


def _predict(
    sizes: TransformerSizes,
    kernels: Kernels,
    row: IterationRow,
    plan: ParallelPlan,
    place: PlanGpus,
    known: Known,
    shared_log_width: float | None,
) -> PlanForecast:
    gpu, node = place.gpus[0], place.nodes[0] if place.nodes else usual_node(place.gpus[0])
    shared = job_half_widths(JOB, (), place.gpus, without=publisher_of(row.source))
    if shared_log_width is not None:
        shared = np.full(1, shared_log_width)
    shape = (sizes, kernels, row.micro_batch, row.seq_len, replace(plan, micro_batches=None))
    links = (gpu.name, node.nic_bandwidth_bytes_per_s, node.link, node.gpu_count)
    key = (*shape, row.microbatches, *links, float(shared[0]))
    if key not in known:
        if (*shape, *links) not in known:
            trunk = (sizes, kernels, row.micro_batch, row.seq_len)
            known[*shape, *links] = replay_layers(trunk, plan, place, known)
        pipeline: Pipeline = known[*shape, *links]
        pieces = tuple(replace(piece, shared_log_width=shared) for piece in pipeline.pieces)
        known[key] = schedule_pieces(replace(pipeline, pieces=pieces), plan, place, micro_batches=row.microbatches)
    found: PlanForecast = known[key]
    return found


FEW: Final = (4, 8)
"""Layers of the pieces that the others are drawn from, as a line through both; pieces of no more layers are replayed
as they are. The edges (the first gather, the last bucket, a head's large gradient) lie within the fewer ones. Adapters'
gradients are so small that a bucket spans many layers: those models are replayed whole. Of 440 measured iterations the
others are at most 0.2 % off the replay of all layers."""
MOST_PIECES: Final = 3
"""Distinct ones of equal layers: the first with the embedding, those in the middle, the last with the head."""
_ONCE: Final = ("forward", "backward", "optimizer")

Trunk = tuple[TransformerSizes, Kernels, int, int]
"""A model, its kernels, samples of a micro batch and tokens of each."""
Known = dict[tuple[Any, ...], Any]
"""What was derived and predicted already: traces by layers, ranks by plan, pieces and forecasts by GPU and machine."""


def replay_layers(trunk: Trunk, plan: ParallelPlan, place: PlanGpus, known: Known) -> Pipeline:
    """Return the replayed pieces of a plan. Raises InputError for plans that cannot be."""
    check_plan(plan)
    count = plan.pp * plan.vp
    layers = piece_layers(trunk[0], count)
    kinds = [min(piece, 1) if piece < count - 1 else min(count, MOST_PIECES) - 1 for piece in range(count)]
    wanted = sorted(set(zip(kinds, layers, strict=True)))
    few: tuple[int, ...] = _few(trunk, plan)
    if max(layers) <= few[1] or trunk[1].lora_rank:
        few = tuple(sorted(set(layers)))
    ranks = {size: _derive(trunk, plan, size, known) for size in few}
    costs = load_host_costs()
    replayed: dict[tuple[int, int], PieceTimes] = {}

    def times(kind: int, size: int) -> PieceTimes:
        if (kind, size) not in replayed:
            rank = next(rank for rank in ranks[size] if kind in rank.pieces)
            replayed[kind, size] = replay_piece(rank, place, costs, hides=hidden_parts(plan))
        return replayed[kind, size]

    def drawn(kind: int, size: int) -> PieceTimes:
        return times(kind, size) if size in few else _draw_line(times(kind, few[0]), times(kind, few[1]), few, size)

    pieces = tuple(drawn(kind, size) for kind, size in wanted)
    piece_of = tuple(wanted.index(item) for item in zip(kinds, layers, strict=True))
    sent_bytes = max(rank.sent_bytes for found in ranks.values() for rank in found)
    return Pipeline(pieces=pieces, piece_of=piece_of, sent_bytes=sent_bytes)


def piece_layers(sizes: TransformerSizes, count: int) -> tuple[int, ...]:
    """Return how many layers each piece holds; one that predicts ahead as well what the full ones before it leave.

    So do Megatron-Bridge's layouts (`set_deepseek_v3_pipeline_model_parallel_layout`): of 61 layers 5 or 1.
    """
    if not sizes.predicts_ahead or count == 1:
        return count_layers(sizes.layers, count)
    last = max(sizes.layers - ceil(sizes.layers / count) * (count - 1), 1)
    return (*count_layers(sizes.layers - last, count - 1), last)


def _few(trunk: Trunk, plan: ParallelPlan) -> tuple[int, int]:
    """Return `FEW`, or as many layers as a bucket of gradients spans, and twice as many."""
    if plan.buckets is not GradientBuckets.MEGATRON:
        return FEW
    held = trunk[0].layer_parameters / plan.tp
    span = ceil(megatron_bucket(plan.dp * plan.cp) / held)
    return (span, 2 * span) if span > FEW[0] else FEW


def _draw_line(few: PieceTimes, more: PieceTimes, counts: tuple[int, ...], layers: int) -> PieceTimes:
    """Return the times of a piece of so many layers, as a line through those of two `counts`; none is under 0.

    Equal layers err together: by how much their kernels may be off lies on a line too.
    """
    share = (layers - counts[0]) / (counts[1] - counts[0])

    def line(one: Floats, two: Floats) -> Floats:
        return np.maximum(one + share * (two - one), 0.0)

    zero = np.zeros_like(few.lead_ns)
    names = {name: {**few.parts[name], **more.parts[name]} for name in PASSES}
    parts = {
        name: {part: line(few.parts[name].get(part, zero), more.parts[name].get(part, zero)) for part in names[name]}
        for name in PASSES
    }
    off_ns = line(few.compute_log_width * _compute_ns(few.parts), more.compute_log_width * _compute_ns(more.parts))
    return PieceTimes(
        lead_ns=more.lead_ns,
        parts=parts,
        compute_log_width=off_ns / np.maximum(_compute_ns(parts), 1.0),
        shared_log_width=more.shared_log_width,
        link_log_width=more.link_log_width,
    )


def _compute_ns(parts: Mapping[str, Mapping[PlanPart, Floats]]) -> Floats:
    """Return how long kernels run in a micro batch's passes and the optimizer's step, [m]."""
    shown = (parts[name].get(part) for name in _ONCE for part in (PlanPart.COMPUTE, PlanPart.OPTIMIZER))
    return np.asarray(np.sum([time_ns for time_ns in shown if time_ns is not None], axis=0))


def _derive(trunk: Trunk, plan: ParallelPlan, layers: int, known: Known) -> tuple[RankTrace, ...]:
    """Return what ranks run that hold pieces of so many layers each, three pieces at most."""
    count = min(plan.pp * plan.vp, MOST_PIECES)
    sizes, kernels, batch, tokens = trunk
    short = replace(plan, pp=count, vp=1, micro_batch=None, micro_batches=None)
    key = ("ranks", *trunk, short, layers)
    if key not in known:
        whole = (*trunk, count * layers)
        if whole not in known:
            known[whole] = synthesise(replace(sizes, layers=count * layers), kernels, batch, tokens)
        known[key] = derive_ranks(known[whole], short, shard=cast("Shard", shard_tensors))
    found: tuple[RankTrace, ...] = known[key]
    return found
