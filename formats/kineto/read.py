"""Reads a profiler file in chunks, so that memory stays low; mends a broken one, or says how far it can be read."""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from ...errors import TraceError, parameter
from ...progress import tell
from ...records import dataclass, replace
from .events import Event, Header, merge_headers

CHUNK_BYTES: Final = 2 << 20
"""Bytes decoded at a time: large enough to amortise the columns' fixed cost, small enough to reuse memory."""
_CUT_TRIES: Final = 4
"""Places that look like a cut are tried before the text is read token by token: nearly always the first one is it."""
_MOST_DEVICE_BYTES: Final = 1 << 20
"""Of text: room for a thousand devices, each of which takes fifty times its shortest text."""
_OPENING_TRIES: Final = 16
_SALVAGE_TRIES: Final = 64

_OPENING: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN: Final = re.compile(rb"\}\s*,\s*\{")
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}]', flags=re.DOTALL)
_EVENT_END: Final = re.compile(rb"\}(?=\s*(?:,\s*\{|\]|,?\s*\Z))")
_BYTE: Final = re.compile(r"\(byte (\d+)\)")
_INDEX: Final = re.compile(r"`\$(?:\.traceEvents)?\[(\d+)\]")
_EVENTS: Final = msgspec.json.Decoder(list[Event])
_DOCUMENT: Final = msgspec.json.Decoder(Header, strict=False)
"""Whole numbers may stand as `8.5e10` or as text, as other tools write a device's memory."""
_PARTS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError)

