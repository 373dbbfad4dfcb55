"""Packs a blob so that it says itself whether it is whole.

A sealed blob is a gzip file that every gunzip reads. An extra field of its header, which they skip, holds the SHA-256
of all its other bytes. So any flipped bit, in the header too, is found by hashing what lies there, without unpacking
and without asking the journal.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from typing import Final

_LEVEL: Final = 6
_DIGEST_BYTES: Final = 32
_FIXED: Final = b"\x1f\x8b\x08\x04\x00\x00\x00\x00\x00\xff" + struct.pack("<H2sH", 4 + _DIGEST_BYTES, b"Wc", 32)
"""Gzip with one extra field `Wc`; without time, file name and operating system, so that bytes are reproducible."""
_BEGIN: Final = len(_FIXED) + _DIGEST_BYTES
_GZIP_HEADER: Final = 10


def seal(content: bytes) -> bytes:
    """Return content packed as gzip, with the hash of the packed bytes in its header.

    >>> import gzip
    >>> gzip.decompress(seal(b"content")), is_whole(seal(b"content")), is_whole(seal(b"content")[:-1])
    (b'content', True, False)
    """
    packed = memoryview(zlib.compress(content, _LEVEL, wbits=16 + zlib.MAX_WBITS))[_GZIP_HEADER:]
    return b"".join((_FIXED, _digest(packed), packed))


def is_whole(blob: bytes) -> bool:
    """Say whether a blob is sealed and every bit of it as it was written.

    >>> is_whole(b"no blob")
    False
    """
    if not blob.startswith(_FIXED) or len(blob) <= _BEGIN:
        return False
    return blob[len(_FIXED) : _BEGIN] == _digest(memoryview(blob)[_BEGIN:])


def _digest(packed: memoryview) -> bytes:
    hashing = hashlib.sha256(_FIXED)
    hashing.update(packed)
    return hashing.digest()
