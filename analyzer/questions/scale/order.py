"""In which order the stages of a pipeline run their micro batches, and which of these passes wait for which."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import numpy as np

from ....arrays import Mask, Rows, at_rows
from ...whatif.parallel.plan import PipelineSchedule

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