Consumer = Callable[[list[Event], str, int], None]
"""Takes the decoded events, the path of their list and the number of the first of them."""
_TOKENS: Final = re.compile(
    rb'"[^"\\]*(?:\\.[^"\\]*)*"?|-?\b(?:nan(?:\(\w*\))?|inf(?:inity)?\b)|-?\b1\.#\w+', flags=re.DOTALL | re.IGNORECASE
)
"""Strings, and what C prints for numbers that are none, on Windows `-nan(ind)` and `1.#INF`."""
_KEYS: Final = rb"ph|cat|name|pid|tid|ts|dur|args|id|bp|s|sf|cname|tts"
_NAME: Final = re.compile(
    rb'("(?:name|cat)"\s*:\s*")(.{0,65536}?)(?="\s*(?:,\s*"(?:' + _KEYS + rb')"\s*:|\}\s*[,\]}]))', re.DOTALL
)
_ESCAPE: Final = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_BARE_QUOTE: Final = re.compile(rb'(?<!\\)((?:\\\\)*)"')
_EVENT_START: Final = re.compile(rb"(?<=[,\[])\s*\{\s*\"(?:" + _KEYS + rb')"\s*:')
_MOST_UNREADABLE: Final = 100
"""Events that are left out of a file one by one; beyond, it is damaged."""
_OPEN_END: Final = re.compile(rb"\}\s*,?\s*\Z")
"""The format allows a list of events without its end."""
_CONTROL: Final = bytes(range(32))
_BLANKED: Final = bytes(32 if code < 32 else code for code in range(256))
_LONE_SURROGATE: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Hold the top level of a file whose events were consumed, and what was lost or mended."""

    header: Header
    event_count: int
    characters_repaired: int = 0
    events_dropped: int = 0
    """Those that cannot be read among others that can."""
    bytes_lost: int = 0
    bytes_read: int = 0
    """Up to the last readable event of a file of which the rest is lost."""


@dataclass(slots=True, kw_only=True)
class Position:
    """Track where the next event starts: in `text` at `start`, after `opening` if it is to be decoded alone.

    `passed` counts the bytes of the file before `text`.
    """

    text: bytes
    start: int = 0
    opening: bytes = b""
    header: Header
    path: str = "$.traceEvents"
    event_count: int = 0
    passed: int = 0
    decoder: msgspec.json.Decoder[list[Any]] = _EVENTS
    """Of the events that are decoded alone; the last ones come with the header, in full."""

    @property
    def has_chunk(self) -> bool:
        """Say whether a chunk is sure to lie ahead."""
        return bool(self.opening) and len(self.text) - self.start > 2 * CHUNK_BYTES


def read_document(data: bytes, consume: Consumer, *, recover: bool) -> Document:
    """Decode every event of `data` into `consume`, in file order.

    Raises TraceError where the file is no JSON, not of the expected types, or ends early; with `recover` a file that
    ends early or is malformed further on is read up to there.
    """
    at = open_events(data)
    mends, replaced, dropped = [repair, escape_texts], 0, 0
    while True:
        for events in _whole_chunks(at):
            consume(events, at.path, at.event_count - len(events))
            tell("", min(at.passed + at.start, len(data)), len(data))
        try:
            header = read_rest(at, consume)
        except MALFORMED as failure:
            rest = at.text[at.start :]
            if at.path == "$" and _OPEN_END.search(rest) and _closed(rest):
                at = _reopen(at, _closed(rest))
                continue
            text = rest
            while mends and text == rest:
                text, count = mends.pop(0)(rest)
                replaced += count
            if text == rest and dropped < _MOST_UNREADABLE:
                text = _without_unreadable(at, failure) or rest
                dropped += text != rest
            if text != rest:
                at = _reopen(at, text)
                continue
            lost = salvage(at, failure, consume if recover else None)
            return Document(
                header=at.header,
                event_count=at.event_count,
                characters_repaired=replaced,
                events_dropped=dropped,
                bytes_lost=lost,
                bytes_read=at.passed + len(at.text) - lost,
            )
        return Document(header=header, event_count=at.event_count, characters_repaired=replaced, events_dropped=dropped)


def _closed(text: bytes) -> bytes:
    """Return a list of events with its end."""
    return text.rstrip().removesuffix(b",") + b"]"


def escape_texts(text: bytes) -> tuple[bytes, int]:
    r"""Return `text` with what an exporter left unescaped in it, and how many characters that were.

    Backslashes that begin no escape, as in `C:\utils`, and quotes inside names.

    >>> escape_texts(rb'[{"ph": "X", "name": "{"a": "b"} in C:\utils", "ts": 1}]')
    (b'[{"ph": "X", "name": "{\\"a\\": \\"b\\"} in C:\\\\utils", "ts": 1}]', 5)
    """
    count = 0

    def escape(match: re.Match[bytes]) -> bytes:
        nonlocal count
        count += match[0] == b"\\"
        return b"\\\\" if match[0] == b"\\" else match[0]

    def quote(match: re.Match[bytes]) -> bytes:
        nonlocal count
        inner, found = _BARE_QUOTE.subn(rb'\1\\"', match[2])
        count += found
        return match[1] + inner

    return _NAME.sub(quote, _ESCAPE.sub(escape, text)), count


def _without_unreadable(at: Position, failure: Exception) -> bytes | None:
    """Return what is left to read without the event that cannot be read; None where that is not one among others."""
    found = _BYTE.search(str(failure))
    if found is None or not at.opening:
        return None
    place = at.start + int(found[1]) - len(at.opening)
    text = at.text
    starts = [match.start() for match in _EVENT_START.finditer(text, max(at.start, place - CHUNK_BYTES), place + 1)]
    after = _EVENT_START.search(text, place)
    begin = starts[-1] if starts else at.start
    if after is None or after.start() <= begin or _is_json(text[begin : text.rfind(b"}", begin, place) + 1]):
        return None  # what is no JSON stands between two events, not in one
    return text[at.start : begin] + text[after.start() :]


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except (*MALFORMED, RecursionError):
        return False
    return True


def open_events(data: bytes) -> Position:
    """Find the list of events without decoding them; where that fails `opening` stays empty: decode it whole."""
    text = data.removeprefix(b"\xef\xbb\xbf")
    first = text.lstrip()[:1] if text[:1].isspace() else text[:1]
    if first == b"[":
        return Position(text=text, start=text.index(b"[") + 1, opening=b"[", header=Header(), path="$")
    if first != b"{":
        raise TraceError(f"$: found {_describe(first)}, expected a PyTorch-profiler trace (a JSON object or list)")
    for _, match in zip(range(_OPENING_TRIES), _OPENING.finditer(text), strict=False):
        try:
            header = _decode_document(text[: match.start()] + b'"traceEvents":[]}')
        except (*MALFORMED, RecursionError):
            continue
        return Position(text=text, start=match.end(), opening=b'{"traceEvents":[', header=header)
    return Position(text=text, header=Header())


def _reopen(at: Position, text: bytes) -> Position:
    """Return the position in the mended rest of the file."""
    if not at.opening:
        return open_events(text)
    return replace(at, text=text, start=0, passed=at.passed + at.start)


def _describe(first: bytes) -> str:
    if not first:
        return "an empty file"
    return "a JSON value of another kind" if first in b'"-0123456789tfn' else "bytes that are not JSON"


def _whole_chunks(at: Position) -> Iterator[list[Event]]:
    """Yield the events of each chunk that is sure to be whole, moving the position behind it."""
    while at.has_chunk:
        cut = decode_chunk(at)
        if cut is None:
            return
        events, at.start = cut
        at.event_count += len(events)
        yield events


def decode_chunk(at: Position) -> tuple[list[Any], int] | None:
    """Decode about a chunk: a cut between two events leaves a valid list before it, any other cut never does.

    Returns the events and where the next one starts; None if no cut was found, as in the file's last chunk.
    """
    target = at.start + CHUNK_BYTES
    for _ in range(_CUT_TRIES):
        match = _BETWEEN.search(at.text, target)
        if match is None:
            return None
        events = _decode_events(at, match.start() + 1)
        if events is not None:
            return events, match.end() - 1
        target = match.end()
    match = _find_cut(at)
    events = None if match is None else _decode_events(at, match.start() + 1)
    return None if match is None or events is None else (events, match.end() - 1)


def _decode_events(at: Position, end: int) -> list[Any] | None:
    """Decode the events up to a place; None where that is not between two of them."""
    try:
        return at.decoder.decode(_as_list(at.text, at.start, end))
    except msgspec.ValidationError as error:
        raise _wrong_type(error, at) from error
    except RecursionError as error:
        raise _too_deep(at) from error
    except MALFORMED:
        return None


def _find_cut(at: Position) -> re.Match[bytes] | None:
    """Return the first place between two events that lies a chunk ahead, whatever their strings hold."""
    depth, target = 0, at.start + CHUNK_BYTES
    for token in _TOKEN.finditer(at.text, at.start):
        opens = token[0] == b"{"
        depth += opens - (token[0] == b"}")
        if depth == 0 and not opens and token.end() > target:
            return _BETWEEN.match(at.text, token.start())
        if depth < 0:
            return None
    return None


def _as_list(text: bytes, start: int, end: int) -> bytes:
    return b"".join((b"[", memoryview(text)[start:end], b"]"))


def read_rest(at: Position, consume: Consumer) -> Header:
    """Decode the last events together with what follows them."""
    rest = at.opening + at.text[at.start :] if at.start or at.opening else at.text
    try:
        header = Header(events=_EVENTS.decode(rest)) if at.path == "$" else _decode_document(rest)
    except msgspec.ValidationError as error:
        raise _wrong_type(error, at) from error
    except RecursionError as error:
        raise _too_deep(at) from error
    if isinstance(header.events, msgspec.UnsetType):
        raise TraceError("$: found an object without traceEvents, expected a PyTorch-profiler trace")
    first, at.event_count = at.event_count, at.event_count + len(header.events)
    consume(header.events, at.path, first)
    return merge_headers(at.header, header)


def _decode_document(text: bytes) -> Header:
    if len(text) > _MOST_DEVICE_BYTES:
        size = len(memoryview(_PARTS.decode(text).get("deviceProperties", b"")))
        if size > _MOST_DEVICE_BYTES:
            raise TraceError(
                f"$.deviceProperties: found {size} bytes, expected at most {_MOST_DEVICE_BYTES}: a list of devices"
            )
    return _DOCUMENT.decode(text)


def salvage(at: Position, failure: Exception, consume: Consumer | None) -> int:
    """Consume the last readable events and return how many bytes are lost after them, or raise the error."""
    found = _BYTE.search(str(failure))
    limit = len(at.text) if found is None else at.start + int(found[1]) - len(at.opening)
    reason = "ends early, at byte" if found is None else "is malformed at about byte"
    events, end = _readable_events(at, limit)
    count = at.event_count + len(events)
    if consume is None or count == 0:
        advice = f"; {count} events before it are readable: keep them with {parameter('recover')}" if count else ""
        raise TraceError(f"{at.path}[{count}]: the file {reason} {at.passed + limit}{advice}") from failure
    consume(events, at.path, at.event_count)
    at.event_count = count
    return len(at.text) - end


def _readable_events(at: Position, limit: int) -> tuple[list[Event], int]:
    """Return the events that end before `limit` and the end of the last one, trying from the back."""
    ends = [match.end() for match in _EVENT_END.finditer(at.text, at.start, limit)] if at.opening else []
    back = 1
    for attempt in range(_SALVAGE_TRIES):
        if back > len(ends):
            break
        try:
            return _EVENTS.decode(_as_list(at.text, at.start, ends[-back])), ends[-back]
        except (*MALFORMED, RecursionError):
            back += 1 if attempt < _SALVAGE_TRIES // 2 else back
    return [], at.start


def _wrong_type(error: msgspec.ValidationError, at: Position) -> TraceError:
    message = _INDEX.sub(lambda match: f"`{at.path}[{int(match[1]) + at.event_count}]", str(error))
    return TraceError(f"not a PyTorch-profiler trace: {message}")


def _too_deep(at: Position) -> TraceError:
    return TraceError(f"{at.path}: found values nested too deeply to read, in event {at.event_count} or a later one")


def repair(text: bytes) -> tuple[bytes, int]:
    """Return `text` readable by a strict parser, and how many characters inside strings were replaced.

    Control characters inside strings become spaces, broken UTF-8 and lone surrogates U+FFFD; bare NaN and
    infinities become null. `text` must start outside a string.
    """
    replaced = 0

    def mend(match: re.Match[bytes]) -> bytes:
        nonlocal replaced
        token = match[0]
        if not token.startswith(b'"'):
            return b"null"
        blank = len(token) - len(token.translate(None, _CONTROL))
        if blank:
            token = token.translate(_BLANKED)
        if b"\\ud" in token or b"\\uD" in token:
            token, lone = _LONE_SURROGATE.subn(rb"\\ufffd", token)
            blank += lone
        replaced += blank
        return token

    valid, broken = _as_utf8(text)
    mended = _TOKENS.sub(mend, valid)
    return mended, replaced + broken


def _as_utf8(text: bytes) -> tuple[bytes, int]:
    try:
        text.decode()
    except UnicodeDecodeError:
        decoded = text.decode(errors="replace")
        return decoded.encode(), decoded.count("\ufffd") - text.count("\ufffd".encode())
    return text, 0
