"""The report of `analyze`, whole, in every format; `pytest --rewrite-golden` accepts what is written now."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import fields, replace
from io import StringIO

import pytest
from wavecast.analyzer.iteration.report import AnalysisReport, OpPrediction
from wavecast.analyzer.measurements.correction import Correction, RateCorrection
from wavecast.analyzer.models.frame.parameters import GpuFactors
from wavecast.analyzer.page.formats import PAGE_FORMATS, PageFormat
from wavecast.analyzer.page.markdown import draw_markdown
from wavecast.analyzer.page.page import Page, Passage
from wavecast.analyzer.page.terminal import Screen, draw_terminal
from wavecast.analyzer.prediction.prediction import Method
from wavecast.analyzer.questions.analyze.page.page import describe_report
from wavecast.analyzer.questions.analyze.page.records import draw_report_json, gpu_table, op_table

CheckGolden = Callable[[str, str], None]
NAME = "tiny.json"
APPLIED = Correction(gpu="L40S", model="matmul", point_count=1000, factor=1.04, error_before=0.123, error_after=0.106)
USELESS = Correction(gpu="L40S", model="vector", point_count=80, factor=0.99, error_before=0.1, error_after=0.11)
FEW = Correction(gpu="L40S", model="convolution", point_count=9)


def draw_table(report: AnalysisReport, screen: Screen | None = None, *, detailed_ops: bool = False) -> str:
    return draw_terminal(describe_report(report, name=NAME, detailed_ops=detailed_ops), screen or Screen())


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_table_at_a_width(width: int, measured_report: AnalysisReport, check_golden: CheckGolden) -> None:
    text = draw_table(measured_report, Screen(width=width))
    assert max(len(line) for line in text.splitlines()) <= width
    check_golden(f"table_{width}.txt", text)


@pytest.mark.parametrize("width", [80, 120])
def test_the_op_table_at_a_width(width: int, measured_report: AnalysisReport, check_golden: CheckGolden) -> None:
    text = draw_table(measured_report, Screen(width=width), detailed_ops=True)
    assert max(len(line) for line in text.splitlines()) <= width
    check_golden(f"ops_{width}.txt", text)


def test_a_pipe_gets_every_column(measured_report: AnalysisReport, check_golden: CheckGolden) -> None:
    text = draw_table(measured_report, detailed_ops=True)
    assert "Left out" not in text
    check_golden("ops_pipe.txt", text)


def test_a_trace_without_timings_says_so(shapes_report: AnalysisReport, check_golden: CheckGolden) -> None:
    check_golden("shapes.txt", draw_table(shapes_report))


@pytest.mark.parametrize("with_ops", [False, True])
def test_other_formats(with_ops: bool, measured_report: AnalysisReport, check_golden: CheckGolden) -> None:
    name = "ops_report" if with_ops else "report"
    check_golden(f"{name}.json", draw_report_json(measured_report, with_ops=with_ops))
    check_golden(f"{name}.csv", op_table(measured_report).to_csv() if with_ops else gpu_table(measured_report).to_csv())
    page = describe_report(measured_report, name=NAME, detailed_ops=with_ops)
    check_golden(f"{name}.md", draw_markdown(page))


@pytest.mark.parametrize("detailed", [False, True])
def test_every_drawing_is_whole(
    detailed: bool,
    measured_report: AnalysisReport,
    shapes_report: AnalysisReport,
    assert_drawn_whole: Callable[[Page], None],
) -> None:
    for report in (measured_report, shapes_report):
        assert_drawn_whole(describe_report(report, name=NAME, detailed_ops=detailed))


def test_json_has_the_promised_keys(measured_report: AnalysisReport) -> None:
    document = json.loads(draw_report_json(measured_report, with_ops=False))
    assert list(document) == [
        "format", "version", "trace", "source", "iteration_rule", "scenario", "memory", "critical_path",
        "predictions", "selection", "choice", "gains", "warnings",
    ]  # fmt: skip
    assert document["iteration_rule"] == "replay"
    assert (document["format"], document["version"]) == ("wavecast.prediction", "1.0")
    assert set(document["source"]) == {"gpu", "iteration_ns", "gpu_busy_ns"}
    promised = {"gpu", "iteration_ns", "iteration_low_ns", "iteration_high_ns", "gpu_busy_ns", "methods"}
    for item, row in zip(document["predictions"], measured_report.predictions, strict=True):
        assert promised <= set(item)
        assert item["iteration_ns"] == row.iteration_ns
        assert ("price_usd_per_hour" in item) == (row.price_usd_per_hour is not None)
        assert item["methods"] == {method.value: share for method, share in row.methods.items()}
    detailed = json.loads(draw_report_json(measured_report, with_ops=True))
    assert set(detailed) - set(document) == {"ops", "ops_gpu"}
    assert all(set(item) == {entry.name for entry in fields(OpPrediction)} for item in detailed["ops"])


def test_csv_columns_do_not_depend_on_the_data(measured_report: AnalysisReport, shapes_report: AnalysisReport) -> None:
    tables = [list(csv.DictReader(StringIO(gpu_table(report).to_csv()))) for report in (measured_report, shapes_report)]
    assert set(tables[0][0]) == set(tables[1][0])
    assert [row["rank"] for row in tables[0]] == ["1", "2", "3", "4"]
    assert {f"share_{method.value}" for method in Method} <= set(tables[0][0])
    assert float(tables[0][0]["iteration_ns"]) == measured_report.predictions[0].iteration_ns


@pytest.mark.parametrize("form", PAGE_FORMATS, ids=lambda form: form.name)
def test_names_cannot_steer_the_terminal(form: PageFormat, measured_report: AnalysisReport) -> None:
    hostile = "\x1b]0;owned\x07[bold]a\nb|c"
    op = replace(measured_report.ops[0], op=hostile, module=hostile, reason=hostile, shapes=hostile)
    trace = replace(measured_report.trace, name=hostile)
    gpu = replace(measured_report.predictions[0], gpu=hostile)
    report = replace(measured_report, trace=trace, ops=(op,), predictions=(gpu,), warnings=(hostile,), ops_gpu=hostile)
    text = form.draw(describe_report(report, name=NAME, detailed_ops=True), Screen())
    assert not {"\x1b", "\x07"} & set(text)
    assert "[bold]a" in text.replace("\\", "")


def test_columns_without_data_are_left_out(measured_report: AnalysisReport) -> None:
    bare = tuple(
        replace(row, price_usd_per_hour=None, samples_per_s=None, iteration_low_ns=None, iteration_high_ns=None)
        for row in measured_report.predictions
    )
    text = draw_table(replace(measured_report, predictions=bare))
    assert not any(title in text for title in ("samples/s", "$ per", "interval", "Prices"))


def test_every_method_has_a_column(measured_report: AnalysisReport) -> None:
    for method in Method:
        row = replace(measured_report.predictions[0], methods={method: 1.0})
        assert " 100 %" in draw_table(replace(measured_report, predictions=(row,), ops=()))


def test_the_note_says_what_was_corrected_and_what_it_gains(measured_report: AnalysisReport) -> None:
    report = replace(measured_report, calibration=(APPLIED, USELESS, FEW, replace(USELESS, gpu="T4")))
    blocks = describe_report(report, name=NAME).blocks
    lines = [line.text for block in blocks if isinstance(block, Passage) for line in block.lines]
    assert [line for line in lines if "alibrated" in line] == [
        "Calibrated for L40S: matmul 1.04× (left-out error 12.3 to 10.6 %, 1,000 measurements); left as they are, as "
        "left-out measurements fit no better: vector; too few measurements: convolution (9).",
        "Not calibrated for T4; left as they are, as left-out measurements fit no better: vector.",
    ]


def test_rates_come_before_the_models_that_share_them(measured_report: AnalysisReport) -> None:
    rates = RateCorrection(
        gpu="L40S",
        point_count=300,
        factors=GpuFactors(clock=0.93, bandwidth=1.001, launch=1.5),
        error_before=0.2,
        error_after=0.1,
    )
    report = replace(measured_report, calibration=(APPLIED,), rates=(rates, replace(rates, gpu="T4")))
    blocks = describe_report(report, name=NAME).blocks
    lines = [line.text for block in blocks if isinstance(block, Passage) for line in block.lines]
    assert [line for line in lines if "alibrated" in line] == [
        "Calibrated for L40S: all models: clock 0.930×, launches 1.50× (left-out error 20.0 to 10.0 %, 300 "
        "measurements), matmul 1.04× (left-out error 12.3 to 10.6 %, 1,000 measurements)."
    ]
    assert json.loads(draw_report_json(report, with_ops=False))["rates"][0] == {
        "gpu": "L40S", "clock": 0.93, "bandwidth": 1.001, "l2": 1.0, "launch": 1.5, "point_count": 300,
        "error_before": 0.2, "error_after": 0.1, "is_applied": True,
    }  # fmt: skip


def test_json_holds_the_corrections_where_there_are_any(measured_report: AnalysisReport) -> None:
    assert "calibration" not in json.loads(draw_report_json(measured_report, with_ops=False))
    report = replace(measured_report, calibration=(APPLIED, FEW))
    assert json.loads(draw_report_json(report, with_ops=False))["calibration"] == [
        {"gpu": "L40S", "model": "matmul", "point_count": 1000, "factor": 1.04, "error_before": 0.123,
         "error_after": 0.106, "is_applied": True},
        {"gpu": "L40S", "model": "convolution", "point_count": 9, "factor": None, "error_before": None,
         "error_after": None, "is_applied": False},
    ]  # fmt: skip
