"""A re-run in words and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from wavecast.analyzer.measurements.metrics import Figures
from wavecast.analyzer.page.page import Page
from wavecast.analyzer.page.terminal import Screen, draw_terminal
from wavecast.analyzer.questions.rerun.page import describe_rerun, draw_rerun_json
from wavecast.analyzer.questions.rerun.report import FamilyRow, Iteration, LeftOut, RerunOp, RerunReport
from wavecast.analyzer.questions.validate.report import Coverage
from wavecast.formats.measured.rerun import WholePass

CheckGolden = Callable[[str, str], None]


def build_op(op: str, rerun_us: float | None, **changes: Any) -> RerunOp:
    values: dict[str, Any] = {
        "op": op,
        "shapes": "float16[32,1024] float16[1024,4096]",
        "module": "Net.layers.0.mlp",
        "family": "matmul",
        "count": 24,
        "recorded_ns": 800e3,
        "predicted_ns": 1800e3,
        "predicted_low_ns": 1500e3,
        "predicted_high_ns": 2000e3,
        "rerun_ns": None if rerun_us is None else 1e3 * rerun_us,
        "timing": "events",
        "reason": "",
    }
    return RerunOp(**(values | changes))


def build_family(family: str | None, ops: int, **changes: Any) -> FamilyRow:
    figures = Figures(rows=ops, mape=0.19, median_ape=0.18, p90_ape=0.3, bias=-0.05, coverage_90=0.75, width_90=0.45)
    values: dict[str, Any] = {"family": family, "op_count": ops, "call_count": 30 * ops, "recorded_ns": 900e3}
    return FamilyRow(**(values | {"predicted_ns": 1900e3, "rerun_ns": 1800e3, "figures": figures} | changes))


@pytest.fixture
def report() -> RerunReport:
    """A re-run with everything that one can hold."""
    unknown = replace(build_family(None, 1).figures, coverage_90=float("nan"), width_90=float("nan"))  # type: ignore[type-var]
    return RerunReport(
        device="NVIDIA L4",
        is_gpu=True,
        gpu="L4",
        framework="torch 2.6.0",
        source="A100 SXM4 80GB",
        capture="measured",
        is_same_gpu=False,
        weighed_by="predicted",
        call_count=100,
        rerun_call_count=90,
        rerun_ratio=0.93,
        total=build_family(None, 3, rerun_ns=2000e3),
        families=(
            build_family("matmul", 2),
            build_family("elementwise", 1, recorded_ns=None, predicted_ns=None, rerun_ns=200e3, figures=unknown),
        ),
        intervals=Coverage(op_count=2, covered_op_count=1, measured_ns=1800e3, covered_ns=1700e3),
        ops=(
            build_op("aten::addmm", 1700),
            build_op("aten::mm", 100, recorded_ns=None, predicted_low_ns=None, predicted_high_ns=None),
            build_op("aten::\x1b[31mmul", 200, predicted_ns=None, predicted_low_ns=None, shapes="", timing="host"),
            build_op("aten::item", None, timing="", reason="it depends on values"),
        ),
        left_out=tuple(
            LeftOut(op=f"aten::op{number}", reason="its shapes were not recorded", count=number, time_ns=1e4 / number)
            for number in range(1, 12)
        ),
        iteration=Iteration(
            recorded_ns=3000e3,
            recorded_kernels_ns=1000e3,
            predicted_ns=4000e3,
            predicted_kernels_ns=2000e3,
            whole=WholePass(call_count=90, parts_ns=2000e3, elapsed_ns=3000e3, device_ns=2500e3, graph_ns=2200e3),
        ),
        warnings=("the GPU's clock changed \x07 while it ran",),
    )


@pytest.mark.parametrize("width", [80, None])
def test_table(width: int | None, report: RerunReport, check_golden: CheckGolden) -> None:
    screen = Screen(width=width) if width else Screen()
    text = draw_terminal(describe_rerun(report, name="a100.json.gz", op_limit=2), screen)
    assert all(len(line) <= (width or 10_000) for line in text.split("\n"))
    check_golden(f"rerun_{width or 'pipe'}.txt", text)


def test_every_drawing_is_whole(report: RerunReport, assert_drawn_whole: Callable[[Page], None]) -> None:
    page = describe_rerun(report, name="a100.json.gz", op_limit=9)
    assert_drawn_whole(page)
    assert not {"\x1b", "\x07"} & set(draw_terminal(page, Screen()))


def test_times_of_another_kind_of_device_are_not_compared(report: RerunReport) -> None:
    for device in ({"is_gpu": False}, {"capture": "shapes"}, {"capture": "host"}):
        text = draw_terminal(describe_rerun(replace(report, **device), name="x", op_limit=9), Screen())
        assert "recorded /" not in text
        assert ", recorded 3.00 ms" not in text
    assert ", recorded 3.00 ms" in draw_terminal(describe_rerun(report, name="x", op_limit=9), Screen())


def test_the_host_of_a_gpu_is_no_gpu(report: RerunReport) -> None:
    text = draw_terminal(describe_rerun(replace(report, capture="host"), name="x", op_limit=9), Screen())
    assert "on the host of a GPU whose kernels are not in the file" in text


def test_json_has_null_where_no_op_has_an_interval(report: RerunReport) -> None:
    families = json.loads(draw_rerun_json(report))["families"]
    assert [family["figures"]["coverage_90"] for family in families] == [0.75, None]
    assert [family["figures"]["rows"] for family in families] == [2, 1]
