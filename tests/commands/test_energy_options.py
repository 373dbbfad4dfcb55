"""Energy on the command line: columns, notes, records, and mistakes told in a line."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

Run = Any
SAMPLES = Path(__file__).parents[2] / "samples"
SAMPLE = SAMPLES / "gpt2_small-inference-bf16-b4-shapes.json.gz"
TRAINING = SAMPLES / "gpt2_small-training-bf16-b4-shapes.json.gz"
ASKED = ("--electricity", "0.12", "--pue", "1.2", "--host-watts", "150", "--carbon", "380")
OTHERS = {
    "scale": (TRAINING, "--to", "h100sxm", "--gpus", "8", "--plan", "dp=8", "--sort", "energy"),
    "sweep": (SAMPLE, "--on", "h100sxm", "--vary", "sms=1x,2x"),
    "compare": (SAMPLE, SAMPLES / "gpt2_small-inference-fp32-b4-shapes.json.gz", "--on", "h100sxm"),
    "shard": (SAMPLES / "dlrm-training-fp32-b2048-shapes.json.gz", "--to", "h100sxm", "--gpus", "8"),
    "recommender": (SAMPLES / "dlrm-dcnv2.toml", "--to", "h100sxm", "--to", "a100sxm80", "--sort", "energy"),
}
"""Commands that tell energy beside times of many GPUs, or of changes."""
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
    ],
)
def test_mistakes_are_told_in_a_line(run: Run, words: tuple[str, ...], expected: str) -> None:
    result = run("analyze", SAMPLE, *GPUS, *words)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("command", OTHERS)
def test_every_command_that_tells_times_tells_energy(run: Run, command: str) -> None:
    words = OTHERS[command]
    page = run(command, *words, *ASKED, "--format", "markdown")
    assert page.exit_code == 0, page.output
    assert "150.0 W of the host for each GPU of the machines used and the site's 1.20 times as much" in page.stdout
    assert "A kWh costs $0.120." in page.stdout
    document = json.loads(run(command, *words, *ASKED, "--format", "json").stdout)
    plain = json.loads(run(command, *words, "--format", "json").stdout)
    for told, paid in zip(_energies(plain), _energies(document), strict=True):
        assert told["energy_low_j"] < told["energy_j"] < told["energy_high_j"]
        assert told["billed_j"] == told["energy_j"] == pytest.approx(paid["energy_j"])
        assert told["electricity_usd"] is None
        assert paid["billed_j"] > 1.2 * paid["energy_j"]
        assert paid["electricity_usd"] == pytest.approx(paid["billed_j"] / 3.6e6 * 0.12)
        assert paid["co2_kg_per_day"] == pytest.approx(paid["kwh_per_day"] * 0.38)
    rows = list(csv.DictReader(io.StringIO(run(command, *words, "--format", "csv").stdout)))
    first = next(iter(_energies(plain)))
    assert float(rows[0].get("energy_j") or rows[0]["old_energy_j"]) == pytest.approx(first["energy_j"], rel=1e-6)


def _energies(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a document says of energy, wherever it does, first to last."""
    found = []
    for key in ("predictions", "points", "gpus", "plans"):
        rows = document.get(key)
        if isinstance(rows, list):
            found += [row[name] for row in rows for name in ("energy", "old_energy", "new_energy") if name in row]
    assert found
    return found


def test_energy_is_of_what_varies(run: Run) -> None:
    result = run("sweep", SAMPLE, "--on", "h100sxm", "--electricity", "0.12")
    assert result.exit_code == 2
    assert "are told of --vary: say what varies" in result.stderr
    assert "energy" not in run("sweep", SAMPLE, "--on", "h100sxm", "--vary", "sms=1x,2x").stdout.casefold()
