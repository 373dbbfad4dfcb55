"""What `analyze` prints for given reports, whole; `pytest tests/cli --rewrite-golden` accepts what it prints now."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import fields, replace
from io import StringIO
from pathlib import Path

import pytest
from click.testing import Result
from wavecast.analyzer.analysis.report import OpPrediction, Report
from wavecast.analyzer.prediction.method import Method

Run = Callable[..., Result]
CheckGolden = Callable[[str, str], None]
ESCAPE = "\x1b"


@pytest.fixture
def analyze_report(monkeypatch: pytest.MonkeyPatch, run: Run, trace_file: Path) -> Callable[..., str]:
    """Run `analyze` with a given report in place of the analysis; return what it prints."""

    def analyze(report: Report, *arguments: object, **environment: object) -> str:
        monkeypatch.setattr("wavecast.analyzer.analysis.analyze.report_on", lambda *_args, **_options: report)
        result = run("analyze", trace_file, *arguments, **environment)
        assert result.exit_code == 0, result.output
        assert result.stderr == ""
        return result.stdout

    return analyze


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_table_at_a_width(
    width: int, measured_report: Report, analyze_report: Callable[..., str], check_golden: CheckGolden
) -> None:
    text = analyze_report(measured_report, COLUMNS=width)
    assert max(len(line) for line in text.splitlines()) <= width
    check_golden(f"table_{width}.txt", text)


@pytest.mark.parametrize("width", [80, 120])
def test_the_op_table_at_a_width(
    width: int, measured_report: Report, analyze_report: Callable[..., str], check_golden: CheckGolden
) -> None:
    text = analyze_report(measured_report, "--ops", COLUMNS=width)
    assert max(len(line) for line in text.splitlines()) <= width
    check_golden(f"ops_{width}.txt", text)


def test_a_pipe_gets_every_column_and_no_colour(
    measured_report: Report, analyze_report: Callable[..., str], check_golden: CheckGolden
) -> None:
    text = analyze_report(measured_report, "--ops")
    assert ESCAPE not in text
    assert "Left out" not in text
    check_golden("ops_pipe.txt", text)


def test_a_trace_without_timings_says_so(
    shapes_report: Report, analyze_report: Callable[..., str], check_golden: CheckGolden
) -> None:
    check_golden("shapes.txt", analyze_report(shapes_report))


@pytest.mark.parametrize(("form", "name"), [("json", "report.json"), ("csv", "report.csv"), ("markdown", "report.md")])
@pytest.mark.parametrize("detail", [(), ("--ops",)])
def test_other_formats(
    form: str,
    name: str,
    detail: tuple[str, ...],
    measured_report: Report,
    analyze_report: Callable[..., str],
    check_golden: CheckGolden,
) -> None:
    text = analyze_report(measured_report, "--format", form, *detail)
    check_golden(f"ops_{name}" if detail else name, text)


def test_json_has_the_promised_keys(measured_report: Report, analyze_report: Callable[..., str]) -> None:
    document = json.loads(analyze_report(measured_report, "--format", "json"))
    assert list(document) == [
        "format", "version", "trace", "source", "iteration_rule", "scenario", "memory", "critical_path",
        "predictions", "warnings",
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
    detailed = json.loads(analyze_report(measured_report, "--format", "json", "--ops"))
    assert set(detailed) - set(document) == {"ops", "ops_gpu"}
    assert all(set(item) == {entry.name for entry in fields(OpPrediction)} for item in detailed["ops"])


def test_csv_columns_do_not_depend_on_the_data(
    measured_report: Report, shapes_report: Report, analyze_report: Callable[..., str]
) -> None:
    tables = [
        list(csv.DictReader(StringIO(analyze_report(report, "--format", "csv"))))
        for report in (measured_report, shapes_report)
    ]
    assert set(tables[0][0]) == set(tables[1][0])
    assert [row["rank"] for row in tables[0]] == ["1", "2", "3", "4"]
    assert {f"share_{method.value}" for method in Method} <= set(tables[0][0])
    assert float(tables[0][0]["iteration_ns"]) == measured_report.predictions[0].iteration_ns


def test_the_ending_of_the_output_chooses_the_format(
    measured_report: Report, analyze_report: Callable[..., str], tmp_path: Path
) -> None:
    for suffix, start in ((".json", "{"), (".csv", "rank,"), (".md", "small net: training"), (".txt", "small net:")):
        path = tmp_path / f"out{suffix}"
        assert analyze_report(measured_report, "-o", path) == ""
        assert path.read_text(encoding="utf-8").startswith(start)
    assert analyze_report(measured_report, "-o", "-", "--format", "csv").startswith("rank,")


def test_colour_is_a_choice(measured_report: Report, analyze_report: Callable[..., str]) -> None:
    assert ESCAPE in analyze_report(measured_report, FORCE_COLOR=1)
    assert ESCAPE not in analyze_report(measured_report, FORCE_COLOR=1, NO_COLOR=1)


def test_a_file_gets_no_colour(measured_report: Report, analyze_report: Callable[..., str], tmp_path: Path) -> None:
    analyze_report(measured_report, "-o", tmp_path / "out.txt", FORCE_COLOR=1)
    assert ESCAPE not in (tmp_path / "out.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_names_cannot_steer_the_terminal(
    form: str, measured_report: Report, analyze_report: Callable[..., str]
) -> None:
    hostile = "\x1b]0;owned\x07[bold]a\nb|c"
    op = replace(measured_report.ops[0], op=hostile, module=hostile, reason=hostile, shapes=hostile)
    trace = replace(measured_report.trace, name=hostile)
    gpu = replace(measured_report.predictions[0], gpu=hostile)
    report = replace(measured_report, trace=trace, ops=(op,), predictions=(gpu,), warnings=(hostile,), ops_gpu=hostile)
    text = analyze_report(report, "--ops", "--format", form)
    assert not {"\x1b", "\x07"} & set(text)
    assert "[bold]a" in text.replace("\\", "")


def test_columns_without_data_are_left_out(measured_report: Report, analyze_report: Callable[..., str]) -> None:
    bare = tuple(
        replace(row, price_usd_per_hour=None, samples_per_s=None, iteration_low_ns=None, iteration_high_ns=None)
        for row in measured_report.predictions
    )
    text = analyze_report(replace(measured_report, predictions=bare))
    assert not any(title in text for title in ("samples/s", "$ per", "interval", "Prices"))


def test_every_method_has_a_column(measured_report: Report, analyze_report: Callable[..., str]) -> None:
    for method in Method:
        row = replace(measured_report.predictions[0], methods={method: 1.0})
        assert " 100 %" in analyze_report(replace(measured_report, predictions=(row,), ops=()))
