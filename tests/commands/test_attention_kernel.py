"""`analyze --attention-kernel`: another implementation of attention, where it exists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .test_commands import Run

SAMPLE = Path(__file__).parents[2] / "samples" / "gpt2_small-inference-bf16-b4-shapes.json.gz"
GPUS = ("--to", "H100 SXM5 80GB", "--to", "A100 SXM4 80GB", "--to", "Instinct MI300X")


def ask(run: Run, *options: object) -> Any:
    """Return the report on a shape recording of GPT-2."""
    return json.loads(run("analyze", SAMPLE, *GPUS, *options, "--format", "json").stdout)


def busy_ns(document: Any) -> dict[str, float]:
    """Return the GPU-busy time on each GPU."""
    return {row["gpu"]: row["gpu_busy_ns"] for row in document["predictions"]}


def test_a_kernel_runs_where_it_exists_and_the_default_elsewhere(run: Run) -> None:
    default, flash3 = ask(run), ask(run, "--attention-kernel", "flash3")
    flash2 = busy_ns(ask(run, "--attention-kernel", "flash2"))
    changed = busy_ns(flash3)
    assert changed["H100 SXM5 80GB"] < flash2["H100 SXM5 80GB"]
    assert changed["A100 SXM4 80GB"] == pytest.approx(busy_ns(default)["A100 SXM4 80GB"])
    (warning,) = (text for text in flash3["warnings"] if "--attention-kernel" in text)
    assert warning.startswith("--attention-kernel flash3: does not exist on A100 SXM4 80GB, Instinct MI300X")
    assert flash3["scenario"]["attention"] == "flash3"


def test_without_a_fused_kernel_attention_takes_longer(run: Run) -> None:
    default, math = (busy_ns(document) for document in (ask(run), ask(run, "--attention-kernel", "math")))
    assert all(math[gpu] > default[gpu] for gpu in default)


def test_a_trace_without_attention_says_so(run: Run, trace_file: Path) -> None:
    document = json.loads(run("analyze", trace_file, "--attention-kernel", "cudnn", "--format", "json").stdout)
    assert any("no fused attention" in text for text in document["warnings"])
