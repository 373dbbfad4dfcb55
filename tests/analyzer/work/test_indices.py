"""How lookups are spread: what a user may say of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from wavecast.analyzer.work.indices import UNIFORM, USUAL, Indices, read_indices
from wavecast.errors import InputError

BINS = ((10.0, 90.0), (90.0, 10.0))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("uniform", UNIFORM),
        ("zipf:0", UNIFORM),
        ("zipf:1.05", USUAL),
        (" ZIPF:0.8 ", Indices(exponent=0.8)),
    ],
)
def test_a_spread_is_named(text: str, found: Indices) -> None:
    assert read_indices(text) == found


@pytest.mark.parametrize(
    "text", ["", "uniform:1", "zipf", "zipf:", "zipf:x", "zipf:-1", "zipf:nan", "zipf:inf", "zipf:11", "pareto:2", "/"]
)
def test_what_names_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^indices=.*expected"):
        read_indices(text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"bins": [[90, 10], [10, 90]]}'),
        ("a.toml", "bins = [[90, 10], [10, 90.0]]"),
        ("a.CSV", "rows,lookups\n90,10\n\n10,90\n"),
    ],
)
def test_a_histogram_begins_with_the_rows_that_are_looked_up_most(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    found = read_indices(str(path))
    assert found.bins == BINS
    assert str(found) == name


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.json", "", "no histogram"),
        ("a.json", "[" * 100_000, "no histogram"),
        ("a.json", "[[1, 2]]", "expected bins"),
        ("a.json", '{"bins": 3}', "expected bins"),
        ("a.json", '{"bins": []}', "0 bins"),
        ("a.json", '{"bins": [[1, 2], [1]]}', r"bins\[1\]: expected two numbers"),
        ("a.json", '{"bins": [["1", 2]]}', "expected two numbers"),
        ("a.json", '{"bins": [[true, 2]]}', "expected two numbers"),
        ("a.json", '{"bins": [[0, 2]]}', "at least one row"),
        ("a.json", '{"bins": [[1, -2]]}', "at least one row"),
        ("a.json", '{"bins": [[1, NaN]]}', "at least one row"),
        ("a.json", '{"bins": [[Infinity, 1]]}', "at least one row"),
        ("a.json", '{"bins": [[1e300, 1]]}', "at least one row"),
        ("a.json", '{"bins": [[1, 0]]}', "no bin has lookups"),
        ("a.toml", "bins = ", "no histogram"),
        ("a.csv", "a,b\n1,2\n", "expected the columns"),
        ("a.csv", "rows,lookups\n1,x\n", "no histogram"),
        ("a.csv", "rows,lookups\n1\n", "expected two numbers"),
        ("a.csv", "rows,lookups\n" + "1,1\n" * 100_001, "100,001 bins"),
        ("a.csv", "1" * 4_000_001, "more than"),
    ],
)
def test_a_bad_histogram_is_refused_in_a_line(name: str, text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        read_indices(str(path))
    assert "\n" not in str(caught.value)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "binary.json").write_bytes(bytes(range(256)))
    for name, words in (("folder.json", "cannot be read"), ("none.csv", "cannot be read"), ("binary.json", "no hist")):
        with pytest.raises(InputError, match=words):
            read_indices(str(tmp_path / name))
