"""Files are recognised by what is in them."""

from __future__ import annotations

import gzip
import json
import pickle
import sqlite3
import zipfile
from importlib import import_module
from pathlib import Path

import pytest
from wavecast.formats.files.detect import FileKind, describe_content, detect
from wavecast.formats.files.importers import IMPORTERS, find_importer
from wavecast.formats.trace.codec import encode
from wavecast.formats.trace.tables import Trace

LONG = "x" * 100_000
OWN, PROFILER = "a wavecast trace", "a PyTorch profiler trace"
EVENT = {"ph": "X", "name": "aten::mm", "ts": 1, "dur": 2}


def name_of(content: bytes) -> str | None:
    found = find_importer(content)
    return found.name if found else None


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", FileKind.EMPTY),
        (b" \n\t", FileKind.EMPTY),
        (b"\xef\xbb\xbf", FileKind.EMPTY),
        (gzip.compress(b"{}", mtime=0), FileKind.GZIP),
        (b"{}", FileKind.JSON),
        (b"[]", FileKind.JSON),
        (b"[1, 2]", FileKind.JSON),
        (b"{", FileKind.JSON),
        (b'{"format": "wavecast.prediction"}', FileKind.JSON),
        (b'{"name": "the \\"traceEvents\\": field"}', FileKind.JSON),
        (b"[INFO] started\n", FileKind.TEXT),
        (b"import torch\n", FileKind.TEXT),
        ("größer µs\n".encode() * 20_000, FileKind.TEXT),
        (b"\x00\x01\x02", FileKind.BINARY),
        (b"\x7fELF\x02\x01", FileKind.BINARY),
        (bytes(range(256)) * 300, FileKind.BINARY),
        (b"caf\xe9 au lait", FileKind.BINARY),
    ],
)
def test_detect(content: bytes, kind: FileKind) -> None:
    assert detect(content) is kind


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b'{"format": "wavecast.trace", "version": "9.0"}', OWN),
        (b'\xef\xbb\xbf {\n"format" : "wavecast.trace"}', OWN),
        (json.dumps({"calls": {"name": LONG}, "format": "wavecast.trace"}).encode(), OWN),
        (b'{"schemaVersion": 1, "traceEvents": [', PROFILER),
        (json.dumps({"deviceProperties": LONG, "traceEvents": []}).encode(), PROFILER),
        (json.dumps([EVENT]).encode(), PROFILER),
        (json.dumps([EVENT], indent=2).encode(), PROFILER),
        (b'{"name": "the \\"traceEvents\\": field"}', None),
        (b'[INFO] "traceEvents": 3', None),
        (b"\x80\x04" + b'"traceEvents":', None),
        (b"", None),
    ],
)
def test_what_can_be_read_is_found(content: bytes, name: str | None) -> None:
    assert name_of(content) == name


def test_every_importer_can_be_loaded() -> None:
    for item in IMPORTERS:
        assert callable(getattr(import_module(item.module, "wavecast.formats.files"), item.function))


def test_our_own_file_is_recognised(small_trace: Trace) -> None:
    assert name_of(encode(small_trace)) == OWN
    assert name_of(encode(Trace())) == OWN


def test_a_readable_head_suffices(small_trace: Trace) -> None:
    assert name_of(encode(small_trace)[:64]) == OWN


def test_binary_files_are_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a", "w") as archive:
        archive.writestr("x", "y")
    with sqlite3.connect(tmp_path / "b") as database:
        database.execute("create table t (x)")
    database.close()
    assert "a zip archive" in describe_content((tmp_path / "a").read_bytes())
    assert "an SQLite database" in describe_content((tmp_path / "b").read_bytes())
    assert describe_content(pickle.dumps([1])) == "a Python pickle"
    assert describe_content(b"\x89PNG\r\n\x1a\n") == "a PNG image"
    assert describe_content(b"PAR1\x15\x04") == "a Parquet table"
    assert describe_content(b"\x00\x01") == "binary data"


def test_who_gives_a_script_is_told_to_record_it() -> None:
    assert "`wavecast record --shapes-only SCRIPT`" in describe_content(b'"""Train."""\r\nimport torch\r\n')
    assert "recorded first" in describe_content(b"from torch import nn\n")
    assert describe_content(b"from here on, import what you like\n") == "text"
    packet = b"\n\x1c@\x80\x80\xcc\x9f\xc2\xf0\xd6\xeb\x18P\x012\x0e"
    assert describe_content(packet).startswith("a Perfetto trace: export the profile")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"loss": 1, "lr": 2}', "JSON that is no trace (first keys: loss, lr)"),
        (b"[1]", "JSON that is no trace"),
        (
            b'{"schema": "1.1.0-chakra.0.0.4", "nodes": []}',
            "a PyTorch execution trace without nodes",
        ),
        (b"", "an empty file"),
        (b"hello", "text"),
    ],
)
def test_content_is_described(content: bytes, words: str) -> None:
    assert describe_content(content) == words
