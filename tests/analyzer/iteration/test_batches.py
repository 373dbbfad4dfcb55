"""The largest batch that fits a GPU, and the one of most samples per second."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
from wavecast import load_trace
from wavecast.analyzer.iteration.analyze import report_on, run_analysis
from wavecast.analyzer.iteration.batches import EQUAL_RATIO, with_batches
from wavecast.analyzer.iteration.report import AnalysisReport, BatchChoice
from wavecast.analyzer.questions.analyze.page.page import describe_report
from wavecast.analyzer.questions.analyze.page.records import gpu_table
from wavecast.analyzer.whatif.scenario import Scenario
from wavecast.errors import InputError
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.tables import OperandTable, TensorTable, Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu

SAMPLE = Path(__file__).parents[3] / "samples" / "gpt2_small-training-bf16-b4-shapes.json.gz"
NAMES = ("H100 SXM5 80GB", "A100 SXM4 40GB", "Tesla T4")


@pytest.fixture(scope="module")
def recorded() -> Trace:
    return load_trace(SAMPLE)


@pytest.fixture(scope="module")
def found(recorded: Trace) -> AnalysisReport:
    return ask(recorded)


def ask(trace: Trace, scenario: Scenario | None = None) -> AnalysisReport:
    catalog = load_catalog()
    result = run_analysis(trace, catalog, targets=[find_gpu(catalog, name) for name in NAMES], scenario=scenario)
    return with_batches(result, report_on(result, op_limit=0))


def choice_of(report: AnalysisReport, name: str) -> BatchChoice:
    choice = next(row.batches for row in report.predictions if row.gpu == name)
    assert choice is not None
    return choice


def test_more_memory_holds_a_larger_batch(found: AnalysisReport) -> None:
    sizes = [choice_of(found, name).largest_batch or 0 for name in NAMES]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[1] > sizes[2] > 0


def test_the_largest_batch_fits_and_the_next_one_does_not(found: AnalysisReport, recorded: Trace) -> None:
    for name in NAMES:
        largest = choice_of(found, name).largest_batch or 0
        following = largest * 4 // 3 if largest % 3 == 0 else largest * 3 // 2
        for batch, fits in ((largest, True), (following, False)):
            gpu = find_gpu(load_catalog(), name)
            result = run_analysis(recorded, load_catalog(), targets=[gpu], scenario=Scenario(batch_size=batch))
            assert report_on(result, op_limit=0).predictions[0].fits is fits


def test_rates_are_those_of_the_batch(found: AnalysisReport, recorded: Trace) -> None:
    choice = choice_of(found, NAMES[0])
    asked = run_analysis(
        recorded,
        load_catalog(),
        targets=[find_gpu(load_catalog(), NAMES[0])],
        scenario=Scenario(batch_size=choice.best_batch),
    )
    row = report_on(asked, op_limit=0).predictions[0]
    assert choice.best_samples_per_s == pytest.approx(row.samples_per_s)
    assert choice.best_samples_per_s is not None
    assert choice.largest_samples_per_s is not None
    assert choice.best_samples_per_s >= EQUAL_RATIO * choice.largest_samples_per_s
    ends = choice.best_samples_per_s_low, choice.best_samples_per_s, choice.best_samples_per_s_high
    assert all(ends)
    assert list(ends) == sorted(ends)  # type: ignore[type-var]


def test_gpus_are_ranked_by_their_best(found: AnalysisReport) -> None:
    rates = [row.batches.best_samples_per_s or 0.0 for row in found.predictions if row.batches is not None]
    assert rates == sorted(rates, reverse=True)


def test_a_scenario_holds_for_every_batch(found: AnalysisReport, recorded: Trace) -> None:
    shorter = ask(recorded, Scenario(sequence_length=256))
    for name in NAMES:
        assert (choice_of(shorter, name).largest_batch or 0) > (choice_of(found, name).largest_batch or 0)


def test_the_page_and_the_table_show_them(found: AnalysisReport) -> None:
    page = str(describe_report(found, name="gpt2"))
    assert "largest" in page
    assert gpu_table(found).to_csv().splitlines()[0].endswith(",".join(item.name for item in fields(BatchChoice)))


def test_the_columns_stay_away_unasked(found: AnalysisReport) -> None:
    unasked = replace(found, predictions=tuple(replace(row, batches=None) for row in found.predictions))
    assert "largest_batch" not in gpu_table(unasked).to_csv()


def test_a_batch_of_one_is_refused(recorded: Trace) -> None:
    workload = replace(recorded.meta.workload, batch_size=1)
    with pytest.raises(InputError, match="a batch of 1 leaves no mark"):
        ask(replace(recorded, meta=replace(recorded.meta, workload=workload)))


def test_memory_that_is_not_known_is_said(recorded: Trace) -> None:
    bare = replace(recorded, operands=build_table(OperandTable, 0), tensors=build_table(TensorTable, 0))
    with pytest.raises(InputError, match="largest_batch: memory is not known"):
        ask(bare)
