"""Says what a file's bytes look like, by its content and never by its name; `importers` has what can be read."""

import re
from enum import Enum
from typing import Final


class FileKind(Enum):
    """Say what a file holds."""

    JSON = "JSON"
    GZIP = "gzip"
    EMPTY = "an empty file"
    TEXT = "text"
    BINARY = "binary data"


SIGNATURES: Final[tuple[tuple[int, bytes, str], ...]] = (
    (0, b"PK\x03\x04", "a zip archive (a model or checkpoint saved by torch.save looks like this, too)"),
    (0, b"\x7fELF", "an ELF program or library"),
    (0, b"SQLite format 3\x00", "an SQLite database"),
    (0, b"NVIDIA Tegra Profiler Report", "a report of Nsight Systems: export it with `nsys export --type sqlite "
     "FILE.nsys-rep` and give that file"),
    (0, b"PAR1", "a Parquet table"),
    (0, b"\x28\xb5\x2f\xfd", "zstd-compressed data"),
    (0, b"\xfd7zXZ\x00", "xz-compressed data"),
    (0, b"BZh", "bzip2-compressed data"),
    (0, b"\x04\x22\x4d\x18", "lz4-compressed data"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (257, b"ustar", "a tar archive (unpack it first)"),
    (0, b"\x89PNG", "a PNG image"),
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"%PDF", "a PDF document"),
    (0, b"\x89HDF", "an HDF5 file"),
    (0, b"ARROW1", "an Arrow file"),
    (0, b"\xff\xfe", "UTF-16 text (save it as UTF-8)"),
    (0, b"\xfe\xff", "UTF-16 text (save it as UTF-8)"),
    (0, b"MZ", "a Windows program"),
)  # fmt: skip
"""Offset, bytes and name of what people are likely to pass by mistake."""

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

_PERFETTO = re.compile(rb"\n.{0,6}?(?:\x40.{4,10}?\x50.\x32|\xe2\x03.{1,4}?\x08)", re.DOTALL)
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_SCRIPT = re.compile(rb"^(?:#!.*python|import [\w.]+(?: as \w+)?(?:, .*)?$|from [\w.]+ import )", re.MULTILINE)
_JSON_START = re.compile(rb'\{\s*(?:["}]|$)|\[\s*(?:[\[{"\d\]-]|true|false|null|$)')
_KEY = re.compile(rb'"((?:[^"\\]|\\.)*)"\s*:')
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a]")
HEAD_BYTES: Final = 1 << 16
"""Looked at before the whole file is."""


def detect(data: bytes) -> FileKind:
    """Say what a file's bytes are."""
    text = strip_mark(data[:HEAD_BYTES])
    if not text:
        return FileKind.EMPTY
    if text.startswith(b"\x1f\x8b"):
        return FileKind.GZIP
    if _find_magic(data):
        return FileKind.BINARY
    if starts_as_json(text):
        return FileKind.JSON
    return FileKind.TEXT if _is_text(text) else FileKind.BINARY


def describe_content(data: bytes) -> str:
    """Say in a few words what a file's bytes look like, for a message."""
    kind = detect(data)
    if kind is FileKind.BINARY and _PERFETTO.match(data):
        return "a Perfetto trace: export the profile to a path that ends in .json or .json.gz"
    if kind is FileKind.BINARY:
        return _find_magic(data) or str(kind.value)
    if kind is FileKind.JSON:
        return _describe_json(data[:HEAD_BYTES])
    first = data[:HEAD_BYTES].partition(b"\n")[0]
    if b"KernelName" in first and b"BeginNs" in first:
        return "a CSV of rocprof (v1), which is not read: record with rocprofv3"
    if kind is FileKind.TEXT and _SCRIPT.search(data[:HEAD_BYTES].replace(b"\r\n", b"\n")):
        return "a Python script, which is recorded first (`wavecast record --shapes-only SCRIPT`)"
    return str(kind.value)


def is_archive(head: bytes) -> bool:
    """Say whether bytes begin as a zip archive does."""
    return head.startswith(b"PK\x03\x04")


def may_be_trace(head: bytes) -> bool:
    """Say whether a file of an archive may hold a trace: JSON, packed once more, or of a known binary kind."""
    magic = _find_magic(head)
    is_known = any(word in magic for word in ("compressed", "SQLite")) or head.startswith(b"\x1f\x8b")
    return is_known or (not magic and starts_as_json(strip_mark(head)))


def strip_mark(head: bytes) -> bytes:
    """Return the bytes without a byte order mark and leading blanks."""
    return head.removeprefix(BYTE_ORDER_MARK).lstrip()


def starts_as_json(head: bytes) -> bool:
    """Say whether bytes without leading blanks begin as JSON does."""
    return _JSON_START.match(head) is not None


def _find_magic(data: bytes) -> str:
    if _PICKLE.match(data):
        return "a Python pickle"
    return next((name for offset, magic, name in SIGNATURES if data[offset : offset + len(magic)] == magic), "")


def _is_text(head: bytes) -> bool:
    """Say whether the bytes are UTF-8 without control characters; the cut may split the last character."""
    try:
        head[:-3].decode()
    except UnicodeDecodeError:
        return False
    return not _CONTROL.search(head)


def _describe_json(head: bytes) -> str:
    keys = list(dict.fromkeys(match[1].decode(errors="replace") for match in _KEY.finditer(head)))[:5]
    if b'"nodes"' in head and b'"schema"' in head:
        return "a PyTorch execution trace without nodes"
    return "JSON that is no trace" + (f" (first keys: {', '.join(keys)})" if keys else "")
