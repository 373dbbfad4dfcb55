"""A journal's lines: a checksum, a blank, the record. What was flipped, cut off or torn is told from what is whole."""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import Final

from ...errors import InputError
from .store import MAX_RECORD_BYTES

_CHECKSUM_CHARACTERS: Final = 16
"""64 bits of SHA-256: a record that is damaged by chance passes once in 10**19 times."""
MAX_LINE_BYTES: Final = _CHECKSUM_CHARACTERS + 1 + MAX_RECORD_BYTES + 1
UNFINISHED: Final = b" (unfinished)"
"""What the next writer ends a line with whose own writer was killed; no single flipped bit makes it."""


class LineKind(Enum):
    """Say what a line of the journal is."""

    RECORD = "a record"
    BLANK = "nothing: what was mended is blank"
    DAMAGED = "damaged"
    UNFINISHED = "left by a writer that was killed"


def pack_lines(records: tuple[bytes, ...]) -> bytes:
    """Return records as lines of a journal. Raises InputError where one is no line or too long."""
    for record in records:
        if not record.strip() or b"\n" in record or len(record) > MAX_RECORD_BYTES:
            raise InputError(
                f"expected a record of one line and at most {MAX_RECORD_BYTES} bytes, found one of {len(record)} bytes "
                f"and {record.count(10) + 1} lines"
            )
    return b"".join(b"%s %s\n" % (_checksum(record), record) for record in records)


def classify(line: bytes) -> LineKind:
    """Say what a line, without its end, is."""
    if read_line(line) is not None:
        return LineKind.RECORD
    if not line.strip(b" "):
        return LineKind.BLANK
    return LineKind.UNFINISHED if line.endswith(UNFINISHED) else LineKind.DAMAGED


def read_line(line: bytes) -> bytes | None:
    """Return the record of a line, without its end; None where it is not whole."""
    checksum, blank, record = line[:_CHECKSUM_CHARACTERS], line[_CHECKSUM_CHARACTERS:][:1], line[17:]
    return record if blank == b" " and record and checksum == _checksum(record) else None


def finish(tail: bytes) -> bytes:
    """Return what ends a line that its writer did not end, so that it reads as what it is.

    It is whole but for its end, or its end was flipped (then it counts as damaged, since a record was lost), or it is
    torn.
    """
    is_flipped = read_line(tail[:-1]) is not None
    return b"\n" if read_line(tail) is not None or is_flipped else UNFINISHED + b"\n"


def _checksum(record: bytes) -> bytes:
    return hashlib.sha256(record).hexdigest()[:_CHECKSUM_CHARACTERS].encode()
