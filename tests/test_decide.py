"""The commands of docs/reference/decide.md print what it shows; `--rewrite-golden` writes what they print now."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from wavecast.analyzer.questions.analyze.command import analyze_command as analyze

BLOCK = re.compile(r"^```\n\$ analyze (.*)\n((?:.*\n)*?)```$", re.MULTILINE)
CUT = "…"
SHOWN_LINES = 14
"""Of an output that goes on; the first ten hold the answer."""


def printed(arguments: str) -> list[str]:
    """Return what a command prints at 80 columns, on standard output or as its error."""
    result = CliRunner().invoke(analyze, shlex.split(arguments), env={"COLUMNS": "80"})
    return (result.stdout or result.stderr).splitlines()


def test_the_commands_print_what_is_shown(
    root_dir: Path, monkeypatch: pytest.MonkeyPatch, shown_gpus: None, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(root_dir)
    page = root_dir / "docs" / "reference" / "decide.md"

    def draw(block: re.Match[str]) -> str:
        lines = printed(block[1])
        shown = [*lines[:SHOWN_LINES], CUT] if len(lines) > SHOWN_LINES else lines
        return f"```\n$ analyze {block[1]}\n" + "".join(f"{line}\n" for line in shown) + "```"

    text = page.read_text(encoding="utf-8")
    assert len(BLOCK.findall(text)) == 4
    drawn = BLOCK.sub(draw, text)
    if request.config.getoption("--rewrite-golden"):
        page.write_text(drawn, encoding="utf-8")
    assert page.read_text(encoding="utf-8") == drawn


def test_the_python_example_runs(
    root_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root_dir)
    (code,) = re.findall(
        r"^```python\n(.*?)^```", (root_dir / "docs" / "reference" / "decide.md").read_text("utf-8"), re.M | re.S
    )
    exec(compile(code, "decide.md", "exec"), {})  # noqa: S102 (the page is ours)
    assert len(capsys.readouterr().out.splitlines()) == 3
