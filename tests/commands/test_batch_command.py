"""`wavecast batch`: many traces as one table."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from click.testing import Result
from pyarrow import parquet
from wavecast.analyzer.page.vega import chart_library
from wavecast.analyzer.questions.batch.answer import answer_input
from wavecast.analyzer.questions.batch.inputs import find_inputs
from wavecast.analyzer.questions.batch.question import BatchQuestion
from wavecast.errors import InputError
from wavecast.formats.archive import init_archive, open_archive
from wavecast.formats.files.open import load_trace
from wavecast.specs.catalog import load_catalog

Run = Callable[..., Result]
SAMPLES = ("gpt2_small-inference-bf16-b4", "resnet50-inference-bf16-b32", "bert_base-inference-bf16-b16")
GPUS = ("--to", "l40s", "--to", "mi300x")


@pytest.fixture
def traces(tmp_path: Path, root_dir: Path) -> Path:
    folder = tmp_path / "traces"
    folder.mkdir()
    for name in SAMPLES:
        shutil.copy(root_dir / "samples" / f"{name}-shapes.json.gz", folder / f"{name}.json.gz")
    return folder


def rows_in(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(path.read_text("utf-8"))))


def test_rows_are_those_of_analyze_and_the_same_by_any_worker(traces: Path, run: Run, tmp_path: Path) -> None:
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    assert run("batch", traces, *GPUS, "--jobs", 1, "-o", one).exit_code == 0
    assert run("batch", traces, *GPUS, "--jobs", 2, "-o", two).exit_code == 0
    assert one.read_bytes() == two.read_bytes()
    rows = rows_in(one)
    assert len(rows) == 6
    trace = traces / f"{SAMPLES[0]}.json.gz"
    document = json.loads(run("analyze", trace, *GPUS, "--format", "json").stdout)
    times = {row["gpu"]: row["iteration_ns"] for row in document["predictions"]}
    mine = {row["gpu"]: float(row["iteration_ns"]) for row in rows if row["trace"] == trace.name}
    assert mine == pytest.approx(times)


def test_parquet_holds_what_csv_does_and_an_archive_is_a_place(traces: Path, run: Run, tmp_path: Path) -> None:
    init_archive(tmp_path / "archive")
    with open_archive(tmp_path / "archive") as archive:
        for name in SAMPLES[:2]:
            archive.add(load_trace(traces / f"{name}.json.gz"), tags=[name.split("-")[0]])
    place = f"archive://{tmp_path / 'archive'}"
    options = (*GPUS, "--jobs", 1, "--batch", 2, "--as-recorded", "-o")
    assert run("batch", place, *options, tmp_path / "a.parquet").exit_code == 0
    assert run("batch", f"{place}#gpt2_small", *options, tmp_path / "b.csv").exit_code == 0
    table = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert len(table) == 8
    small = [row for row in table if row["trace"] == "gpt2_small"]
    assert [row["iteration_ns"] for row in small] == [float(row["iteration_ns"]) for row in rows_in(tmp_path / "b.csv")]
    assert {row["what_if"] for row in small} == {"as recorded", "batch=2"}


def test_a_damaged_trace_fails_by_name_and_the_others_are_there(traces: Path, run: Run, tmp_path: Path) -> None:
    whole = (traces / f"{SAMPLES[0]}.json.gz").read_bytes()
    (traces / "cut.json.gz").write_bytes(whole[: len(whole) // 2])
    (traces / "notes.txt").write_text("no trace")
    result = run("batch", traces, *GPUS, "--jobs", 1, "-o", tmp_path / "t.csv")
    assert result.exit_code == 1
    assert "cut.json.gz: failed: " in result.stderr
    assert "notes.txt: passed over: " in result.stderr
    assert len(rows_in(tmp_path / "t.csv")) == 6


def test_other_settings_are_refused_and_a_lost_part_is_made_again(traces: Path, run: Run, tmp_path: Path) -> None:
    output = tmp_path / "t.csv"
    assert run("batch", traces, *GPUS, "--jobs", 1, "-o", output).exit_code == 0
    before, parts = output.read_bytes(), sorted((tmp_path / "t.csv.parts").glob("*.part"))
    kept = parts[0].stat().st_mtime_ns
    parts[1].unlink()
    parts[2].write_bytes(b"\x81\xff")
    assert run("batch", traces, *GPUS, "--jobs", 1, "-o", output).exit_code == 0
    assert output.read_bytes() == before
    assert parts[0].stat().st_mtime_ns == kept
    refused = run("batch", traces, "--to", "l40s", "--jobs", 1, "-o", output)
    assert refused.exit_code == 2
    assert "--restart" in refused.stderr
    assert output.read_bytes() == before
    assert run("batch", traces, "--to", "l40s", "--jobs", 1, "-o", output, "--restart").exit_code == 0
    assert len(rows_in(output)) == 3


def test_a_run_that_was_killed_goes_on(traces: Path, run: Run, tmp_path: Path) -> None:
    output = tmp_path / "t.csv"
    words = [sys.executable, "-m", "wavecast", "batch", str(traces), *GPUS, "--jobs", "1", "-o", str(output)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    while process.poll() is None and not list((tmp_path / "t.csv.parts").glob("*.part")):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert run("batch", traces, *GPUS, "--jobs", 1, "-o", output).exit_code == 0
    assert len({(row["trace"], row["gpu"]) for row in rows_in(output)}) == len(rows_in(output)) == 6


@pytest.fixture
def many_traces(tmp_path: Path, root_dir: Path) -> Path:
    """Enough of them that a run has not ended when its first is done."""
    folder = tmp_path / "traces"
    folder.mkdir()
    for name in (
        "bert_small-*-h100",
        "bert_small-*-mi300x",
        "dlrm-inference-*",
        "dlrm-training-*",
        "resnet50-training-*",
        "seq2seq-*",
    ):
        for path in (root_dir / "samples").glob(f"{name}.json.gz"):
            shutil.copy(path, folder / path.name)
    return folder


def start_batch(traces: Path, output: Path, *words: str) -> subprocess.Popen[str]:
    """Start a run in a session of its own, and return when its first trace is done."""
    command = [sys.executable, "-m", "wavecast", "batch", str(traces), *words, "-o", str(output)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    parts = output.with_name(f"{output.name}.parts")
    while process.poll() is None and not list(parts.glob("*.part")):
        time.sleep(0.005)
    return process


def test_ctrl_c_ends_with_130_and_the_same_command_goes_on(many_traces: Path, run: Run, tmp_path: Path) -> None:
    output, parts = tmp_path / "t.csv", tmp_path / "t.csv.parts"
    process = start_batch(many_traces, output, *GPUS, "--jobs", "2")
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all of them
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    lines = [line for line in stderr.splitlines() if line.strip()]
    assert lines[0].endswith("Ended; what is done is kept in t.csv.parts: the same command goes on.")
    assert len(lines) <= 2  # click says "Aborted!"
    assert stdout == ""
    assert not output.exists()
    kept = {path: path.stat().st_mtime_ns for path in parts.glob("*.part")}
    assert 0 < len(kept) < len(list(many_traces.iterdir()))
    assert not [path for path in tmp_path.rglob("*") if "tmp" in path.name]
    assert run("batch", many_traces, *GPUS, "--jobs", 1, "-o", output).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    rows = [(row["trace"], row["gpu"]) for row in rows_in(output)]
    assert len(set(rows)) == len(rows)
    assert {trace for trace, _ in rows} == {path.name for path in many_traces.iterdir()}


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Return the processes that a run started to work for it."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text("ascii").split()
    return [number for number in map(int, children) if b"spawn_main" in Path(f"/proc/{number}/cmdline").read_bytes()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_a_worker_that_dies_takes_one_trace_with_it(many_traces: Path, run: Run, tmp_path: Path) -> None:
    output = tmp_path / "t.csv"
    process = start_batch(many_traces, output, *GPUS, "--jobs", "1")
    for worker in workers_of(process):
        os.kill(worker, signal.SIGKILL)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    lines = [line for line in stderr.splitlines() if line.strip()]
    assert len(lines) == 1, stderr
    name, _, reason = lines[0].partition(": failed: ")
    assert reason == "its worker ended: signal 9 (out of memory?)"
    names = {path.name for path in many_traces.iterdir()}
    assert {row["trace"] for row in rows_in(output)} == names - {name}
    assert run("batch", many_traces, *GPUS, "--jobs", 1, "-o", output).exit_code == 0
    assert {row["trace"] for row in rows_in(output)} == names


def test_a_report_with_charts_takes_the_place_of_the_table(traces: Path, run: Run, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="needs vl-convert-python")
    page = tmp_path / "fleet.html"
    result = run("batch", traces, *GPUS, "--jobs", 1, "-o", page)
    assert result.exit_code == 0
    text = page.read_text("utf-8")
    assert "Traces on GPUs" in text
    assert all(name in text for name in SAMPLES)
    assert "3 traces, 6 rows" in result.stdout


def test_what_draws_charts_is_asked_for_before_any_work(
    traces: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    monkeypatch.setattr("wavecast.analyzer.page.vega.chart_library", chart_library.__wrapped__)
    result = run("batch", traces, *GPUS, "-o", tmp_path / "fleet.html")
    assert result.exit_code == 2
    assert "pip install 'wavecast[html]'" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["traces"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["traces", "-o", "x.txt"], ".parquet, .csv or .html"),
        (["traces", "-o", "none/x.csv"], "directory does not exist"),
        (["nowhere", "-o", "x.csv"], "no such file or folder"),
        (["no*.json", "-o", "x.csv"], "no file matches"),
        (["archive://nowhere", "-o", "x.csv"], "nowhere"),
        (["traces", "--to", "h900", "-o", "x.csv"], "h900"),
        (["traces", "--host", "nan", "-o", "x.csv"], "--host nan"),
        (["traces", "--max-kinds", "1", "-o", "x.csv"], "--weights"),
        (["traces", "--weights", "w.csv", "-o", "x.csv"], "line 1"),
        (["traces", "--prices", "p.csv", "-o", "x.csv"], "mystery"),
        (["traces", "--weights", "w.csv", "--utilisation", "nan", "-o", "x.csv"], "--utilisation nan"),
    ],
)
def test_bad_requests_are_refused_in_one_line(
    words: list[str], told: str, traces: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(traces.parent)
    Path("w.csv").write_text("gpt2_small,nan\n")
    Path("p.csv").write_text("mystery gpu,3\n")
    result = run("batch", *words)
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stderr.count("\n") == 1
    assert sorted(path.name for path in Path().iterdir()) == ["p.csv", "traces", "w.csv"]


def test_no_table_is_written_where_every_trace_failed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_bytes(b"")
    result = run("batch", tmp_path / "empty.json", "--jobs", 1, "-o", tmp_path / "out.csv")
    assert result.exit_code == 1
    assert "empty.json: failed: " in result.stderr
    assert not (tmp_path / "out.csv").exists()


def test_runs_of_no_trace_that_is_there_are_refused(traces: Path, run: Run, tmp_path: Path) -> None:
    (tmp_path / "w.csv").write_text("resnet51,100\n")
    result = run(
        "batch",
        traces / f"{SAMPLES[0]}.json.gz",
        "--to",
        "l4",
        "--weights",
        tmp_path / "w.csv",
        "--jobs",
        1,
        "-o",
        tmp_path / "r.csv",
    )
    assert result.exit_code == 2
    assert "no trace has the name, tag or workload 'resnet51'" in result.stderr
    assert not (tmp_path / "r.csv").exists()


def test_a_script_that_workers_cannot_import_is_said_and_not_waited_for(traces: Path, tmp_path: Path) -> None:
    """Python waits forever for a process that ends before it has read its arguments, where they are large."""
    script = "import sys, wavecast\nwavecast.batch([sys.argv[1]], to=['l4'], output=sys.argv[2], jobs=1)"
    words = [sys.executable, "-", str(traces / f"{SAMPLES[0]}.json.gz"), str(tmp_path / "r.csv")]
    done = subprocess.run(words, input=script, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "WavecastError: a worker ended before it began" in done.stderr


@pytest.mark.parametrize(("names_options", "word"), [(True, "--restart"), (False, "restart")])
def test_a_wavecast_that_changed_meanwhile_is_refused(names_options: bool, word: str, traces: Path) -> None:
    (item,) = find_inputs([str(traces / f"{SAMPLES[0]}.json.gz")]).inputs
    with pytest.raises(InputError, match=f"changed while the batch ran: begin anew with {word}$"):
        answer_input(BatchQuestion(catalog=load_catalog(), identity="another"), names_options, item)
