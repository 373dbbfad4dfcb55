"""A score in every format, and back from JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from wavecast.analyzer.page.formats import PAGE_FORMATS
from wavecast.analyzer.page.markdown import draw_markdown
from wavecast.analyzer.page.page import Page
from wavecast.analyzer.page.terminal import Screen, draw_terminal
from wavecast.analyzer.questions.score.page.page import describe_score
from wavecast.analyzer.questions.score.page.records import draw_score_json, score_table
from wavecast.analyzer.questions.score.report import (
    DecisionRow,
    NetworkRow,
    Score,
    ScoreRow,
    Size,
    Split,
    TraceRow,
    WorstRow,
)
from wavecast.benchmarks.make.accuracy import describe_accuracy, read_score_json
from wavecast.errors import InputError

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
        "median_width_90": 0.41,
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
            row("NVIDIA, HBM", **everything),
            row("AMD", rows=9, coverage_90=0.86, median_width_90=1.1, **everything),
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
    text = draw_terminal(describe_score(score), Screen() if width is None else Screen(width=width))
    assert width is None or max(map(len, text.splitlines())) <= width
    check_golden(f"score_{width or 'pipe'}.txt", text)


def test_other_formats(score: Score, check_golden: CheckGolden) -> None:
    check_golden("score.md", draw_markdown(describe_score(score)))
    check_golden("score.json", draw_score_json(score))
    check_golden("score.csv", score_table(score).to_csv())


def test_every_drawing_is_whole(score: Score, assert_drawn_whole: Callable[[Page], None]) -> None:
    assert_drawn_whole(describe_score(score))
    assert_drawn_whole(describe_accuracy(score))


def test_json_holds_what_the_rows_promise(score: Score) -> None:
    document = json.loads(draw_score_json(score))
    assert (document["format"], document["version"]) == ("wavecast.score", "1.0")
    keys = "table family dtype gpu split size rows mape median_ape p90_ape bias coverage_90 width_90 median_width_90"
    assert list(document["rows"][0])[: len(keys.split())] == keys.split()
    assert document["rows"][4]["coverage_90"] is None
    assert document["rows"][0]["mape"] == 0.091234


def test_json_reads_back(score: Score) -> None:
    text = draw_score_json(score)
    again = read_score_json(json.loads(text))
    assert draw_score_json(again) == text
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
    full = list(csv.reader(StringIO(score_table(score).to_csv())))
    assert len(full) == 1 + len(score.rows)
    empty = list(csv.reader(StringIO(score_table(replace(score, rows=())).to_csv())))
    assert empty == full[:1]


def test_an_empty_score_can_be_written() -> None:
    score = Score(weights="nothing", rows=())
    assert all(form.draw(describe_score(score), Screen()) for form in PAGE_FORMATS)
    assert draw_score_json(score)
    assert score_table(score).to_csv()
