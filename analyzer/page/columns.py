"""Columns of a sheet by what they hold."""

from __future__ import annotations

from collections.abc import Iterable

from .quantity import TimeUnit, format_change, format_share, format_time_in
from .sheet import SheetColumn


def text_column(
    title: str, cells: Iterable[str], *, rank: int = 0, min_width: int | None = None, wraps: bool = False
) -> SheetColumn:
    """Return a column of words.

    >>> text_column("op", ["mm", "add"]).cells
    ('mm', 'add')
    """
    return SheetColumn(title=title, cells=tuple(cells), is_text=True, rank=rank, min_width=min_width, wraps=wraps)


def name_column(title: str, names: Iterable[str]) -> SheetColumn:
    """Return a column of op or kernel names, shortened before."""
    return text_column(title, names, min_width=24)


def number_column(title: str, cells: Iterable[str], *, rank: int = 0) -> SheetColumn:
    """Return a column of numbers that are written already."""
    return SheetColumn(title=title, cells=tuple(cells), rank=rank)


def count_column(title: str, counts: Iterable[int], *, rank: int = 0) -> SheetColumn:
    """Return a column of counts."""
    return number_column(title, (f"{count:,}" for count in counts), rank=rank)


def time_column(title: str, times_ns: Iterable[float | None], unit: TimeUnit, *, rank: int = 0) -> SheetColumn:
    """Return a column of times in one unit."""
    return number_column(title, (format_time_in(time_ns, unit) for time_ns in times_ns), rank=rank)


def share_column(title: str, ratios: Iterable[float | None], *, rank: int = 0) -> SheetColumn:
    """Return a column of whole percentages."""
    return number_column(title, map(format_share, ratios), rank=rank)


def change_column(title: str, ratios: Iterable[float | None], *, rank: int = 0) -> SheetColumn:
    """Return a column of signed differences in %."""
    return number_column(title, map(format_change, ratios), rank=rank)
