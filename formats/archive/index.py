"""The index: every entry in one file, so that lists and queries need not open each. A cache and nothing more.

It holds entries by their names, which hash their content: what is listed and not in it is read, what is in it and not
listed is dropped. So a stale index costs time and is never wrong. It begins with a mark and the hash of the rest.
"""

import hashlib
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from ..files.replacing import replace_file
from .entry import Record

Say = Callable[[str], None]
"""Takes what the user should know."""
NAME: Final = "index.wavecast"
_MARK: Final = b"wavecast archive index "
_BEGIN: Final = _MARK + b"2\n"
_DIGEST_BYTES: Final = 32
_DECODER: Final = msgspec.msgpack.Decoder(dict[str, Record])


def say_to_log(text: str) -> None:
    """Tell it to the log."""
    logging.getLogger(__name__).warning(text)


def index_path(location: str) -> Path:
    """Return the index of an archive: in its folder, or of a bucket, in the user's cache.

    >>> index_path("traces").name
    'index.wavecast'
    """
    if "://" not in location:
        return Path(location) / NAME
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "wavecast" / hashlib.sha256(location.encode()).hexdigest()[:32] / NAME


def read_index(path: Path, say: Say) -> dict[str, Record]:
    """Return the records of an index; none where it is missing, damaged, of another version or somebody else's."""
    try:
        data = path.read_bytes() if path.is_file() else b""
    except OSError:
        return {}
    if data and not data.startswith(_MARK):
        say(f"{path}: not of wavecast; it is left as it is, and lists take longer")
    if not data.startswith(_BEGIN):
        return {}
    begin = len(_BEGIN) + _DIGEST_BYTES
    if hashlib.sha256(memoryview(data)[begin:]).digest() == data[len(_BEGIN) : begin]:
        with suppress(msgspec.DecodeError):
            return _DECODER.decode(memoryview(data)[begin:])
    say(f"{path}: damaged; made again from the entries")
    return {}


def write_index(path: Path, records: dict[str, Record]) -> None:
    """Write an index whole; where that cannot be done, readers go without."""
    content = msgspec.msgpack.encode(records)
    with suppress(OSError):
        if path.exists() and not _is_ours(path):
            return
        if path.parent.parent.name == "wavecast":  # of a bucket, in the user's cache
            path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, b"".join((_BEGIN, hashlib.sha256(content).digest(), content)))


def _is_ours(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(_MARK)) in (_MARK, b"")
