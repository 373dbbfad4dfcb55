"""A validation in every format, and why an op differs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from wavecast.analyzer.measurements.metrics import Figures
from wavecast.analyzer.page.markdown import draw_markdown
from wavecast.analyzer.page.page import Page
from wavecast.analyzer.page.terminal import Screen, draw_terminal
from wavecast.analyzer.prediction.prediction import Method
from wavecast.analyzer.questions.validate.page import (
    compared_op_table,
    describe_validation,
    draw_validation_json,
    explain,
)
from wavecast.analyzer.questions.validate.report import (
    Coverage,
    FamilyComparison,
    IterationComparison,
    OpComparison,
    Side,
    Unmatched,
    Validation,
)
from wavecast.analyzer.replay.causes import IdleCause
from wavecast.analyzer.whatif.scenario import Scenario

CheckGolden = Callable[[str, str], None]


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
            host_speed_by_ops=1.1,
            host_by_ops_half_width=0.08,
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


def describe(validation: Validation, *, detailed_ops: bool = False) -> Page:
    return describe_validation(
        validation, source_name="h100.json.gz", target_name="mi300x.json.gz", detailed_ops=detailed_ops
    )


@pytest.mark.parametrize("width", [80, 200, None])
def test_table(width: int | None, validation: Validation, check_golden: CheckGolden) -> None:
    text = draw_terminal(describe(validation), Screen(width=width) if width else Screen())
    assert all(len(line) <= (width or 10_000) for line in text.split("\n"))
    assert "\x1b" not in text
    check_golden(f"validate_{width or 'pipe'}.txt", text)


def test_other_formats(validation: Validation, check_golden: CheckGolden) -> None:
    check_golden("validate.md", draw_markdown(describe(validation, detailed_ops=True)))
    check_golden("validate.json", draw_validation_json(validation))
    check_golden("validate.csv", compared_op_table(validation).to_csv())


def test_every_drawing_is_whole(validation: Validation, assert_drawn_whole: Callable[[Page], None]) -> None:
    assert_drawn_whole(describe(validation, detailed_ops=True))


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
