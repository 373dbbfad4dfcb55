"""docs/reference/trace-format.md is current, and what it shows works."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from wavecast.formats.files.open import save_trace
from wavecast.formats.trace.codec import decode, encode
from wavecast.formats.trace.tables import FORMAT_VERSION, Trace


@pytest.fixture(scope="session")
def page(root_dir: Path) -> str:
    return (root_dir / "docs" / "reference" / "trace-format.md").read_text(encoding="utf-8")


def code_blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def test_the_version_is_current(page: str) -> None:
    assert f"now `{FORMAT_VERSION}`" in page


def test_the_example_is_what_the_codec_writes(page: str, small_trace: Trace) -> None:
    example = code_blocks(page, "json")[0]
    assert example.encode() == encode(small_trace)
    assert decode(example.encode()) == small_trace


def test_the_histogram_counts_what_is_said_of_it(page: str) -> None:
    table = json.loads(f"{{{code_blocks(page, 'json')[1]}}}")["lookups"]
    assert sum(table["lookup_count"]) == 8192
    for least, rows, lookups in zip(table["least_count"], table["distinct_rows"], table["lookup_count"], strict=True):
        assert least * rows <= lookups <= (2 * least - 1) * rows


@pytest.fixture
def loaded(page: str, small_trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the first example leaves behind."""
    save_trace(small_trace, tmp_path / "trace.json.gz")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code_blocks(page, "python")[0], names)  # noqa: S102
    return names


def test_the_numpy_example_works(loaded: dict[str, Any]) -> None:
    assert loaded["busy_ns"] == {"ampere_sgemm_128x64_tn": 8500}


def test_the_pandas_example_works(page: str, loaded: dict[str, Any]) -> None:
    pytest.importorskip("pandas")
    exec(code_blocks(page, "python")[1], loaded)  # noqa: S102
    assert loaded["longest"]["name"].tolist() == ["aten::linear", "aten::addmm"]
