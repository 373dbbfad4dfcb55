"""Lets one recording at a time change a process's hooks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import CaptureError

_recording = threading.Lock()


@contextmanager
def only_recording() -> Iterator[None]:
    """Refuse a recording inside another: both would change the same hooks."""
    if not _recording.acquire(blocking=False):
        raise CaptureError("another recording is running in this process: recordings cannot be nested")
    try:
        yield
    finally:
        _recording.release()
