"""The trace file: plain JSON with one list per column. See docs/reference/trace-format.md."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

import msgspec
import numpy as np
import orjson

from ...errors import TraceError
from ..files.detect import BYTE_ORDER_MARK
from ..files.source import ImportSource, ReadOptions
from .column import Column, ColumnSpec, Table, columns, row_count
from .fields import decode_record, describe, encode_record, misfit
from .printable import escape_json
from .signature_json import decode_signatures, encode_signature
from .tables import FORMAT_NAME, FORMAT_VERSION, TABLES, Device, Meta, Quality, Trace
from .validate import column_range, describe_bound, in_range, validate, validate_decoded

MAX_RECORD_BYTES = 1 << 20
"""Of the text of one part that is no table; decoded, it takes up to thirty times as much."""
INTEGER_LIST_CHARACTERS = b"0123456789-, \t\r\n"

_NO_INTEGER: Final = re.compile(rb"[^0-9, \t\r\n-]")
_SHOWN_BYTES: Final = 1 << 16
"""Of a refused value, enough to say what it is."""

_ABSENT = msgspec.Raw(b"")
_Document = msgspec.defstruct(
    "_Document",
    [(name, msgspec.Raw, _ABSENT) for name in ("format", "version", "meta", "devices", "strings", "signatures")]
    + [(name, dict[str, msgspec.Raw] | msgspec.UnsetType, msgspec.UNSET) for name in TABLES]
    + [("quality", msgspec.Raw, _ABSENT)],
)
_Header = msgspec.defstruct("_Header", [("format", msgspec.Raw, _ABSENT), ("version", msgspec.Raw, _ABSENT)])


def encode(trace: Trace) -> bytes:
    """Write a trace as JSON: one line per column, string and signature; defaults left out; always the same bytes.

    Raises TraceError for a trace that `validate` refuses.

    >>> encode(trace).splitlines()[1]
    b'"format":"wavecast.trace",'
    """
    validate(trace)
    parts = [f'"format":"{FORMAT_NAME}"'.encode(), f'"version":"{FORMAT_VERSION}"'.encode()]
    parts += [_encode_member(name, escape_json(text)) for name, text in _encode_parts(trace) if text]
    return b"{\n" + b",\n".join(parts) + b"\n}\n"


def read_trace(source: ImportSource, *, options: ReadOptions) -> Callable[[], Trace]:  # noqa: ARG001
    """Read a trace as every importer does; a file of our own is whole or refused."""
    trace = decode(source.read())
    return lambda: trace


def decode(data: bytes) -> Trace:
    """Read a trace from JSON; unknown fields are ignored.

    Raises TraceError that names the place, what was expected and what was found.

    >>> decode(encode(trace)).meta.workload.name
    'gpt2_small'
    """
    try:
        trace = _build(_parse(data.removeprefix(BYTE_ORDER_MARK)))
    except UnicodeDecodeError as error:
        raise TraceError(f"not a JSON file: byte {error.start} of a text is not UTF-8") from None
    except RecursionError:
        raise TraceError("nested too deeply: a trace nests at most 8 levels") from None
    validate_decoded(trace)
    return trace


def _encode_member(name: str, text: bytes) -> bytes:
    return b'"%b":%b' % (name.encode(), text)


def _encode_parts(trace: Trace) -> Iterator[tuple[str, bytes]]:
    """Yield every part after the version with its JSON, which is empty for an empty part."""
    yield "meta", _dump_nonempty(encode_record(trace.meta))
    yield "devices", _list_lines([encode_record(device) for device in trace.devices])
    yield "strings", _list_lines(trace.strings)
    yield "signatures", _list_lines([encode_signature(signature) for signature in trace.signatures])
    for name in TABLES:
        yield name, _encode_table(getattr(trace, name))
    yield "quality", _dump_nonempty(encode_record(trace.quality))


def _dump_nonempty(value: dict[str, Any]) -> bytes:
    return orjson.dumps(value) if value else b""


def _list_lines(values: Any) -> bytes:
    return b"[\n" + b",\n".join(map(orjson.dumps, values)) + b"\n]" if values else b""


def _encode_table(table: Table) -> bytes:
    if not row_count(table):
        return b""
    written = [
        _encode_member(spec.name, _encode_column(getattr(table, spec.name)))
        for spec in columns(table)
        if spec.default is None or (getattr(table, spec.name) != spec.default).any()
    ]
    return b"{\n" + b",\n".join(written) + b"\n}"


def _encode_column(values: Column) -> bytes:
    """Write a column row by row as integers; bool as 0 and 1."""
    return orjson.dumps(np.ascontiguousarray(values, dtype=np.int64).ravel(), option=orjson.OPT_SERIALIZE_NUMPY)


def _parse(data: bytes) -> Any:
    """Split the document into the raw text of its parts, once the format and version are known to fit."""
    try:
        document = msgspec.json.decode(data, type=_Document)
    except msgspec.ValidationError as error:
        _check_version(_parse_header(data))
        raise _explain_part(str(error)) from None
    except msgspec.DecodeError as error:
        raise _explain_syntax(data, str(error)) from None
    _check_version(document)
    return document


def _parse_header(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data, type=_Header)
    except msgspec.ValidationError:
        raise misfit("$", f'an object with "format": "{FORMAT_NAME}"', "another JSON value") from None
    except msgspec.DecodeError as error:
        raise _explain_syntax(data, str(error)) from None


def _check_version(header: Any) -> None:
    found = _load(header.format, "$.format")
    if found != FORMAT_NAME:
        raise misfit("$.format", f'"{FORMAT_NAME}"', "nothing" if found is None else describe(found))
    version = _load(header.version, "$.version")
    match = re.fullmatch(r"(\d{1,9})\.(\d{1,9})", version) if isinstance(version, str) else None
    if match is None:
        raise misfit("$.version", f'a version such as "{FORMAT_VERSION}"', describe(version))
    supported = FORMAT_VERSION.partition(".")[0]
    if match[1] != supported:
        advice = "upgrade wavecast" if int(match[1]) > int(supported) else "convert it with an older wavecast"
        raise TraceError(f"trace format {version} is not supported (this wavecast reads {supported}.x): {advice}")


def _explain_part(message: str) -> TraceError:
    """Turn msgspec's "Expected `object`, got `array` - at `$.ops`" into our words."""
    expectation, _, where = message.partition(" - at `")
    expected, _, found = expectation.removeprefix("Expected ").replace("`", "").partition(", got ")
    return misfit(where.rstrip("`") or "$", f"an {expected}", found)


