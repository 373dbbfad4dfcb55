"""`wavecast validate`: the formats, the options, and what it refuses."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from click.testing import Result
from wavecast.analyzer.accuracy.metrics import Figures
from wavecast.analyzer.accuracy.validate.report import (
    Coverage,
    FamilyComparison,
    IterationComparison,
    OpComparison,
    Side,
    Unmatched,
    Validation,
)
from wavecast.analyzer.prediction.method import Method
from wavecast.analyzer.rendering.page.terminal import Screen
from wavecast.analyzer.rendering.validate.formats import render_validation
from wavecast.analyzer.rendering.validate.json import OP_COLUMNS
from wavecast.analyzer.rendering.validate.text import explain
from wavecast.analyzer.replay.causes import IdleCause
from wavecast.analyzer.whatif.scenario import Scenario

Run = Callable[..., Result]
CheckGolden = Callable[[str, str], None]
SHAPES = "samples/dcgan-training-fp32-b64-shapes.json.gz"
OTHER_SHAPES = "samples/gpt2_small-inference-fp32-b4-shapes.json.gz"
NAMES = ("h100.json.gz", "mi300x.json.gz")


def build_op(op: str, predicted_us: float, measured_us: float, **changes: object) -> OpComparison:
    values: dict[str, object] = {
        "op": op,
        "target_op": op,
        "shapes": "float16[32,1024] float16[1024,4096]",
        "module": "Net.layers.0.mlp",
        "family": "matmul",
        "count": 24,
        "kernel_count": 24,
        "target_kernel_count": 24,
        "source_ns": 1.5e3 * predicted_us,
        "predicted_ns": 1e3 * predicted_us,
        "predicted_low_ns": 0.8e3 * predicted_us,
        "predicted_high_ns": 1.25e3 * predicted_us,
        "measured_ns": 1e3 * measured_us,
        "bound_ns": 0.3e3 * predicted_us,
        "bound_by": "compute",
        "method": Method.ANCHORED_MODEL,
        "reason": "op model of its family, anchored at the measured time",
        "matched_by": "call_in_phase",
    }
    return OpComparison(**(values | changes))  # type: ignore[arg-type]


def build_family(family: str | None, ops: int, **changes: object) -> FamilyComparison:
    figures = Figures(rows=ops, mape=0.19, median_ape=0.18, p90_ape=0.3, bias=-0.05, coverage_90=0.75, width_90=0.45)
    values: dict[str, object] = {"family": family, "call_count": 26, "predicted_ns": 810e3, "measured_ns": 900e3}
    return FamilyComparison(**(values | {"share": 0.9, "figures": figures} | changes))  # type: ignore[arg-type]


@pytest.fixture
def validation() -> Validation:
    """A validation with everything that one can hold."""
    nothing = Figures(
        rows=1, mape=0.4, median_ape=0.4, p90_ape=0.4, bias=0.4, coverage_90=float("nan"), width_90=float("nan")
    )
    side = {"framework": "torch 2.6.0", "call_count": 61, "matched_call_count": 60}
    return Validation(
        source=Side(gpu="H100 SXM5 80GB", kernel_time_ns=1000e3, matched_ns=990e3, **side),  # type: ignore[arg-type]
        target=Side(gpu="Instinct MI300X", kernel_time_ns=1100e3, matched_ns=1000e3, **side),  # type: ignore[arg-type]
        scenario=Scenario(),
        iteration=IterationComparison(
            predicted_ns=4.4e6,
            predicted_low_ns=3.9e6,
            predicted_high_ns=5.1e6,
            measured_ns=4.0e6,
            predicted_busy_ns=1.0e6,
            measured_busy_ns=1.1e6,
            predicted_idle_ns={cause: 3.4e6 if cause is IdleCause.HOST else 0.0 for cause in IdleCause},
            measured_idle_ns={IdleCause.HOST: 2.8e6, IdleCause.SYNC: 0.1e6, IdleCause.COMMUNICATION: 0.0,
                              IdleCause.DEPENDENCY: 0.0, IdleCause.UNEXPLAINED: 0.0},
            kernel_error_ns=-0.1e6,
            host_error_ns=0.45e6,
            other_error_ns=0.05e6,
            host_speed_ratio=1.12,
        ),
        total=build_family(None, 4, share=1.0),
        families=(build_family("matmul", 3), build_family("collective", 1, share=0.1, figures=nothing)),
        ops=(
            build_op("aten::addmm", 400.0, 560.0),
            build_op("aten::cudnn_convolution", 90, 60, target_op="aten::miopen_convolution", target_kernel_count=5),
            build_op("c10d::allreduce_", 70, 50, family="collective", predicted_low_ns=None, module=None, shapes=""),
        ),
        op_count=4,
        intervals=Coverage(op_count=3, covered_op_count=2, measured_ns=700e3, covered_ns=140e3),
        unmatched=(
            Unmatched(is_measured=True, op="aten::\x1b[31mmul", shapes="float32[8]", count=3, time_ns=100e3),
            Unmatched(is_measured=False, op="aten::fill_", shapes="", count=1, time_ns=1e3),
        ),
        warnings=("86% of the GPU time is communication",),
    )  # fmt: skip


@pytest.mark.parametrize("width", [80, 200, None])
def test_table(width: int | None, validation: Validation, check_golden: CheckGolden) -> None:
    screen = Screen(width=width) if width else Screen()
    text = render_validation(validation, "table", screen, names=NAMES, detailed_ops=False)
    assert all(len(line) <= (width or 10_000) for line in text.split("\n"))
    assert "\x1b" not in text
    check_golden(f"validate_{width or 'pipe'}.txt", text)


@pytest.mark.parametrize(("form", "ending"), [("markdown", "md"), ("json", "json"), ("csv", "csv")])
def test_other_formats(form: str, ending: str, validation: Validation, check_golden: CheckGolden) -> None:
    text = render_validation(validation, form, Screen(), names=NAMES, detailed_ops=True)
    check_golden(f"validate.{ending}", text)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "target reaches 40 % of its compute bound"),
        ({"bound_ns": 2e5}, "measured under its physical bound"),
        ({"bound_ns": None}, ""),
        ({"measured_ns": 0.0}, "too short for the target's clock"),
        ({"family": "collective"}, "waiting for other ranks is inside"),
        ({"target_kernel_count": 1}, "1 kernel there, 24 on the source"),
        ({"kernel_count": None, "target_kernel_count": 1}, "target reaches 40 % of its compute bound"),
        ({"method": Method.UNMODELLED, "reason": "no formula"}, "no formula"),
    ],
)
def test_why(changes: dict[str, object], words: str) -> None:
    text = explain(build_op("aten::mm", 100.0, 75.0, **changes))
    assert text.startswith(words) or text.endswith(words)


def test_a_trace_against_itself(run: Run, trace_file: Path) -> None:
    result = run("validate", trace_file, trace_file)
    assert result.exit_code == 0, result.output
    assert "+0.0 %" in result.stdout
    assert "Both recordings are of one type of GPU" in result.stdout
    document = json.loads(run("validate", trace_file, trace_file, "--format", "json").stdout)
    assert (document["format"], document["version"]) == ("wavecast.validation", "1.0")
    assert document["iteration"]["error_ratio"] == pytest.approx(0.0)
    assert document["iteration"]["is_covered"] is None
    assert document["source"]["matched_ratio"] == document["target"]["matched_ratio"] == 1.0


def test_the_gpus_can_be_named(run: Run, trace_file: Path) -> None:
    text = run("validate", trace_file, trace_file, "--from", "T4", "--to", "h100 sxm", "--format", "json").stdout
    document = json.loads(text)
    assert (document["source"]["gpu"], document["target"]["gpu"]) == ("Tesla T4", "H100 SXM5 80GB")
    assert document["iteration"]["kernel_error_ns"] < 0
    assert document["iteration"]["host_error_ns"] == pytest.approx(0.0)


def test_rows_of_the_op_table(run: Run, trace_file: Path, tmp_path: Path) -> None:
    def count(*options: object) -> int:
        return len(json.loads(run("validate", trace_file, trace_file, "--format", "json", *options).stdout)["ops"])

    whole = count("--ops")
    assert (count("--top", 0), count("--top", 1), count("--top", 99)) == (0, 1, whole)
    path = tmp_path / "ops.csv"
    assert run("validate", trace_file, trace_file, "-o", path).exit_code == 0
    header, *rows = csv.reader(StringIO(path.read_text(encoding="utf-8")))
    assert tuple(header) == OP_COLUMNS
    assert len(rows) == whole == 2  # the product and its activation
    tables = [run("validate", trace_file, trace_file, "--top", top).stdout for top in (0, 1)]
    assert ["Ops by absolute error" in text for text in tables] == [False, True]


def test_the_speed_of_the_host(run: Run, trace_file: Path) -> None:
    usual, fast = (
        json.loads(run("validate", trace_file, trace_file, "--format", "json", *options).stdout)
        for options in ((), ("--cpu-speed", 2))
    )
    assert fast["scenario"]["cpu_speed"] == 2
    assert fast["iteration"]["predicted_ns"] < usual["iteration"]["predicted_ns"]
    assert fast["iteration"]["host_error_ns"] < 0
    assert fast["iteration"]["host_speed_ratio"] == pytest.approx(usual["iteration"]["host_speed_ratio"])


def assert_refused(result: Result, *words: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr


def test_a_second_trace_without_times_is_refused(run: Run, trace_file: Path, root_dir: Path) -> None:
    assert_refused(run("validate", trace_file, root_dir / SHAPES), "nothing to compare with", "record it on")


def test_other_workloads_are_refused(run: Run, trace_file: Path, root_dir: Path) -> None:
    assert_refused(run("validate", root_dir / OTHER_SHAPES, trace_file), "not of the same workload", "0% of the second")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--from", "no such GPU"), "no such GPU"),
        (("--to", "no such GPU"), "no such GPU"),
        (("--cpu-speed", "fast"), "--cpu-speed fast"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    options: tuple[str, str], words: str, run: Run, trace_file: Path
) -> None:
    assert_refused(run("validate", trace_file, trace_file, *options), words)


def test_one_standard_input_is_not_two_traces(run: Run, trace_bytes: bytes) -> None:
    assert_refused(run("validate", "-", "-", stdin=trace_bytes), "standard input holds one trace")


def test_one_trace_may_come_from_standard_input(run: Run, trace_file: Path, trace_bytes: bytes) -> None:
    result = run("validate", "-", trace_file, stdin=trace_bytes)
    assert result.exit_code == 0, result.output
    assert "standard input, measured on" in result.stdout
