"""The README's commands run, and print what it shows."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from wavecast.analyzer.commands.analyze import analyze


@pytest.fixture(scope="module")
def blocks(root_dir: Path) -> dict[str, str]:
    """The fenced blocks of the README by their first word."""
    text = (root_dir / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return {block.split(maxsplit=1)[0]: block for block in found}


def assert_printed(shown: str, trace: Path, columns: int) -> None:
    result = CliRunner().invoke(analyze, [str(trace)], env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    printed = {without_rank(line) for line in result.output.splitlines()}
    missing = [
        line for line in shown.splitlines() if line.strip() not in {"", "…"} and without_rank(line) not in printed
    ]
    assert missing == []


def without_rank(line: str) -> str:
    """Return a line without the place of its GPU, which moves when the catalogue grows."""
    return re.sub(r"^ *\d+  ", "", line)


def test_the_first_command_prints_what_the_readme_shows(root_dir: Path, blocks: dict[str, str]) -> None:
    command = shlex.split(blocks["python3"])
    assert command[-2] == ".venv-try/bin/analyze"
    assert_printed(blocks["gpt2_small:"], root_dir / command[-1], columns=110)


def test_the_second_command_runs_the_tests(root_dir: Path, blocks: dict[str, str]) -> None:
    script = root_dir / blocks[".ci/test"].strip()
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert "-m pytest" in script.read_text(encoding="utf-8")


@pytest.mark.data
def test_the_measured_example_is_what_analyze_prints(data_dir: Path, blocks: dict[str, str]) -> None:
    trace = data_dir / "traces" / "h100_vit_small_inference.json.gz"
    assert_printed(blocks["h100_vit_small_inference.json.gz:"], trace, columns=120)


def test_every_document_that_is_linked_exists(root_dir: Path) -> None:
    pages = [root_dir / "README.md", root_dir / "CHANGELOG.md", *(root_dir / "docs").glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
