"""Imports what rocprofv3 wrote as JSON or CSV; its databases come by way of the importer of SQLite files."""

from __future__ import annotations

from collections.abc import Callable

from ..files.source import ImportSource, ReadOptions
from ..trace.tables import Trace

Progress = Callable[[int, int], None]


def read_json(source: ImportSource, *, options: ReadOptions, progress: Progress | None = None) -> Callable[[], Trace]:
    """Read rocprofv3's JSON and return what builds its trace."""
    from .json_file import read_document

    del options  # the whole file is read
    data = source.read()
    source.release()
    build = read_document(data)
    if progress is not None:
        progress(len(data), len(data))
    return build


def read_csv(source: ImportSource, *, options: ReadOptions, progress: Progress | None = None) -> Callable[[], Trace]:
    """Read a CSV file of rocprofv3 with those beside it of the same run, and return what builds their trace."""
    from .csv_files import read_files

    del options  # the whole file is read
    size = len(source.read())
    build = read_files(source)
    if progress is not None:
        progress(size, size)
    return build
