"""`wavecast recommender`: a recommender of a file, its formats, and one line for what is no recommender."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from click.testing import Result
from wavecast.formats.files.open import load_trace

Run = Callable[..., Result]
MODEL = {
    "table_rows": "[100000, 50]",
    "width": "16",
    "dense_features": "4",
    "bottom": "[32, 16]",
    "top": "[32, 1]",
}
TRAINING = {"global_batch": "4096", "gpus": "8"}


def write(path: Path, model: dict[str, str] | None = None, training: dict[str, str] | None = None) -> Path:
    lines = []
    for name, keys in (("model", MODEL | (model or {})), ("training", TRAINING | (training or {}))):
        lines += [f"[{name}]", *(f"{key} = {value}" for key, value in keys.items() if value)]
    path.write_text("\n".join(lines))
    return path


def test_it_is_told_in_words(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "job.toml", {"name": '"tiny"'})
    result = run("recommender", path, "--to", "h100sxm", "--to", "a100sxm80", COLUMNS=100)
    assert result.exit_code == 0, result.output
    assert "tiny: 2 tables of 100,050 rows × 16, 2 lookups per sample, 4,096 samples on 8 GPUs." in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_every_format_and_the_trace(run: Run, tmp_path: Path) -> None:
    path, saved = write(tmp_path / "job.toml"), tmp_path / "rank.json.gz"
    asked = ("recommender", path, "--to", "h100sxm", "--gpus", "16", "--global-batch", "8192", "--indices", "uniform")
    document = json.loads(run(*asked, "--save-trace", saved, "--format", "json").stdout)
    assert document["format"] == "wavecast.recommender"
    assert document["training"]["gpus"] == 16
    assert document["training"]["indices"] == "uniform"
    row = document["gpus"][0]
    assert sum(row["parts_ns"].values()) == pytest.approx(row["step_ns"])
    rows = list(csv.DictReader(StringIO(run(*asked, "--format", "csv").stdout)))
    assert float(rows[0]["step_ns"]) == pytest.approx(row["step_ns"])
    trace = load_trace(saved)
    assert trace.meta.world_size == 16
    assert len(trace.collectives.op) > 0
    told = run("analyze", saved, "--to", "h100sxm")
    assert told.exit_code == 0, told.output
    assert "taken to be spread" not in told.output, "the trace itself says how"


@pytest.mark.parametrize(
    ("model", "training", "expected"),
    [
        ({"width": ""}, {}, "model: width is missing; give it"),
        ({"width": "0"}, {}, "model.width: expected a whole number from 1"),
        ({"width": "true"}, {}, "model.width: expected a whole number"),
        ({"width": "32"}, {}, "model.bottom: expected the last layer to have the tables' width 32, found 16"),
        ({"table_rows": "[]"}, {}, "model.table_rows: expected up to 1,024 whole numbers"),
        ({"table_rows": "[-5]"}, {}, "model.table_rows[0]: expected a whole number from 1 to"),
        ({"table_rows": "[1e6]"}, {}, "model.table_rows[0]: expected a whole number from 1 to 1,000"),
        ({"table_rows": "[99999999999999]"}, {}, "model.table_rows[0]: expected a whole number from 1 to 1,000"),
        ({"pooling": "[1, 2, 3]"}, {}, "model.pooling: expected 2 numbers, one per table, found 3"),
        ({"interaction": '"sum"'}, {}, "model.interaction: expected one of dot, cross"),
        ({"colour": "3"}, {}, "model: unknown key colour; expected one of bottom"),
        ({}, {"gpus": "2000"}, "training.gpus: expected a whole number from 1 to 1,024"),
        ({}, {"global_batch": "4"}, "training.global_batch: expected at least a sample for each of 8 GPUs"),
        ({}, {"layout": '"round"'}, "training.layout: expected one of hybrid, collection, localized"),
        ({}, {"layout": "[1]"}, "training.layout: expected one of"),
        ({}, {"overlap": "1"}, "training.overlap: expected true or false"),
        ({}, {"part_cost": "nan"}, "training.part_cost: expected a number from 0"),
        (
            {"table_rows": "[900000000000]"},
            {"layout": '"collection"'},
            "do not fit into 8 × 60 GB",
        ),
    ],
)
def test_what_is_no_recommender_is_one_line(
    run: Run, tmp_path: Path, model: dict[str, str], training: dict[str, str], expected: str
) -> None:
    result = run("recommender", write(tmp_path / "job.toml", model, training), "--to", "h100sxm")
    assert result.exit_code == 2
    assert expected in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "job.toml: model is missing"),
        (b"\x00\xff\xfe", "expected TOML in UTF-8"),
        (b"[model\n", "expected TOML"),
        (b"model = 3\n", "model: expected a table, found 3"),
        (b"[other]\n", "unknown key other; expected one of model, training"),
        (None, "cannot be read"),
    ],
)
def test_what_is_no_file_is_one_line(run: Run, tmp_path: Path, content: bytes | None, expected: str) -> None:
    path = tmp_path / "job.toml"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    result = run("recommender", path, "--to", "h100sxm")
    assert result.exit_code == 2
    assert expected in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--to", "h100sxm", "--gpus", "0"), "--gpus"),
        (("--to", "h100sxm", "--global-batch", "3"), "at least a sample for each of 8 GPUs"),
        (("--to", "h100sxm", "--indices", "zipf:nan"), "expected an exponent from 0"),
        (("--to", "nothing9000"), "nothing9000"),
        ((), "--to"),
    ],
)
def test_what_cannot_be_asked(run: Run, tmp_path: Path, arguments: tuple[str, ...], expected: str) -> None:
    result = run("recommender", write(tmp_path / "job.toml"), *arguments)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert "Traceback" not in result.output
