"""What the options of a decision print, and what they refuse."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import click
import pytest
from click.testing import Result
from wavecast.__main__ import wavecast
from wavecast.analyzer.asking.choice import complete_vendors

Run = Callable[..., Result]
RUN = "3 epochs of 1281167 samples"


@pytest.fixture
def vit(root_dir: Path) -> Path:
    return root_dir / "samples" / "vit_b16-training-bf16-b32-shapes.json.gz"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ((), ("Fastest: ", "GPUs, all within 1 % of ", "; the cheapest of them that fits is ", "Cheapest that fits")),
        (("--sort", "cost"), ("Cheapest that fits", "Fastest: ")),
        (("--for", RUN), ("Cheapest that fits for 3 epochs of 1,281,167 samples: ", " hours (", "Fastest: ")),
        (
            ("--for", RUN, "--deadline", "24h", "--budget", "50"),
            ("Cheapest that fits and finishes 3 epochs of 1,281,167 samples in 24 h for at most $50: ",),
        ),
        (("--for", RUN, "--deadline", "1min"), ("No GPU that fits is predicted to finish ", " in 1 min", "Fastest: ")),
        (
            ("--to", "B200", "--to", "H100 SXM"),
            ("B200 SXM (HGX, 180GB), ", " × ", " than H100 SXM5 80GB (90 % interval ", " times the cost."),
        ),
        (("--to", "T4"), ("Tesla T4: ", " per iteration, $")),
        (
            ("--to", "T4", "--batch", "4096"),
            ("What if, on every GPU below: a batch of 4,096.", "It does not fit Tesla T4"),
        ),
    ],
)
def test_the_answer_stands_in_the_first_ten_lines(
    asked: tuple[str, ...], words: tuple[str, ...], run: Run, vit: Path
) -> None:
    result = run("analyze", vit, *asked, COLUMNS=80)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("vit_b16: training")
    top, at = " ".join(lines[:10]), 0
    for part in words:
        at = top.find(part, at)
        assert at >= 0, (part, top)


@pytest.mark.parametrize(
    ("asked", "titles"),
    [
        ((), ("GPU", "iteration", "interval", "1,000 it.")),
        (("--for", RUN, "--deadline", "1h", "--budget", "9"), ("GPU", "in all", "interval", "in all")),
        (("--largest-batch", "--sort", "cost"), ("GPU", "at best", "interval", "samples")),
    ],
)
def test_time_interval_and_cost_stay_at_80_columns(
    asked: tuple[str, ...], titles: tuple[str, ...], run: Run, root_dir: Path
) -> None:
    """Of the GPUs with the longest names."""
    only = ("RTX PRO", "Instinct", "L4")
    path = root_dir / "samples" / "resnet50-inference-bf16-b32-shapes.json.gz"
    result = run("analyze", path, *asked, *(word for name in only for word in ("--only", name)), COLUMNS=80)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    head = next(line for line in lines if line.lstrip().startswith("#"))
    at = 0
    for title in titles:
        at = head.find(title, at)
        assert at >= 0, head
        at += len(title)
    assert "…" not in "".join(line for line in lines if any(name in line for name in only))


def test_the_table_is_short_and_the_records_are_whole(run: Run, vit: Path) -> None:
    table = run("analyze", vit).stdout
    assert "more GPUs" in table
    assert "Quadro P4000" not in table
    assert "Quadro P4000" in run("analyze", vit, "--rows", "all").stdout
    rows = list(csv.DictReader(StringIO(run("analyze", vit, "--vendor", "amd", "--rows", 1, "--format", "csv").stdout)))
    assert len(rows) > 5
    assert {row["vendor"] for row in rows} == {"AMD"}


def test_records_hold_the_run_and_the_choice(run: Run, vit: Path) -> None:
    asked = ("--for", RUN, "--deadline", "24h", "--allowance", "10%", "--format")
    document = json.loads(run("analyze", vit, *asked, "json").stdout)
    assert document["run"]["iterations"] == 3 * 40_037
    assert document["run"]["goal"]["allowance_ratio"] == 0.1
    by_name = {row["gpu"]: row for row in document["predictions"]}
    taken = by_name[document["choice"]["taken"]]
    assert taken["total"]["in_time"] in ("surely", "likely")
    costs = [row["total"]["cost_usd"] for row in by_name.values() if row["total"]["cost_usd"] and row["fits"]]
    assert taken["total"]["cost_usd"] == min(costs)
    assert taken["total"]["time_ns"] == pytest.approx(1.1 * 3 * 40_037 * taken["iteration_ns"])
    rows = list(csv.DictReader(StringIO(run("analyze", vit, *asked, "csv").stdout)))
    assert {row["gpu"]: float(row["run_time_ns"]) for row in rows} == {
        name: pytest.approx(row["total"]["time_ns"]) for name, row in by_name.items()
    }


def test_the_allowance_is_always_said(run: Run, vit: Path) -> None:
    assert "nothing is added (--allowance 10% would add a tenth)" in run("analyze", vit, "--for", RUN).stdout
    assert "10 % is added for" in run("analyze", vit, "--for", RUN, "--allowance", "10%").stdout


def test_the_interval_of_what_was_measured_is_blank(run: Run, trace_file: Path) -> None:
    line = next(line for line in run("analyze", trace_file).stdout.splitlines() if "◀ source" in line)
    assert "–" not in line.split("source")[1].split("%")[0].replace(" – ", "")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("--vendor", "ACME"), "--vendor ACME: expected AMD, "),
        (("--only", "nothing"), "no GPU is left of"),
        (("--only", ""), "an empty pattern"),
        (("--min-memory", "lots"), "--min-memory"),
        (("--min-memory", "0"), "--min-memory"),
        (("--rows", "-1"), "--rows -1"),
        (("--rows", "1.5"), "--rows 1.5"),
        (("--budget", "5"), "--budget is of a whole run"),
        (("--for", "3 epochs"), "expected such as"),
        (("--for", "9 tokens"), "--from-sequence-length N"),
        (("--for", "9 steps", "--deadline", "soon"), "expected such as 90min, 24h or 3d"),
        (("--for", "9 steps", "--budget", "nan"), "--budget"),
        (("--for", "9 steps", "--allowance", "-5%"), "--allowance"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(
    asked: tuple[str, ...], words: str, run: Run, trace_file: Path
) -> None:
    result = run("analyze", trace_file, *asked)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert words in result.stderr


def test_vendors_and_choices_are_completed() -> None:
    found = wavecast.get_command(click.Context(wavecast), "analyze")
    assert found is not None
    context = click.Context(found)
    options = {item.name: item for item in found.params}
    assert complete_vendors(context, options["vendor"], "nv") == ["NVIDIA"]
    assert [item.value for item in options["vendor"].shell_complete(context, "a")] == ["AMD"]
    assert [item.value for item in options["sort"].shell_complete(context, "c")] == ["cost"]


def test_the_help_fits_80_columns(run: Run) -> None:
    assert max(map(len, run("analyze", "--help", COLUMNS=80).stdout.splitlines())) <= 80
