"""Where an archived trace came from: the file's hash, its name without host and user, and when it was recorded."""

from __future__ import annotations

import getpass
import hashlib
import re
import socket
import zlib
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from ..trace.privacy import hide_private

HEAD_BYTES: Final = 1 << 20
"""Of a profiler file, unpacked, in which its first event stands."""
_BASE: Final = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})\b')
_FIRST: Final = re.compile(rb'"ts"\s*:\s*"?(\d{1,17})\b')
_NAMED: Final = re.compile(r".+?[._-](\d{13}|\d{19})(\.pt\.trace\.json(?:\.gz)?)\Z")
"""What torch.profiler's `tensorboard_trace_handler` calls its files: host, process, milliseconds or nanoseconds."""
_OLDEST: Final = datetime(2015, 1, 1, tzinfo=UTC)
_MAX_NAME_LENGTH: Final = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Say where a trace came from, as far as that is known and may be kept."""

    sha256: str | None = None
    name: str | None = None
    recorded: str | None = None


def find_provenance(path: str | Path) -> Provenance:
    """Return what a file tells of itself beside its trace; nothing of standard input, pipes and folders."""
    file = Path(path)
    if str(path) == "-" or not file.is_file():
        return Provenance()
    try:
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            stream.seek(0)
            head = _unpack_head(stream.read(HEAD_BYTES))
    except OSError:
        return Provenance(name=clean_name(file.name))
    return Provenance(sha256=digest, name=clean_name(file.name), recorded=_date_of(head) or _date_in(file.name))


def clean_name(name: str) -> str:
    """Return a file's name without what tells of a person or a machine.

    >>> clean_name("node17.example.org_4211.1700000000000.pt.trace.json.gz")
    '1700000000000.pt.trace.json.gz'
    """
    match = _NAMED.fullmatch(name)
    if match:
        return match[1] + match[2]
    for private in _names_of_this_machine():
        name = re.sub(rf"(?<![A-Za-z0-9]){re.escape(private)}(?![A-Za-z0-9])", "_", name, flags=re.IGNORECASE)
    return hide_private(name)[:_MAX_NAME_LENGTH]


def format_time(moment: datetime) -> str:
    """Write an instant as archives do: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _names_of_this_machine() -> list[str]:
    names = [socket.gethostname(), socket.gethostname().partition(".")[0]]
    with suppress(OSError, KeyError, ImportError):  # a container may run as a user without a name
        names.append(getpass.getuser())
    return [name for name in names if len(name) > 2]


def _unpack_head(data: bytes) -> bytes:
    """Return the first bytes of a file, unpacked where they are gzip."""
    if data[:2] != b"\x1f\x8b":
        return data
    with suppress(zlib.error):
        return zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(data, HEAD_BYTES)
    return b""


def _date_of(head: bytes) -> str | None:
    """Return when a profiler file's first event was: µs since 1970, or since the base that its head names."""
    first, base = _FIRST.search(head), _BASE.search(head)
    if first is None or b'"traceEvents"' not in head:
        return None
    return _format_plausible(int(first[1]) / 1e6 + (int(base[1]) / 1e9 if base else 0))


def _date_in(name: str) -> str | None:
    match = _NAMED.fullmatch(name)
    if match is None:
        return None
    return _format_plausible(int(match[1]) / (1e3 if len(match[1]) == 13 else 1e9))


def _format_plausible(seconds: float) -> str | None:
    """Return the instant, unless it lies before profilers or in the future: then the clock counted from elsewhere."""
    try:
        moment = datetime.fromtimestamp(seconds, tz=UTC)
    except (OverflowError, OSError, ValueError):
        return None
    return format_time(moment) if _OLDEST < moment < datetime.now(UTC) + timedelta(days=2) else None
