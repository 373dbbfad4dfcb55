"""The timeline of a plan for ui.perfetto.dev: a process per stage of the pipeline, a track per kind of work."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from ....arrays import Floats
from ....formats.perfetto.timeline import EventFile, EventSlices, EventTrack, save_events
from ....records import dataclass
from ...whatif.parallel.grammar import format_plan
from ...whatif.parallel.plan import PipelineSchedule
from .forecast import PlanForecast
from .parts import LINKS, PlanPart
from .pieces import PASSES
from .schedule import FORWARD, order_passes, stage_passes

TRACKS: Final = (
    ("passes", ()),
    ("compute", (PlanPart.COMPUTE, PlanPart.OPTIMIZER)),
    ("communication that nothing hides", LINKS),
    ("waits for the host", (PlanPart.HOST,)),
)
"""Rows of a stage, and which parts of its passes they show; the first shows whole passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slice:
    stage: int
    track: int
    start_ns: float
    length_ns: float
    name: str
    micro_batch: int | None


def save_plan_timeline(forecast: PlanForecast, gpu_name: str, path: Path) -> None:
    """Write when each stage of a plan runs which pass on a GPU; gzipped where the name ends in `.gz`.

    Within a pass, what it goes to is drawn one after the other: the passes' lengths are replayed, the order inside one
    is not kept. Ranks of a stage run alike; stragglers come on top and are not drawn.
    """
    column = next(at for at, gpu in enumerate(forecast.gpus) if gpu.name == gpu_name)
    slices = list(_slices(forecast, column))
    names = list(dict.fromkeys(item.name for item in slices))
    stages, count = forecast.plan.pp, len(TRACKS)
    per_stage = forecast.plan.ranks // stages
    table = EventSlices(
        track=np.array([item.stage * count + item.track for item in slices], dtype=np.int64),
        start_ns=np.array([round(item.start_ns) for item in slices], dtype=np.int64),
        duration_ns=np.array(
            [round(item.start_ns + item.length_ns) - round(item.start_ns) for item in slices], dtype=np.int64
        ),
        name=np.array([names.index(item.name) for item in slices], dtype=np.int64),
        category="plan",
        args={"micro batch": [item.micro_batch for item in slices]},
    )
    file = EventFile(
        processes=tuple(f"stage {stage} of {stages}: {per_stage:,} {gpu_name}" for stage in range(stages)),
        tracks=tuple(EventTrack(process=stage, name=name) for stage in range(stages) for name, _ in TRACKS),
        names=tuple(names),
        slices=(table,),
        about={"plan": format_plan(forecast.plan), "gpu": gpu_name},
    )
    save_events(file, path)


def _slices(forecast: PlanForecast, column: int) -> Iterator[_Slice]:
    plan = forecast.plan
    schedule = plan.schedule or (PipelineSchedule.INTERLEAVED if plan.vp > 1 else PipelineSchedule.ONE_F_ONE_B)
    lanes = [stage_passes(at, plan.pp, plan.vp, forecast.micro_batches, schedule) for at in range(plan.pp)]
    ends = iter(_pass_ends(forecast, column, schedule).tolist())
    for stage, lane in enumerate(lanes):
        done = 0.0
        for kind, piece, micro in lane:
            is_last = kind != FORWARD and micro == forecast.micro_batches - 1
            name = "forward" if kind == FORWARD else "last_backward" if is_last else "backward"
            done = next(ends)
            yield from _pass_slices(forecast, column, stage, piece, name, done, micro)
        for piece in range(stage, plan.pp * plan.vp, plan.pp):
            done += _length(forecast, column, piece, "optimizer")
            yield from _pass_slices(forecast, column, stage, piece, "optimizer", done, None)


def _pass_slices(
    forecast: PlanForecast, column: int, stage: int, piece: int, name: str, end_ns: float, micro: int | None
) -> Iterator[_Slice]:
    """Yield a pass that ends at an instant, and below it what it goes to."""
    length = _length(forecast, column, piece, name)
    at = end_ns - length
    shown = name.replace("last_", "").replace("_", " ")
    label = shown if forecast.plan.vp == 1 else f"{shown} of piece {piece}"
    if length > 0:
        yield _Slice(stage=stage, track=0, start_ns=at, length_ns=length, name=label, micro_batch=micro)
    for track, (_, parts) in enumerate(TRACKS):
        for part in parts:
            spent = float(forecast.pieces[forecast.piece_of[piece]].parts[name].get(part, np.zeros(column + 1))[column])
            if spent > 0:
                yield _Slice(stage=stage, track=track, start_ns=at, length_ns=spent, name=part.value, micro_batch=micro)
                at += spent


def _length(forecast: PlanForecast, column: int, piece: int, name: str) -> float:
    return float(forecast.pieces[forecast.piece_of[piece]].length_ns(name)[column])


def _pass_ends(forecast: PlanForecast, column: int, schedule: PipelineSchedule) -> Floats:
    """Return when each pass ends, those of one stage after those of the one before, in order."""
    plan = forecast.plan
    order = order_passes(plan.pp, plan.vp, forecast.micro_batches, schedule)
    own = np.array(
        [_length(forecast, column, piece, name) for name in PASSES[:3] for piece in range(plan.pp * plan.vp)]
    )[order.duration]
    sent = order.is_sent * float(forecast.send_ns[column])
    end = np.zeros(len(own) + 1)
    for begin, stop in zip(order.bounds[:-1].tolist(), order.bounds[1:].tolist(), strict=True):
        arrival = end[order.source[begin:stop]] + sent[begin:stop]
        end[begin:stop] = np.maximum(arrival, end[order.before[begin:stop]]) + own[begin:stop]
    # The passes of each stage in order, found from its last one back to its first.
    none, found = len(order.before), list[int]()
    for row in order.last.tolist():
        lane, at = list[int](), row
        while at != none:
            lane.append(at)
            at = int(order.before[at])
        found += lane[::-1]
    return np.asarray(end[np.array(found, dtype=np.int64)])
