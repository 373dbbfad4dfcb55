"""The README's commands are those that do the set-up, and what it links to is there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def blocks(root_dir: Path) -> dict[str, str]:
    """The fenced blocks of the README by their first word."""
    text = (root_dir / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return {block.split(maxsplit=1)[0]: block for block in found}


def test_the_first_command_is_the_one_whose_output_is_shown(blocks: dict[str, str], root_dir: Path) -> None:
    """Its transcript is run with all others, in test_transcripts."""
    command = blocks["python3"].strip().split(" && .venv-try/bin/")[-1]
    text = (root_dir / "README.md").read_text(encoding="utf-8")
    assert f"```console\n$ {command}\n" in text


def test_the_second_command_runs_the_tests(root_dir: Path, blocks: dict[str, str]) -> None:
    script = root_dir / blocks[".ci/test"].strip()
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert "-m pytest" in script.read_text(encoding="utf-8")


def test_every_document_that_is_linked_exists(root_dir: Path) -> None:
    pages = [*root_dir.glob("*.md"), root_dir / "changes" / "README.md", *(root_dir / "docs").rglob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
