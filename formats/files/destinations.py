"""Refuses to write over what is read: one rule for every command."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Final

from ...errors import OutputError
from ...records import dataclass

_STANDARD_STREAM: Final = "-"
_TABLE_FOLDERS: Final = ("ops", "models", "traces")
"""What is read of a folder of measurements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """Know a regular file by its number, which its links and all spellings of its path share, and by its real path."""

    number: tuple[int, int] | None
    path: str

    def is_same(self, other: _File) -> bool:
        """Say whether both are one file."""
        return self.path == other.path or (self.number is not None and self.number == other.number)


def check_destinations(outputs: Mapping[str, str | Path], inputs: Mapping[str, str | Path]) -> None:
    """Raise OutputError where a file that is to be written is read as well, is to be written twice, or cannot be one.

    Both name paths by the option or argument that gives them; an input may be a folder of measurements. Links and
    spellings do not matter. Devices and pipes may be named as often as one likes, standard output once.

    >>> check_destinations({"-o": folder / "report.md"}, {"TRACE": "samples/gpt2_small-inference-bf16-b4.json.gz"})
    """
    files = {label: found for label, path in outputs.items() if (found := _find_output(path)) is not None}
    for (first, one), (second, other) in combinations(files.items(), 2):
        if one.is_same(other):
            where = "standard output" if one.path == _STANDARD_STREAM else str(outputs[second])
            raise OutputError(f"{where}: {first} and {second} would both be written to it; name two files")
    for source, path in inputs.items():
        for label, written in files.items():
            if any(written.is_same(read) for read in _read_files(path)) or _lies_among_tables(written, Path(path)):
                raise OutputError(f"{outputs[label]}: {source} is read from there; name another file for {label}")


def _find_output(path: str | Path) -> _File | None:
    """Return the file, which need not exist; None for a device or a pipe."""
    if str(path) == _STANDARD_STREAM:
        return _File(number=None, path=_STANDARD_STREAM)
    try:
        status = os.stat(path)  # noqa: PTH116 - text is enough
    except (OSError, ValueError):
        if not Path(os.path.realpath(path)).parent.is_dir():
            raise OutputError(f"{path}: cannot be written: its directory does not exist") from None
        return _File(number=None, path=_real_path(path))
    if stat.S_ISDIR(status.st_mode):
        raise OutputError(f"{path}: cannot be written: it is a directory")
    return _regular(status, path)


def _read_files(path: str | Path) -> Iterator[_File]:
    """Yield the files that are read of a path: the file itself, or the tables of a folder."""
    try:
        status = os.fstat(sys.stdin.fileno()) if str(path) == _STANDARD_STREAM else os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):
        return  # there is nothing that could be lost
    found = _regular(status, path)
    if found is not None:
        yield found
    if stat.S_ISDIR(status.st_mode):
        tables = (
            Path(where) / name
            for kind in _TABLE_FOLDERS
            for where, _, names in os.walk(Path(path) / kind)
            for name in names
        )
        yield from (found for table in tables for found in _read_files(table))


def _lies_among_tables(written: _File, folder: Path) -> bool:
    """Say whether a new file would be read as one of a folder's tables from now on."""
    tables = (_real_path(folder / kind) for kind in _TABLE_FOLDERS)
    return any(written.path.startswith(f"{path}{os.sep}") for path in tables)


def _regular(status: os.stat_result, path: str | Path) -> _File | None:
    if not stat.S_ISREG(status.st_mode):
        return None
    number = (status.st_dev, status.st_ino) if status.st_ino else None
    return _File(number=number, path=_real_path(path))


def _real_path(path: str | Path) -> str:
    return os.path.normcase(os.path.realpath(path))
