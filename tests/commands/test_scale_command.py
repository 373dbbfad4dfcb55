"""The `scale` command, and `analyze` asked about many GPUs."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from click.testing import Result

Run = Callable[..., Result]
PARTS = {"compute", "tensor", "context", "expert", "data", "pipeline", "bubble", "host", "optimizer", "stragglers"}


@pytest.fixture(scope="module")
def sample(root_dir: Path) -> Path:
    return root_dir / "samples" / "gpt2_small-training-bf16-b4-shapes.json.gz"


def test_plans_are_ranked_in_json(run: Run, sample: Path) -> None:
    result = run(
        "scale",
        sample,
        "--to",
        "h100sxm,a100 sxm4 80",
        "--gpus",
        "8",
        "--plan",
        "fsdp=*",
        "--plan",
        "tp=2,pp=2",
        "--format",
        "json",
    )
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["format"] == "wavecast.scale"
    rows = document["predictions"]
    assert [row["rank_by_time"] for row in rows] == [1, 2, 3, 4]
    assert {row["plan"] for row in rows} == {"fsdp=8", "dp=2,tp=2,pp=2"}
    assert {row["gpu"] for row in rows} == {"H100 SXM5 80GB", "A100 SXM4 80GB"}
    for row in rows:
        assert set(row["parts_ns"]) == PARTS
        assert sum(row["parts_ns"].values()) == pytest.approx(row["iteration_ns"])
        assert row["iteration_low_ns"] < row["iteration_ns"] < row["iteration_high_ns"]
        assert row["global_batch"] == 32
        assert row["fits"] is True
    assert document["searches"] == []


def test_every_format_is_written(run: Run, sample: Path, tmp_path: Path) -> None:
    options = ("--to", "h100sxm", "--gpus", "2,4", "--plan", "dp=*")
    table = run("scale", sample, *options)
    assert "dp=4" in table.stdout
    assert "GPUs" in table.stdout
    rows = list(csv.DictReader(StringIO(run("scale", sample, *options, "--format", "csv").stdout)))
    assert [row["gpu_count"] for row in rows] == ["4", "2"]
    assert all(float(row[f"{part}_ns"]) >= 0 for row in rows for part in PARTS)
    assert "| GPU" in run("scale", sample, *options, "--format", "markdown").stdout
    figure = tmp_path / "curve.svg"
    assert run("scale", sample, *options, "-o", figure).exit_code == 0
    drawn = figure.read_text(encoding="utf-8")
    assert drawn.startswith("<svg")
    assert "H100 SXM5 80GB" in drawn


@pytest.mark.parametrize("width", [80, 120])
def test_plans_are_never_cut(width: int, run: Run, sample: Path) -> None:
    plan = "fsdp=2,tp=2,sp=off,pp=2,vp=2,mb=1,recompute=selective"
    output = run("scale", sample, "--to", "h100sxm", "--plan", plan, "--plan", "dp=8", COLUMNS=width).stdout
    assert plan in output
    assert "interval" in output


def test_the_timeline_has_a_process_per_stage(run: Run, sample: Path, tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    result = run("scale", sample, "--to", "h100sxm", "--plan", "pp=4,mb=1,ga=4", "--timeline", path, "--format", "json")
    assert result.exit_code == 0, result.output
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    stages = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert stages == [f"stage {at} of 4: 1 H100 SXM5 80GB" for at in range(4)]
    passes = [event for event in events if event["ph"] == "X" and event["name"] in ("forward", "backward")]
    assert len(passes) == 4 * 4 * 2
    end_ns = max(event["ts"] + event["dur"] for event in events if event["ph"] == "X") * 1e3
    row = json.loads(result.stdout)["predictions"][0]
    stragglers = row["parts_ns"]["stragglers"]
    assert end_ns == pytest.approx(row["iteration_ns"] - stragglers, rel=0.1)


def test_one_plan_is_answered_for(run: Run, sample: Path) -> None:
    result = run("scale", sample, "--to", "h100sxm", "--gpus", "16", "--plan", "fsdp=8,dp=2", "--format", "json")
    document = json.loads(result.stdout)
    assert document["format"] == "wavecast.scale"
    assert [(row["plan"], row["gpu_count"]) for row in document["predictions"]] == [("dp=2,fsdp=8", 16)]


def test_plans_follow_the_framework_that_is_asked_for(run: Run, sample: Path) -> None:
    asked = ("--to", "h100sxm", "--gpus", "4", "--plan", "dp=4", "--search", "--framework", "megatron")
    rows = json.loads(run("scale", sample, *asked, "--format", "json").stdout)["predictions"]
    assert len(rows) > 1
    assert all("buckets=megatron" in row["plan"] for row in rows)


def test_merged_kernels_of_a_plan_take_less_energy(run: Run, sample: Path) -> None:
    asked = ("--to", "h100sxm", "--plan", "dp=4", "--electricity", "0.1", "--format", "json")
    plain, merged = (
        json.loads(run("scale", sample, *asked, *options).stdout)["predictions"][0]["energy"]["energy_j"]
        for options in ((), ("--fuse-elementwise",))
    )
    assert 0.5 * plain < merged < plain


def test_a_plan_file_is_read(run: Run, sample: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text('[mesh]\ntp = 2\n[shard]\n"*.words" = "replicate"\n', encoding="utf-8")
    result = run("scale", sample, "--to", "h100sxm", "--gpus", "4", "--plan", path, "--format", "json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["predictions"][0]["plan"] == "dp=2,tp=2"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("scale", "--gpus", "8"), "add --to h100"),
        (("scale", "--to", "h100sxm"), "add --gpus N"),
        (("scale", "--to", "h100sxm", "--gpus", "eight"), "expected a number of GPUs"),
        (("scale", "--to", "h100sxm", "--gpus", "8", "--plan", "tp=3"), "do not divide 8"),
        (("scale", "--to", "h100sxm", "--plan", "pp=2,schedule=zero-bubble"), "zero-bubble schedules are not modelled"),
        (("scale", "--to", "h100sxm", "--plan", "offload"), "is not modelled"),
        (("scale", "--to", "h100sxm", "--gpus", "8", "--max-memory", "much"), "70GiB"),
        (("scale", "--to", "h100sxm", "--gpus", "8", "--measured-step", "long"), "350ms"),
        (("scale", "--to", "h100sxm", "--gpus", "8", "--measured-step", "30ms"), "say which with --from"),
        (("scale", "--to", "h100sxm", "--plan", "missing.toml"), "missing.toml: cannot be read"),
        (("analyze", "--gpus", "8"), "--gpus is about many GPUs: ask 'wavecast scale'"),
    ],
)
def test_what_cannot_be_asked_is_one_line(arguments: tuple[str, ...], part: str, run: Run, sample: Path) -> None:
    name, *options = arguments
    result = run(name, sample, *options)
    assert result.exit_code == 2
    assert part in result.stderr
    assert "Traceback" not in result.output


def test_a_measured_rank_is_refused(run: Run, trace_file: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    from wavecast.formats.files.open import load_trace, save_trace

    trace = load_trace(trace_file)
    path = tmp_path / "rank.json"
    save_trace(replace(trace, meta=replace(trace.meta, rank=1, world_size=4)), path)
    result = run("scale", path, "--gpus", "8")
    assert result.exit_code == 2
    assert "rank 1 of 4" in result.stderr
