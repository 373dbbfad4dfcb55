"""How sure a rank is, and what a measurement of one's own teaches."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import wavecast
from wavecast import load_trace
from wavecast.analyzer.iteration.analyze import report_on, run_analysis
from wavecast.analyzer.iteration.decision.chances import MOST_DRAWN, Chances, add_chances, chances_of
from wavecast.analyzer.iteration.decision.joint_errors import OWN, JointErrors, joint_errors, levels
from wavecast.analyzer.iteration.decision.observed import MEASURED, Observation, condition, correct_rows
from wavecast.analyzer.iteration.report import AnalysisReport, GpuPrediction
from wavecast.analyzer.iteration.result import Analysis
from wavecast.analyzer.questions.analyze.page.chances import chance_sentences
from wavecast.analyzer.questions.analyze.page.records import draw_report_json
from wavecast.arrays import Floats
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu

SAMPLES = Path(__file__).parents[3] / "samples"
TWINS = ("B200 SXM (HGX, 180GB)", "GB200 (per GPU)")


def run(name: str, *targets: str) -> Analysis:
    catalog = load_catalog()
    trace = load_trace(SAMPLES / f"{name}-shapes.json.gz")
    return run_analysis(trace, catalog, targets=[find_gpu(catalog, item) for item in targets])


@pytest.fixture(scope="module")
def every() -> Analysis:
    return run("resnet50-training-fp32-b32")


@pytest.fixture(scope="module")
def few() -> Analysis:
    return run("resnet50-training-fp32-b32", "L40S", "RTX 6000 Ada", "H100 SXM5 80GB")


def errors_of(deviations: list[float], correlation: float = 0.0) -> JointErrors:
    side = np.array(deviations)
    alike = np.full((len(side), len(side)), correlation)
    np.fill_diagonal(alike, 1.0)
    return JointErrors(fall=side[None], rise=side[None], correlation=alike[None])


def chances(times: list[float], errors: JointErrors, prices: list[float] | None = None) -> Chances:
    price = np.log(prices) if prices else np.full(len(times), np.nan)
    return Chances(time=np.log(times), price=price, errors=errors, may=np.ones(len(times), dtype=bool))


def row_of(report: AnalysisReport, name: str) -> GpuPrediction:
    return next(row for row in report.predictions if row.gpu.startswith(name))


def test_a_pair_is_told_apart_by_the_gap_over_the_joint_spread() -> None:
    found = chances([1.0, math.exp(0.2)], errors_of([0.3, 0.4], correlation=0.5))
    spread = math.sqrt(0.3**2 + 0.4**2 - 2 * 0.5 * 0.3 * 0.4)
    assert found.faster(0, 1) == pytest.approx(0.5 * (1 + math.erf(0.2 / spread / math.sqrt(2))))
    assert found.faster(0, 1) + found.faster(1, 0) == pytest.approx(1.0)


def test_only_the_sides_that_face_each_other_count() -> None:
    wide = JointErrors(fall=np.array([[9.0, 0.1]]), rise=np.array([[0.1, 9.0]]), correlation=np.eye(2)[None])
    assert chances([1.0, 2.0], wide).faster(0, 1) > 0.99


def test_shared_errors_tell_a_pair_apart() -> None:
    alone, shared = (chances([1.0, 1.1], errors_of([0.3, 0.3], part)) for part in (0.0, 0.95))
    assert alone.faster(0, 1) < 0.65
    assert shared.faster(0, 1) > 0.8


def test_the_ratio_of_two_is_as_wide_as_what_they_do_not_share() -> None:
    sides = np.array([[0.2, 0.2]])
    for shared, width in ((0.0, 0.2 * math.sqrt(2)), (1.0, 0.0)):
        alike = np.array([[[1.0, shared], [shared, 1.0]]])
        chances = Chances(
            time=np.log([2.0, 1.0]),
            price=np.full(2, np.nan),
            errors=JointErrors(fall=sides, rise=sides, correlation=alike),
            may=np.ones(2, dtype=bool),
        )
        low, high = chances.ratio(0, 1)
        assert low * high == pytest.approx(4.0)
        assert math.log(high / low) == pytest.approx(2 * 1.645 * width, abs=0.01)


def test_the_ends_of_a_ratio_are_of_the_sides_that_face_each_other() -> None:
    errors = JointErrors(fall=np.array([[0.1, 0.2]]), rise=np.array([[0.3, 0.4]]), correlation=np.eye(2)[None])
    low, high = chances([2.0, 0.5], errors).ratio(0, 1)
    assert math.log(low / 4.0) == pytest.approx(-1.645 * math.hypot(0.1, 0.4), abs=0.01)
    assert math.log(high / 4.0) == pytest.approx(1.645 * math.hypot(0.3, 0.2), abs=0.01)


def test_the_price_is_of_the_time_and_who_does_not_fit_has_no_chance(few: Analysis) -> None:
    report = report_on(few)
    names = [gpu.name for gpu in few.prediction.fleet.gpus]
    found = chances_of(report.predictions, names, joint_errors(few))
    hourly = [row.price_usd_per_hour for row in report.predictions]
    priced = [at for at, price in enumerate(hourly) if price is not None]
    dollars = np.exp(found.price[priced]) * (hourly[priced[0]] or 0) / np.exp(found.price[priced[0]])
    assert dollars == pytest.approx([hourly[at] for at in priced])
    first, *others = report.predictions
    tight = replace(report, predictions=(replace(first, fits=False, is_tight=False), *others))
    rated = add_chances(tight, few)
    assert (rated.predictions[0].chance_fastest, rated.predictions[0].chance_cheapest) == (None, None)
    assert all(first.gpu not in (pair.first, pair.second) for pair in rated.rank_pairs)


def test_of_two_the_drawn_chance_is_the_closed_one() -> None:
    found = chances([1.0, 1.2], errors_of([0.2, 0.3], 0.3), [1.0, 0.7])
    fastest, cheapest = found.first_places()
    assert fastest[0] == pytest.approx(found.faster(0, 1), abs=0.02)
    assert cheapest[0] == pytest.approx(found.cheaper(0, 1), abs=0.02)
    assert fastest.sum() == pytest.approx(1.0)


def test_equal_ones_share_the_first_place_and_those_that_do_not_fit_have_none() -> None:
    four = chances([1.0, 1.0, 1.0, 0.5], errors_of([0.1, 0.1, 0.1, 0.1]))
    found = replace(four, may=np.array([True, True, True, False])).first_places()[0]
    assert found[:3] == pytest.approx([1 / 3] * 3, abs=0.04)
    assert found[3] == 0


def test_of_very_many_those_that_stand_a_chance_are_drawn_together() -> None:
    times = [1.0, 1.01, *np.linspace(3.0, 4.0, MOST_DRAWN).tolist()]
    many = chances(times, errors_of([0.05] * len(times)), times[::-1]).first_places()
    few = chances(times[:2], errors_of([0.05, 0.05])).first_places()
    assert many[0][:2] == pytest.approx(few[0], abs=0.04)
    assert [found.sum() for found in many] == pytest.approx([1.0, 1.0])


def test_what_gpus_have_in_common() -> None:
    catalog = load_catalog()
    gpus = [find_gpu(catalog, name) for name in (*TWINS, "RTX 5090", "H100 NVL", "MI300X")]
    assert levels(gpus)[0].tolist() == [3, 3, levels(gpus)[0, 2], 1, 0]
    assert (levels(gpus) == levels(gpus).T).all()


def test_one_card_under_a_cap_is_surely_no_faster_than_without() -> None:
    both = run("resnet50-training-fp32-b32", "H100 SXM5 80GB", "H100 SXM5 80GB@500W")
    (pair,) = add_chances(report_on(both), both).rank_pairs
    assert pair.first == "H100 SXM5 80GB"
    assert pair.ratio_high / pair.ratio_low < 1.2
    assert pair.faster > 0.5


def test_errors_of_the_whole_catalogue_can_be_drawn(every: Analysis) -> None:
    errors = joint_errors(every)
    assert np.linalg.eigvalsh(errors.covariance).min() > 0
    assert errors.deviation.min() >= OWN
    names = [gpu.name for gpu in every.prediction.fleet.gpus]
    twins = [names.index(name) for name in TWINS]
    others = [names.index(TWINS[0]), names.index("H100 SXM5 80GB")]
    kernels = errors.correlation[0]
    assert kernels[tuple(twins)] > 0.9 > 0.3 > kernels[tuple(others)]


def test_chances_add_up_and_are_the_same_each_time(every: Analysis) -> None:
    report = report_on(every, op_limit=0)
    found, again = add_chances(report, every), add_chances(report, every)
    assert found == again
    fastest = [row.chance_fastest or 0.0 for row in found.predictions]
    assert sum(fastest) == pytest.approx(1.0)
    assert max(fastest) == pytest.approx(max(fastest[:6]))
    assert {row.chance_cheapest is None for row in found.predictions if row.price_usd_per_hour is None} == {True}


@pytest.mark.parametrize("targets", [["P100 SXM2"], ["P100 SXM2", "P100 PCIe 16GB"]])
def test_the_measured_gpu_counts_however_many_others_are_asked_for(targets: list[str]) -> None:
    answer = wavecast.analyze(SAMPLES / "vit_small-inference-bf16-b4-h100.json.gz", to=targets)
    source, *others = answer.report.predictions
    assert source.is_reference
    assert source.chance_fastest == pytest.approx(1.0, abs=0.01)
    assert sum(row.chance_fastest or 0.0 for row in others) < 0.01
    assert "H100 SXM5 80GB (the source) is faster than" in " ".join(chance_sentences(answer.report))


def test_a_single_gpu_has_no_rank() -> None:
    alone = run("gpt2_small-inference-bf16-b4", "L4")
    report = add_chances(report_on(alone, op_limit=0), alone)
    assert report.predictions[0].chance_fastest is None
    assert not list(chance_sentences(report))


def test_the_observed_time_stands_and_a_twin_follows(few: Analysis) -> None:
    report = report_on(few, op_limit=0)
    before = {row.gpu: row for row in report.predictions}
    seen = 1.3 * row_of(report, "L40S").iteration_ns
    after = correct_rows(report, few, [Observation(gpu="L40S", time_ns=seen)])
    mine = row_of(after, "L40S")
    assert (mine.iteration_ns, mine.is_observed) == (seen, True)
    assert mine.iteration_low_ns is not None
    assert mine.iteration_high_ns is not None
    assert math.log(mine.iteration_high_ns / mine.iteration_low_ns) == pytest.approx(2 * 1.645 * MEASURED)
    assert mine.gpu_busy_ns + sum(mine.idle_ns.values()) == pytest.approx(seen)
    twin, stranger = ("RTX 6000 Ada Generation", "H100 SXM5 80GB")
    moved = {name: row_of(after, name).iteration_ns / before[name].iteration_ns for name in (twin, stranger)}
    assert 1.15 < moved[twin] < 1.3
    assert moved[stranger] < 1.1
    assert width(row_of(after, twin)) < 0.7 * width(before[twin])
    assert width(row_of(after, stranger)) > 0.9 * width(before[stranger])


def width(row: GpuPrediction) -> float:
    assert row.iteration_low_ns is not None
    assert row.iteration_high_ns is not None
    return math.log(row.iteration_high_ns / row.iteration_low_ns)


def test_two_observations_pull_a_third_between_them() -> None:
    errors = errors_of([0.3, 0.3, 0.3], 0.9)
    shift, left = condition(errors, np.array([0, 1]), np.array([0.2, -0.2]))
    assert shift == pytest.approx([0.2, -0.2, 0.0], abs=1e-9)
    assert left.deviation[:2] == pytest.approx([MEASURED, MEASURED])
    alone: Floats = condition(errors, np.array([0]), np.array([0.2]))[1].deviation
    assert left.deviation[2] < alone[2] < 0.3


def test_an_observation_far_off_is_asked_about(few: Analysis) -> None:
    report = report_on(few, op_limit=0)
    far = Observation(gpu="L40S", time_ns=10 * row_of(report, "L40S").iteration_ns)
    assert any("right unit" in text for text in correct_rows(report, few, [far]).warnings)
    assert not any("right unit" in text for text in correct_rows(report, few, []).warnings)


def test_an_observed_gpu_is_surely_ranked(few: Analysis) -> None:
    report, second = report_on(few, op_limit=0), row_of(report_on(few, op_limit=0), "RTX 6000").iteration_ns
    seen = [Observation(gpu="L40S", time_ns=0.8 * second), Observation(gpu="RTX 6000 Ada Generation", time_ns=second)]
    found = add_chances(correct_rows(report, few, seen), few, seen)
    pair = next(item for item in found.rank_pairs if {item.first, item.second} == {item.gpu for item in seen})
    assert (pair.faster if pair.first == "L40S" else 1 - pair.faster) > 0.99


def test_sentences_of_few_gpus_name_every_pair(few: Analysis) -> None:
    report = add_chances(report_on(few, op_limit=0), few)
    text = " ".join(chance_sentences(report))
    assert " is faster than " in text
    assert "Cannot be told apart in " in text
    assert '"rank_pairs"' in draw_report_json(report, with_ops=False)


def test_sentences_of_many_gpus_name_the_first(every: Analysis) -> None:
    sentences = list(chance_sentences(add_chances(report_on(every, op_limit=0), every)))
    assert 2 <= len(sentences) <= 4
    assert "the fastest" in sentences[0]


def test_errors_follow_the_rows_order(few: Analysis) -> None:
    report = report_on(few, op_limit=0)
    names = [gpu.name for gpu in few.prediction.fleet.gpus]
    errors = joint_errors(few)
    found = chances_of(report.predictions, names, errors)
    for at, row in enumerate(report.predictions):
        assert (found.errors.rise[:, at] == errors.rise[:, names.index(row.gpu)]).all()
