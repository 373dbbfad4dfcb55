"""How an archived trace is named where a file could be: `archive://FOLDER#ID`, or a tag in place of the id."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...errors import InputError

if TYPE_CHECKING:
    from ..trace.tables import Trace

SCHEME: Final = "archive://"
LOADERS: Final[dict[str, Callable[[str, str], Trace]]] = {}
"""By scheme what loads a trace, given the archive's place and an id or tag: archives read files, never the reverse."""
_COLLAPSED: Final = "archive:/"
"""What is left of the scheme in a path, which has no double slashes."""
_URL: Final = re.compile(r"([a-z][a-z0-9+.-]*):/+")


def is_reference(place: str | Path) -> bool:
    """Say whether a path or text names an archived trace.

    >>> is_reference("archive://traces#nightly"), is_reference("trace.json")
    (True, False)
    """
    return str(place).startswith(_COLLAPSED)


def as_path(text: str) -> Path:
    """Return a reference as a path that `parse_reference` reads again: folders are made absolute.

    >>> as_path("archive:///data/traces#nightly")
    PosixPath('archive:/data/traces#nightly')
    """
    location, name = _split(text.removeprefix(SCHEME), text)
    where = location if _URL.match(location) else str(Path(location).absolute())
    return Path(f"{_COLLAPSED}{where}#{name}" if name else f"{_COLLAPSED}{where}")


def parse_reference(place: str | Path) -> tuple[str, str]:
    """Return where an archive lies and the id or tag of a trace in it; empty where the whole archive is meant.

    >>> parse_reference("archive://traces#nightly")
    ('traces', 'nightly')
    """
    text = str(place)
    if text.startswith(SCHEME):
        return _split(text.removeprefix(SCHEME), text)
    location, name = _split(text.removeprefix(_COLLAPSED), text)
    url = _URL.match(location)
    return (f"{url[1]}://{location[url.end() :]}" if url else f"/{location.lstrip('/')}"), name


def load_reference(place: str | Path) -> Trace:
    """Return the trace that a reference names. Raises InputError where it names none, TraceError for a damaged one."""
    location, name = parse_reference(place)
    if not name:
        raise InputError(f"{SCHEME}{location}: which trace? Add '#' and an id or tag of 'wavecast archive list'")
    return LOADERS[SCHEME](location, name)


def name_of_reference(place: str | Path) -> str:
    """Return what an archived trace is called in what is shown: its id or tag."""
    location, name = parse_reference(place)
    return name or Path(location).name


def _split(rest: str, text: str) -> tuple[str, str]:
    location, _, name = rest.partition("#")
    if not location:
        raise InputError(f"{text[:80]!r}: expected archive://FOLDER#ID")
    return location, name
