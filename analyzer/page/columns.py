"""Columns of a sheet by what they hold, and those that tables of ops share."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from ...formats.trace.printable import clean_text
from ..prediction.prediction import Method
from .names import short_name
from .quantity import ABSENT, TimeUnit, format_change, format_share, format_time_in, format_time_range
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


METHOD_NAMES: Final = {
    Method.MEASURED: "measured",
    Method.WAVE_SCALING: "wave scaling",
    Method.BOUND_RATIO: "bound ratio",
    Method.BANDWIDTH_RATIO: "bandwidth ratio",
    Method.LINK_RATIO: "link ratio",
    Method.ANCHORED_MODEL: "anchored model",
    Method.OP_MODEL: "op model",
    Method.ROOFLINE: "roofline",
    Method.UNMODELLED: "not modelled",
}
REASON_WIDTH: Final = 28
"""Narrower, sentences are hard to read."""


def method_title(method: Method) -> str:
    """Return a method's name as the title of a narrow column."""
    return METHOD_NAMES[method].replace("bandwidth", "bandw.").replace(" ", "\n")


def shapes_column(shapes: Iterable[str], *, rank: int) -> SheetColumn:
    """Return a column of tensors' shapes."""
    return text_column("shapes", map(short_name, shapes), rank=rank, min_width=20)


def method_column(methods: Iterable[Method], *, rank: int) -> SheetColumn:
    """Return a column of the methods that predict."""
    return text_column("method", (METHOD_NAMES[method] for method in methods), rank=rank)


def covered_column(covered: Iterable[bool | None], *, rank: int) -> SheetColumn:
    """Return a column that says whether what was measured lies in the interval."""
    words = {True: "yes", False: "no", None: ABSENT}
    return text_column("in\ninterval", (words[item] for item in covered), rank=rank)


def reason_column(title: str, reasons: Iterable[str], *, rank: int = 0, wraps: bool = True) -> SheetColumn:
    """Return a column of sentences."""
    cells = map(clean_text, reasons)
    return text_column(title, cells, rank=rank, min_width=REASON_WIDTH if wraps else None, wraps=wraps)


def detail_columns(
    rows: Sequence[Any], unit: TimeUnit, ranks: tuple[int, int, int, int], *, wraps: bool = True
) -> Iterator[SheetColumn]:
    """Yield interval, bound, what sets it, reason and module of predicted ops; `ranks` are those of the first four."""
    intervals = (format_time_range(row.predicted_low_ns, row.predicted_high_ns, unit) for row in rows)
    yield number_column("interval", intervals, rank=ranks[0])
    yield time_column("bound", (row.bound_ns for row in rows), unit, rank=ranks[1])
    yield text_column("bound by", (row.bound_by or ABSENT for row in rows), rank=ranks[2])
    yield reason_column("reason", (row.reason for row in rows), rank=ranks[3], wraps=wraps)
    yield text_column("module", (short_name(row.module or "") for row in rows), rank=8, min_width=20)
