"""`analyze --calibration`: what it changes, and what the errors say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from pyarrow import parquet

Run = Callable[..., Result]
ROWS = 1500
"""Of the public table: enough for each of its GPUs."""


@pytest.mark.data
def test_predictions_for_the_measured_gpu_change(run: Run, data_dir: Path, tmp_path: Path) -> None:
    table = tmp_path / "ops" / "attention.parquet"
    table.parent.mkdir()
    whole = parquet.read_table(data_dir / "ops" / "attention.parquet")
    parquet.write_table(whole.take(list(range(0, whole.num_rows, whole.num_rows // ROWS))), table)
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
