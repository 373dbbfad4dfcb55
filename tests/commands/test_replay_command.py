"""`wavecast replay`: the table and the limit; and `analyze --timeline`."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from wavecast.formats.files.open import load_trace, save_trace

Run = Callable[..., Result]
SHAPES = "samples/dcgan-training-fp32-b64-shapes.json.gz"


def events_of(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    events: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    return events


def sides_of(path: Path) -> list[str]:
    named = (event for event in events_of(path) if event["name"] == "process_name")
    return [event["args"]["name"] for event in sorted(named, key=lambda event: event["pid"])]


def test_table_and_json_tell_of_the_same_iterations(run: Run, trace_file: Path) -> None:
    table, document = run("replay", trace_file), run("replay", trace_file, "--format", "json")
    assert (table.exit_code, document.exit_code) == (0, 0)
    assert "tiny.json, recorded on A100" in table.stdout
    found = json.loads(document.stdout)
    assert found["format"] == "wavecast.replay"
    assert [item["measured_ns"] for item in found["iterations"]] == [400_000, 450_000]
    for item in found["iterations"]:
        assert item["gpu_busy_ns"] + sum(item["idle_ns"].values()) == pytest.approx(item["measured_ns"])


def test_a_replay_that_is_too_far_off_fails_after_printing(run: Run, trace_file: Path) -> None:
    document = json.loads(run("replay", trace_file, "--format", "json").stdout)
    worst = max(abs(item["replayed_ns"] / item["measured_ns"] - 1) * 100 for item in document["iterations"])
    assert worst > 0.1
    failed = run("replay", trace_file, "--max-error", worst - 0.1)
    assert failed.exit_code == 1
    assert f"off by {worst:.2f} %" in failed.stderr
    assert failed.stderr.count("\n") == 1
    assert "measured" in failed.stdout
    assert run("replay", trace_file, "--max-error", worst + 0.1).exit_code == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--max-error", "nan"), ("--max-error nan", "percentage")),
        (("--from", "H1O0"), ("H1O0",)),
    ],
)
def test_refusals(options: tuple[object, ...], words: tuple[str, ...], run: Run, trace_file: Path) -> None:
    result = run("replay", trace_file, *options)
    assert result.exit_code in (1, 2)
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert all(word in result.stderr for word in words)


def test_shapes_alone_have_nothing_to_compare_with(run: Run, root_dir: Path) -> None:
    result = run("replay", root_dir / SHAPES)
    assert result.exit_code == 2
    assert "holds no kernels" in result.stderr


@pytest.mark.parametrize("name", ["timeline.json", "timeline.json.gz"])
def test_a_timeline_has_the_recording_above_the_prediction(
    name: str, run: Run, trace_file: Path, tmp_path: Path
) -> None:
    path = tmp_path / name
    result = run("analyze", trace_file, "--to", "L40S", "--timeline", path, "--format", "json")
    assert result.exit_code == 0, result.output
    above, below = sides_of(path)
    assert "A100" in above
    assert "L40S" in below
    row = next(item for item in json.loads(result.stdout)["predictions"] if item["gpu"] == "L40S")
    _, predicted = (event["dur"] for event in events_of(path) if event.get("cat") == "iteration")
    assert predicted == pytest.approx(row["iteration_ns"] / 1000, abs=1e-3)


def test_a_what_if_of_shapes_alone_has_one_side(run: Run, root_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    questions = ("--batch", 128, "--precision", "bf16", "--cuda-graph", "--fuse-elementwise", "--host", 1.5)
    result = run("analyze", root_dir / SHAPES, "--to", "T4", *questions, "--timeline", path)
    assert result.exit_code == 0, result.output
    assert len(sides_of(path)) == 1


def test_the_calibrated_timeline_is_as_long_as_the_report_says(run: Run, trace_file: Path, tmp_path: Path) -> None:
    trace, path, timeline = load_trace(trace_file), tmp_path / "calibrated.json", tmp_path / "timeline.json"
    steps = replace(trace.iterations, profiled=np.array([False, True]))
    save_trace(replace(trace, iterations=steps), path)
    result = run("analyze", path, "--timeline", timeline, "--format", "json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["source"]["iteration_ns"] == 400_000
    _, predicted = (event["dur"] for event in events_of(timeline) if event.get("cat") == "iteration")
    assert predicted == pytest.approx(400, abs=1e-3)
