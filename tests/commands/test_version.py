"""`wavecast --version -v`: what is installed, which GPU is seen."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import Result
from wavecast.analyzer.asking import machine
from wavecast.specs.catalog import load_catalog

Run = Callable[..., Result]

ROCM = {
    "card0": {"Card Series": "AMD Instinct MI300X", "VRAM Total Memory (B)": str(192 << 30)},
    "system": {"Driver version": "6.10.5"},
}


def put_tool(folder: Path, name: str, prints: str, status: int = 0) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{prints}\nEND\nexit {status}\n")
    path.chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    return folder


def test_gpus_are_named_as_the_catalogue_has_them(tools: Path, run: Run) -> None:
    put_tool(
        tools, "nvidia-smi", "NVIDIA H100 80GB HBM3, 81559, 550.54.15, 9.0\nNVIDIA Imaginary 9000, 1024, 1.0, 99.0"
    )
    known, unknown = machine.find_local_gpus(load_catalog())
    assert (known.catalogued, known.memory_bytes, unknown.catalogued) == ("H100 SXM5 80GB", 81559 << 20, None)
    text = " ".join(run("--version", "-v").stdout.split())
    assert "in the catalogue as H100 SXM5 80GB" in text
    assert "not in the catalogue: see --gpu-file" in text


def test_amd_gpus_are_seen(tools: Path) -> None:
    put_tool(tools, "rocm-smi", json.dumps(ROCM))
    (gpu,) = machine.find_local_gpus(load_catalog())
    assert (gpu.catalogued, gpu.driver_version) == ("Instinct MI300X", "6.10.5")


@pytest.mark.parametrize("prints", ["", "No devices were found", "a, b", "{", "[1]", '{"card0": 3, "card1": {}}'])
def test_a_tool_that_says_nothing_of_use_is_no_error(prints: str, tools: Path, run: Run) -> None:
    put_tool(tools, "nvidia-smi", prints)
    put_tool(tools, "rocm-smi", prints)
    assert run("--version", "-v").exit_code == 0


def test_a_tool_that_fails_is_not_believed(tools: Path, run: Run) -> None:
    put_tool(tools, "nvidia-smi", "NVIDIA H100 80GB HBM3, 81559, 550.54.15, 9.0", status=9)
    assert "none seen" in run("--version", "-v").stdout


def test_what_an_extra_lacks_is_named_with_what_adds_it(run: Run, tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package == "pyarrow":
            raise metadata.PackageNotFoundError
        return "1.0" if package == "torch" else "99.0"

    monkeypatch.setattr(machine, "version", version)
    extras = {item.name: item.missing for item in machine.find_extras()}
    assert extras["score"] == ("pyarrow>=16",)
    assert [name.partition(">=")[0] for name in extras["tracer"]] == ["torch"]
    text = run("--version", "-v").stdout
    assert "pip install 'wavecast[" in text


def test_every_extra_for_users_is_told_of(root_dir: Path) -> None:
    project = tomllib.loads((root_dir / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = {"dev", "docs", "trainers", "kinds"}
    assert set(machine.EXTRAS) == set(project["optional-dependencies"]) - own


def test_more_is_said_in_either_order_and_only_of_the_version(run: Run, tools: Path) -> None:
    assert run("-v", "--version").stdout == run("--version", "-v").stdout
    assert run("--version", "-v").stdout.startswith("wavecast")
    assert run("-v", "show").exit_code == 2
