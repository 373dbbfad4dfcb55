"""What the score command writes, in every format, and what it refuses."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from wavecast.analyzer.accuracy.score.report import (
    DecisionRow,
    NetworkRow,
    Score,
    ScoreRow,
    Size,
    Split,
    TraceRow,
    WorstRow,
)
from wavecast.analyzer.rendering.page.terminal import Screen
from wavecast.analyzer.rendering.score.formats import RENDERERS, render_score
from wavecast.analyzer.rendering.score.json import read_score_json
from wavecast.errors import InputError

Run = Callable[..., Result]
CheckGolden = Callable[[str, str], None]


def row(gpu: str, size: Size = Size.ALL, **changes: Any) -> ScoreRow:
    values: dict[str, Any] = {
        "table": "ops/matmul.parquet",
        "family": "matmul",
        "dtype": "bf16",
        "gpu": gpu,
        "split": Split.UNSEEN,
        "size": size,
        "rows": 35742,
        "mape": 0.0912345,
        "median_ape": 0.07,
        "p90_ape": 0.21,
        "bias": -0.012,
        "coverage_90": 0.903,
        "width_90": 0.52,
        "baselines": {"roofline": 0.34, "fitted_roofline": 0.27, "bandwidth_ratio": 0.188, "wavecast_anchored": 0.05},
        "baseline_rows": dict.fromkeys(("roofline", "fitted_roofline", "bandwidth_ratio", "wavecast_anchored"), 35742),
    }
    return ScoreRow(**(values | changes))


def network(gpu: str, **changes: Any) -> NetworkRow:
    values: dict[str, Any] = {
        "table": "models/neusight_e2e.parquet",
        "gpu": gpu,
        "model": "bert_large",
        "mode": "inf",
        "sequence_length": 512,
        "batch": 8,
        "dtype": "fp32",
        "split": Split.UNSEEN,
        "is_suspect": False,
        "measured_ns": 257.4e6,
        "predicted_ns": 260.1e6,
        "low_ns": 220e6,
        "high_ns": None,
        "unmodelled_nodes": 0,
        "baselines_ns": {"roofline": 221e6, "sum_of_measured_ops": 291e6, "neusight": 271e6},
    }
    return NetworkRow(**(values | changes))


@pytest.fixture
def score() -> Score:
    """A score with everything that a score can hold."""
    everything: dict[str, Any] = {"table": "all", "family": "all", "dtype": "all"}
    return Score(
        weights="each GPU by weights that never saw its chip",
        rows=(
            row("H100 SXM5 80GB", **everything),
            row("all", rows=71484, **everything),
            row("B200 SXM (HGX, 180GB)", split=Split.SEEN, mape=1.23456, coverage_90=float("nan")),
            row("H100 SXM5 80GB"),
            row("H100 SXM5 80GB", Size.OVER_20_US, mape=0.057, bias=0.003, baselines={"roofline": 0.31}),
            row("H100 SXM5 80GB", Size.OVER_100_US, mape=0.041),
            row("mean", mape=0.66),
            row("mean", Size.OVER_20_US, mape=0.057),
            row("all", mape=0.66),
            row("L40S", family="attention decode (trtllm)", dtype="bf16, fp8 cache", rows=9, baselines={}),
        ),
        worst=(
            WorstRow(
                table="ops/matmul.parquet",
                family="matmul",
                dtype="bf16",
                gpu="L40S",
                split=Split.SEEN,
                problem="m=65536 n=4096 k=64",
                measured_ns=1.234e6,
                predicted_ns=0.4e6,
                low_ns=0.3e6,
                high_ns=0.6e6,
            ),
        ),
        networks=(network("Tesla V100 PCIe 32GB"), network("Tesla P4", is_suspect=True, measured_ns=1.33e9)),
        decisions=(
            DecisionRow(
                table="models/neusight_e2e.parquet",
                criterion="faster",
                workloads=11,
                pairs=77,
                right=0.987,
                kendall_tau=0.91,
                baselines={"roofline": 1.0, "neusight": 0.95},
            ),
            DecisionRow(
                table="models/neusight_e2e.parquet",
                criterion="cheaper",
                workloads=2,
                pairs=2,
                right=0.5,
                kendall_tau=None,
                baselines={},
            ),
        ),
        traces=(
            TraceRow(
                workload="vit",
                source="h100_vit",
                target="mi300x_vit",
                predicted_busy_ns=0.9e6,
                measured_busy_ns=1.7e6,
                predicted_iteration_ns=7.6e6,
                measured_iteration_ns=7.45e6,
            ),
        ),
        notes=("12 rows of ops/copy.parquet left out: no weights of copy",),
    )


@pytest.mark.parametrize("width", [80, 110, None])
def test_the_table(width: int | None, score: Score, check_golden: CheckGolden) -> None:
    text = render_score(score, "table", Screen() if width is None else Screen(width=width))
    assert width is None or max(map(len, text.splitlines())) <= width
    check_golden(f"score_{width or 'pipe'}.txt", text)


@pytest.mark.parametrize(("form", "ending"), [("json", "json"), ("csv", "csv"), ("markdown", "md")])
def test_other_formats(form: str, ending: str, score: Score, check_golden: CheckGolden) -> None:
    check_golden(f"score.{ending}", render_score(score, form, Screen()))


def test_json_holds_what_the_rows_promise(score: Score) -> None:
    document = json.loads(render_score(score, "json", Screen()))
    assert (document["format"], document["version"]) == ("wavecast.score", "1.0")
    keys = "table family dtype gpu split size rows mape median_ape p90_ape bias coverage_90 width_90 baselines"
    assert list(document["rows"][0])[: len(keys.split())] == keys.split()
    assert document["rows"][2]["coverage_90"] is None
    assert document["rows"][0]["mape"] == 0.091234


def test_json_reads_back(score: Score) -> None:
    text = render_score(score, "json", Screen())
    again = read_score_json(json.loads(text))
    assert render_score(again, "json", Screen()) == text
    assert again.networks == score.networks


@pytest.mark.parametrize(
    "document",
    [{}, {"format": "wavecast.prediction", "version": "1.0"}, {"format": "wavecast.score", "version": "2.0"}],
)
def test_another_document_is_no_score(document: dict[str, str]) -> None:
    with pytest.raises(InputError, match=r"expected 'wavecast.score' '1.0'"):
        read_score_json(document)


def test_a_score_with_parts_missing_is_refused() -> None:
    with pytest.raises(InputError, match="no score of version"):
        read_score_json({"format": "wavecast.score", "version": "1.0", "weights": ""})


def test_csv_columns_do_not_depend_on_the_data(score: Score) -> None:
    full = list(csv.reader(StringIO(render_score(score, "csv", Screen()))))
    assert len(full) == 1 + len(score.rows)
    empty = list(csv.reader(StringIO(render_score(replace(score, rows=()), "csv", Screen()))))
    assert empty == full[:1]


@pytest.mark.parametrize("form", RENDERERS)
def test_an_empty_score_can_be_written(form: str) -> None:
    assert render_score(Score(weights="nothing", rows=()), form, Screen())


def test_a_directory_without_tables_is_refused(run: Run, tmp_path: Path) -> None:
    result = run("score", tmp_path)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "nothing to score; expected at least one of ops/matmul.parquet" in result.stderr
    assert run("score", tmp_path / "none").exit_code == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--exclude-gpu", "Voodoo"], "no GPU of the catalogue is called 'Voodoo'"),
        (["--exclude-gpu", "L40S", "--leave-one-out"], "goes without --exclude-gpu"),
    ],
)
def test_bad_options_are_one_line(options: list[str], message: str, run: Run, tmp_path: Path) -> None:
    result = run("score", tmp_path, *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_broken_table_is_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "vector.parquet").write_bytes(b"PAR1")
    result = run("score", tmp_path)
    assert result.exit_code == 2
    assert "vector.parquet: no readable parquet table" in result.stderr
    assert result.stderr.count("\n") == 1


def test_help_loads_no_tables() -> None:
    code = (
        "import sys; sys.argv = ['wavecast', 'score', '--help']\n"
        "from wavecast.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "--leave-one-out" in result.stdout
    assert {"pyarrow", "numpy", "rich", "torch", "safetensors"} & set(result.stderr.split()) == set()
