"""Where an archive's traces lie, and how they are packed so that each says itself whether it is whole.

A sealed trace is a gzip file that every gunzip reads. An extra field of its header, which they skip, holds the SHA-256
of all its other bytes. So any flipped bit, in the header too, is found by hashing what lies there, without unpacking
and without asking its entry.
"""

import hashlib
import re
import struct
import zlib
from typing import Final

TRACES: Final = "traces"
"""The folder of an archive's traces: what else its own folder holds is no trace."""
_KEY: Final = re.compile(rf"{TRACES}/([0-9a-f]{{2}})/(\1[0-9a-f]{{62}})\.json\.gz")
_LEVEL: Final = 6
_DIGEST_BYTES: Final = 32
_FIXED: Final = b"\x1f\x8b\x08\x04\x00\x00\x00\x00\x00\xff" + struct.pack("<H2sH", 4 + _DIGEST_BYTES, b"Wc", 32)
"""Gzip with one extra field `Wc`; without time, file name and operating system, so that bytes are reproducible."""
_BEGIN: Final = len(_FIXED) + _DIGEST_BYTES
_GZIP_HEADER: Final = 10


def key_of(trace_id: str) -> str:
    """Return where a trace lies in its store.

    >>> key_of("ab" * 32)
    'traces/ab/abababababababababababababababababababababababababababababababab.json.gz'
    """
    return f"{TRACES}/{trace_id[:2]}/{trace_id}.json.gz"


def id_of(name: str) -> str | None:
    """Return the id of the trace that lies at a name; None where none belongs.

    >>> id_of("traces/notes.txt") is None
    True
    """
    match = _KEY.fullmatch(name)
    return match[2] if match else None


def seal(content: bytes) -> bytes:
    """Return content packed as gzip, with the hash of the packed bytes in its header.

    >>> import gzip
    >>> gzip.decompress(seal(b"content")), is_whole(seal(b"content")), is_whole(seal(b"content")[:-1])
    (b'content', True, False)
    """
    packed = memoryview(zlib.compress(content, _LEVEL, wbits=16 + zlib.MAX_WBITS))[_GZIP_HEADER:]
    return b"".join((_FIXED, _digest(packed), packed))


def is_whole(data: bytes) -> bool:
    """Say whether a trace is sealed and every bit of it as it was written.

    >>> is_whole(b"no trace")
    False
    """
    if not data.startswith(_FIXED) or len(data) <= _BEGIN:
        return False
    return data[len(_FIXED) : _BEGIN] == _digest(memoryview(data)[_BEGIN:])


def _digest(packed: memoryview) -> bytes:
    hashing = hashlib.sha256(_FIXED)
    hashing.update(packed)
    return hashing.digest()
