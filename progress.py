"""How far a long job is: told by what does it, written on the terminal of who asked, else heard by nobody."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Timer
from typing import Final

import click

PATIENCE_S: Final = 1.0
"""Nothing is said before this long."""
_PAUSE_S: Final = 0.1
"""Between two lines."""
_AMONG_OTHERS_S: Final = 10.0
"""Before a first line and between two, where a script writes to the same terminal."""
_MOST_COUNTED: Final = 10_000
"""More are bytes or rows, whose share says enough."""
ERASE: Final = "\r\x1b[2K"


class _StatusLine:
    """Own the last line of a terminal while a job is under way; among another's output write whole lines instead."""

    def __init__(self, label: str, is_among_others: bool) -> None:
        self._label, self._is_among_others, self._stream = label, is_among_others, sys.stderr
        self._pause_s = _AMONG_OTHERS_S if is_among_others else _PAUSE_S
        self._next_s = time.monotonic() + (_AMONG_OTHERS_S if is_among_others else PATIENCE_S)
        self._is_drawn = False

    def show(self, what: str, done: int, total: int) -> None:
        """Write what is being done, and how much of how much is."""
        now_s = time.monotonic()
        if now_s < self._next_s or self._stream.closed:  # a script may replace it, or close it
            return
        self._next_s = now_s + self._pause_s * (done > 0)
        count = f" {done:,} of {total:,}" if total else f" {done:,}" if done else ""
        share = f" {100 * min(done / total, 1):.0f} %" if total > _MOST_COUNTED else count
        text = f"{''.join(filter(str.isprintable, what)) or self._label}{share}"
        if self._is_among_others:
            text = f"wavecast: {self._label}: {text}"
        text = text[: shutil.get_terminal_size().columns - 1]
        click.echo(f"{ERASE * self._is_drawn}{text}", file=self._stream, nl=self._is_among_others)
        self._is_drawn = not self._is_among_others

    def close(self) -> None:
        """Clear the line."""
        if self._is_drawn:
            click.echo(ERASE, file=self._stream, nl=False)


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
def progress_on_stderr(label: str, *, is_among_others: bool = False) -> Iterator[None]:
    """Write on stderr what `tell` says, once a second has passed; nothing where it is no terminal.

    `is_among_others` says that a script writes there, too: a line each ten seconds, and none is erased.

    >>> with progress_on_stderr("reading"):
    ...     tell("", 10_000, 40_000)
    """
    if not sys.stderr.isatty():
        yield
        return
    line = _StatusLine(label, is_among_others)
    first = Timer(PATIENCE_S, line.show, ("", 0, 0))  # of jobs whose first part takes long
    first.daemon = True
    before = _LINE.set(line)
    if not is_among_others:
        first.start()
    try:
        yield
    finally:
        first.cancel()
        if first.is_alive():
            first.join()
        _LINE.reset(before)
        line.close()
