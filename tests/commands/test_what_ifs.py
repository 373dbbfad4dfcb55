"""What-ifs mean in `compare`, `validate` and `scale` what they mean in `analyze`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from wavecast.analyzer.asking.what_ifs import WhatIfs
from wavecast.analyzer.whatif.scenario import SWITCHES, Scenario

from .test_commands import Run

GPU = "H100 SXM5 80GB"
SAMPLES = Path(__file__).parents[2] / "samples"
FP32 = SAMPLES / "gpt2_small-inference-fp32-b4-shapes.json.gz"
BF16 = SAMPLES / "gpt2_small-inference-bf16-b4-shapes.json.gz"
CHANGES: dict[tuple[str, ...], str] = {
    ("--precision", "bf16"): "bf16 arithmetic",
    ("--batch", "8"): "a batch of 8",
    ("--sequence-length", "256"): "sequences of 256 tokens",
    ("--host", "2"): "a host 2 times as fast",
    ("--attention-kernel", "math"): "math attention",
    ("--cuda-graph",): "launches by CUDA graphs",
    ("--fuse-elementwise",): "pointwise ops merged",
}
"""What-ifs, and how a report names them."""
REFUSED: dict[tuple[str, ...], str] = {
    ("--from-batch", "32"): "--from-batch says what --batch rescales",
    ("--from-sequence-length", "8"): "--from-sequence-length says what --sequence-length rescales",
    ("--sequence-length", "256"): "the shapes do not tell the sequence length",
    ("--cached-tokens", "8"): "the recording has no cache",
    ("--host", "fast"): "--host fast",
    ("--host", "0"): "--host 0",
    ("--batch", "0"): "--batch",
    ("--precision", "fp3"): "--precision",
    ("--attention-kernel", "flash9"): "--attention-kernel",
}
"""What means nothing for a trace without samples of tokens."""
COUNTED = {("--from-batch", "32")}
"""What is of use where samples are counted: of one GPU, or of plans."""


def ask(run: Run, *words: object) -> Any:
    """Return what a command says, as JSON."""
    result = run(*words, "--format", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def predicted_ns(run: Run, trace: Path, *options: str, gpu: str = GPU) -> float:
    """Return what `analyze` predicts."""
    return float(ask(run, "analyze", trace, "--to", gpu, *options)["predictions"][0]["iteration_ns"])


@pytest.mark.parametrize("options", CHANGES, ids=" ".join)
def test_both_traces_are_compared_after_a_change(options: tuple[str, ...], run: Run) -> None:
    document = ask(run, "compare", FP32, BF16, "--on", GPU, *options)
    (row,) = document["gpus"]
    assert row["old_ns"] == pytest.approx(predicted_ns(run, FP32, *options))
    assert row["new_ns"] == pytest.approx(predicted_ns(run, BF16, *options))
    assert f"what if, of both traces: {CHANGES[options]}" in document["warnings"]


def test_the_measured_gpu_is_predicted_only_where_something_is_asked(run: Run, trace_file: Path) -> None:
    (plain,) = ask(run, "compare", trace_file, trace_file)["gpus"]
    (same,) = ask(run, "compare", trace_file, trace_file, "--host", "1")["gpus"]
    (fast,) = ask(run, "compare", trace_file, trace_file, "--host", "2")["gpus"]
    assert plain == same
    assert (plain["old_measured"], plain["old_ns"], plain["new_ns"], plain["change"]) == (True, 400_000, 400_000, 0)
    assert (fast["old_measured"], fast["change"]) == (False, 0)
    assert fast["old_ns"] < plain["old_ns"]


@pytest.mark.parametrize("options", [("--batch", "64"), ("--host", "2"), ("--cuda-graph",)], ids=" ".join)
def test_a_changed_prediction_is_validated_against_the_same_measurement(
    options: tuple[str, ...], run: Run, trace_file: Path
) -> None:
    found = ask(run, "validate", trace_file, trace_file, "--to", GPU, *options)["iteration"]
    assert found["predicted_ns"] == pytest.approx(predicted_ns(run, trace_file, *options))
    assert found["measured_ns"] == 400_000


def test_changed_work_is_held_against_work_of_its_kind(run: Run, trace_file: Path) -> None:
    result = run("validate", trace_file, trace_file, "--precision", "bf16")
    assert result.exit_code == 2
    assert "not of the same workload" in result.stderr


@pytest.mark.parametrize("options", CHANGES, ids=" ".join)
def test_plans_are_of_the_changed_iteration(options: tuple[str, ...], run: Run) -> None:
    plain, changed = (
        ask(run, "scale", FP32, "--to", GPU, "--plan", "dp=1", *asked)["predictions"][0]["iteration_ns"]
        for asked in ((), options)
    )
    ratio = predicted_ns(run, FP32, *options) / predicted_ns(run, FP32)
    assert changed / plain == pytest.approx(ratio, rel=0.1)


def test_plans_of_changed_work_say_that_recorded_times_are_left_out(run: Run, trace_file: Path) -> None:
    told = "a batch of 64: plans are predicted by shapes alone, not by the recorded times"
    warnings = [
        ask(run, "scale", trace_file, "--to", GPU, "--plan", "dp=1", *options)["warnings"]
        for options in ((), ("--host", "2"), ("--batch", "64"))
    ]
    assert [told in found for found in warnings] == [False, False, True]


@pytest.mark.parametrize("options", REFUSED, ids=" ".join)
@pytest.mark.parametrize("command", ["analyze", "compare", "validate", "scale"])
def test_what_means_nothing_is_refused(command: str, options: tuple[str, ...], run: Run, trace_file: Path) -> None:
    traces = [trace_file] * (2 if command in ("compare", "validate") else 1)
    plan = ("--plan", "dp=1", "--to", GPU) if command == "scale" else ()
    result = run(command, *traces, *plan, *options)
    if command in ("analyze", "scale") and options in COUNTED:
        assert result.exit_code == 0
    else:
        assert (result.exit_code, result.stdout) == (2, "")
        assert REFUSED[options] in result.stderr


@pytest.mark.parametrize("command", ["compare", "validate", "scale"])
def test_what_changes_nothing_is_said(command: str, run: Run, trace_file: Path) -> None:
    traces = [trace_file] * (1 if command == "scale" else 2)
    plan = ("--plan", "dp=1", "--to", GPU) if command == "scale" else ()
    warnings = ask(run, command, *traces, *plan, "--attention-kernel", "math")["warnings"]
    assert any("--attention-kernel math changes nothing: no fused attention" in text for text in warnings)


@pytest.mark.parametrize("name", [item.name for item in SWITCHES])
def test_a_switch_is_an_option_of_its_own_name_in_reports(name: str) -> None:
    on: dict[str, Any] = {name: True}
    asked = Scenario(**on)
    assert WhatIfs(**on)._asked() == {item.name: item.name == name for item in SWITCHES}
    assert len(asked.changes) == 1
    assert asked.changes_anything
    assert asked.changes_work == (name != "cuda_graph")
    assert not Scenario().changes_anything
