"""How far a long job is: told by what does it, written on the terminal of who asked, else heard by nobody."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import click

PATIENCE_S: Final = 1.0
"""Nothing is said before this long."""
_PAUSE_S: Final = 0.1
"""Between two lines."""
_MOST_COUNTED: Final = 10_000
"""More are bytes or rows, whose share says enough."""
ERASE: Final = "\r\x1b[2K"


class _StatusLine:
    """Own the last line of a terminal while a job is under way."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._next_s = time.monotonic() + PATIENCE_S
        self._is_drawn = False

    def show(self, what: str, done: int, total: int) -> None:
        """Write what is being done, and how much of how much is."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s, self._is_drawn = now_s + _PAUSE_S, True
        count = f" {done:,} of {total:,}" if total else f" {done:,}" if done else ""
        share = f" {100 * min(done / total, 1):.0f} %" if total > _MOST_COUNTED else count
        text = f"{''.join(filter(str.isprintable, what)) or self._label}{share}"
        click.echo(f"{ERASE}{text[: shutil.get_terminal_size().columns - 1]}", err=True, nl=False)

    def close(self) -> None:
        """Clear the line."""
        if self._is_drawn:
            click.echo(ERASE, err=True, nl=False)


_LINE: Final[ContextVar[_StatusLine | None]] = ContextVar("status_line", default=None)


def tell(what: str, done: int = 0, total: int = 0) -> None:
    """Say what is being done, and how many of how many are; 0 where that is not known.

    Without words the job is called what who asked for it calls it.

    >>> tell("a batch of 64", 3)
    """
    line = _LINE.get()
    if line is not None:
        line.show(what, done, total)


@contextmanager
def progress_on_stderr(label: str) -> Iterator[None]:
    """Write on stderr what `tell` says, once a second has passed; nothing where it is no terminal.

    >>> with progress_on_stderr("reading"):
    ...     tell("", 10_000, 40_000)
    """
    if not sys.stderr.isatty():
        yield
        return
    line = _StatusLine(label)
    before = _LINE.set(line)
    try:
        yield
    finally:
        _LINE.reset(before)
        line.close()
