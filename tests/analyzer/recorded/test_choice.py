"""Which of several recorded iterations is predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from wavecast.analyzer.recorded.choice import choose_iteration, list_numbers
from wavecast.analyzer.recorded.window import select_window, working_iterations
from wavecast.errors import InputError
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.tables import Trace, Workload

Recordings = Callable[[], Any]
STEP_NS = 10_000


def steps(recording: Any, *kernels_ns: int, unprofiled_ns: tuple[int, ...] = ()) -> Trace:
    """One step per number: an op and a kernel of that length (0: none); a step lasts twice as long as its kernel."""
    for number, length in enumerate(unprofiled_ns):
        recording.iteration(-STEP_NS * (number + 2), -STEP_NS * (number + 2) + length, profiled=False)
    at = 0
    for length in kernels_ns:
        end = at + max(2 * length, 100)
        recording.iteration(at, end, at, end)
        recording.op(at + 1, 20)
        if length:
            recording.launch(at + 2, 5, at + 10, length)
        at = end + 1
    return recording.trace()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("kernels_ns", "asked", "index"),
    [
        ((400, 0), None, 0),
        ((0, 400), None, 1),
        ((400, 10), None, 1),  # as many kernels as the other: short, not idle
        ((400, 300, 500), "median", 0),
        ((400, 300, 500), "longest", 2),
        ((400, 300, 500, 0), "median", 0),
        ((400, 300, 500), 1, 1),
        ((0, 0), None, 0),
    ],
)
def test_rules_choose_among_the_iterations_that_do_work(
    kernels_ns: tuple[int, ...], asked: int | str | None, index: int, recording: Any
) -> None:
    trace, choice = choose_iteration(steps(recording, *kernels_ns), asked)
    assert choice.index == index
    assert choice.count == len(kernels_ns)
    assert select_window(trace, choice.index).index == index
    if asked is None:
        assert select_window(trace).index == index


def test_idle_iterations_are_named(recording: Any) -> None:
    trace, choice = choose_iteration(steps(recording, 400, 0, 300))
    assert (choice.idle, choice.recorded) == ((1,), (0, 1, 2))
    assert working_iterations(trace).tolist() == [0, 2]


def test_without_kernels_ops_are_the_work(recording: Any) -> None:
    for start in (0, 1_000):
        recording.iteration(start, start + 900, start, start + 900)
    for number in range(3):
        recording.op(1_100 + number * 20, 10)
    trace, choice = choose_iteration(recording.trace())
    assert (choice.index, choice.idle) == (1, (0,))
    assert choose_iteration(trace, 0)[1].index == 0


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (3, "there is no iteration 3: the trace holds 3 iterations, numbers 0 to 2"),
        (1, r"iteration 1 put nothing on the GPU: give another \(0, 2\)"),
        ("shortest", "iteration 'shortest': expected a number, median, longest, prefill, decode, mixed or all"),
    ],
)
def test_what_there_is_not(asked: int | str, words: str, recording: Any) -> None:
    with pytest.raises(InputError, match=words):
        choose_iteration(steps(recording, 400, 0, 300), asked)


def test_numbers_are_those_of_the_file(recording: Any) -> None:
    trace = steps(recording, 400, 300, unprofiled_ns=(500, 600))
    assert choose_iteration(trace, 3)[1].index == 3
    with pytest.raises(InputError, match="iteration 1 was timed without the profiler: the trace holds 2 iterations"):
        choose_iteration(trace, 1)


@pytest.mark.parametrize(("asked", "index"), [(None, None), ("all", None), ("longest", None), (0, None)])
def test_a_recording_without_iterations_is_one(asked: int | str | None, index: int | None, recording: Any) -> None:
    recording.launch(0, 5, 10, 20)
    trace, choice = choose_iteration(recording.trace(), asked)
    assert (choice.index, choice.count) == (index, 1)
    assert select_window(trace, choice.index).kernel_rows.tolist() == [0]
    with pytest.raises(InputError, match="there is no iteration 1: the trace holds 1 iteration, number 0"):
        choose_iteration(trace, 1)


def test_all_as_one_spans_everything_in_the_iterations(recording: Any) -> None:
    before = steps(recording, 400, 0, 300)
    work = Workload(batch_size=8)
    trace, choice = choose_iteration(replace(before, meta=replace(before.meta, workload=work)), "all")
    window = select_window(trace, choice.index)
    assert (choice.rule, choice.index, choice.count) == ("all", None, 3)
    assert (len(window.kernel_rows), len(window.op_rows)) == (2, 3)
    assert window.duration_ns == before.iterations.end_ns[-1] - before.iterations.start_ns[0]
    assert trace.meta.workload.samples_per_iteration == 24


def test_another_than_the_median_one_is_longer_by_what_it_was_under_the_profiler(recording: Any) -> None:
    trace = steps(recording, 400, 300, 500, unprofiled_ns=(600, 620, 640))
    assert select_window(trace).duration_ns == 620
    longest = choose_iteration(trace, "longest")[1]
    assert select_window(trace, longest.index).duration_ns == pytest.approx(620 * 1000 / 800)
    whole, choice = choose_iteration(trace, "all")
    assert select_window(whole, choice.index).duration_ns == pytest.approx(620 * 2402 / 800, abs=1)


def test_rows_in_words() -> None:
    assert [list_numbers(rows) for rows in ((4,), (4, 5), (3, 4, 5), (1, 2, 4))] == ["4", "4, 5", "3 to 5", "1, 2, 4"]


def test_the_public_recording_of_two_steps(data_dir: Path) -> None:
    trace = load_trace(data_dir / "traces" / "odd" / "mi250_two_iterations.json.gz")
    window = select_window(trace)
    assert (window.index, len(window.kernel_rows)) == (0, 16)


@pytest.mark.parametrize("asked", ["all", "longest", 7])
def test_what_was_left_out_on_reading_is_not_passed_over_in_silence(asked: int | str, recording: Any) -> None:
    trace = steps(recording, 400)
    cut = replace(trace, quality=replace(trace.quality, iterations_left_out=4))
    with pytest.raises(InputError, match=r"4 (iterations )?were left out.*convert --iteration"):
        choose_iteration(cut, asked)
    assert choose_iteration(cut, "median")[1].index == 0
