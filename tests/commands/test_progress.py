"""The progress bar: on a terminal's stderr only, after a second only, gone at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from io import StringIO

import pytest
from wavecast import progress
from wavecast.progress import progress_on_stderr, tell

ERASE_LINE = "\x1b[2K"


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def replace_stderr(monkeypatch: pytest.MonkeyPatch) -> Callable[[StringIO], StringIO]:
    """Put a stream in place of stderr, from within the test: pytest sets its own just before."""
    monkeypatch.setenv("TERM", "xterm")

    def replace(stream: StringIO) -> StringIO:
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return replace


def read_halfway() -> None:
    with progress_on_stderr("Reading"):
        tell("", 10_000, 40_000)
        tell("plan tp=2", 2, 4)
        raise ValueError("broken")


def test_no_bar_in_a_pipe(replace_stderr: Callable[[StringIO], StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = replace_stderr(StringIO())
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    with pytest.raises(ValueError, match="broken"):
        read_halfway()
    assert pipe.getvalue() == ""


def test_no_bar_for_a_short_job(
    replace_stderr: Callable[[StringIO], StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = replace_stderr(Terminal())
    monkeypatch.setattr(progress, "PATIENCE_S", 3600.0)
    with pytest.raises(ValueError, match="broken"):
        read_halfway()
    assert terminal.getvalue() == ""


def test_a_long_job_shows_how_far_it_is_and_clears_up(
    replace_stderr: Callable[[StringIO], StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = replace_stderr(Terminal())
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    with pytest.raises(ValueError, match="broken"):
        read_halfway()
    assert "Reading" in terminal.getvalue()
    assert "Reading 25 %" in terminal.getvalue()
    assert terminal.getvalue().endswith(ERASE_LINE)


def test_a_job_that_tells_nothing_is_named(
    replace_stderr: Callable[[StringIO], StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = replace_stderr(Terminal())
    monkeypatch.setattr(progress, "PATIENCE_S", 0.01)
    with progress_on_stderr("Running ops"):
        time.sleep(0.3)
    assert terminal.getvalue() == f"Running ops\r{ERASE_LINE}"


def test_it_names_what_is_being_done(
    replace_stderr: Callable[[StringIO], StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = replace_stderr(Terminal())
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    with progress_on_stderr("Searching"):
        tell("plan tp=2\x1b[31m", 2, 4)
    assert "plan tp=2[31m 2 of 4" in terminal.getvalue()
    tell("nobody hears this")
    assert "nobody" not in terminal.getvalue()


def test_among_the_output_of_a_script_it_writes_lines_and_erases_nothing(
    replace_stderr: Callable[[StringIO], StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = replace_stderr(Terminal())
    monkeypatch.setattr(progress, "_AMONG_OTHERS_S", 0.0)
    with progress_on_stderr("recording train.py", is_among_others=True):
        tell("ops of layers.3", 1200)
        replace_stderr(StringIO())  # as a script may
        tell("ops of layers.4", 1300)
    lines = [
        "wavecast: recording train.py: ops of layers.3 1,200",
        "wavecast: recording train.py: ops of layers.4 1,300",
    ]
    assert terminal.getvalue().splitlines() == lines
