"""Columns that tables of ops share, whichever report they are of. `rank` says which go first where room is short."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from ...formats.trace.printable import clean_text
from ..prediction.prediction import Method
from .columns import number_column, text_column, time_column
from .names import short_name
from .quantity import ABSENT, TimeUnit, format_time_range
from .sheet import SheetColumn

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
