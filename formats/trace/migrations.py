"""Brings traces of older major versions of the format up to the one that is read."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import orjson

from ...errors import TraceError
from .tables import FORMAT_VERSION

Document = dict[str, Any]
MIGRATIONS: Final[dict[int, Callable[[Document], Document]]] = {}
"""By major version: takes a whole document of that version and returns it as the next one has it. 1 is the first."""


def can_migrate(major: int) -> bool:
    """Say whether there is a way from a major version to the one that is read.

    >>> can_migrate(0)
    False
    """
    return all(step in MIGRATIONS for step in range(major, _current()))


def migrate(data: bytes, version: str) -> bytes:
    """Return a trace of an older major version as the current one has it, and tell the log of it.

    Raises TraceError where the document is not what its version says.
    """
    try:
        document = orjson.loads(data)
        for step in range(int(version.partition(".")[0]), _current()):
            document = MIGRATIONS[step](document)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TraceError(f"trace format {version} cannot be brought to {FORMAT_VERSION}: {error}") from None
    document["version"] = FORMAT_VERSION
    logging.getLogger(__name__).warning("trace format %s was read as %s", version, FORMAT_VERSION)
    return orjson.dumps(document)


def _current() -> int:
    return int(FORMAT_VERSION.partition(".")[0])
