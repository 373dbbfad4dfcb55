"""What wavecast raises, and how messages name parameters: as options on a command line, as keywords in Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ClassVar, Final

_KEYWORDS: Final = {
    "from": "source",
    "capture": "captures",
    "for": "goal",
}
"""Parameters whose keyword is another word than their option."""
_LONG: Final = re.compile(r"""\S{400,}|(?<!\w)(['"])[^'"]{400,}\1""")
_SHOWN: Final = 60
_FOR_COMMAND_LINE: Final = ContextVar("for_command_line", default=False)


def parameter(name: str, value: object = None) -> str:
    """Return a parameter, or one of its values, as the user at work spells it; `name` is its option's with `_`.

    >>> f"{parameter('from_batch')} says what {parameter('batch')} rescales: add {parameter('batch', 'N')}"
    'from_batch says what batch rescales: add batch=N'
    >>> with spelling_options():
    ...     f"{parameter('from_batch')} says what {parameter('batch')} rescales: add {parameter('batch', 'N')}"
    '--from-batch says what --batch rescales: add --batch N'
    """
    if spells_options():
        option = "-o" if name == "output" else f"--{name.replace('_', '-')}"
        return option if value is None else f"{option} {value}"
    keyword = _KEYWORDS.get(name, name)
    if value is None:
        return keyword
    return f"{keyword}={value if _is_bare(str(value)) else repr(str(value))}"


def _is_bare(value: str) -> bool:
    """Say whether a value is no text: a number, or a word in capitals that stands for one."""
    try:
        float(value.replace(",", ""))
    except ValueError:
        return value.isalpha() and value.isupper()
    return True


def spells_options() -> bool:
    """Say whether messages are for a command line."""
    return _FOR_COMMAND_LINE.get()


@contextmanager
def spelling_options(on: bool = True) -> Iterator[None]:
    """Let messages that are made inside name options.

    >>> with spelling_options():
    ...     parameter("from_batch")
    '--from-batch'
    """
    before = _FOR_COMMAND_LINE.set(on)
    try:
        yield
    finally:
        _FOR_COMMAND_LINE.reset(before)


def shorten(text: str) -> str:
    """Return a message with the values cut short that are longer than any path.

    >>> len(shorten(f"no file {'x' * 5000}"))
    129
    """
    return _LONG.sub(lambda found: f"{found[0][:_SHOWN]}…{found[0][-_SHOWN:]}", text)


class WavecastError(Exception):
    """Report a failure that the user can act on, in one line.

    The command line prints the message to stderr and exits with `exit_code`:
    2 for usage and bad input, 1 for a failure that is not the input's fault.
    """

    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        return shorten(super().__str__())


class InputError(WavecastError):
    """Report an argument, file or value that cannot be used as given."""

    exit_code = 2


class TraceError(InputError):
    """Report a trace that cannot be read: what was found, what was expected, where."""


class UnknownGpuError(InputError):
    """Report a GPU that the catalogue does not hold, or that several entries match."""


class OutputError(InputError):
    """Report a destination that cannot be written."""


class WriteError(WavecastError):
    """Report a result that could not be written although its destination is a good one: a full disk, a quota."""


class CaptureError(WavecastError):
    """Report a recording that could not be made on this machine."""
