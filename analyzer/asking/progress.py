"""A progress bar for what takes over a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE_S: Final = 1.0
"""No bar before this long."""

ProgressCallback = Callable[[int, int], None]
"""Takes what is done and the total."""


@contextmanager
def progress_on_stderr(label: str) -> Iterator[ProgressCallback | None]:
    """Yield a callback that draws a bar on stderr once a second has passed; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    bar = LateBar(label)
    try:
        yield bar.advance
    finally:
        bar.close()


class LateBar:
    """Own a bar that appears only when the job turns out to be long."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._begin_s = time.monotonic()
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def advance(self, done: int, total: int) -> None:
        """Show `done` of `total`."""
        if self._progress is None:
            if time.monotonic() - self._begin_s < PATIENCE_S:
                return
            self._progress, self._task = _start(self._label)
        if self._task is not None:
            self._progress.update(self._task, completed=done, total=total or None)

    def close(self) -> None:
        """Remove the bar."""
        if self._progress is not None:
            self._progress.stop()


def _start(label: str) -> tuple[Progress, TaskID]:
    from rich.console import Console
    from rich.progress import Progress

    progress = Progress(console=Console(stderr=True), transient=True)
    progress.start()
    return progress, progress.add_task(label, total=None)
