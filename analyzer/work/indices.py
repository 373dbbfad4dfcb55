"""Which rows of an embedding table are looked up how often: all alike, by Zipf's law, or as a histogram counts them."""

from __future__ import annotations

import csv
import json
from io import StringIO
from math import isfinite, log
from pathlib import Path
from typing import Any, Final

from ...errors import InputError, parameter
from ...records import dataclass

DEFAULT_EXPONENT: Final = 1.05
"""Of Zipf's law where nobody says another: an assumption, near the exponents about 1 that the literature on advertising
logs fits. No log was counted for it, and a report names it."""
MOST_EXPONENT: Final = 10.0
MOST_FILE_BYTES: Final = 4_000_000
MOST_BINS: Final = 100_000
MOST_COUNT: Final = 1e18
_EXPECTED: Final = "expected uniform, zipf:EXPONENT as in zipf:1.05, or a histogram file (.json, .toml or .csv)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Indices:
    """Say how lookups are spread over a table's rows: by rank, the most looked-up row first."""

    exponent: float = DEFAULT_EXPONENT
    """Of Zipf's law: the row of rank k is looked up as often as k ** -exponent says; 0: all alike."""
    bins: tuple[tuple[float, float], ...] = ()
    """Of a histogram: rows and the lookups that they share; then the exponent counts for nothing. A table of more or
    fewer rows has bins in proportion."""
    name: str = ""
    """Of the histogram's file."""

    def of(self, rows: float) -> Indices:  # noqa: ARG002 - what is recorded differs from table to table
        """Return the distribution of a table of so many rows: this one of all."""
        return self

    def __str__(self) -> str:
        if self.bins:
            return self.name or f"a histogram of {len(self.bins):,} bins"
        return f"zipf:{self.exponent:g}" if self.exponent else "uniform"


USUAL: Final = Indices()
UNIFORM: Final = Indices(exponent=0.0)


def read_indices(text: str) -> Indices:
    """Return the distribution that a user names: `uniform`, `zipf:1.05`, or the histogram in a file.

    Raises InputError for what names none, and for a file that holds none.

    >>> str(read_indices("zipf:1.2")), str(read_indices("uniform"))
    ('zipf:1.2', 'uniform')
    """
    word, colon, rest = text.strip().partition(":")
    if word.lower() == "uniform" and not colon:
        return UNIFORM
    if word.lower() == "zipf":
        try:
            found = float(rest)
        except ValueError:
            found = -1.0
        if not 0.0 <= found <= MOST_EXPONENT:
            raise InputError(
                f"{parameter('indices', text)}: expected an exponent from 0 to {MOST_EXPONENT:g}, as in zipf:1.05"
            )
        return Indices(exponent=found)
    path = Path(text)
    if path.suffix.lower() not in _READERS:
        raise InputError(f"{parameter('indices', text)}: {_EXPECTED}")
    return _read_histogram(path)


def _read_histogram(path: Path) -> Indices:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    if len(data) > MOST_FILE_BYTES:
        raise InputError(f"{path}: more than {MOST_FILE_BYTES:,} bytes; a histogram takes a few hundred bins")
    try:
        rows = _READERS[path.suffix.lower()](data.decode())
    except (ValueError, RecursionError, csv.Error) as error:
        raise InputError(f"{path}: no histogram ({error}); see docs/evidence/models.md, Embedding tables") from error
    # The bins, most looked-up rows first. Raises InputError where one is none.
    if not 1 <= len(rows) <= MOST_BINS:
        raise InputError(f"{path}: {len(rows):,} bins; expected 1 to {MOST_BINS:,}")
    found = [_check_bin(path, at, item) for at, item in enumerate(rows)]
    if not any(lookups for _, lookups in found):
        raise InputError(f"{path}: no bin has lookups")
    return Indices(bins=tuple(sorted(found, key=lambda item: -item[1] / item[0])), name=path.name)


def _from_json(text: str) -> Any:
    return _bins_of(json.loads(text))


def _from_toml(text: str) -> Any:
    import tomllib

    return _bins_of(tomllib.loads(text))


def _bins_of(document: Any) -> Any:
    if not isinstance(document, dict) or not isinstance(document.get("bins"), list):
        raise ValueError("expected bins = [[rows, lookups], ...]")
    return document["bins"]


def _from_csv(text: str) -> Any:
    lines = list(csv.reader(StringIO(text)))
    if not lines or [cell.strip() for cell in lines[0]] != ["rows", "lookups"]:
        raise ValueError("expected the columns rows,lookups")
    return [[float(cell) for cell in line] for line in lines[1:] if line]


_READERS: Final = {".json": _from_json, ".toml": _from_toml, ".csv": _from_csv}


def _check_bin(path: Path, at: int, item: Any) -> tuple[float, float]:
    pair = item if isinstance(item, list) and len(item) == 2 else ()
    if not pair or not all(isinstance(x, int | float) and not isinstance(x, bool) for x in pair):
        raise InputError(f"{path}: bins[{at}]: expected two numbers, rows and lookups")
    if not all(0 <= x <= MOST_COUNT and isfinite(x) for x in pair) or pair[0] < 1:
        raise InputError(f"{path}: bins[{at}]: expected at least one row and no fewer than 0 lookups, both finite")
    return float(pair[0]), float(pair[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedIndices:
    """Hold distributions by the rows of the table, as an iteration's histograms tell them."""

    tables: tuple[tuple[float, Indices], ...]
    """Rows of a table, and how its lookups are spread; at least one."""
    lookups: int
    """That were counted, of all tables."""
    left_out: int = 0
    """Rows of the histograms that contradict themselves, or that belong to no lookup."""

    def __str__(self) -> str:
        return "recorded"

    def of(self, rows: float) -> Indices:
        """Return the distribution of a table of so many rows: of the recorded table nearest in size.

        >>> found = RecordedIndices(tables=((1e3, Indices(exponent=1.2)), (1e6, Indices(exponent=0.8))), lookups=4096)
        >>> str(found.of(1e6)), str(found.of(125.0))
        ('zipf:0.8', 'zipf:1.2')
        """
        return min(self.tables, key=lambda item: abs(log(max(item[0], 1.0)) - log(max(rows, 1.0))))[1]


Spread = Indices | RecordedIndices
"""Either says with `of` how lookups in a table of so many rows are spread."""
