"""What a whole run comes to: iterations, time, cost, and whether limits are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import wavecast
from wavecast.analyzer.iteration.decision.decide import with_totals
from wavecast.analyzer.iteration.decision.goal import Goal, GoalUnit, RunLength
from wavecast.analyzer.iteration.report import AnalysisReport, Certainty, GpuPrediction
from wavecast.errors import InputError
from wavecast.formats.trace.tables import Trace, Workload

BuildRow = Callable[..., GpuPrediction]
SAMPLES = Path(__file__).parents[4] / "samples"
GPT2 = SAMPLES / "gpt2_small-training-bf16-b4-shapes.json.gz"
TOKENS = 1024
"""Of each of GPT-2's samples, four an iteration."""


@pytest.fixture(scope="module")
def gpt2() -> Trace:
    return wavecast.load_trace(GPT2)


@pytest.fixture(scope="module")
def vit() -> Trace:
    return wavecast.load_trace(SAMPLES / "vit_b16-training-bf16-b32-shapes.json.gz")


def run_of(trace: Trace, goal: str, **asked: Any) -> RunLength:
    report = wavecast.analyze(trace, to="T4", goal=goal, **asked).report
    assert report.run is not None
    return report.run


@pytest.mark.parametrize(
    ("words", "goal"),
    [
        ("90000 iterations", Goal(count=9e4)),
        ("1 step", Goal(count=1)),
        ("3 epochs of 1281167 samples", Goal(count=1281167, unit=GoalUnit.SAMPLES, epochs=3)),
        ("3 Epochs of 1.28M  images", Goal(count=1.28e6, unit=GoalUnit.SAMPLES, epochs=3)),
        ("0.5 epoch of 10k steps", Goal(count=1e4, epochs=0.5)),
        ("2e9 tokens", Goal(count=2e9, unit=GoalUnit.TOKENS)),
        ("15T tokens", Goal(count=15e12, unit=GoalUnit.TOKENS)),
    ],
)
def test_words(words: str, goal: Goal) -> None:
    assert Goal.read(words) == goal


@pytest.mark.parametrize(
    "words", ["", "3", "3 epochs", "3 epochs of", "tokens", "-3 steps", "nan steps", "3 parsecs", "0 steps", "x" * 9999]
)
def test_words_that_say_nothing_are_refused(words: str) -> None:
    with pytest.raises(InputError, match=r"^goal"):
        Goal.read(words)


def test_a_goal_of_nothing_is_refused() -> None:
    wrong: tuple[dict[str, Any], ...] = ({"count": 0.0}, {"count": float("nan")}, {"count": 1.0, "budget_usd": -1.0})
    for values in wrong:
        with pytest.raises(InputError):
            Goal(**values)


def test_an_epoch_ends_with_a_whole_iteration(gpt2: Trace) -> None:
    assert run_of(gpt2, "9 samples").iterations == 3
    assert run_of(gpt2, "2 epochs of 9 samples").iterations == 6
    assert run_of(gpt2, "0.5 epochs of 9 samples").iterations == 2
    assert run_of(gpt2, "9 steps").iterations == 9


def test_tokens_are_counted_by_the_shapes(gpt2: Trace) -> None:
    assert run_of(gpt2, f"{40 * 4 * TOKENS} tokens").iterations == 40


def test_what_ifs_count(gpt2: Trace) -> None:
    assert run_of(gpt2, "1600 samples", batch=16).iterations == 100
    assert run_of(gpt2, f"{100 * 8 * 256} tokens", batch=8, sequence_length=256).iterations == 100


def test_the_rate_in_tokens_is_that_in_samples_times_their_length(gpt2: Trace, vit: Trace) -> None:
    text, image = (wavecast.analyze(trace, to="T4").report.predictions[0] for trace in (gpt2, vit))
    assert text.samples_per_s is not None
    assert text.tokens_per_s == pytest.approx(text.samples_per_s * TOKENS)
    assert image.tokens_per_s is None


def test_what_the_trace_does_not_say_is_asked_for(gpt2: Trace, vit: Trace) -> None:
    unsaid = replace(gpt2, meta=replace(gpt2.meta, workload=Workload()))
    with pytest.raises(InputError, match=r"shapes look like 4\): pass them with from_batch=N"):
        run_of(unsaid, "9 samples")
    assert run_of(unsaid, "9 samples", from_batch=4).iterations == 3
    with pytest.raises(InputError, match="from_sequence_length=N"):
        run_of(vit, "9 tokens")
    assert run_of(vit, f"{32 * 197} tokens", from_sequence_length=197).iterations == 1


def test_one_batch_is_meant(gpt2: Trace) -> None:
    with pytest.raises(InputError, match="largest_batch"):
        run_of(gpt2, "9 samples", largest_batch=True)


def total(row: GpuPrediction, **changes: Any) -> Any:
    return with_totals([row], RunLength(goal=Goal(count=1e6, **changes), iterations=1e6))[0].total


def test_totals_are_time_and_price_times_iterations(build_row: BuildRow) -> None:
    found = total(build_row("L4", 3.6, price=0.8, width=0.25), allowance_ratio=0.1)
    assert found.time_ns == pytest.approx(1.1 * 3600e9)
    assert (found.time_low_ns, found.time_high_ns) == pytest.approx((1.1 * 3600e9 / 1.25, 1.1 * 3600e9 * 1.25))
    assert (found.cost_usd, found.cost_low_usd, found.cost_high_usd) == pytest.approx((0.88, 0.704, 1.1))
    assert total(build_row("L4", 3.6)).cost_usd is None


@pytest.mark.parametrize(
    ("limit", "certainty"),
    [(1.3, Certainty.SURELY), (1.1, Certainty.LIKELY), (0.9, Certainty.HARDLY), (0.7, Certainty.NO)],
)
def test_limits_are_held_against_the_interval(limit: float, certainty: Certainty, build_row: BuildRow) -> None:
    row = build_row("L4", 3.6, price=1.0, width=0.25)
    found = total(row, deadline_ns=limit * 3600e9, budget_usd=limit)
    assert (found.in_time, found.in_budget) == (certainty, certainty)
    bare = replace(row, iteration_low_ns=None, iteration_high_ns=None)
    assert total(bare, deadline_ns=limit * 3600e9).in_time is (Certainty.LIKELY if limit > 1 else Certainty.NO)


def test_the_command_and_the_call_agree(gpt2: Trace) -> None:
    asked = wavecast.analyze(gpt2, sort="cost", only=("L4", "T4"), priced=True, goal="1e5 steps")
    report: AnalysisReport = asked.report
    costs = [row.total.cost_usd for row in report.predictions if row.total is not None]
    assert len(costs) == len(report.predictions) > 1
    assert costs == sorted(costs, key=lambda cost: cost or 0.0)
    assert report.ops_gpu == report.predictions[0].gpu