def _explain_syntax(data: bytes, message: str) -> TraceError:
    match = re.fullmatch(r"JSON is malformed: (.*) \(byte (\d+)\)", message)
    if match is None:
        if "truncated" in message:
            return TraceError(f"truncated JSON: the text ends after {len(data)} bytes, before the trace does")
        return TraceError(f"malformed JSON: {message}")
    position = int(match[2])
    found = re.search(rb"-?(NaN|Infinity)", data[max(position - 1, 0) : position + 8])
    reason = match[1].replace("unexpected end of hex escape", "half of a surrogate pair")
    if found:
        reason = f"{found[0].decode()} is no JSON number"
    return TraceError(f"malformed JSON at byte {position}: {reason}")


def _build(document: Any) -> Trace:
    tables: dict[str, Any] = {
        name: _decode_table(table, getattr(document, name), f"$.{name}")
        for name, table in TABLES.items()
        if getattr(document, name) is not msgspec.UNSET
    }
    return Trace(
        meta=decode_record(Meta, _load(document.meta, "$.meta", {}), "$.meta"),
        devices=tuple(
            decode_record(Device, value, f"$.devices[{index}]")
            for index, value in enumerate(_load_list(document.devices, "$.devices"))
        ),
        strings=tuple(_load_list(document.strings, "$.strings", most_bytes=sys.maxsize)),
        signatures=() if document.signatures is _ABSENT else decode_signatures(document.signatures),
        quality=decode_record(Quality, _load(document.quality, "$.quality", {}), "$.quality"),
        **tables,
    )


