"""How long an iteration takes under a parallel plan, and what on: its pieces replayed, then scheduled."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from ....arrays import Floats, Rows
from ....errors import InputError
from ....records import dataclass
from ....specs.fleet import Fleet, build_fleet
from ....specs.gpu import Gpu
from ...host.costs import load_host_costs
from ...iteration.decision.electricity import PowerDraw
from ...models.collective.problems import problems_of_dims
from ...models.frame.problems import as_columns
from ...models.library import Library
from ...whatif.parallel.plan import ParallelPlan, slowest_share
from ...whatif.parallel.ranks import RankTrace
from ...work.communication import CollectiveDims, CollectiveKind
from .parts import LINKS, PlanPart, hidden_parts
from .pieces import PASSES, PieceTimes, PlanGpus, replay_piece
from .power import plan_power
from .schedule import StageTimes, by_stage, run_pipeline

_NO_MODEL_LOG_WIDTH: Final = 0.5
"""Of collectives without an interval: a cluster left out is up to 40 % off from 16 MB on (the same study)."""
_NO_INTERVAL_LOG_WIDTH: Final = 0.3
"""Of kernels too many of which have no interval."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pipeline:
    """Hold the replayed pieces of a model under a plan."""

    pieces: tuple[PieceTimes, ...]
    """The distinct ones."""
    piece_of: tuple[int, ...]
    """Which of these each of the pp x vp pieces is, in order of the forward pass."""
    sent_bytes: float
    """That a rank sends from one piece to the next per micro batch."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanForecast:
    """Hold what an iteration takes under a plan on m GPUs, many of each."""

    plan: ParallelPlan
    gpus: tuple[Gpu, ...]
    micro_batches: int
    """Of each replica."""
    step_ns: Floats
    low_ns: Floats
    """Ends of the 90 % interval, [m]."""
    high_ns: Floats
    parts: Mapping[PlanPart, Floats]
    """What the busiest stage's time goes to, [m] each: they add up to `step_ns`."""
    pieces: tuple[PieceTimes, ...]
    """Of each distinct piece of the model."""
    piece_of: tuple[int, ...]
    """Which of these each of the pp x vp pieces is, in order of the forward pass."""
    send_ns: Floats
    """From one stage to the next, [m]."""
    power: tuple[PowerDraw, ...] = ()
    """What all GPUs of the plan draw together, m of them; none: pieces do not tell."""


def predict_plan(
    ranks: Sequence[RankTrace], plan: ParallelPlan, place: PlanGpus, *, micro_batches: int
) -> PlanForecast:
    """Predict an iteration of a plan from what its ranks run.

    `ranks` holds each distinct piece of the pipeline (`derive_ranks`), `micro_batches` is how many go through each
    replica.
    Raises InputError where a piece of the plan is missing, or its schedule cannot be run.
    """
    costs = load_host_costs().at_speed(place.host.speed_ratio)
    pieces = tuple(replay_piece(rank, place, costs, hides=hidden_parts(plan)) for rank in ranks)
    count = plan.pp * plan.vp
    found = {piece: at for at, rank in enumerate(ranks) for piece in rank.pieces}
    missing = [piece for piece in range(count) if piece not in found]
    if missing:
        raise InputError(f"no rank runs piece {missing[0]} of {count} of the pipeline: derive the ranks of this plan")
    piece_of = tuple(found[piece] for piece in range(count))
    return schedule_pieces(
        Pipeline(pieces=pieces, piece_of=piece_of, sent_bytes=max(rank.sent_bytes for rank in ranks)),
        plan,
        place,
        micro_batches=micro_batches,
    )


def schedule_pieces(pipeline: Pipeline, plan: ParallelPlan, place: PlanGpus, *, micro_batches: int) -> PlanForecast:
    """Predict an iteration of a plan from the times of its distinct pieces; see `predict_plan`."""
    pieces, piece_of, gpus = pipeline.pieces, pipeline.piece_of, place.gpus
    send_ns, fleet = np.zeros(len(gpus)), build_fleet(gpus, place.nodes)
    if plan.pp > 1:
        send_ns = _send_times(pipeline.sent_bytes, plan.tp * plan.cp * plan.replicas, fleet, place.library)
    times = _stage_times(pieces, piece_of, plan.pp, send_ns)
    run = run_pipeline(times, stages=plan.pp, micro_batches=micro_batches, schedule=plan.schedule)
    unsent = run
    if plan.pp > 1:
        at_once = _stage_times(pieces, piece_of, plan.pp, np.zeros(len(gpus)))
        unsent = run_pipeline(at_once, stages=plan.pp, micro_batches=micro_batches, schedule=plan.schedule)
    parts = _add_parts(pieces, piece_of, plan.pp, micro_batches, run.stage)
    parts[PlanPart.PIPELINE] = parts[PlanPart.PIPELINE] + run.step_ns - unsent.step_ns
    parts[PlanPart.BUBBLE] = np.maximum(unsent.step_ns - run.work_ns, 0.0)
    parts[PlanPart.HOST] = parts[PlanPart.HOST] + np.max([piece.lead_ns for piece in pieces], axis=0)
    parts[PlanPart.STRAGGLERS] = slowest_share(plan.ranks) * np.sum(list(parts.values()), axis=0)
    step_ns = np.asarray(np.sum(list(parts.values()), axis=0))
    log_width = _log_width(parts, pieces, step_ns, place)
    told = [piece.power for piece in pieces if piece.power is not None]
    return PlanForecast(
        plan=plan,
        gpus=tuple(gpus),
        micro_batches=micro_batches,
        step_ns=step_ns,
        low_ns=step_ns * np.exp(-log_width),
        high_ns=step_ns * np.exp(log_width),
        parts=parts,
        pieces=pieces,
        piece_of=piece_of,
        send_ns=send_ns,
        power=plan_power(told, piece_of, plan, fleet, micro_batches=micro_batches, sent_bytes=pipeline.sent_bytes)
        if len(told) == len(pieces)
        else (),
    )


