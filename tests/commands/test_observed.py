"""`analyze --observed`: a time of one's own, and what is refused of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import wavecast
from click.testing import Result
from wavecast.analyzer.questions.analyze.command import read_observed_ns, split_observed
from wavecast.errors import InputError

Run = Callable[..., Result]
SAMPLE = Path(__file__).parents[2] / "samples" / "gpt2_small-inference-bf16-b4-shapes.json.gz"


def test_a_time_of_ones_own_stands_in_the_report(run: Run) -> None:
    result = run("analyze", SAMPLE, "--to", "A100 SXM4 80GB", "--observed", "L40S=9.5ms", "--format", "json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    rows = {row["gpu"]: row for row in document["predictions"]}
    assert rows.keys() == {"A100 SXM4 80GB", "L40S"}
    assert rows["L40S"]["iteration_ns"] == 9.5e6
    assert rows["L40S"]["is_observed"]
    assert "is_observed" not in rows["A100 SXM4 80GB"]
    assert sum(row["chance_fastest"] for row in rows.values()) == pytest.approx(1.0)
    assert {document["rank_pairs"][0][name] for name in ("first", "second")} == rows.keys()


def test_the_table_marks_it(run: Run) -> None:
    table = run("analyze", SAMPLE, "--to", "A100 SXM4 80GB", "--observed", "L40S=9.5ms", "--top", 0).stdout
    assert "L40S ◀ observed" in table
    assert "is faster than" in table or "Cannot be told apart in time" in table


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--observed", "L40S"], "expected a GPU and its time"),
        (["--observed", "=9ms"], "expected a GPU and its time"),
        (["--observed", "Foo=9ms"], "no GPU of the catalogue is called 'Foo'"),
        (["--observed", "H100=9ms"], "name one of them"),
        (["--observed", "L40S=0ms"], "no time that an iteration takes"),
        (["--observed", "L40S=nan"], "is no time"),
        (["--observed", "L40S=9"], "has no unit"),
        (["--observed", "L40S=9ms", "--observed", "l40s=8ms"], "observed twice"),
        (["--observed", "L40S=9ms", "--largest-batch"], "of one batch"),
    ],
)
def test_what_is_no_observation_is_refused_in_a_line(options: list[str], said: str, run: Run) -> None:
    result = run("analyze", SAMPLE, *options)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_recorded_gpu_is_not_observed(run: Run, trace_file: Path) -> None:
    source = wavecast.analyze(trace_file, to="L4").report.source.gpu
    result = run("analyze", trace_file, "--to", "L4", "--observed", f"{source}=1ms")
    assert result.exit_code == 2
    assert "is the GPU that was recorded" in result.stderr


@pytest.mark.parametrize(
    ("time", "expected_ns"),
    [("212ms", 212e6), ("0.2 s", 0.2e9), ("850us", 850e3), ("850 µs", 850e3), ("1200 ms", 1.2e9), (0.212, 212e6)],
)
def test_times_are_read_with_their_unit(time: str | float, expected_ns: float) -> None:
    assert read_observed_ns("L40S", time) == pytest.approx(expected_ns)


@pytest.mark.parametrize(
    "time", [0.0, -1.0, float("nan"), float("inf"), 1e9, "1e99s", "ms", "", "1..2ms", "1,5ms", "9 parsec", None]
)
def test_what_is_no_time_is_refused(time: str | float) -> None:
    with pytest.raises(InputError, match="observed on L40S"):
        read_observed_ns("L40S", time)


def test_names_may_hold_what_separates_them() -> None:
    assert split_observed(["odd=name=9ms"]) == {"odd=name": "9ms"}
