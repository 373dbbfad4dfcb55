"""Where `analyze` writes its report, in which format and colour."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Run = Callable[..., Result]
ESCAPE = "\x1b"


@pytest.fixture
def analyze(run: Run, trace_file: Path) -> Callable[..., str]:
    """Run `analyze` on the small trace; return what it prints."""

    def invoke(*arguments: object, **environment: object) -> str:
        result = run("analyze", trace_file, *arguments, **environment)
        assert result.exit_code == 0, result.output
        assert result.stderr == ""
        return result.stdout

    return invoke


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_table_fits_the_terminal(width: int, analyze: Callable[..., str]) -> None:
    text = analyze("--ops", COLUMNS=width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "Ops on" in text


def test_a_pipe_gets_every_column_and_no_colour(analyze: Callable[..., str]) -> None:
    text = analyze("--ops")
    assert ESCAPE not in text
    assert "Left out" not in text
    assert "reason" in text
    assert "reason" not in analyze()


def test_the_ending_of_the_output_chooses_the_format(analyze: Callable[..., str], tmp_path: Path) -> None:
    for suffix, start in ((".json", "{"), (".csv", "rank,"), (".md", "tiny: inference"), (".txt", "tiny: inference")):
        path = tmp_path / (".md" if suffix == ".md" else f"out{suffix}")
        assert analyze("-o", path) == ""
        text = path.read_text(encoding="utf-8")
        assert text.startswith(start)
        assert ("| ---: |" in text) == (suffix == ".md")
    assert analyze("-o", "-", "--format", "csv").startswith("rank,")
    assert analyze("--ops", "--format", "csv").startswith("gpu,op,")
    assert '"ops_gpu"' in analyze("--ops", "--format", "json")


def test_colour_is_a_choice(analyze: Callable[..., str]) -> None:
    assert ESCAPE in analyze(FORCE_COLOR=1)
    assert ESCAPE not in analyze(FORCE_COLOR=1, NO_COLOR=1)


def test_a_file_gets_no_colour(analyze: Callable[..., str], tmp_path: Path) -> None:
    analyze("-o", tmp_path / "out.txt", FORCE_COLOR=1)
    assert ESCAPE not in (tmp_path / "out.txt").read_text(encoding="utf-8")
