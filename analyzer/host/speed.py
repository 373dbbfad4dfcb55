"""The speed of the target's host, as a ratio or by name."""

from __future__ import annotations

from typing import Final

from ...errors import InputError
from ...formats.trace import Trace
from .costs import host_names

_RANGE: Final = (0.01, 100.0)


def read_cpu_speed(text: str, trace: Trace) -> float:
    """Return how fast the host that `text` names is relative to the one that the trace was recorded on.

    A number is that ratio. The name of a host whose speed was measured stands for its speed relative to the reference
    host, on which traces without times are replayed; a measured trace does not say whose host it was recorded on.
    Raises InputError for anything else.

    >>> read_cpu_speed("1.5", trace)
    1.5
    """
    names = host_names()
    if text in names:
        if trace.is_measured:
            raise InputError(
                f"--cpu-speed {text}: the trace does not say how fast its own host was; give a ratio, e.g. 1.2 for a "
                "host that is 20 % faster than the recorded one"
            )
        return names[text]
    return _read_ratio(text)


def check_cpu_speed(text: str) -> float | None:
    """Return the ratio; None for the name of a host. Raises InputError for anything else.

    >>> check_cpu_speed("1.5")
    1.5
    """
    names = host_names()
    if text in names:
        return None
    return _read_ratio(text)


def _read_ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = 0.0
    if not _RANGE[0] <= ratio <= _RANGE[1]:
        raise InputError(
            f"--cpu-speed {text}: expected a ratio between {_RANGE[0]:g} and {_RANGE[1]:g}, "
            f"or one of {', '.join(sorted(host_names()))}"
        )
    return ratio
