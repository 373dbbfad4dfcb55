"""`wavecast shard`: a plan of tables that fits, taken back as `--plan`; one line for what cannot be asked."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

Run = Callable[..., Result]
ON = ("--to", "h100sxm", "--gpus", "8")
FRACTION = re.compile(r"\d+\.\d+(e[+-]?\d+)?")
NAMES = [f"Dlrm.tables.{number}" for number in range(26)]


@pytest.fixture(scope="module")
def sample(root_dir: Path) -> Path:
    return root_dir / "samples" / "dlrm-training-fp32-b2048-shapes.json.gz"


def round_number(found: re.Match[str]) -> str:
    """Return a number with the digits that all machines agree on."""
    return f"{float(found[0]):.5g}"


def write_plan(path: Path, **changed: Any) -> Path:
    """Write a plan that deals the tables out in turn, but for what is changed by number."""
    tables: dict[str, Any] = {name: {"sharding": "table_wise", "ranks": [at % 8]} for at, name in enumerate(NAMES)}
    for number, entry in changed.items():
        tables[NAMES[int(number[1:])]] = entry
    path.write_text(json.dumps({"tables": tables}))
    return path


def test_the_plan_and_every_gpu_are_told(run: Run, sample: Path) -> None:
    result = run("shard", sample, *ON, COLUMNS=80)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert "26 tables of 2.01 GiB on 8 × H100 SXM5 80GB" in " ".join(lines[:4])
    assert max(map(len, lines)) <= 80
    for text in ("Proposed: ", "all row-wise", "GPUs of the proposed plan", "Dlrm.tables.25"):
        assert text in result.stdout


def test_the_proposed_plan_is_taken_back(run: Run, sample: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    assert run("shard", sample, *ON, "-o", path).exit_code == 0
    document = json.loads(path.read_text())
    assert document["format"] == "wavecast.sharding"
    assert list(document["plan"]["tables"]) == NAMES
    again = json.loads(run("shard", sample, *ON, "--plan", path, "--format", "json").stdout)
    given = next(plan for plan in again["plans"] if plan["name"] == "given")
    assert given["iteration_ns"] == pytest.approx(document["plans"][0]["iteration_ns"])
    rows = list(csv.DictReader(StringIO(run("shard", sample, *ON, "--format", "csv").stdout)))
    assert [row["name"] for row in rows] == [plan["name"] for plan in document["plans"]]


def test_a_given_plan_stands_beside_the_proposed_one(run: Run, sample: Path, tmp_path: Path) -> None:
    rows, copies = {"sharding": "row_wise", "ranks": [0, 1, 2, 3]}, {"sharding": "data_parallel"}
    path = write_plan(tmp_path / "plan.json", n2=rows, n3={"sharding": "column_wise", "ranks": [5, 7]}, n8=copies)
    result = run("shard", sample, *ON, "--plan", path)
    assert result.exit_code == 0, result.output
    assert "The given plan takes" in result.stdout
    assert "% longer" in result.stdout


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"n3": {"sharding": "table_wise", "ranks": [8]}}, "rank 8: expected 0 to 7"),
        ({"n3": {"sharding": "table_wise", "ranks": [-1]}}, "rank -1: expected 0 to 7"),
        ({"n3": {"sharding": "table_wise", "ranks": [1.5]}}, "ranks[0]: expected a whole number, found 1.5"),
        ({"n3": {"sharding": "table_wise"}}, "expected a list of ranks"),
        ({"n3": {"sharding": "table_wise", "ranks": [0, 1]}}, "expected one rank, found 2"),
        ({"n3": {"sharding": "diagonal", "ranks": [0]}}, "expected one of table_wise"),
        ({"n3": {"sharding": "column_wise", "ranks": [0, 1, 2]}}, "16 columns are not 3 equal parts"),
        ({"n3": {"sharding": "row_wise", "ranks": [0, 0]}}, "found 0 twice"),
        ({"n8": {"sharding": "row_wise"}}, "3 rows are not 8 parts"),
        ({"n3": {"sharding": "data_parallel", "ranks": [1]}}, "expected all 8 ranks"),
        (
            {"n3": {"sharding": "table_wise", "ranks": [0], "cache": 1}},
            "unknown key cache; expected one of ranks",
        ),
        ({"n3": 7}, "found a number"),
    ],
)
def test_a_broken_entry_is_refused_in_one_line(
    changed: dict[str, Any], message: str, run: Run, sample: Path, tmp_path: Path
) -> None:
    result = run("shard", sample, *ON, "--plan", write_plan(tmp_path / "plan.json", **changed))
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "expected a plan as JSON"),
        ("{", "expected a plan as JSON"),
        ("[" * 3000, "expected a plan as JSON"),
        ("[]", "expected a plan, an object"),
        ('{"tables": {}}', "expected an object with an entry for each table"),
        ('{"tables": {"Nobody.knows": {}}}', "no table of that name"),
        ('{"tables": {"Dlrm.tables.0": {"sharding": "data_parallel"}}}', "says nothing of Dlrm.tables.1"),
        ('{"gpus": 4, "tables": {"Dlrm.tables.0": {}}}', "the plan is for 4 GPUs"),
        ('{"gpus": "8", "tables": {"Dlrm.tables.0": {}}}', "gpus: expected a whole number from 1, found text"),
        ('{"gpus": -1, "tables": {"Dlrm.tables.0": {}}}', "gpus: expected a whole number from 1, found -1"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(
    content: str, message: str, run: Run, sample: Path, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(content)
    result = run("shard", sample, *ON, "--plan", path)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--to", "h100sxm", "--gpus", "1"), "2<=x<=1024"),
        (("--to", "h100sxm", "--gpus", "1000000"), "2<=x<=1024"),
        (("--to", "nobody", "--gpus", "8"), "no GPU of the catalogue"),
        (("--gpus", "8"), "add --to h100"),
        ((*ON, "--max-memory", "500MiB"), "no plan fits"),
        ((*ON, "--max-memory", "nan"), "expected a size"),
        ((*ON, "--global-batch", "100"), "a multiple of 8 GPUs"),
        ((*ON, "--plan", "missing.json"), "missing.json: cannot be read"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(
    arguments: tuple[str, ...], message: str, run: Run, sample: Path
) -> None:
    result = run("shard", sample, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (
            json.dumps(
                {
                    "plan": {
                        "tables": {
                            str(at): {"sharding_type": "row_wise" if at in (2, 3) else "data_parallel", "ranks": None}
                            for at in range(26)
                        }
                    }
                }
            ),
            "plan.json",
        ),
        ("\n".join(f'[tables."{name}"]\nsharding = "data_parallel"' for name in NAMES), "plan.toml"),
    ],
)
def test_plans_of_other_layouts_are_priced(content: str, name: str, run: Run, sample: Path, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(content)
    result = run("shard", sample, *ON, "--plan", path, "--format", "json")
    assert result.exit_code == 0, result.output
    plans = {plan["name"]: plan["iteration_ns"] for plan in json.loads(result.stdout)["plans"]}
    assert plans["given"] > plans["proposed"]
    assert (plans["given"] == pytest.approx(plans["data_parallel"])) is (name == "plan.toml")


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"tables = 3", "plan.toml", "tables: expected an object with an entry for each table"),
        (b"tables = [", "plan.toml", "expected a plan as TOML"),
        (b"\xff\xfe", "plan.toml", "expected a plan as text"),
        (b"PK\x03\x04 torch.save", "plan.pt", "it looks pickled: write json.dumps(plan._serialize())"),
    ],
)
def test_a_broken_file_of_another_layout_is_refused_in_one_line(
    content: bytes, name: str, message: str, run: Run, sample: Path, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    result = run("shard", sample, *ON, "--plan", path)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(("form", "ending"), [("table", "txt"), ("markdown", "md"), ("json", "json"), ("csv", "csv")])
def test_what_is_printed(
    form: str, ending: str, run: Run, sample: Path, check_golden: Callable[[str, str], None]
) -> None:
    result = run(
        "shard", sample, "--to", "h100sxm", "--gpus", "2", "--max-memory", "3GiB", "--format", form, COLUMNS=110
    )
    assert result.exit_code == 0, result.output
    is_exact = ending in ("txt", "md")
    check_golden(f"shard.{ending}", result.stdout if is_exact else FRACTION.sub(round_number, result.stdout))


def test_a_recording_without_tables_is_refused(run: Run, root_dir: Path) -> None:
    result = run("shard", root_dir / "samples" / "resnet50-inference-fp32-b32-shapes.json.gz", *ON)
    assert result.exit_code == 2
    assert "looks up no embedding table" in result.stderr
