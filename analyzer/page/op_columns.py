"""Columns that tables of ops share, whichever report they are of. `rank` says which go first where room is short."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from ...formats.trace.printable import clean_text
from ..prediction.prediction import Method
from .columns import number_column, text_column, time_column
from .names import short_name
from .quantity import ABSENT, TimeUnit, format_time_range
from .sheet import SheetColumn

if TYPE_CHECKING:
    from ..iteration.report import OpPrediction


class CoveredOp(Protocol):
    """What says of an op whether what was measured lies in its interval."""

    @property
    def is_covered(self) -> bool | None:
        """None where there is no interval."""


class ComparedOp(Protocol):
    """What an op's prediction is shown by, beside what was measured."""

    @property
    def predicted_low_ns(self) -> float | None: ...  # noqa: D102
    @property
    def predicted_high_ns(self) -> float | None: ...  # noqa: D102
    @property
    def bound_ns(self) -> float | None: ...  # noqa: D102
    @property
    def bound_by(self) -> str | None: ...  # noqa: D102
    @property
    def module(self) -> str | None: ...  # noqa: D102


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


def interval_column(rows: Sequence[OpPrediction | ComparedOp], unit: TimeUnit, *, rank: int) -> SheetColumn:
    """Return a column of 90 % intervals."""
    cells = (format_time_range(row.predicted_low_ns, row.predicted_high_ns, unit) for row in rows)
    return number_column("interval", cells, rank=rank)


def covered_column(rows: Sequence[CoveredOp], *, rank: int) -> SheetColumn:
    """Return a column that says whether what was measured lies in the interval."""
    words = {True: "yes", False: "no", None: ABSENT}
    return text_column("in\ninterval", (words[row.is_covered] for row in rows), rank=rank)


def bound_column(rows: Sequence[OpPrediction | ComparedOp], unit: TimeUnit, *, rank: int) -> SheetColumn:
    """Return a column of physical lower bounds."""
    return time_column("bound", (row.bound_ns for row in rows), unit, rank=rank)


def limit_column(rows: Sequence[OpPrediction | ComparedOp], *, rank: int) -> SheetColumn:
    """Return a column of what sets the bounds."""
    return text_column("bound by", (row.bound_by or ABSENT for row in rows), rank=rank)


def reason_column(title: str, reasons: Iterable[str], *, rank: int = 0, wraps: bool = True) -> SheetColumn:
    """Return a column of sentences."""
    cells = map(clean_text, reasons)
    return text_column(title, cells, rank=rank, min_width=REASON_WIDTH if wraps else None, wraps=wraps)


def module_column(rows: Sequence[OpPrediction | ComparedOp], *, rank: int) -> SheetColumn:
    """Return a column of the modules that called the ops first."""
    return text_column("module", (short_name(row.module or "") for row in rows), rank=rank, min_width=20)
