"""Energy on the command line: columns, notes, records, and mistakes told in a line."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

Run = Any
SAMPLE = Path(__file__).parents[2] / "samples" / "gpt2_small-inference-bf16-b4-shapes.json.gz"
GPUS = ("--to", "h100 sxm5", "--to", "l4", "--to", "t4")


def test_nothing_is_said_of_energy_unless_it_is_asked(run: Run) -> None:
    plain = run("analyze", SAMPLE, *GPUS)
    asked = run("analyze", SAMPLE, *GPUS, "--sort", "energy", "--electricity", "0.12", "--host-watts", "100")
    assert "Energy" not in plain.stdout
    assert "J per" not in plain.stdout
    words = " ".join(asked.stdout.split())
    assert "Least energy: " in words
    assert "Counted with 100.0 W of the host for each GPU. A kWh costs $0.120." in words
    assert "--host-watts counts it" not in words
    assert "--host-watts counts it" in " ".join(run("analyze", SAMPLE, *GPUS, "--sort", "energy").stdout.split())


def test_the_run_says_kwh_their_price_and_what_they_emit(run: Run) -> None:
    asked = ("--for", "1e6 iterations", "--electricity", "0.3", "--pue", "1.2", "--carbon", "300")
    result = run("analyze", SAMPLE, *GPUS, *asked, "--format", "markdown")
    assert "| kWh in all |" in result.stdout
    assert "| kg of CO2 |" in result.stdout
    assert "the site's 1.20 times as much" in " ".join(result.stdout.split())


def test_records_hold_energy_whether_it_is_asked_or_not(run: Run) -> None:
    document = json.loads(run("analyze", SAMPLE, *GPUS, "--ops", "--format", "json").stdout)
    (row, *_), (op, *_) = document["predictions"], document["ops"]
    energy = row["energy"]
    assert energy["joule_low"] < energy["joule"] < energy["joule_high"]
    assert energy["idle_w"] < energy["mean_w"] < energy["limit_w"]
    assert energy["mean_w"] == pytest.approx(energy["joule"] / row["iteration_ns"] * 1e9)
    assert 0 < op["energy_j"] < energy["joule"]
    assert "electricity" not in document
    table = list(csv.DictReader(io.StringIO(run("analyze", SAMPLE, *GPUS, "--format", "csv").stdout)))
    assert float(table[0]["energy_j"]) == pytest.approx(energy["joule"], rel=1e-6)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--electricity", "nan"), "--electricity nan: expected $ per kWh, such as 0.12, from 0 to 10"),
        (("--pue", "0"), "--pue 0.0: expected the site's power over its computers', such as 1.2, from 1 to 5"),
        (("--host-watts", "-5"), "--host-watts -5.0: expected watts of the host for each GPU, such as 150"),
        (("--carbon", "300"), '--carbon is of a whole run: say which, such as --for "90000 iterations"'),
        (("--electricity", "0.1", "--largest-batch"), "are about one batch: leave --largest-batch out"),
        (("--sort", "energy", "--largest-batch"), "--sort energy is about one batch: leave --largest-batch out"),
        (("--pue", "1.1", "--gpus", "8", "--plan", "dp=8"), "are for one GPU: leave them out beside --plan"),
    ],
)
def test_mistakes_are_told_in_a_line(run: Run, words: tuple[str, ...], expected: str) -> None:
    result = run("analyze", SAMPLE, *GPUS, *words)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
