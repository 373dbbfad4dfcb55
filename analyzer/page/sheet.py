"""A table before it has a look: titled columns of finished text, drawn by rich or as Markdown."""

from ...records import dataclass, replace
from .quantity import ABSENT

COLUMN_GAP = 2
"""Spaces between two columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SheetColumn:
    """Hold one column: its title (a line break is allowed), its cells, and what may happen to it.

    Where the width does not suffice, the columns of the highest `rank` are left out first; rank 0 always stays.
    A column with a `min_width` may shrink to it, by an ellipsis or by wrapping; others are never cut.
    """

    title: str
    cells: tuple[str, ...]
    is_text: bool = False
    """Left-aligned; numbers are right-aligned."""
    rank: int = 0
    min_width: int | None = None
    wraps: bool = False

    @property
    def width(self) -> int:
        """Return the width of the widest line."""
        lines = [*self.title.split("\n"), *self.cells]
        return max(len(line) for line in lines)

    @property
    def least_width(self) -> int:
        """Return the width to which it may shrink."""
        return self.width if self.min_width is None else min(self.width, self.min_width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """Hold a titled table of columns of equal length; `marked_rows` stand out, Markdown hides what is `folded`."""

    title: str
    columns: tuple[SheetColumn, ...]
    marked_rows: frozenset[int] = frozenset()
    folded: bool = False

    @property
    def row_count(self) -> int:
        """Return the number of rows."""
        return len(self.columns[0].cells) if self.columns else 0


def drop_empty_columns(sheet: Sheet) -> Sheet:
    """Leave out the columns that have no data for any row."""
    kept = tuple(item for item in sheet.columns if any(cell not in ("", ABSENT) for cell in item.cells))
    return replace(sheet, columns=kept)


def fit_to_width(sheet: Sheet, width: int) -> tuple[Sheet, tuple[str, ...]]:
    """Leave out the least important columns until the rest fits; return the sheet and the titles left out."""
    kept, dropped = sheet.columns, list[SheetColumn]()
    while (
        sum(item.least_width + COLUMN_GAP for item in kept) - COLUMN_GAP > width
        and (worst := max(item.rank for item in kept)) > 0
    ):
        dropped += [item for item in kept if item.rank == worst]
        kept = tuple(item for item in kept if item.rank < worst)
    return replace(sheet, columns=kept), tuple(flat_title(item) for item in sheet.columns if item in dropped)


def share_width(sheet: Sheet, width: int) -> tuple[int, ...]:
    """Return each column's width: what shrinks gives up space in turn, the widest first."""
    widths = [item.width for item in sheet.columns]
    excess = sum(widths) + COLUMN_GAP * (len(widths) - 1) - width
    while excess > 0:
        spare = [have - item.least_width for have, item in zip(widths, sheet.columns, strict=True)]
        if not any(spare):
            break
        widest = max(range(len(widths)), key=lambda index: (spare[index] > 0, widths[index]))
        widths[widest] -= 1
        excess -= 1
    return tuple(widths)


def flat_title(column: SheetColumn) -> str:
    """Return the title on one line."""
    return column.title.replace("\n", " ")
