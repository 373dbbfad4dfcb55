"""The pages and docstrings name files and commands that exist."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

COMMAND = re.compile(r"python3? -m ((?:wavecast|benchmarks)(?:\.\w+)*)")
FILE = re.compile(r"`([\w.-]+(?:/[\w.-]+)*/?)[^`\n]*`")
ROOMS = ("analyzer", "benchmarks", "docs", "formats", "mlp_weights", "samples", "specs", "tests", "tracer")
CODE = (".py", ".md")


@pytest.fixture(scope="module")
def tracked(root_dir: Path) -> set[str]:
    """All files of the repository and their folders, relative to its root."""
    files = subprocess.run(["git", "ls-files"], cwd=root_dir, check=True, capture_output=True, text=True).stdout.split()
    return {str(path) for name in files for path in (Path(name), *Path(name).parents)}


@pytest.fixture(scope="module")
def texts(root_dir: Path, tracked: set[str]) -> dict[str, str]:
    """The pages and modules that may name others."""
    names = [name for name in tracked if name.endswith(CODE) and not name.startswith("tests/")]
    return {name: (root_dir / name).read_text(encoding="utf-8") for name in sorted(names)}


def test_every_command_that_is_named_is_a_module(texts: dict[str, str], tracked: set[str]) -> None:
    missing = [
        f"{page}: python -m {module}"
        for page, text in texts.items()
        for module in COMMAND.findall(text)
        if not {f"{_path(module)}.py", f"{_path(module)}/__main__.py", _path(module)} & tracked
    ]
    assert missing == []


def test_every_file_of_a_room_that_is_named_exists(texts: dict[str, str], tracked: set[str]) -> None:
    missing = [f"{page}: {name}" for page, text in texts.items() for name in _files(text) if not _exists(name, tracked)]
    assert missing == []


def _path(module: str) -> str:
    return module.removeprefix("wavecast.").replace(".", "/") if module != "wavecast" else "__main__"


def _files(text: str) -> Iterator[str]:
    """Yield what stands in backticks and looks like a file of the code, or like a place in a room."""
    for name in FILE.findall(text):
        if "/" in name and (name.endswith(CODE) or name.startswith(tuple(f"{room}/" for room in ROOMS))):
            yield name.rstrip("/")


def _exists(name: str, tracked: set[str]) -> bool:
    """Say whether there is such a file; pages on a room name its files as seen from there."""
    return name in tracked or any(known.endswith(f"/{name}") for known in tracked)
