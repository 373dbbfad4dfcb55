"""`wavecast archive`: what a user types, and what every other command takes from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import Result
from wavecast.analyzer.asking.choice import complete_archived
from wavecast.analyzer.asking.inputs import TracePath
from wavecast.analyzer.questions.analyze.command import analyze_command as analyze
from wavecast.analyzer.questions.archive.command import archive as archive_group
from wavecast.analyzer.questions.batch.inputs import find_inputs
from wavecast.formats.archive import init_archive, open_archive
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.tables import Device

Run = Callable[..., Result]


@pytest.fixture
def folder(run: Run, tmp_path: Path, trace_file: Path) -> Path:
    folder = tmp_path / "traces"
    assert run("archive", "init", str(folder)).exit_code == 0
    result = run("archive", "add", str(folder), str(trace_file), "--tag", "nightly", "--note", "first")
    assert result.exit_code == 0
    assert "added" in result.stdout
    return folder


def test_a_trace_is_found_shown_tagged_and_exported(run: Run, folder: Path, tmp_path: Path) -> None:
    (entry,) = json.loads(run("archive", "list", str(folder), "--format", "json").stdout)["entries"]
    assert entry["tags"] == ["nightly"]
    assert entry["id"][:12] in run("archive", "find", str(folder), "tag=nightly").stdout
    assert "No trace" in run("archive", "find", str(folder), "tag=weekly").stdout
    assert "first" in run("archive", "show", str(folder), "nightly").stdout
    assert run("archive", "tag", str(folder), "nightly", "+weekly", "-nightly").stdout.split()[1:] == ["weekly"]
    assert run("archive", "export", str(folder), "weekly", "-o", str(tmp_path / "x.json")).exit_code == 0
    assert run("show", str(tmp_path / "x.json")).exit_code == 0
    assert run("archive", "list", str(folder), "--format", "csv").stdout.startswith("id,workload")


@pytest.mark.parametrize("command", ["show", "analyze", "convert --to dot", "replay"])
def test_every_command_takes_an_archived_trace(command: str, run: Run, folder: Path, trace_file: Path) -> None:
    archived, plain = (run(*command.split(), place) for place in (f"archive://{folder}#nightly", str(trace_file)))
    assert archived.exit_code == plain.exit_code == 0
    assert archived.stdout.replace("nightly", trace_file.name).split() == plain.stdout.split()


def test_verify_tells_by_its_exit_status(run: Run, folder: Path) -> None:
    assert run("archive", "verify", str(folder)).exit_code == 0
    (path,) = (folder / "traces").rglob("*.json.gz")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    result = run("archive", "verify", str(folder))
    assert result.exit_code == 1
    assert path.name.partition(".")[0] in "".join(result.stdout.split())
    assert run("analyze", f"archive://{folder}#nightly").exit_code == 2


def test_import_adds_a_folder_and_says_what_failed(run: Run, folder: Path, tmp_path: Path, trace_file: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "again.json.gz").write_bytes(trace_file.read_bytes())
    (data / "notes.txt").write_text("no trace")
    result = run("archive", "import", str(folder), str(data))
    assert (result.exit_code, result.stdout.split(": ")[1]) == (0, "0 added, 1 there already, 0 failed\n")
    (data / "cut.json.gz").write_bytes(trace_file.read_bytes()[:200])
    result = run("archive", "import", str(folder), str(data))
    assert result.exit_code == 1
    assert "failed: cut.json.gz" in result.stderr


def test_prune_says_first_what_it_would_remove(run: Run, folder: Path) -> None:
    assert "would be removed" in run("archive", "prune", str(folder), "tag=nightly", "--dry-run").stdout
    assert "0 traces removed" in run("archive", "prune", str(folder), "tag=nightly", "--keep-tagged").stdout
    assert "1 traces removed" in run("archive", "prune", str(folder), "tag=nightly").stdout
    assert run("archive", "show", str(folder), "nightly").exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "nowhere"),
        ("add", "{folder}", "nowhere.json"),
        ("find", "{folder}", "colour=red"),
        ("show", "{folder}", "nobody"),
        ("tag", "{folder}", "nightly", "weekly"),
        ("export", "{folder}", "nightly", "-o", "nowhere"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(arguments: tuple[str, ...], run: Run, folder: Path) -> None:
    result = run("archive", *(text.format(folder=folder) for text in arguments))
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("Error: ")


@pytest.mark.parametrize(
    "name", ["archive://", "archive://{folder}", "archive://{folder}#nobody", "archive://nowhere#x"]
)
def test_a_reference_that_means_nothing_is_refused(name: str, run: Run, folder: Path) -> None:
    result = run("show", name.format(folder=folder))
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr


@pytest.fixture
def mixed(tmp_path: Path, trace_file: Path) -> Path:
    """An archive of a trace per GPU, tagged by what it is."""
    init_archive(tmp_path / "mixed")
    trace = load_trace(trace_file)
    names = {"sxm": "NVIDIA H100 80GB HBM3", "pcie": "NVIDIA H100 PCIe", "l40s": "NVIDIA L40S", "none": None}
    with open_archive(tmp_path / "mixed") as archive:
        for tag, name in names.items():
            devices = () if name is None else (Device(name=name),)
            archive.add(replace(trace, devices=devices), tags=[tag])
    return tmp_path / "mixed"


@pytest.mark.parametrize(
    ("query", "tags"),
    [
        ("gpu=h100sxm", {"sxm"}),
        ("gpu=h100", {"sxm", "pcie"}),
        ("gpu='H100 PCIe 80GB'", {"pcie"}),
        ("gpu!=h100sxm", {"pcie", "l40s", "none"}),
        ("gpu=h900", set()),
        ("gpu=80GB", {"sxm"}),
        ("gpu~h100", {"sxm", "pcie"}),
    ],
)
def test_gpus_are_found_by_what_the_catalogue_calls_them(query: str, tags: set[str], mixed: Path, run: Run) -> None:
    result = run("archive", "find", mixed, query, "--format", "json")
    assert result.exit_code == 0, result.stderr
    assert {entry["tags"][0] for entry in json.loads(result.stdout)["entries"]} == tags


def test_a_batch_takes_the_same_queries(mixed: Path) -> None:
    found = find_inputs([f"archive://{mixed}?gpu=h100sxm"])
    assert [item.name for item in found.inputs] == ["sxm"]


def test_completion_offers_ids_and_tags(mixed: Path) -> None:
    show = archive_group.commands["show"]
    context = click.Context(show)
    context.params["directory"] = str(mixed)
    assert complete_archived(context, show.params[1], "s") == ["sxm"]
    found = TracePath().shell_complete(click.Context(analyze), analyze.params[0], f"archive://{mixed}#l4")
    assert [item.value for item in found] == [f"archive://{mixed}#l40s"]
    for nowhere in (f"archive://{mixed}/none#", "archive://s3://bucket/x#", "archive://#"):
        assert TracePath().shell_complete(click.Context(analyze), analyze.params[0], nowhere) == []
