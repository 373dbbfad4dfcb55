"""What a recording changes for a while: attributes, Ctrl-C, the lock that lets one recording at a time do so."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import CaptureError


@contextmanager
def patched(owner: object, name: str, value: object) -> Iterator[None]:
    """Let `owner.name` be `value`; put back what was there, whatever raises."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Let variables of the process's environment be these; put back what was there."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def describe_end(raised: BaseException | None, iteration_count: int) -> str | None:
    """Say how a script ended before its time, None where it ran to its end or was interrupted."""
    count = f"{iteration_count} iteration{'s' * (iteration_count != 1)}"
    if isinstance(raised, SystemExit) and raised.code not in (None, 0):
        status = raised.code if isinstance(raised.code, int) else 1
        return f"the script ended itself with exit status {status} after {count}"
    if isinstance(raised, Exception):
        return f"the script failed after {count}, as shown above"
    return None


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Deliver a Ctrl-C that comes inside when the block has ended: while the profiler changes state it would crash."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


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
