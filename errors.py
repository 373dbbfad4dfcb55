"""What wavecast raises: one root, each child with the exit status the command line uses."""

from __future__ import annotations

from typing import ClassVar


class WavecastError(Exception):
    """Report a failure that the user can act on, in one line.

    The command line prints the message to stderr and exits with `exit_code`:
    2 for usage and bad input, 1 for a failure that is not the input's fault.
    """

    exit_code: ClassVar[int] = 1
    option_message: str | None = None
    """What the command line prints, where the message itself names a function's keywords in place of its options."""


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
