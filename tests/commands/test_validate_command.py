"""`wavecast validate`: the options, and what it refuses."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from click.testing import Result
from wavecast.analyzer.questions.validate.page import OP_COLUMNS

Run = Callable[..., Result]
SHAPES = "samples/dcgan-training-fp32-b64-shapes.json.gz"
OTHER_SHAPES = "samples/gpt2_small-inference-fp32-b4-shapes.json.gz"


def test_a_trace_against_itself(run: Run, trace_file: Path) -> None:
    result = run("validate", trace_file, trace_file)
    assert result.exit_code == 0, result.output
    assert "+0.0 %" in result.stdout
    assert "Both recordings are of one type of GPU" in result.stdout
    document = json.loads(run("validate", trace_file, trace_file, "--format", "json").stdout)
    assert (document["format"], document["version"]) == ("wavecast.validation", "1.0")
    assert document["iteration"]["error_ratio"] == pytest.approx(0.0)
    assert document["iteration"]["is_covered"] is None
    assert document["source"]["matched_ratio"] == document["target"]["matched_ratio"] == 1.0


def test_the_gpus_can_be_named(run: Run, trace_file: Path) -> None:
    text = run("validate", trace_file, trace_file, "--from", "T4", "--to", "h100 sxm", "--format", "json").stdout
    document = json.loads(text)
    assert (document["source"]["gpu"], document["target"]["gpu"]) == ("Tesla T4", "H100 SXM5 80GB")
    assert document["iteration"]["kernel_error_ns"] < 0
    assert document["iteration"]["host_error_ns"] == pytest.approx(0.0)


def test_rows_of_the_op_table(run: Run, trace_file: Path, tmp_path: Path) -> None:
    def count(*options: object) -> int:
        return len(json.loads(run("validate", trace_file, trace_file, "--format", "json", *options).stdout)["ops"])

    whole = count("--ops")
    assert (count("--top", 0), count("--top", 1), count("--top", 99)) == (0, 1, whole)
    path = tmp_path / "ops.csv"
    assert run("validate", trace_file, trace_file, "-o", path).exit_code == 0
    header, *rows = csv.reader(StringIO(path.read_text(encoding="utf-8")))
    assert tuple(header) == OP_COLUMNS
    assert len(rows) == whole == 2  # the product and its activation
    tables = [run("validate", trace_file, trace_file, "--top", top).stdout for top in (0, 1)]
    assert ["Ops by absolute error" in text for text in tables] == [False, True]


def test_the_speed_of_the_host(run: Run, trace_file: Path) -> None:
    usual, fast = (
        json.loads(run("validate", trace_file, trace_file, "--format", "json", *options).stdout)
        for options in ((), ("--host", 2))
    )
    assert fast["scenario"]["cpu_speed"] == 2
    assert fast["iteration"]["predicted_ns"] < usual["iteration"]["predicted_ns"]
    assert fast["iteration"]["host_error_ns"] < 0
    assert fast["iteration"]["host_speed_ratio"] == pytest.approx(usual["iteration"]["host_speed_ratio"])


def assert_refused(result: Result, *words: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr


def test_a_second_trace_without_times_is_refused(run: Run, trace_file: Path, root_dir: Path) -> None:
    assert_refused(run("validate", trace_file, root_dir / SHAPES), "nothing to compare with", "record it on")


def test_other_workloads_are_refused(run: Run, trace_file: Path, root_dir: Path) -> None:
    assert_refused(run("validate", root_dir / OTHER_SHAPES, trace_file), "not of the same workload", "0% of the second")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--from", "no such GPU"), "no such GPU"),
        (("--to", "no such GPU"), "no such GPU"),
        (("--host", "fast"), "--host fast"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    options: tuple[str, str], words: str, run: Run, trace_file: Path
) -> None:
    assert_refused(run("validate", trace_file, trace_file, *options), words)


def test_one_standard_input_is_not_two_traces(run: Run, trace_bytes: bytes) -> None:
    assert_refused(run("validate", "-", "-", stdin=trace_bytes), "standard input holds one trace")


def test_one_trace_may_come_from_standard_input(run: Run, trace_file: Path, trace_bytes: bytes) -> None:
    result = run("validate", "-", trace_file, stdin=trace_bytes)
    assert result.exit_code == 0, result.output
    assert "standard input, measured on" in result.stdout


PAIR = [f"samples/bert_small-inference-bf16-b1-{gpu}.json.gz" for gpu in ("h100", "mi300x")]
OTHER = [f"samples/vit_small-inference-bf16-b4-{gpu}.json.gz" for gpu in ("h100", "mi300x")]


def test_many_pairs_give_a_table(run: Run) -> None:
    document = json.loads(run("validate", *PAIR, *OTHER, *OTHER[::-1], "--format", "json").stdout)
    assert document["format"] == "wavecast.validation-pairs"
    gpus = [(pair["source"], pair["target"]) for pair in document["pairs"]]
    assert gpus == [("H100 SXM5 80GB", "Instinct MI300X")] * 2 + [("Instinct MI300X", "H100 SXM5 80GB")]
    single = json.loads(run("validate", *PAIR, "--format", "json").stdout)["iteration"]
    assert document["pairs"][0]["error"] == pytest.approx(single["error_ratio"])
    assert document["pairs"][0]["is_covered"] == single["is_covered"]
    busy = [pair["busy_error"] for pair in document["pairs"][:2]]
    text = " ".join(run("validate", *PAIR, *OTHER).stdout.split())
    assert "H100 SXM5 80GB to Instinct MI300X, 2 pairs" in text
    assert f"{50 * sum(map(abs, busy)):.1f} % off" in text


def test_an_odd_trace_is_refused(run: Run) -> None:
    result = run("validate", *PAIR, OTHER[0])
    assert result.exit_code == 2
    assert "3 traces: give them in pairs" in result.stderr


def test_a_pair_of_two_workloads_is_named(run: Run) -> None:
    result = run("validate", *PAIR, PAIR[0], OTHER[1])
    assert result.exit_code == 2
    assert f"{PAIR[0]} and {OTHER[1]}: the traces are not of the same workload" in result.stderr
