"""`wavecast ranks`: the ranks' timeline beside the report, and one line for what cannot be asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

Run = Callable[..., Result]
LATE_US = 4000


def event(category: str, name: str, start: float, length: float, thread: int) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start, "dur": length}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Two ranks over gloo, of which the second one computes for longer."""
    folder = tmp_path / "job"
    folder.mkdir()
    for rank, length in enumerate((1000, 1000 + LATE_US)):
        issued, ended = length + 10, 1000 + LATE_US + 60
        events = [
            event("user_annotation", "ProfilerStep#1", 0, ended + 100, 1),
            event("cpu_op", "aten::mm", 5, length, 1),
            event("cpu_op", "c10d::allreduce_", issued, 5, 1),
            event("user_annotation", "gloo:all_reduce", issued + 10, ended - issued - 10, 2),
            event("cpu_op", "aten::add_", ended + 5, 50, 1),
        ]
        about = {"backend": "gloo", "rank": rank, "world_size": 2, "pg_count": 1}
        text = json.dumps({"distributedInfo": about, "traceEvents": events})
        (folder / f"rank{rank}.json").write_text(text, encoding="utf-8")
    return folder


def refusal(result: Result) -> str:
    assert result.exit_code == 2, result.output
    return result.stderr.splitlines()[-1]


def test_the_straggler_and_the_timeline(run: Run, job: Path, tmp_path: Path) -> None:
    written = tmp_path / "timeline.json"
    result = run("ranks", job, "--timeline", written)
    assert result.exit_code == 0, result.output
    first = result.stdout.splitlines()[0]
    assert first.startswith("Rank 1 is waited for, 4.00 ms in all: computes 4 ms longer (about as many ops")
    names = [item["name"] for item in json.loads(written.read_bytes())["traceEvents"]]
    assert names.count("waits for rank 1") == 1
    assert names.count("process_name") == 2


def test_json_tells_the_waits_of_each_collective(run: Run, job: Path) -> None:
    found = json.loads(run("ranks", job, "--format", "json").stdout)
    assert (found["is_on_hosts"], found["jobs"]) == (True, [])
    (wait,) = found["waits"]
    assert (wait["name"], wait["last_rank"], wait["waiting_ns"]) == ("allreduce", 1, [LATE_US * 1e3, 0.0])


def test_no_ranks_file_is_written_over(run: Run, job: Path) -> None:
    file = job / "rank1.json"
    before = file.read_bytes()
    for option in ("--timeline", "-o"):
        assert "is read from there" in refusal(run("ranks", job, option, file))
    assert file.read_bytes() == before


def test_what_cannot_be_asked_is_refused_in_a_line(run: Run, job: Path) -> None:
    assert "leave --to out" in refusal(run("ranks", job, "--to", "h100"))
    one, two = job / "rank0.json", job / "rank1.json"
    for asked in ((one, two), (job, "--ranks")):
        assert "'wavecast ranks' takes the files of a job's ranks" in refusal(run("analyze", *asked))
    assert "ranks of one job: wavecast ranks" in refusal(run("analyze", job))
    assert "one rank's file tells nothing" in refusal(run("ranks", one))
    assert "there is no iteration 7" in refusal(run("ranks", job, "--iteration", "7"))


def test_files_that_are_not_of_one_job_are_named(run: Run, job: Path) -> None:
    one, other = job / "rank0.json", job / "copy.json"
    other.write_text(one.read_text() + "\n", encoding="utf-8")
    assert "copy.json and rank0.json are both of rank 0: give one file of each rank" in refusal(
        run("ranks", one, other)
    )
    other.write_text(one.read_text().replace('"world_size": 2', '"world_size": 3'), encoding="utf-8")
    other.write_text(other.read_text().replace('"rank": 0', '"rank": 2'), encoding="utf-8")
    message = refusal(run("ranks", job))
    assert "copy.json is of a job of 3 ranks, rank0.json of one of 2: give the files of one job's ranks" in message


def test_what_a_folder_holds_beside_ranks_is_passed_over_and_said(run: Run, job: Path) -> None:
    (job / "rank2.json").write_text("", encoding="utf-8")
    result = run("ranks", job)
    assert result.exit_code == 0, result.output
    assert "passed over: rank2.json: no trace: an empty file" in " ".join(result.output.split())
    (job / "rank1.json").unlink()
    assert "of two ranks or more (rank2.json: no trace: an empty file)" in refusal(run("ranks", job))


def test_a_file_that_lacks_its_rank_has_the_one_of_its_name(run: Run, job: Path) -> None:
    for rank in (0, 1):
        path = job / f"rank{rank}.json"
        text = path.read_text(encoding="utf-8").replace(f'"rank": {rank}, ', "")
        (job / f"trace_rank-{10 - 8 * rank}.json").write_text(text, encoding="utf-8")
        path.unlink()
    found = json.loads(run("ranks", job, "--format", "json").stdout)
    assert [row["rank"] for row in found["ranks"]] == [2, 10]
    assert [item["rank"] for item in found["stragglers"]] == [2]


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        ("no such machine", "no node is called 'no such machine'"),
        ("missing.toml", "missing.toml"),
        ("p4d.24xlarge", "what their collectives take on GPUs is not known; leave --to-node"),
    ],
)
def test_another_machine_that_cannot_be_is_refused_in_one_line(run: Run, job: Path, machine: str, reason: str) -> None:
    assert reason in refusal(run("ranks", job, "--to-node", machine))
