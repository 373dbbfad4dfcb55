"""Pieces of a deep model from pieces of few layers: what equal layers take goes up in a line with their number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

import numpy as np

from .....arrays import Floats
from ....host.costs import load_host_costs
from ....whatif.parallel.check import check_plan
from ....whatif.parallel.derive import Shard, derive_ranks
from ....whatif.parallel.pieces import count_layers
from ....whatif.parallel.plan import ParallelPlan
from ....whatif.parallel.ranks import RankTrace
from ....whatif.parallel.shard.shard import shard_tensors
from ...scale.forecast import Pipeline
from ...scale.parts import PlanPart
from ...scale.pieces import PASSES, PieceTimes, PlanGpus, replay_piece
from .sizes import Kernels, TransformerSizes
from .transformer import synthesise

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
    layers = count_layers(trunk[0].layers, count)
    kinds = [min(piece, 1) if piece < count - 1 else min(count, MOST_PIECES) - 1 for piece in range(count)]
    wanted = sorted(set(zip(kinds, layers, strict=True)))
    few = FEW if max(layers) > FEW[1] and not trunk[1].lora_rank else tuple(sorted(set(layers)))
    ranks = {size: _derive(trunk, plan, size, known) for size in few}
    costs = load_host_costs()
    replayed: dict[tuple[int, int], PieceTimes] = {}

    def times(kind: int, size: int) -> PieceTimes:
        if (kind, size) not in replayed:
            replayed[kind, size] = replay_piece(
                _rank_of(ranks[size], kind),
                place,
                costs,
                hides_tensor=plan.overlap_tensor,
                hides_experts=plan.overlap_experts,
            )
        return replayed[kind, size]

    def drawn(kind: int, size: int) -> PieceTimes:
        return times(kind, size) if size in few else draw_line(times(kind, FEW[0]), times(kind, FEW[1]), size)

    pieces = tuple(drawn(kind, size) for kind, size in wanted)
    piece_of = tuple(wanted.index(item) for item in zip(kinds, layers, strict=True))
    sent_bytes = max(rank.sent_bytes for found in ranks.values() for rank in found)
    return Pipeline(pieces=pieces, piece_of=piece_of, sent_bytes=sent_bytes)


def draw_line(few: PieceTimes, more: PieceTimes, layers: int) -> PieceTimes:
    """Return the times of a piece of so many layers, as a line through those of `FEW` layers; none is under 0.

    Equal layers err together: by how much their kernels may be off lies on a line too.
    """
    share = (layers - FEW[0]) / (FEW[1] - FEW[0])

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


def _rank_of(ranks: Sequence[RankTrace], piece: int) -> RankTrace:
    return next(rank for rank in ranks if piece in rank.pieces)


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
