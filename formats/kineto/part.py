"""Reads one iteration, or a window of time, of a file of any size: one pass to choose it, one to read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from ...arrays import Mask
from ...errors import TraceError
from ...progress import tell
from ...records import dataclass
from ..files.source import ImportSource, ReadOptions, RecordingPart
from ..files.unpack import too_large
from ..trace.cut import ALL, window_bounds
from .collect import Collector
from .events import Event, Header, LightEvent
from .read import MALFORMED, Document, Position, decode_chunk, open_events, read_rest
from .scan import Chunk, Scan, ScanResult
from .sorting import read_spans, sort_events

PART_BYTES: Final = 64 << 20
"""Unpacked; what is smaller is read whole and then cut."""
_BLANK: Final = Event()
"""Stands for an event that is not read, so that the others keep their numbers."""
_EVENTS: Final = msgspec.json.Decoder(list[Event])

_STEP_BYTES: Final = 8 << 20
_MOST_BYTES: Final = 64 << 20
"""Of text between two places where it can be cut: no event is as large."""
_LIGHT_EVENTS: Final = msgspec.json.Decoder(list[LightEvent])


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRead:
    """Hold what was read of a part: its events, and the file's header."""

    collector: Collector
    document: Document
    scan: ScanResult
    part: RecordingPart
    """Of a window, what is asked for; when it begins and ends its events will tell."""


def read_part(source: ImportSource, options: ReadOptions) -> PartRead | None:
    """Return what is asked for of a large file, else its median iteration; None for a file to read whole.

    Raises TraceError where the file is too large for that and nothing tells which part of it to read.
    """
    is_too_large = source.likely_bytes > source.max_bytes
    is_asked = options.window_ns is not None or options.iteration not in (None, ALL)
    if not is_too_large and not (is_asked and source.likely_bytes > PART_BYTES):
        return None
    if is_too_large and options.iteration == ALL:
        raise too_large(f"holds about {source.likely_bytes} bytes, too many to read all iterations of")
    scan = Scan()
    try:
        stream = EventStream(source.chunks())
        for piece in stream.pieces():
            _add(scan, piece.events, piece.begin, piece.end, piece.first, stream.path)
            _tell(source, 0, source.packed_position)
        first = stream.event_count - len(stream.tail)
        _add(scan, stream.tail, 0, 0, first, stream.path)
    except UnreadableStreamError:
        if not is_too_large:
            return None
        raise TraceError(
            f"holds about {source.likely_bytes} bytes and is damaged, or not as the profiler writes it: "
            "a file over the limit is read in parts only if it is whole"
        ) from None
    if len(scan.hosts) > 1:
        if not is_too_large:
            return None
        raise TraceError(
            f"holds about {source.likely_bytes} bytes of {len(scan.hosts)} processes, too many to be read whole: give "
            "the file of one rank"
        )
    found = scan.finish()
    part = None if found is None else _choose(found, options)
    if part is None or found is None:
        if not is_too_large:
            return None
        raise TraceError(
            f"holds about {source.likely_bytes} bytes and no marks of steps: "
            "say which part to read, for example with wavecast convert --window 2s..3s"
        )
    is_window = options.window_ns is not None
    collector = _collect(source, stream, scan, found, part, is_window=is_window)
    document = Document(header=stream.header, event_count=stream.event_count)
    return PartRead(collector=collector, document=document, scan=found, part=part)


def _choose(found: ScanResult, options: ReadOptions) -> RecordingPart | None:
    if options.window_ns is not None:
        start, end = window_bounds(options.window_ns)
        return RecordingPart(start_ns=start, end_ns=end, cpu_start_ns=start, cpu_end_ns=end)
    return found.choose(options.iteration)


def _add(scan: Scan, events: Sequence[Event], begin: int, end: int, first: int, path: str) -> None:
    try:
        scan.add(events, begin=begin, end=end, first=first)
    except TraceError as error:
        raise wrong_place(first, TraceError(f"{path}[{first}]{error}")) from error


