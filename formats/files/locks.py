"""Locks that end with the process that holds them: what is locked is in use, what is not was left behind."""

from __future__ import annotations

from enum import Enum
from types import ModuleType

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None


class Lock(Enum):
    """Say what became of an attempt to lock a file."""

    TAKEN = "taken"
    HELD = "held by another process"
    UNKNOWN = "unknown: there are no locks here"


def take_lock(descriptor: int) -> Lock:
    """Lock an open, writable file without waiting; closing it, or the end of the process, gives it free.

    Unlike a process's number in a name, this holds across containers and hosts that share a file system, and no
    other process can come to hold it by chance.

    >>> with (folder / "lock").open("w") as stream:
    ...     take_lock(stream.fileno())
    <Lock.TAKEN: 'taken'>
    """
    if fcntl is None:
        return Lock.UNKNOWN
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return Lock.HELD
    except OSError:  # some network file systems are mounted without locks
        return Lock.UNKNOWN
    return Lock.TAKEN
