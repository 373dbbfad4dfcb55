"""`analyze --calibration`: what the note, the JSON and the errors say."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from wavecast.analyzer.analysis.report import Report
from wavecast.analyzer.measurements.correction import Correction
from wavecast.analyzer.rendering.analysis.json import draw_report_json
from wavecast.analyzer.rendering.analysis.text import describe_report

Run = Callable[..., Result]
APPLIED = Correction(gpu="L40S", model="matmul", point_count=1000, factor=1.04, error_before=0.123, error_after=0.106)
USELESS = Correction(gpu="L40S", model="vector", point_count=80, factor=0.99, error_before=0.1, error_after=0.11)
FEW = Correction(gpu="L40S", model="convolution", point_count=9)


def test_the_note_says_what_was_corrected_and_what_it_gains(measured_report: Report) -> None:
    report = replace(measured_report, calibration=(APPLIED, USELESS, FEW, replace(USELESS, gpu="T4")))
    notes = [note for note in describe_report(report, name="x").notes if "alibrated" in note]
    assert notes == [
        "Calibrated for L40S: matmul 1.04× (left-out error 12.3 to 10.6 %, 1,000 measurements); left as they are, as "
        "left-out measurements fit no better: vector; too few measurements: convolution (9).",
        "Not calibrated for T4; left as they are, as left-out measurements fit no better: vector.",
    ]


def test_json_holds_the_corrections_where_there_are_any(measured_report: Report) -> None:
    assert "calibration" not in json.loads(draw_report_json(measured_report, with_ops=False))
    report = replace(measured_report, calibration=(APPLIED, FEW))
    assert json.loads(draw_report_json(report, with_ops=False))["calibration"] == [
        {"gpu": "L40S", "model": "matmul", "point_count": 1000, "factor": 1.04, "error_before": 0.123,
         "error_after": 0.106, "is_applied": True},
        {"gpu": "L40S", "model": "convolution", "point_count": 9, "factor": None, "error_before": None,
         "error_after": None, "is_applied": False},
    ]  # fmt: skip


@pytest.mark.data
def test_predictions_for_the_measured_gpu_change(run: Run, data_dir: Path) -> None:
    table = data_dir / "ops" / "attention.parquet"
    options = ("--to", "L40S", "--format", "json", "--ops")
    bert = data_dir / "traces" / "h100_bert_small_inference.json.gz"
    plain, sharp = (json.loads(run("analyze", bert, *options, *more).stdout) for more in ((), ("--calibration", table)))
    assert {item["gpu"] for item in sharp["calibration"]} == {"L40S", "H100 SXM5 80GB"}  # the source as well
    assert {item["model"] for item in sharp["calibration"]} == {"attention_prefill", "attention_decode"}
    assert all(item["is_applied"] == (item["error_after"] < item["error_before"]) for item in sharp["calibration"])
    changed = [
        after["op"] for before, after in zip(
            sorted(plain["ops"], key=lambda op: (op["op"], op["shapes"])),
            sorted(sharp["ops"], key=lambda op: (op["op"], op["shapes"])), strict=True,
        ) if before["predicted_ns"] != after["predicted_ns"]
    ]  # fmt: skip
    assert changed == ["aten::_flash_attention_forward"]


@pytest.mark.parametrize(
    ("name", "words"), [("nowhere", "no such table or directory"), (".", "no measurements of ops")]
)
def test_no_measurements_are_one_line_and_status_2(
    name: str, words: str, run: Run, trace_file: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    result = run("analyze", trace_file, "--calibration", empty / name)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert words in result.stderr