def _collect(
    source: ImportSource, stream: EventStream, scan: Scan, found: ScanResult, part: RecordingPart, *, is_window: bool
) -> Collector:
    """Read the chunks that hold a part, and of them what belongs to it."""
    kernels, syncs = found.select(part, is_window=is_window)
    low, high = part.host_span_ns
    host = (low + found.origin_ns, high + found.origin_ns)
    around = found.around(part) if is_window else host
    collector = Collector()
    *chunks, last = found.chunks
    ends = [(chunk.kernel, chunk.sync) for chunk in found.chunks[1:]]
    chosen = [
        (chunk, kernels[chunk.kernel : end[0]], syncs[chunk.sync : end[1]])
        for chunk, end in zip(chunks, ends, strict=True)
    ]
    chosen = [
        item
        for item in chosen
        if (item[0].low_ns <= around[1] and item[0].high_ns >= around[0]) or item[1].any() or item[2].any()
    ]
    for (chunk, runs, waits), events in zip(chosen, _decoded(source, [item[0] for item in chosen]), strict=True):
        collector.consume(_keep(events, host, around, (runs, waits)), stream.path, chunk.first)
        _tell(source, 1, source.packed_position)
    tail = _keep(stream.tail, host, around, (kernels[last.kernel :], syncs[last.sync :]))
    collector.consume(tail, stream.path, last.first)
    _tell(source, 2)
    collector.origin_ns = found.origin_ns
    collector.evidence.category_counts = scan.evidence.category_counts
    collector.evidence.unread_counts = scan.evidence.unread_counts
    collector.evidence.has_nccl |= scan.evidence.has_nccl
    collector.is_whole_microseconds = scan.is_whole_microseconds
    collector.has_stacks, collector.has_memory = scan.has_stacks, scan.has_memory
    return collector


def _decoded(source: ImportSource, chunks: Sequence[Chunk]) -> Iterator[list[Event]]:
    for chunk, text in zip(chunks, source.pieces([(item.begin, item.end) for item in chunks]), strict=True):
        try:
            # The bytes of a piece as a list of its own; the comma after it is left out.
            yield _EVENTS.decode(b"".join((b"[", text.rstrip().rstrip(b",").rstrip(), b"]")))
        except (msgspec.DecodeError, RecursionError) as error:
            raise wrong_place(chunk.first, TraceError(f"not a PyTorch-profiler trace: {error}")) from error


def _keep(
    events: list[Event], host: tuple[int, int], around: tuple[int, int], device: tuple[Mask, Mask]
) -> list[Event]:
    """Return the events with blanks for those that neither belong to a part nor lie around it.

    `host` says when the host was at it. Times are those of the file; `device` says which kernels and which syncs are
    launched in the part.
    """
    places = sort_events(events)
    kept: list[int] = []
    for rows, mask in zip((places.kernels, places.syncs), device, strict=True):
        kept += np.array(rows, dtype=np.int64)[mask].tolist()
    own = places.calls + places.memory
    spans = read_spans([events[place] for place in own], lasting=False)
    inside = (spans.start_ns <= host[1]) & (spans.start_ns >= host[0])
    kept += np.array(own, dtype=np.int64)[inside | ~spans.is_valid].tolist()
    near = places.ops + places.marks + places.around
    spans = read_spans([events[place] for place in near], lasting=False)
    inside = (spans.start_ns <= around[1]) & (spans.end_ns >= around[0])
    kept += np.array(near, dtype=np.int64)[inside | ~spans.is_valid].tolist()
    found = [_BLANK] * len(events)
    for place in kept:
        found[place] = events[place]
    return found


def _tell(source: ImportSource, passes: int, position: int = 0) -> None:
    """Tell how far two passes over a file came, in bytes of it as it lies there."""
    size = source.packed_size
    if size:  # of a pipe only its end tells
        tell("", passes * size + min(position, size), 2 * size)


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


def wrong_place(piece_first: int, error: TraceError) -> TraceError:
    """Return an error of a piece with where that begins."""
    return TraceError(f"{error}, in event {piece_first} or a later one")
