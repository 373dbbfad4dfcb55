"""Files are recognised by what is in them."""

from __future__ import annotations

import gzip
import json
import pickle
import sqlite3
import zipfile
from pathlib import Path

import pytest
from wavecast.formats.codec import encode
from wavecast.formats.detect import FileKind, describe_content, detect
from wavecast.formats.trace import Trace

LONG = "x" * 100_000
EVENT = {"ph": "X", "name": "aten::mm", "ts": 1, "dur": 2}


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", FileKind.EMPTY),
        (b" \n\t", FileKind.EMPTY),
        (b"\xef\xbb\xbf", FileKind.EMPTY),
        (gzip.compress(b"{}"), FileKind.GZIP),
        (b'{"format": "wavecast.trace", "version": "9.0"}', FileKind.WAVECAST),
        (b'\xef\xbb\xbf {\n"format" : "wavecast.trace"}', FileKind.WAVECAST),
        (json.dumps({"calls": {"name": LONG}, "format": "wavecast.trace"}).encode(), FileKind.WAVECAST),
        (b'{"schemaVersion": 1, "traceEvents": [', FileKind.KINETO),
        (json.dumps({"deviceProperties": LONG, "traceEvents": []}).encode(), FileKind.KINETO),
        (json.dumps([EVENT]).encode(), FileKind.KINETO),
        (json.dumps([EVENT], indent=2).encode(), FileKind.KINETO),
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


def test_our_own_file_is_recognised(small_trace: Trace) -> None:
    assert detect(encode(small_trace)) is FileKind.WAVECAST
    assert detect(encode(Trace())) is FileKind.WAVECAST


def test_a_readable_head_suffices(small_trace: Trace) -> None:
    assert detect(encode(small_trace)[:64]) is FileKind.WAVECAST


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


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"loss": 1, "lr": 2}', "JSON that is no trace (first keys: loss, lr)"),
        (b"[1]", "JSON that is no trace"),
        (
            b'{"schema": "1.1.0-chakra.0.0.4", "nodes": []}',
            "a PyTorch execution trace (Chakra), which holds no GPU times",
        ),
        (b"", "an empty file"),
        (b"hello", "text"),
        (b'{"traceEvents": []}', "a PyTorch profiler (Kineto) trace"),
    ],
)
def test_content_is_described(content: bytes, words: str) -> None:
    assert describe_content(content) == words
