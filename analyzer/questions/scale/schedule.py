"""How long an iteration takes whose micro batches go through a pipeline: its passes in order, on m GPUs at once."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from ....arrays import Floats, Rows
from ....errors import InputError
from ...whatif.parallel.plan import PipelineSchedule
from .order import order_passes

_EXACT_ROUNDS: Final = 6
"""Rounds of as many micro batches as there are stages that are simulated; each one more takes what the last of them
did, or as long as the slowest stage works. The pipeline is full after one round; with stages that differ by a third it
is up to 0.3 % off (tests/analyzer/questions/scale/test_plan_schedule.py)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageTimes:
    """Say how long the pieces of a pipeline take on m GPUs, in order of the forward pass: pp x vp of them, [p, m]."""

    forward_ns: Floats
    backward_ns: Floats
    last_backward_ns: Floats
    """Of the last micro batch, with the collectives of gradients that run beside it."""
    send_ns: Floats
    """From one stage to the next, [m]: activations one way, gradients back."""
    closing_ns: Floats
    """What each stage does after its last backward pass: gradients that are still sent, the optimizer, [pp, m]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PipelineRun:
    """Say how long an iteration of a pipeline takes on m GPUs."""

    step_ns: Floats
    """From the first stage's start to the last one's end, [m]."""
    stage: Rows
    """The stage that works most, [m]."""
    work_ns: Floats
    """How long that stage works, its closing included, [m]; it waits for the rest of the step."""


def run_pipeline(
    times: StageTimes, *, stages: int, micro_batches: int, schedule: PipelineSchedule | None = None
) -> PipelineRun:
    """Return how long an iteration takes whose micro batches go through a pipeline.

    1F1B, interleaved where a stage holds several pieces, or GPipe. A stage goes on while it hands on what it computed.
    Many micro batches cost no more than a few rounds of them: the rest repeat the last round.
    Raises InputError where an interleaved schedule has micro batches that its stages do not divide.

    >>> pieces, stages = np.ones((4, 1)), np.zeros((4, 1))
    >>> times = StageTimes(
    ...     forward_ns=pieces,
    ...     backward_ns=2 * pieces,
    ...     last_backward_ns=2 * pieces,
    ...     send_ns=np.zeros(1),
    ...     closing_ns=stages,
    ... )
    >>> run_pipeline(times, stages=4, micro_batches=8).step_ns  # (8 + 4 - 1) * (1 + 2)
    array([33.])
    """
    chunks = len(times.forward_ns) // stages
    if schedule is None:
        schedule = PipelineSchedule.INTERLEAVED if chunks > 1 else PipelineSchedule.ONE_F_ONE_B
    _check(len(times.forward_ns), stages, micro_batches, schedule)
    each = times.forward_ns + times.backward_ns
    work = by_stage(micro_batches * each + times.last_backward_ns - times.backward_ns, stages) + times.closing_ns
    if stages == 1:
        ends = work - times.closing_ns
    else:
        most = _EXACT_ROUNDS * stages + micro_batches % stages
        few = min(micro_batches, most)
        ends = _stage_ends(times, stages, few, schedule)
        if micro_batches > few:
            round_ns = ends - _stage_ends(times, stages, few - stages, schedule)
            slowest_ns = stages * by_stage(each, stages).max(axis=0)
            ends = ends + (micro_batches - few) // stages * np.maximum(round_ns, slowest_ns)
    stage = work.argmax(axis=0)
    return PipelineRun(
        step_ns=(ends + times.closing_ns).max(axis=0), stage=stage, work_ns=work[stage, np.arange(work.shape[1])]
    )


def by_stage(values: Floats, stages: int) -> Floats:
    """Sum what pieces [p, m] take over those of each stage, [pp, m]: piece k is on stage k mod pp."""
    return np.asarray(values.reshape(-1, stages, values.shape[1]).sum(axis=0))


def _check(pieces: int, stages: int, micro_batches: int, schedule: PipelineSchedule) -> None:
    if micro_batches < 1 or pieces % stages:
        raise InputError(
            f"{pieces} pieces of a model on {stages} stages and {micro_batches} micro batches: expected as many pieces "
            "on each stage, and at least one micro batch"
        )
    if schedule is not PipelineSchedule.GPIPE and pieces > stages and micro_batches % stages:
        raise InputError(
            f"{micro_batches} micro batches on {stages} interleaved stages: expected a multiple of the stages; change "
            "the global batch or the micro batch, or take vp=1"
        )


def _stage_ends(times: StageTimes, stages: int, micro_batches: int, schedule: PipelineSchedule) -> Floats:
    """Return when each stage ends its last pass, [pp, m]: level after level of passes, each in one vectorised step."""
    order = order_passes(stages, len(times.forward_ns) // stages, micro_batches, schedule)
    own = np.concatenate((times.forward_ns, times.backward_ns, times.last_backward_ns))[order.duration]
    sent = order.is_sent[:, None] * times.send_ns
    end = np.zeros((len(own) + 1, own.shape[1]))
    bounds = order.bounds.tolist()
    for begin, stop in pairwise(bounds):
        arrival = end.take(order.source[begin:stop], axis=0)
        arrival += sent[begin:stop]
        np.maximum(arrival, end.take(order.before[begin:stop], axis=0), out=arrival)
        np.add(arrival, own[begin:stop], out=end[begin:stop])
    return np.asarray(end[order.last])