def _load(text: msgspec.Raw, path: str, default: Any = None, most_bytes: int = MAX_RECORD_BYTES) -> Any:
    if text is _ABSENT:
        return default
    size = len(memoryview(text))
    if size > most_bytes:
        raise misfit(path, f"at most {most_bytes} bytes", f"{size} bytes")
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        message, _, where = str(error).partition(" - at `$")
        raise TraceError(f"{path}{where.rstrip('`')}: {message[:1].lower()}{message[1:]}") from None


def _load_list(text: msgspec.Raw, path: str, most_bytes: int = MAX_RECORD_BYTES) -> list[Any]:
    value = _load(text, path, [], most_bytes)
    if not isinstance(value, list):
        raise misfit(path, "a list", describe(value))
    return value


def _decode_table(table: type[Table], texts: dict[str, msgspec.Raw], path: str) -> Table:
    """Read the columns of one table; those that the file leaves out take their default."""
    found: dict[str, Column] = {}
    for spec in columns(table):
        if spec.name in texts:
            found[spec.name] = _decode_column(texts[spec.name], spec, f"{path}.{spec.name}")
        elif spec.default is None:
            raise misfit(f"{path}.{spec.name}", "a list of integers", "nothing: the column is required")
    rows = next(len(found[spec.name]) for spec in columns(table) if spec.default is None)
    for spec in columns(table):
        if spec.name not in found:
            # One value seen everywhere: what a file leaves out takes no memory.
            found[spec.name] = np.broadcast_to(np.array(spec.default, dtype=spec.dtype), (rows, *spec.shape_tail))
        found[spec.name].flags.writeable = False
    return table(**found)


def _decode_column(raw: msgspec.Raw, spec: ColumnSpec, path: str) -> Column:
    """Read one list of integers without making Python objects of them.

    Text of digits, signs, commas and blanks alone that is also valid JSON can only be integers.
    numpy clips what int64 cannot hold, far outside every legal range.
    """
    text = bytes(memoryview(raw)[1:-1])
    if bytes(memoryview(raw)[:1]) != b"[" or text.translate(None, INTEGER_LIST_CHARACTERS):
        raise _explain_column(raw, spec, path)
    values = np.fromstring(text, dtype=np.int64, sep=",") if text.strip() else np.empty(0, dtype=np.int64)
    if not in_range(values, *column_range(spec)):
        raise _explain_column(raw, spec, path)
    if spec.width and len(values) % spec.width:
        raise misfit(path, f"{spec.width} integers per row, one row after the other", f"{len(values)} integers")
    return values.astype(spec.dtype, copy=False).reshape(-1, *spec.shape_tail)


def _explain_column(raw: msgspec.Raw, spec: ColumnSpec, path: str) -> TraceError:
    """Find the first value of a refused column that does not belong there."""
    text, (low, high) = bytes(raw), column_range(spec)
    if not text.startswith(b"["):
        return misfit(path, "a list of integers", describe(_load(raw, path, most_bytes=sys.maxsize)))
    other = _NO_INTEGER.search(text, 1, len(text) - 1)
    index = 0 if other is None else text.count(b",", 0, other.start())
    if other is None:
        values = np.fromstring(text[1:-1], dtype=np.int64, sep=",")
        index = int(np.argmax((values < low) | (values > high)))
    begin = next(islice(re.finditer(rb"[\[,]\s*", text), index, None)).end()
    value = _first_value(text[begin : begin + _SHOWN_BYTES], f"{path}[{index}]")
    return misfit(f"{path}[{index}]", describe_bound(value, low, high), describe(value))


def _first_value(text: bytes, path: str) -> object:
    """Return the JSON value that a text begins with; the text itself where it holds only part of one."""
    readable = text.decode(errors="replace")
    try:
        _, end = json.JSONDecoder().raw_decode(readable)
    except (ValueError, RecursionError):
        return readable
    return _load(msgspec.Raw(readable[:end].encode()), path)
