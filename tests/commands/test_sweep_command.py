"""`wavecast sweep`: the answer first, every format, and one line for what cannot be asked."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import Result

Run = Callable[..., Result]
CheckGolden = Callable[[str, str], None]
FIRST_LINES = 10
PNG = b"\x89PNG\r\n"


@pytest.fixture(scope="module")
def sample(root_dir: Path) -> Path:
    return root_dir / "samples" / "resnet50-training-bf16-b32-shapes.json.gz"


def test_twice_the_bandwidth_is_answered_in_the_first_lines(run: Run, sample: Path) -> None:
    result = run("sweep", sample, "--on", "l40s", "--vary", "memory.bandwidth=2x", COLUMNS=80)
    assert result.exit_code == 0, result.output
    head = "\n".join(result.stdout.splitlines()[:FIRST_LINES])
    answer = re.search(
        r"Twice the memory\.bandwidth \(1\.73 TB/s\): ([\d.]+)× faster \(([\d.]+)–([\d.]+)\)", head.replace("\n", " ")
    )
    assert answer is not None, head
    speedup, low, high = map(float, answer.groups())
    assert 1 <= low < speedup < high <= 2
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("line", ["--vary", "memory.bandwidth=1x..8x:5"]),
        ("grid", ["--vary", "memory.bandwidth=0.5x,1x,2x", "--vary", "sms=71,142,284"]),
        ("names", ["--vary", "precision=recorded,fp16"]),
        ("batch", ["--vary", "batch=16..64"]),
        ("sensitivity", []),
    ],
)
def test_what_is_printed(name: str, arguments: list[str], run: Run, sample: Path, check_golden: CheckGolden) -> None:
    result = run("sweep", sample, "--on", "l40s", *arguments, COLUMNS=100)
    assert result.exit_code == 0, result.output
    check_golden(f"sweep_{name}.txt", result.stdout)


def test_the_host_that_is_asked_for_is_said(run: Run, sample: Path, root_dir: Path) -> None:
    result = run("sweep", sample, "--on", "l40s", "--vary", "batch=16,32", "--host", "2", COLUMNS=100)
    assert "on a host 2.00 times as fast as an H100 node's." in result.stdout
    measured = root_dir / "samples" / "bert_small-inference-bf16-b1-h100.json.gz"
    result = run("sweep", measured, "--on", "l40s", "--vary", "sms=1x,2x", "--host", "2", COLUMNS=100)
    assert "beside a host 2.00 times as fast as the recorded one." in result.stdout


def test_records_hold_the_points(run: Run, sample: Path) -> None:
    question: tuple[object, ...] = ("sweep", sample, "--on", "l40s", "--vary", "memory.bandwidth=1x,2x")
    document = json.loads(run(*question, "--format", "json").stdout)
    rows = list(csv.DictReader(StringIO(run(*question, "--format", "csv").stdout)))
    assert document["format"] == "wavecast.sweep"
    assert [point["values"]["memory.bandwidth"] for point in document["points"]] == [864e9, 1728e9]
    for point, row in zip(document["points"], rows, strict=True):
        assert float(row["memory.bandwidth_bytes_per_s"]) == point["values"]["memory.bandwidth"]
        assert float(row["iteration_ns"]) == point["iteration_ns"]
        shares = [float(row[name]) for name in row if name.startswith("share_")]
        assert sum(shares) == pytest.approx(sum(point["shares"].values())) == pytest.approx(1.0)
    question = ("sweep", sample, "--on", "l40s")
    document = json.loads(run(*question, "--format", "json").stdout)
    rows = list(csv.DictReader(StringIO(run(*question, "--format", "csv").stdout)))
    assert document["format"] == "wavecast.sensitivity"
    assert [row["name"] for row in rows] == [item["name"] for item in document["figures"]]


def test_pictures_are_drawn(run: Run, sample: Path, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    question = ("sweep", sample, "--on", "l40s")
    for number, vary in enumerate(
        (["--vary", "clock=1x..2x:4"], ["--vary", "clock=1x..2x:6", "--vary", "sms=1x..2x:6"])
    ):
        svg, png = tmp_path / f"{number}.svg", tmp_path / f"{number}.png"
        assert run(*question, *vary, "-o", svg).exit_code == 0
        words = "".join(ElementTree.fromstring(svg.read_text()).itertext())  # noqa: S314 (our own)
        assert "L40S" in words
        assert "var(" not in svg.read_text()
        if number == 0:
            assert run(*question, *vary, "-o", png).exit_code == 0
            assert png.read_bytes().startswith(PNG)
            assert run(*question, *vary, "--format", "svg").stdout.startswith("<svg")


def test_pages_hold_the_charts(run: Run, sample: Path, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    path = tmp_path / "sweep.html"
    assert run("sweep", sample, "--on", "l40s", "--vary", "clock=1x..2x:4", "-o", path).exit_code == 0
    text = path.read_text(encoding="utf-8")
    assert text.count("What the time goes to") >= 1
    assert "L40S by clock" in text


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--vary", "memory.bandwith=2x"], "did you mean memory.bandwidth"),
        (["--vary", "clock"], "expected NAME=VALUES"),
        (["--vary", "=2x"], "expected NAME=VALUES"),
        (["--vary", "sms=1x", "--vary", "sms=2x"], "stands there twice"),
        (["--vary", "sms=0x"], "above 0"),
        (["--vary", "sms=66.5"], "whole number"),
        (["--vary", "clock=4x..1x"], "smaller value first"),
        (["--vary", "clock=1x..4x:1000000"], "at most 200"),
        (["--vary", "a=1", "--vary", "b=1", "--vary", "c=1"], "expected one parameter or two, found 3"),
        (["--vary", "sms=2x", "-o", "x.foo"], "ends in .txt, .json, .csv, .md, .html, .svg, .png"),
        (["--vary", "sms=2x", "--format", "png"], "-o FILE.png"),
        (["-o", "x.png"], "format 'png': expected table, json, csv"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_line(arguments: list[str], part: str, run: Run, sample: Path) -> None:
    result = run("sweep", sample, "--on", "l40s", *arguments)
    assert result.exit_code == 2
    assert part in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("on", "part"),
    [("h100", "means 3 GPUs"), ("rtx9999", "no GPU"), ("h100sxm/1g.10gb", "is a slice"), (None, "add --on")],
)
def test_one_gpu_is_varied(on: str | None, part: str, run: Run, sample: Path) -> None:
    result = run("sweep", sample, *(["--on", on] if on else []), "--vary", "sms=2x")
    assert result.exit_code == 2
    assert part in result.stderr


def test_a_gpu_keeps_its_cap_and_its_lock(run: Run, sample: Path) -> None:
    for on, name, ends in (
        ("h100sxm@350W", "clock", 0),
        ("h100sxm@1200MHz", "clock", 2),
        ("h100sxm@1200MHz", "sms", 0),
    ):
        result = run("sweep", sample, "--on", on, "--vary", f"{name}=1x,1.5x", "--format", "json")
        assert result.exit_code == ends
        if not ends:
            document = json.loads(result.stdout)
            assert document["points"][0]["iteration_ns"] == document["base"]["iteration_ns"]
            assert document["points"][1]["speedup"] > 1


def test_a_gpu_of_a_file_is_varied(run: Run, sample: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[[gpu]]\nname = "Mine"\nbased_on = "L40S"\nmemory = { bandwidth_gb_per_s = 1728 }\n')
    mine = run("sweep", sample, "--on", "mine", "--gpu-file", path, "--vary", "bandwidth=0.5x,1x", "--format", "json")
    assert mine.exit_code == 0, mine.output
    half, same = json.loads(mine.stdout)["points"]
    own = run("sweep", sample, "--on", "l40s", "--vary", "bandwidth=1x,2x", "--format", "json")
    one, two = json.loads(own.stdout)["points"]
    assert (half["iteration_ns"], same["iteration_ns"]) == pytest.approx((one["iteration_ns"], two["iteration_ns"]))
