"""Pipelines: the order of passes, and how long they take."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from wavecast.analyzer.questions.scale.schedule import BACKWARD, FORWARD, StageTimes, run_pipeline, stage_passes
from wavecast.analyzer.whatif.parallel.plan import PipelineSchedule
from wavecast.errors import InputError


def build_times(stages: int, chunks: int = 1, *, spread: float = 0.0, send: float = 0.0) -> StageTimes:
    drawn = np.random.default_rng(1).random((stages * chunks, 2))
    forward = 1.0 + spread * drawn
    return StageTimes(
        forward_ns=forward,
        backward_ns=2.0 * forward,
        last_backward_ns=2.0 * forward,
        send_ns=np.full(2, send),
        closing_ns=np.zeros((stages, 2)),
    )


@pytest.mark.parametrize(
    ("stages", "chunks", "micro_batches", "schedule", "expected"),
    [
        (1, 1, 5, None, 5 * 3),
        (4, 1, 8, None, (8 + 3) * 3),
        (4, 1, 8, PipelineSchedule.GPIPE, (8 + 3) * 3),
        # Interleaved: the bubble is parted by the pieces per stage (Narayanan et al. 2021, section 2.2).
        (4, 2, 8, None, 8 * 2 * 3 + 3 * 3),
        (4, 4, 64, None, 64 * 4 * 3 + 3 * 3),
        (8, 1, 512, None, (512 + 7) * 3),
    ],
)
def test_equal_stages_take_what_the_closed_form_says(
    stages: int, chunks: int, micro_batches: int, schedule: PipelineSchedule | None, expected: float
) -> None:
    run = run_pipeline(build_times(stages, chunks), stages=stages, micro_batches=micro_batches, schedule=schedule)
    np.testing.assert_allclose(run.step_ns, expected)
    np.testing.assert_allclose(run.work_ns, 3 * micro_batches * chunks)


@pytest.mark.parametrize("schedule", list(PipelineSchedule))
def test_a_stage_runs_every_pass_once_and_each_forward_before_its_backward(schedule: PipelineSchedule) -> None:
    chunks = 1 if schedule is PipelineSchedule.ONE_F_ONE_B else 3
    for stage in range(4):
        passes = stage_passes(stage, 4, chunks, 8, schedule)
        assert len(passes) == len(set(passes)) == 2 * 8 * chunks
        place = {item: at for at, item in enumerate(passes)}
        assert all(place[FORWARD, piece, micro] < place[BACKWARD, piece, micro] for _, piece, micro in passes)
        assert {piece % 4 for _, piece, _ in passes} == {stage}


@pytest.mark.parametrize(("stages", "chunks"), [(4, 1), (4, 2), (6, 1)])
def test_many_micro_batches_repeat_a_round(stages: int, chunks: int) -> None:
    """What is not simulated is at most 0.5 % off: beside the sum of every later round that is."""
    times = build_times(stages, chunks, spread=0.3, send=0.05)
    counts = [stages * rounds for rounds in (5, 6, 12, 13)]
    steps = [run_pipeline(times, stages=stages, micro_batches=count).step_ns for count in counts]
    per_round = steps[1] - steps[0]
    np.testing.assert_allclose(steps[3], steps[0] + 8 * per_round, rtol=5e-3)
    slowest = (times.forward_ns + times.backward_ns).reshape(-1, stages, 2).sum(axis=0).max(axis=0)
    assert np.all(steps[3] >= slowest * counts[3])


def test_slower_links_and_more_micro_batches_are_never_faster() -> None:
    for sends in pairwise((0.0, 0.1, 1.0)):
        near, far = (
            run_pipeline(build_times(4, 2, spread=0.2, send=send), stages=4, micro_batches=16).step_ns for send in sends
        )
        assert np.all(near <= far)
    for counts in pairwise((4, 8, 16, 64, 256)):
        few, many = (run_pipeline(build_times(4), stages=4, micro_batches=count).step_ns for count in counts)
        assert np.all(few < many)


def test_micro_batches_that_stages_do_not_divide_are_refused_interleaved() -> None:
    with pytest.raises(InputError, match="6 micro batches on 4 interleaved stages: expected a multiple"):
        run_pipeline(build_times(4, 2), stages=4, micro_batches=6)
