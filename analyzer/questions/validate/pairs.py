"""Many pairs of recordings at once: how far each was off, and together by the two GPUs, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from ....errors import InputError
from ....formats.trace.printable import clean_text
from ....progress import tell
from ....records import dataclass
from ...asking.answer import Drawn, Report
from ...page.columns import change_column, covered_column, text_column, time_column
from ...page.encoding import attributes, encode_json, table_of
from ...page.page import Page, build_page, notes
from ...page.quantity import common_time_unit, format_change, format_count, format_error, format_share
from ...page.sheet import Sheet

if TYPE_CHECKING:
    from .report import Validation

GPU_BOUND_RATIO: Final = 0.85
"""An iteration whose GPU is busy for so much of it says little about hosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRow:
    """Compare the prediction from one recording with another, as errors of predicted over measured, less one."""

    predicted_from: str
    measured_on_target: str
    source: str | None
    """The GPU; None for shapes alone."""
    target: str | None
    predicted_busy_ns: float
    measured_busy_ns: float
    busy_error: float
    predicted_ns: float
    predicted_low_ns: float | None
    predicted_high_ns: float | None
    measured_ns: float
    """Of the iteration."""
    error: float
    is_covered: bool | None
    """Whether its 90 % interval holds the measured iteration; None without one."""
    is_gpu_bound: bool


def pair_row(first_name: str, second_name: str, report: Validation) -> PairRow:
    """Return the row of one validation."""
    iteration = report.iteration
    busy = iteration.measured_busy_ns
    return PairRow(
        predicted_from=first_name,
        measured_on_target=second_name,
        source=report.source.gpu,
        target=report.target.gpu,
        predicted_busy_ns=iteration.predicted_busy_ns,
        measured_busy_ns=busy,
        busy_error=iteration.predicted_busy_ns / busy - 1.0 if busy > 0 else 0.0,
        predicted_ns=iteration.predicted_ns,
        predicted_low_ns=iteration.predicted_low_ns,
        predicted_high_ns=iteration.predicted_high_ns,
        measured_ns=iteration.measured_ns,
        error=iteration.error_ratio,
        is_covered=iteration.is_covered,
        is_gpu_bound=busy >= GPU_BOUND_RATIO * iteration.measured_ns,
    )


def validate_pairs(paths: Sequence[Path], compare: Callable[[Path, Path], PairRow]) -> PairsReport:
    """Compare paths in twos: each second one is what the GPU of the first one's prediction took.

    Raises InputError for an odd number of paths, and what `compare` raises, with the pair that it is about.
    """
    if len(paths) % 2:
        raise InputError(f"{len(paths)} traces: give them in pairs, each prediction's source and then its target")
    rows = []
    for number, (first, second) in enumerate(zip(paths[::2], paths[1::2], strict=True), 1):
        tell(f"{first.name} and {second.name}", number, len(paths) // 2)
        try:
            rows.append(compare(first, second))
        except InputError as error:
            raise InputError(f"{first} and {second}: {error}") from None
    return PairsReport(rows=tuple(rows))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PairsReport(Report):
    """Hold many predictions beside measurements. Its table is `pairs`."""

    rows: tuple[PairRow, ...]

    def _drawn(self) -> Drawn:
        pairs: list[dict[str, Any]] = [attributes(row) for row in self.rows]
        document = {"format": "wavecast.validation-pairs", "version": "1.0", "pairs": pairs}
        tables = {"pairs": lambda: table_of(self.rows, PairRow)}
        return Drawn(page=self._page, json=lambda: encode_json(document), tables=tables)

    def _page(self) -> Page:
        """Return the table of pairs, and what they show by source and target."""
        unit = common_time_unit(row.measured_ns for row in self.rows)
        columns = (
            text_column("predicted from", (clean_text(row.predicted_from) for row in self.rows), min_width=24),
            text_column("GPU", (clean_text(row.source or "shapes") for row in self.rows), rank=2),
            text_column("on", (clean_text(row.target or "") for row in self.rows), rank=1),
            time_column("GPU busy\nmeasured", (row.measured_busy_ns for row in self.rows), unit, rank=3),
            change_column("off by", (row.busy_error for row in self.rows)),
            time_column("iteration\nmeasured", (row.measured_ns for row in self.rows), unit, rank=3),
            change_column("off by ", (row.error for row in self.rows)),
            covered_column((row.is_covered for row in self.rows), rank=1),
        )
        return build_page(Sheet(title="Pairs of recordings", columns=columns), notes(self._lines()))

    def _headline(self) -> str:
        return f"{format_count(len(self.rows), 'pair')}: GPU busy {_errors([row.busy_error for row in self.rows])}"

    def _lines(self) -> Iterator[str]:
        """Yield a line for each two GPUs."""
        for source, target in dict.fromkeys((row.source, row.target) for row in self.rows):
            mine = [row for row in self.rows if (row.source, row.target) == (source, target)]
            parts = [f"GPU busy {_errors([row.busy_error for row in mine])}"]
            for what, is_bound in (("that the GPU bounds", True), ("that the host bounds", False)):
                if kept := [row for row in mine if row.is_gpu_bound == is_bound]:
                    parts.append(f"{format_count(len(kept), 'iteration')} {what} {_iterations(kept)}")
            name = f"{clean_text(source or 'shapes')} to {clean_text(target or '')}"
            yield f"{name}, {format_count(len(mine), 'pair')}: {'; '.join(parts)}."


def _iterations(rows: Sequence[PairRow]) -> str:
    covered = [row.is_covered for row in rows if row.is_covered is not None]
    inside = f", {format_share(fmean(covered))} inside" if covered else ""
    return _errors([row.error for row in rows]) + inside


def _errors(errors: Sequence[float]) -> str:
    return f"{format_error(fmean(map(abs, errors)))} off, bias {format_change(fmean(errors))}"
