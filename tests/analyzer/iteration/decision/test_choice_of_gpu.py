"""Which GPU is the answer, which rows are shown, and how a few compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from wavecast.analyzer.iteration.decision.amounts import SHOWN_ROWS, Selection
from wavecast.analyzer.iteration.decision.chances import pair_gpus
from wavecast.analyzer.iteration.decision.decide import with_totals
from wavecast.analyzer.iteration.decision.goal import Goal, RunLength
from wavecast.analyzer.iteration.decision.selection import SHOWN_TIES, choose_gpus, shown_rows
from wavecast.analyzer.iteration.report import AnalysisReport, BatchChoice, GpuPrediction, RankPair

BuildRow = Callable[..., GpuPrediction]
BuildReport = Callable[..., AnalysisReport]


def test_of_ties_the_cheapest_is_named(build_row: BuildRow, build_report: BuildReport) -> None:
    rows = [
        build_row("A", 10.0, price=5.0),
        build_row("B", 10.05, price=2.0),
        build_row("C", 10.09, price=3.0),
        build_row("D", 10.2, price=1.0),
        build_row("E", 10.01, price=0.1, fits=False),
    ]
    choice = choose_gpus(build_report(*rows))
    assert (choice.best, choice.tied_count, choice.cheapest_tied) == ("A", 3, "B")
    assert (choice.fastest, choice.cheapest, choice.fitting_count, choice.asked_count) == ("A", "D", 4, 5)


def test_a_reference_is_no_answer(build_row: BuildRow, build_report: BuildReport) -> None:
    source = build_row("S", 1.0, price=0.01, is_source=True, is_reference=True)
    choice = choose_gpus(build_report(source, build_row("A", 5.0, price=1.0), build_row("B", 6.0)))
    assert (choice.best, choice.fastest, choice.cheapest, choice.asked_count) == ("A", "A", "A", 2)


def test_where_nothing_fits_nothing_is_chosen(build_row: BuildRow, build_report: BuildReport) -> None:
    choice = choose_gpus(build_report(build_row("A", 5.0, price=1.0, fits=False)))
    assert (choice.best, choice.cheapest, choice.fitting_count) == (None, None, 0)


@pytest.mark.parametrize(
    ("width", "chosen", "untested"),
    [(2.0, "tested", "new"), (0.5, "new", None)],  # the tested one takes and costs twice as much
)
def test_an_untested_gpu_is_the_answer_only_where_no_tested_one_is_within_its_interval(
    width: float, chosen: str, untested: str | None, build_row: BuildRow, build_report: BuildReport
) -> None:
    rows = [
        build_row("new", 10.0, price=1.0, width=width, untested="no GPU of its kind was measured"),
        build_row("tested", 20.0, price=1.0),
        build_row("slow", 60.0, price=1.0),
    ]
    run = RunLength(goal=Goal(count=3.6e5), iterations=3.6e5)
    choice = choose_gpus(build_report(*with_totals(rows, run), run=run))
    assert {choice.best, choice.fastest, choice.cheapest, choice.taken} == {chosen}
    assert (choice.untested_fastest, choice.untested_cheapest) == (untested, untested)
    assert choice.tied_count == 1


def test_no_untested_gpu_is_said_to_be_sure_beside_a_tested_one(build_row: BuildRow, build_report: BuildReport) -> None:
    rows = [
        build_row("new", 8.0, price=1.0, width=0.2, untested="why"),
        build_row("tested", 9.0, price=1.0, width=1.0),
    ]
    run = RunLength(goal=Goal(count=3.6e6, deadline_ns=10 * 3600e9), iterations=3.6e6)
    choice = choose_gpus(build_report(*with_totals(rows, run), run=run))
    assert (choice.taken, choice.surely_taken, choice.untested_cheapest) == ("tested", None, "new")


def test_of_untested_gpus_alone_one_is_the_answer(build_row: BuildRow, build_report: BuildReport) -> None:
    rows = [build_row(name, time, price=1.0, untested="why") for name, time in (("A", 5.0), ("B", 6.0))]
    choice = choose_gpus(build_report(*rows))
    assert (choice.best, choice.cheapest, choice.untested_fastest) == ("A", "A", None)


@pytest.mark.parametrize(
    ("limits", "taken", "surely"),
    [
        ({}, "slow", "slow"),
        ({"deadline_ns": 21 * 3600e9}, "slow", "fast"),
        ({"deadline_ns": 15 * 3600e9}, "fast", "fast"),
        ({"deadline_ns": 11 * 3600e9}, "fast", None),
        ({"deadline_ns": 5 * 3600e9}, None, None),
        ({"budget_usd": 25.0}, "slow", "slow"),
        ({"deadline_ns": 15 * 3600e9, "budget_usd": 25.0}, None, None),
    ],
)
def test_the_cheapest_that_keeps_its_limits(
    limits: dict[str, Any], taken: str | None, surely: str | None, build_row: BuildRow, build_report: BuildReport
) -> None:
    run = RunLength(goal=Goal(count=3.6e6, **limits), iterations=3.6e6)
    rows = with_totals(
        [
            build_row("fast", 10.0, price=4.0, width=0.2),
            build_row("slow", 20.0, price=1.0, width=0.2),
            build_row("unpriced", 12.0, width=0.2),
            build_row("too small", 15.0, price=0.1, fits=False),
        ],
        run,
    )
    choice = choose_gpus(build_report(*rows, run=run))
    assert (choice.taken, choice.surely_taken) == (taken, surely)


@pytest.fixture
def many(build_row: BuildRow, build_report: BuildReport) -> Callable[..., AnalysisReport]:
    """Thirty ties, then thirty that are slower; the cheapest tie is at 20, the cheapest at 45, the source at 55."""

    def build(**asked: Any) -> AnalysisReport:
        ties = [build_row(f"tie {n}", 10.0, price=1.0 if n == 20 else 2.0) for n in range(30)]
        slower = [
            build_row(f"slow {n}", 20.0 + n, price=0.01 if n == 15 else 2.0, is_source=n == 25) for n in range(30)
        ]
        return build_report(*ties, *slower, selection=Selection(**asked))

    return build


def test_ties_are_folded_and_what_matters_stays(many: Callable[..., AnalysisReport]) -> None:
    shown = shown_rows(many())
    assert shown == (*range(SHOWN_TIES), 20, *range(30, 40), 45, 55)
    assert len(shown) == SHOWN_ROWS + 3


def test_rows_that_are_asked_for_are_shown(many: Callable[..., AnalysisReport]) -> None:
    assert shown_rows(many(rows=0)) == tuple(range(60))
    assert shown_rows(many(rows=3)) == (0, 1, 2, 20, 45, 55)


def test_a_short_table_is_shown_whole(build_row: BuildRow, build_report: BuildReport) -> None:
    rows = [build_row(f"tie {n}", 10.0) for n in range(17)]
    assert shown_rows(build_report(*rows)) == tuple(range(17))


def test_the_best_is_held_against_each_other(build_row: BuildRow) -> None:
    rows = [
        build_row("A", 5.0, price=4.0, width=0.1),
        build_row("B", 10.0, price=2.0, width=0.2),
        build_row("C", 20.0),
        build_row("D", 1.0, fits=False),
    ]
    known = RankPair(first="B", second="A", ratio_low=1.6, ratio_high=2.5, faster=0.0, cheaper=0.5)
    first, second = pair_gpus(rows, [known])
    assert (first.gpu.gpu, first.other.gpu, first.speed, first.cost) == ("A", "B", 2.0, 1.0)
    assert (first.speed_low, first.speed_high) == pytest.approx((1.6, 2.5))
    assert (second.other.gpu, second.cost) == ("C", None)
    assert (second.speed_low, second.speed_high) == (None, None)


def test_few_gpus_are_held_against_the_source_and_many_against_nothing(build_row: BuildRow) -> None:
    source = build_row("S", 1.0, is_source=True, is_reference=True)
    pairs = pair_gpus([build_row("A", 0.5), source, build_row("B", 5.0)])
    assert [(item.gpu.gpu, item.other.gpu, item.speed) for item in pairs] == [("A", "S", 2.0), ("B", "S", 0.2)]
    assert pair_gpus([build_row("A", 5.0)]) == ()
    assert pair_gpus([build_row(str(n), 5.0) for n in range(6)]) == ()


def test_where_batches_are_compared_the_best_rate_is_the_fastest(
    build_row: BuildRow, build_report: BuildReport
) -> None:
    def at_best(gpu: str, time_ms: float, rate: float, price: float) -> GpuPrediction:
        batches = BatchChoice(largest_batch=8, best_batch=8, best_samples_per_s=rate)
        return build_row(gpu, time_ms, price=price, batches=batches)

    rows = [at_best("quick once", 1.0, 100.0, 1.0), at_best("quick in all", 2.0, 300.0, 4.0)]
    for sort in (None, "cost"):
        choice = choose_gpus(build_report(*rows, selection=Selection(sort=sort)))
        assert (choice.fastest, choice.cheapest) == ("quick in all", "quick once")
