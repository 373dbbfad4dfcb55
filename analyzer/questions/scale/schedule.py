"""How long an iteration takes whose micro batches go through a pipeline: its passes in order, on m GPUs at once."""

from functools import lru_cache
from itertools import chain, pairwise
from typing import Final

import numpy as np

from ....arrays import Floats, Mask, Rows, at_rows
from ....errors import InputError
from ....records import dataclass
from ...whatif.parallel.plan import PipelineSchedule

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


FORWARD, BACKWARD = 0, 1
Task = tuple[int, int, int]
"""Forward or backward, which piece of the model, which micro batch."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PipelineOrder:
    """Hold the passes of all stages, level after level: those of one level do not wait for each other."""

    bounds: Rows
    """Where each level begins and, last, how many passes there are."""
    duration: Rows
    """Of 3 p durations the pass's own: forward, backward, and last backward passes of p pieces."""
    before: Rows
    """The pass before on the same stage; one past the last: none."""
    source: Rows
    """The pass whose result is awaited; one past the last: none."""
    is_sent: Mask
    """Whether that result comes from another stage."""
    last: Rows
    """The last pass of each stage."""


@lru_cache(maxsize=64)
def order_passes(stages: int, chunks: int, micro_batches: int, schedule: PipelineSchedule) -> PipelineOrder:
    """Return the passes of a pipeline by level: one more than the deepest of those that a pass waits for.

    >>> order_passes(2, 1, 1, PipelineSchedule.ONE_F_ONE_B).bounds  # down and up again
    array([0, 1, 2, 3, 4])
    """
    pieces = stages * chunks
    lanes = [stage_passes(stage, stages, chunks, micro_batches, schedule) for stage in range(stages)]
    tasks = list(chain.from_iterable(lanes))
    total, number = len(tasks), {task: at for at, task in enumerate(tasks)}
    before = np.arange(-1, total - 1)
    starts = np.cumsum([0] + [len(lane) for lane in lanes])
    before[starts[:-1]] = total
    source = [number.get(_awaited(task, pieces), total) for task in tasks]
    kind, piece, micro = np.array(tasks, dtype=np.int64).T
    is_last = (kind == BACKWARD) & (micro == micro_batches - 1)
    level = _levels([starts[at : at + 2].tolist() for at in range(stages)], source)
    order = np.argsort(level, kind="stable")
    place = np.append(np.empty(total, dtype=np.int64), total)
    place[order] = np.arange(total)
    awaited = at_rows(piece, np.array(source, dtype=np.int64))
    return PipelineOrder(
        bounds=np.append(0, np.cumsum(np.bincount(level))),
        duration=((kind + is_last) * pieces + piece)[order],
        before=place[before][order],
        source=place[source][order],
        is_sent=((awaited >= 0) & (awaited % stages != piece % stages))[order],
        last=place[starts[1:] - 1],
    )


def stage_passes(stage: int, stages: int, chunks: int, micro_batches: int, schedule: PipelineSchedule) -> list[Task]:
    """Return what a stage runs, in order; piece k of the model is on stage k mod `stages`.

    1F1B after as many forward passes as there are stages behind, interleaved as Megatron-LM has it: rounds of
    `stages` micro batches through one piece after the other (Narayanan et al. 2021, arXiv:2104.04473, section 2.2).

    >>> [kind for kind, _, _ in stage_passes(0, 2, 1, 3, PipelineSchedule.ONE_F_ONE_B)]
    [0, 0, 1, 0, 1, 1]
    """
    total = micro_batches * chunks
    forward = [(FORWARD, stage + stages * chunk, micro) for chunk, micro in _rounds(stages, chunks, micro_batches)]
    backward = [
        (BACKWARD, stage + stages * (chunks - 1 - chunk), micro)
        for chunk, micro in _rounds(stages, chunks, micro_batches)
    ]
    behind = stages - 1 - stage
    ahead = behind if chunks == 1 else 2 * behind + (chunks - 1) * stages
    first = total if schedule is PipelineSchedule.GPIPE else min(ahead, total)
    paired = chain.from_iterable(zip(forward[first:], backward, strict=False))
    return [*forward[:first], *paired, *backward[total - first :]]


def _rounds(stages: int, chunks: int, micro_batches: int) -> list[tuple[int, int]]:
    """Return chunk and micro batch in the order of forward passes."""
    if chunks == 1:
        return [(0, micro) for micro in range(micro_batches)]
    return [
        (chunk, micro)
        for begin in range(0, micro_batches, stages)
        for chunk in range(chunks)
        for micro in range(begin, min(begin + stages, micro_batches))
    ]


def _awaited(task: Task, pieces: int) -> Task:
    """Return the pass whose result another one needs; one of no piece: none."""
    kind, piece, micro = task
    if kind == FORWARD:
        return FORWARD, piece - 1, micro
    return (BACKWARD, piece + 1, micro) if piece + 1 < pieces else (FORWARD, piece, micro)


def _levels(lanes: list[list[int]], source: list[int]) -> Rows:
    """Return how many passes one after the other each one ends; lanes run as far as they can, in turns."""
    none = len(source)
    level = [-1] * none + [-1]
    reached = [begin for begin, _ in lanes]
    is_done = [False] * none + [True]
    left = none
    while left:
        for lane, (begin, end) in enumerate(lanes):
            at = reached[lane]
            while at < end and is_done[source[at]]:
                level[at] = 1 + max(level[source[at]], level[at - 1] if at > begin else -1)
                is_done[at] = True
                at += 1
            left -= at - reached[lane]
            reached[lane] = at
    return np.array(level[:-1], dtype=np.int64)
