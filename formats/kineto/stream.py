"""Reads the events of a file as it is unpacked, chunk after chunk, and notes where in it each chunk lies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ...errors import TraceError
from .events import Event, Header, LightEvent
from .read import MALFORMED, Position, decode_chunk, open_events, read_rest

_STEP_BYTES: Final = 8 << 20
_MOST_BYTES: Final = 64 << 20
"""Of text between two places where it can be cut: no event is as large."""
_LIGHT_EVENTS: Final = msgspec.json.Decoder(list[LightEvent])


class UnreadableStreamError(Exception):
    """Raised for a file that is damaged, or in an order that only reading it whole can cope with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventChunk:
    """Hold the events of one chunk: `begin` to `end` are its bytes in the file, `first` is the first one's number."""

    begin: int
    end: int
    first: int
    events: list[Any]


class EventStream:
    """Own the place in a file up to which its events are read; `header` and `tail` are known at its end."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self.header = Header()
        self.tail: list[Event] = []
        """The file's last events, in full: they lie in one chunk with what follows them."""
        first = self._take()
        self._at: Position = open_events(first)
        self._at.passed = len(first) - len(self._at.text)
        self._at.decoder = _LIGHT_EVENTS
        if not self._at.opening:
            raise UnreadableStreamError

    @property
    def path(self) -> str:
        """Return where the events lie in the document."""
        return self._at.path

    @property
    def event_count(self) -> int:
        """Return how many events were read so far."""
        return self._at.event_count

    def pieces(self) -> Iterator[EventChunk]:
        """Yield all chunks but the last one, whose events are `tail` then; each is a list of its own."""
        at = self._at
        while True:
            if not at.has_chunk and self._fill():
                continue
            begin = at.passed + at.start
            cut = decode_chunk(at) if at.has_chunk else None
            if cut is None:
                if self._fill():
                    continue
                break
            events, at.start = cut
            first, at.event_count = at.event_count, at.event_count + len(events)
            yield EventChunk(begin=begin, end=at.passed + at.start, first=first, events=events)
        try:
            self.header = read_rest(at, lambda events, _path, _first: self.tail.extend(events))
        except MALFORMED as error:
            raise UnreadableStreamError from error

    def _take(self) -> bytes:
        parts, size = [], 0
        while size < _STEP_BYTES:
            part = next(self._chunks, b"")
            if not part:
                break
            parts.append(part)
            size += len(part)
        return b"".join(parts)

    def _fill(self) -> bool:
        """Read on; say whether there was more."""
        at = self._at
        more = self._take()
        if more and len(at.text) - at.start > _MOST_BYTES:
            raise UnreadableStreamError
        at.passed += at.start
        at.text, at.start = at.text[at.start :] + more, 0
        return bool(more)


def piece_text(text: bytes) -> bytes:
    """Return the bytes of a piece as a list of its own; the comma after it is left out."""
    return b"".join((b"[", text.rstrip().rstrip(b",").rstrip(), b"]"))


def wrong_place(piece_first: int, error: TraceError) -> TraceError:
    """Return an error of a piece with where that begins."""
    return TraceError(f"{error}, in event {piece_first} or a later one")
