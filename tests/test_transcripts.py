"""The pages' transcripts: every command that a console block shows runs, and prints what stands below it.

A block is ```` ```console ````, a line `$ command`, and the beginning of what it prints at 100 columns; a last line `…`
stands for the rest. `pytest --rewrite-golden tests/test_transcripts.py` writes what is printed now, as many lines.
GPUs that are newer than the pages are left out (`shown_gpus`): a page need not be written anew for each.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner
from wavecast.__main__ import wavecast
from wavecast.analyzer.questions.analyze.command import analyze_command as analyze

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
BLOCK = re.compile(r"^```console\n\$ (.+)\n((?:(?!```).*\n)*)```$", re.MULTILINE)
LONG = re.compile(r"\d+\.\d{6,}")
"""Numbers with digits that differ from processor to processor, as matrix products do in single precision."""
COLUMNS = 100
MORE = "…"
LINES = 14
"""Shown of a new transcript."""


@dataclass(frozen=True)
class Transcript:
    page: Path
    command: str
    shown: str

    @property
    def name(self) -> str:
        return f"{self.page.name}: {self.command[:50]}"

    @property
    def lines(self) -> list[str]:
        return self.shown.splitlines()


def transcripts() -> Iterator[Transcript]:
    for page in PAGES:
        for command, shown in BLOCK.findall(page.read_text(encoding="utf-8")):
            yield Transcript(page=page, command=command, shown=shown)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to write to, in which the samples lie."""
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(command: str) -> list[str]:
    program, *words = shlex.split(command)
    group = {"analyze": analyze, "wavecast": wavecast}[program]
    found = CliRunner().invoke(group, words, env={"COLUMNS": str(COLUMNS), "NO_COLOR": "1"}, prog_name=program)
    assert found.exit_code == 0, found.output
    return found.stdout.splitlines()


def beginning(printed: list[str], shown: list[str]) -> list[str]:
    """Return as many lines of what is printed as are shown."""
    count = len(shown) - (shown[-1:] == [MORE]) or LINES
    return printed if count >= len(printed) else [*printed[:count], MORE]


@pytest.mark.parametrize("transcript", list(transcripts()), ids=lambda item: item.name)
def test_a_command_prints_what_the_page_shows(
    transcript: Transcript, folder: Path, shown_gpus: None, request: pytest.FixtureRequest
) -> None:
    expected = beginning(run(transcript.command), transcript.lines)
    if request.config.getoption("--rewrite-golden"):
        old = f"$ {transcript.command}\n{transcript.shown}```"
        new = "\n".join([f"$ {transcript.command}", *expected, "```"])
        transcript.page.write_text(transcript.page.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
        return
    assert rounded(transcript.lines) == rounded(expected)


def rounded(lines: list[str]) -> list[str]:
    return [LONG.sub(lambda number: f"{float(number[0]):.7g}", line) for line in lines]


def test_blocks_are_found() -> None:
    assert rounded(['"ns": 102129761.52014907,']) == rounded(['"ns": 102129761.83745827,']) != ['"ns": 102129761.5,']
    text = "```console\n$ analyze a.json --to h100\none\n…\n```\n"
    assert BLOCK.findall(text) == [("analyze a.json --to h100", "one\n…\n")]
    assert beginning(["1", "2", "3"], ["1", MORE]) == ["1", MORE]
    assert beginning(["1", "2"], ["1", "2"]) == ["1", "2"]
