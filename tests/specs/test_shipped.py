"""Tests of what is kept of the package's TOML files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from wavecast.specs import shipped
from wavecast.specs.shipped import read_shipped


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "table.toml"
    path.write_text("listed_on = 2026-11-23\nrate = 0.1")
    return path


def test_a_file_is_parsed_once(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read_shipped(table)
    monkeypatch.setattr(shipped, "read_toml", lambda _: pytest.fail("parsed again"))
    assert first == read_shipped(table) == {"listed_on": "2026-11-23", "rate": 0.1}


@pytest.mark.parametrize("kept", [b"", b"[]", b'{"digest": "other", "document": {}}'])
def test_what_is_kept_of_another_text_is_not_read(table: Path, kept: bytes) -> None:
    read_shipped(table)
    (path,) = (table.parent / "__pycache__").iterdir()
    path.write_bytes(kept)
    assert read_shipped(table)["rate"] == 0.1
    table.write_text("rate = 0.2")
    assert read_shipped(table) == {"rate": 0.2}


def test_nothing_is_kept_where_python_keeps_no_bytecode(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert read_shipped(table)["rate"] == 0.1
    assert not (table.parent / "__pycache__").exists()