def _send_times(sent_bytes: float, stride: int, fleet: Fleet, library: Library) -> Floats:
    """Return how long sending takes to the rank that is `stride` further, ns, [m]."""
    if sent_bytes <= 0:
        return np.zeros(len(fleet.gpus))
    dims = CollectiveDims(kind=CollectiveKind.SEND_RECEIVE, message_bytes=sent_bytes, ranks=2, run=1, stride=stride)
    return np.asarray(library.predict("collective", as_columns(problems_of_dims([dims])), fleet).time_ns[0])


def _stage_times(pieces: Sequence[PieceTimes], piece_of: tuple[int, ...], stages: int, send_ns: Floats) -> StageTimes:
    lengths = {name: np.stack([piece.length_ns(name) for piece in pieces])[list(piece_of)] for name in PASSES}
    return StageTimes(
        forward_ns=lengths["forward"],
        backward_ns=lengths["backward"],
        last_backward_ns=lengths["last_backward"],
        # Of a stage's pieces the first one's backward pass is its last: what the others send has ended by then.
        closing_ns=lengths["tail"][:stages] + by_stage(lengths["optimizer"], stages),
        send_ns=send_ns,
    )


def _add_parts(
    pieces: Sequence[PieceTimes], piece_of: tuple[int, ...], stages: int, micro_batches: int, stage: Rows
) -> dict[PlanPart, Floats]:
    """Return what the time of each GPU's busiest stage goes to, all its micro batches and pieces together."""
    usual = dict(zip(PASSES, (micro_batches, micro_batches - 1, 1, 0, 1), strict=True))
    columns = np.arange(len(stage))
    found = {}
    for part in PlanPart:
        zero = np.zeros(len(stage))
        each = [{name: piece.parts[name].get(part, zero) for name in PASSES} for piece in pieces]
        own = np.stack([sum((usual[name] * time_ns for name, time_ns in parts.items()), zero) for parts in each])
        tails = np.stack([each[piece]["tail"] for piece in piece_of[:stages]])
        found[part] = (by_stage(own[list(piece_of)], stages) + tails)[stage, columns]
    return found


def _log_width(
    parts: Mapping[PlanPart, Floats], pieces: Sequence[PieceTimes], step_ns: Floats, place: PlanGpus
) -> Floats:
    """Return the half-width of the step's 90 % interval, natural log, [m].

    Errors of kernels go with the GPU and are shared by all pieces; those of collectives, of the host and of how ranks
    straggle are independent of them.
    """
    kernels = np.max([_known(piece.compute_log_width, _NO_INTERVAL_LOG_WIDTH) for piece in pieces], axis=0)
    kernels = np.hypot(kernels, np.max([piece.shared_log_width for piece in pieces], axis=0))
    links = np.max([_known(piece.link_log_width, _NO_MODEL_LOG_WIDTH) for piece in pieces], axis=0)
    if place.anchor is not None and place.anchor.log_width is not None:
        kernels = np.broadcast_to(place.anchor.log_width, kernels.shape)
    # A bubble is other stages' work.
    computing = parts[PlanPart.COMPUTE] + parts[PlanPart.OPTIMIZER] + parts[PlanPart.BUBBLE]
    sent = np.sum([parts[part] for part in LINKS], axis=0)
    spread = (
        computing * kernels,
        sent * links,
        parts[PlanPart.HOST] * place.host.log_width,
        parts[PlanPart.STRAGGLERS],
    )
    return np.asarray(np.sqrt(np.sum(np.square(spread), axis=0)) / np.maximum(step_ns, 1.0))


def _known(log_width: Floats, otherwise: float) -> Floats:
    return np.where(np.isnan(log_width), otherwise, log_width)
