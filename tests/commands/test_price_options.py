"""Prices are given by option, file or entry, in every command that shows money; mistakes are told in a line."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import wavecast

Run = Any
SAMPLE = Path(__file__).parents[2] / "samples" / "gpt2_small-inference-bf16-b4-shapes.json.gz"
GPUS = ("--to", "h100", "--to", "l40s")


def rows(run: Run, *words: object) -> dict[str, dict[str, Any]]:
    result = run("analyze", SAMPLE, *GPUS, "--format", "json", *words)
    assert result.exit_code == 0, result.stderr
    return {row["gpu"]: row for row in json.loads(result.stdout)["predictions"]}


def test_a_given_price_makes_the_cost(run: Run) -> None:
    found = rows(run, "--price", "H100=2", "--price", "h100 pcie=1.5 spot")
    sxm, pcie, shipped = found["H100 SXM5 80GB"], found["H100 PCIe 80GB"], found["L40S"]
    assert sxm["usd_per_1000_iterations"] == pytest.approx(2 * sxm["iteration_ns"] * 1000 / 3.6e12)
    assert (sxm["price_usd_per_hour"], sxm["price_kind"], sxm["price_source"], sxm["price_date"]) == (
        2, "on-demand", "given", None,
    )  # fmt: skip
    assert (pcie["price_usd_per_hour"], pcie["price_kind"]) == (2, "on-demand")
    assert shipped["price_date"] is not None
    assert "AWS" in shipped["price_source"]


def test_one_kind_and_one_cloud(run: Run) -> None:
    spot = rows(run, "--price", "h100 pcie=1.5 spot", "--price-kind", "spot")
    assert spot["H100 PCIe 80GB"]["price_usd_per_hour"] == 1.5
    aws = rows(run, "--cloud", "Amazon")
    assert aws["H100 SXM5 80GB"]["price_usd_per_hour"] == pytest.approx(55.04 / 8)
    assert "price_usd_per_hour" not in aws["H100 NVL 94GB"]


def test_what_gpus_writes_prices_reads_back(run: Run, tmp_path: Path) -> None:
    first, again = run("catalog", "--format", "csv"), tmp_path / "gpus.csv"
    again.write_text(first.stdout)
    second = run("catalog", "--format", "csv", "--prices", again)
    shown = [list(csv.DictReader(io.StringIO(result.stdout))) for result in (first, second)]
    for row in (*shown[0], *shown[1]):
        row.pop("price_source")
    assert shown[0] == shown[1]
    assert sum(bool(row["price_usd_per_hour"]) for row in shown[0]) >= 60


def test_the_note_tells_kind_and_age_and_old_prices_are_warned_of(run: Run, tmp_path: Path) -> None:
    new = run("analyze", SAMPLE, *GPUS)
    assert "Prices: on-demand $ per GPU-hour as listed (20" in " ".join(new.stdout.split())
    assert "days old on the median); check today's" in " ".join(new.stdout.split())
    assert "prices are" not in new.stdout
    (tmp_path / "old.csv").write_text("gpu,usd_per_hour,date\nh100,2,2024-01-01\nl40s,1,2024-01-01\n")
    old = run("analyze", SAMPLE, *GPUS, "--prices", tmp_path / "old.csv")
    assert "prices are 1,057 days old on the median: give today's with --price or --prices" in old.stdout
    (tmp_path / "old.csv").write_text("gpu,provider,usd_per_hour\nh100,here,2\nl40s,here,1\nTPU,here,1\n")
    passed = run("analyze", SAMPLE, *GPUS, "--prices", tmp_path / "old.csv")
    assert "old.csv: passed over 1 rows of what the catalogue does not hold (TPU)" in passed.stdout


def test_an_entry_of_a_gpu_file_states_its_price(run: Run, tmp_path: Path) -> None:
    (tmp_path / "gpus.toml").write_text(
        '[[gpu]]\nname = "Mine"\nbased_on = "H100 SXM5 80GB"\nprice_usd_per_hour = 0.75\n'
        '[[gpu]]\nname = "Its child"\nbased_on = "Mine"\n'
    )
    found = rows(run, "--gpu-file", tmp_path / "gpus.toml", "--to", "Mine", "--to", "Its child")
    assert (found["Mine"]["price_usd_per_hour"], found["Mine"]["price_kind"]) == (0.75, "own")
    assert "price_usd_per_hour" not in found["Its child"]


def test_scale_and_nodes_take_them(run: Run) -> None:
    words = ("--to", "h100sxm", "--gpus", "8", "--plan", "dp=8", "--format", "json", "--price", "H100=2")
    result = run("scale", SAMPLE, *words)
    (row,) = json.loads(result.stdout)["predictions"]
    assert row["price_usd_per_gpu_hour"] == 2
    assert row["usd_per_iteration"] == pytest.approx(16 * row["iteration_ns"] / 3.6e12)
    assert (
        "16.00 $/h (8 times the price of a GPU: on-demand, given)"
        in run("catalog", "nodes", "h100sxm", "--price", "H100=2").stdout
    )
    assert "21.96 $/h (on-demand, AWS, listed 2026-11-09)" in run("catalog", "nodes", "p4d.24xlarge").stdout


def test_the_batch_takes_them(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    result = run("batch", SAMPLE, *GPUS, "-o", out, "--price", "H100=2", "--price", "L40S=0.5 spot")
    assert result.exit_code == 0, result.stderr
    found = {row["gpu"]: row for row in csv.DictReader(io.StringIO(out.read_text()))}
    assert [found["L40S"][name] for name in ("price_usd_per_hour", "price_kind", "price_source")] == [
        "0.5", "spot", "given",
    ]  # fmt: skip
    assert found["H100 PCIe 80GB"]["price_usd_per_hour"] == "2.0"


def test_the_api_takes_prices_by_name_and_lists(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("h100,2\n")
    for prices in ({"H100": 2}, tmp_path / "mine.csv", str(tmp_path / "mine.csv")):
        report = wavecast.analyze(SAMPLE, to="h100", prices=prices).report
        assert {row.price_usd_per_hour for row in report.predictions} == {2.0}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--price", "H100"], "--price 'H100': expected GPU=$ per hour"),
        (["--price", "H100=nan"], "expected 0 to 1,000 $ per GPU and hour"),
        (["--price", "H1000=2"], "no GPU of the catalogue is called 'H1000'"),
        (["--price", "H100=2", "--price", "H100=3"], "H100 is given twice"),
        (["--prices", "none.csv"], "none.csv: cannot be read"),
        (["--prices", "."], "no price list in this folder"),
        (["--prices", str(SAMPLE)], "it is no text in UTF-8"),
        (["--cloud", "moon"], "--cloud 'moon': no price is of it"),
    ],
)
def test_mistakes_are_told_in_a_line(words: list[str], told: str, run: Run, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for command in ("analyze", "catalog"):
        result = run(command, *([SAMPLE] if command == "analyze" else []), *words)
        assert result.exit_code == 2
        assert told in result.stderr
        assert result.stderr.count("\n") == 1
