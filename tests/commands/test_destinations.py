"""No command writes over what it reads, or twice to one place; a result that cannot be written is a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import Result
from wavecast.__main__ import COMMANDS, wavecast
from wavecast.analyzer.asking.command import WavecastCommand
from wavecast.analyzer.asking.output import OutputPath

Run = Callable[..., Result]
FORMS = ("same", "./same", "symlink", "hardlink", "absolute")
READERS: dict[str, tuple[str, ...]] = {
    "analyze -o": ("analyze", "same", "-o", "{}"),
    "analyze -o with a format": ("analyze", "same", "--format", "csv", "-o", "{}"),
    "analyze --timeline": ("analyze", "same", "--timeline", "{}"),
    "analyze --calibration": ("analyze", "other", "--calibration", "same", "-o", "{}"),
    "analyze --gpu-file": ("analyze", "other", "--gpu-file", "same", "-o", "{}"),
    "analyze --capture": ("analyze", "other", "--capture", "other", "--capture", "same", "-o", "{}"),
    "show": ("show", "same", "-o", "{}"),
    "replay": ("replay", "same", "-o", "{}"),
    "rerun": ("rerun", "same", "-o", "{}"),
    "validate, first": ("validate", "same", "other", "-o", "{}"),
    "validate, second": ("validate", "other", "same", "-o", "{}"),
    "convert": ("convert", "same", "{}"),
    "convert --to": ("convert", "same", "--to", "dot", "{}"),
    "catalog": ("catalog", "--gpu-file", "same", "-o", "{}"),
    "score": ("score", "same", "-o", "{}"),
    "record": ("record", "-o", "{}", "same"),
    "record --hf-config": ("record", "--shapes-only", "--hf-config", "same", "-o", "{}"),
}
"""Calls that read `same` and write to what stands for {}."""


@pytest.fixture
def recording(tmp_path: Path, trace_bytes: bytes, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A trace under several names in the folder that commands run in."""
    monkeypatch.chdir(tmp_path)
    for name in ("same.json", "other"):
        Path(name).write_bytes(trace_bytes)
    Path("same").symlink_to("same.json")
    Path("symlink.json").symlink_to("same.json")
    os.link("same.json", "hardlink.json")
    return trace_bytes


def spell(form: str) -> str:
    """Return one of the names of the recording."""
    return {"absolute": str(Path("same.json").absolute()), "same": "same.json"}.get(form, f"{form}.json")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("words", READERS.values(), ids=READERS)
def test_what_is_read_is_not_written_over(words: tuple[str, ...], form: str, recording: bytes, run: Run) -> None:
    names = sorted(path.name for path in Path().iterdir())
    found = run(*(word.replace("{}", spell(form)) for word in words))
    assert (found.exit_code, found.stderr.count("\n"), found.stdout) == (2, 1, "")
    assert "is read from there; name another file for" in found.stderr
    assert Path("same.json").read_bytes() == recording
    assert sorted(path.name for path in Path().iterdir()) == names


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("analyze", "other", "-o", "x", "--timeline", "./x"), "x: -o and --timeline would both be written to it"),
        (("analyze", "other", "--timeline", "-"), "standard output: -o and --timeline would both be written to it"),
        (("analyze", "other", "-o", "."), ".: cannot be written: it is a directory"),
        (("analyze", "other", "--timeline", "no/x"), "no/x: cannot be written: its directory does not exist"),
        (("convert", "other", "no/x.json"), "no/x.json: cannot be written: its directory does not exist"),
    ],
)
def test_bad_places_are_refused_before_any_work(
    words: tuple[str, ...], message: str, recording: bytes, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wavecast.formats.files.open.load_trace", lambda *_, **__: pytest.fail("the trace was read"))
    found = run(*words)
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr.startswith(f"Error: {message}")
    assert not Path("x").exists()


@pytest.mark.parametrize("place", ["ops/matmul.parquet", "ops/new.csv", "models/new.csv", "traces/a/b.json", "link"])
@pytest.mark.parametrize("words", [("score", "tables"), ("analyze", "other", "--calibration", "tables")])
def test_tables_that_are_read_are_not_written_over(
    words: tuple[str, ...], place: str, recording: bytes, run: Run
) -> None:
    for name in ("ops", "models", "traces/a"):
        (Path("tables") / name).mkdir(parents=True)
    (Path("tables") / "ops" / "matmul.parquet").touch()
    os.link("tables/ops/matmul.parquet", "tables/link")
    found = run(*words, "-o", f"tables/{place}")
    assert (found.exit_code, found.stderr.count("\n")) == (2, 1)
    assert "is read from there" in found.stderr


def test_other_places_are_written(recording: bytes, run: Run) -> None:
    Path("old.json").write_bytes(b"old")
    for words in (
        ("analyze", "same", "-o", "old.json", "--timeline", "timeline.json"),
        ("analyze", "same", "-o", os.devnull, "--timeline", os.devnull),
        ("analyze", "same", "-o", "x.txt", "--timeline", "-"),
        ("convert", "same", "copy.json.gz"),
    ):
        found = run(*words)
        assert (found.exit_code, found.stderr) == (0, "")
    assert Path("old.json").read_text().startswith("{")
    assert Path("timeline.json").is_file()


def test_every_path_is_one_to_read_or_one_to_write() -> None:
    """What a command is given as text or as a path that its help says it writes to is an `OutputPath`."""
    for name in COMMANDS:
        command = wavecast.get_command(click.Context(wavecast), name)
        assert command is not None
        if not isinstance(command, WavecastCommand):
            continue  # the tracer's commands name their files themselves
        for parameter in command.params:
            writes = (getattr(parameter, "help", None) or "").startswith(("Write ", "Draw ")) or parameter.name in (
                "output",
                "target",
            )
            if isinstance(parameter.type, click.Path):
                assert isinstance(parameter.type, OutputPath) == writes, f"{name} {parameter.name}"


def in_shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "LC_ALL": "C.UTF-8"}
    program = f"{sys.executable} -m wavecast"
    return subprocess.run(
        ["sh", "-c", command.replace("wavecast", program)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_recording_on_standard_input_is_not_written_over(recording: bytes, tmp_path: Path) -> None:
    found = in_shell("wavecast analyze - -o same.json < same.json", tmp_path)
    message = "Error: same.json: TRACE is read from there; name another file for -o\n"
    assert (found.returncode, found.stderr) == (2, message)
    assert Path("same.json").read_bytes() == recording


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize(
    ("command", "place"),
    [
        ("wavecast show same.json > /dev/full", "standard output"),
        ("wavecast show same.json -o /dev/full", "/dev/full"),
        ("wavecast analyze same.json -o /dev/null --timeline /dev/full", "/dev/full"),
        ("wavecast --help > /dev/full", "standard output"),
    ],
)
def test_no_room_for_the_result_is_a_failure(command: str, place: str, recording: bytes, tmp_path: Path) -> None:
    found = in_shell(command, tmp_path)
    message = f"Error: {place}: cannot be written: No space left on device\n"
    assert (found.returncode, found.stderr) == (1, message)


@pytest.mark.parametrize("command", ["show same.json", "convert same.json x.json.gz", "convert same.json x.dot"])
def test_a_full_disk_leaves_nothing(command: str, recording: bytes, tmp_path: Path) -> None:
    output = "" if " x." in command else " -o x.txt"
    found = in_shell(f"ulimit -f 0; wavecast {command}{output}", tmp_path)
    assert found.returncode == 1
    assert found.stderr.startswith("Error: x.")
    assert found.stderr.endswith(": cannot be written: File too large\n")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(("x", ".wavecast"))]
