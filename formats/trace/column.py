"""Declares the columns of a table record; codec, validation and JSON Schema all read the same declaration."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import Field
from functools import cache
from typing import Any, ClassVar, Final, TypeVar

import numpy as np
import numpy.typing as npt

from ...arrays import Rows, at_rows
from ...records import dataclass, field, fields, replace

Column = npt.NDArray[Any]
MISSING = -1
"""Stands for "none" or "not recorded" in integer columns that allow it."""
ItemT = TypeVar("ItemT", bound=Hashable)
MAX_INTEGER: Final = 2**53
"""Largest magnitude in columns and records: every JSON reader holds it exactly, and sums of two cannot wrap in int64.

As a time it is 104 days.
"""
MIN_SCALAR: Final = -(2**63)
MAX_SCALAR: Final = 2**63 - 1
"""Range of integers in signatures: what torch itself passes (an open slice ends at 2**63 - 1)."""


class Table:
    """A frozen dataclass of equally long numpy columns, each declared with `column`."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


TableT = TypeVar("TableT", bound=Table)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSpec:
    """Describe one column.

    `width` is the second dimension (0: one-dimensional). `minimum` and `maximum` bound the legal values.
    `default` fills the column when a file omits it; None means that a file must hold it.
    `refers_to` names the table (or `strings`, `signatures`) that the values index.
    """

    name: str
    dtype: str
    doc: str
    default: int | None = None
    minimum: int | None = None
    maximum: int | None = None
    refers_to: str | None = None
    width: int = 0

    @property
    def shape_tail(self) -> tuple[int, ...]:
        """Return the dimensions after the row."""
        return (self.width,) if self.width else ()


def column(
    dtype: str,
    doc: str,
    *,
    default: int | None = None,
    minimum: int | None = None,
    maximum: int | None = None,
    refers_to: str | None = None,
    width: int = 0,
) -> Any:
    """Declare a column as a dataclass field; see `ColumnSpec` for the arguments."""
    if refers_to is not None and minimum is None:
        minimum = 0 if default is None else default
    spec = {"dtype": dtype, "doc": doc, "default": default, "minimum": minimum, "maximum": maximum}
    return field(metadata={"column": spec | {"refers_to": refers_to, "width": width}})


def optional(dtype: str, doc: str, *, refers_to: str | None = None) -> Any:
    """Declare a column whose values may be missing, and which a file may leave out."""
    return column(dtype, doc, default=MISSING, minimum=MISSING, refers_to=refers_to)


def columns(table: type[Table] | Table) -> Iterator[ColumnSpec]:
    """Yield the column declarations of a table record in file order.

    >>> [column.name for column in columns(trace.iterations)]
    ['start_ns', 'end_ns', 'profiled', 'cpu_start_ns', 'cpu_end_ns', 'loading_ns', 'compiling_ns', 'kind', 'annotation']
    """
    record: Any = table if isinstance(table, type) else type(table)
    return iter(_declarations(record))


def row_count(table: Table) -> int:
    """Return the number of rows, which is the length of any column.

    >>> row_count(trace.ops)
    381
    """
    return len(getattr(table, fields(table)[0].name))


def build_table(table: type[TableT], rows: int, **values: npt.ArrayLike) -> TableT:
    """Build a table of `rows` rows; columns not given take their default, given ones are cast and frozen.

    Raises TypeError for a missing column without a default and ValueError for a wrong length.

    >>> from wavecast.formats.trace.tables import IterationTable
    >>> build_table(IterationTable, 2, start_ns=[0, 70], end_ns=[70, 130]).cpu_start_ns
    array([-1, -1])
    """
    unknown = values.keys() - {item.name for item in fields(table)}
    if unknown:
        raise TypeError(f"{table.__name__} has no column {', '.join(sorted(unknown))}")
    return table(**{spec.name: _build_column(spec, rows, values.get(spec.name)) for spec in columns(table)})


def table_of_rows(table: type[TableT], names: Sequence[str], rows: Sequence[Sequence[Any]]) -> TableT:
    """Build a table of rows, each of which holds the values of the named columns in their order; see `build_table`.

    >>> from wavecast.formats.trace.tables import MemberTable
    >>> table_of_rows(MemberTable, ("group", "rank"), [(0, 2), (0, 3)]).rank
    array([2, 3], dtype=int32)
    """
    columns = zip(*rows, strict=True) if rows else ((),) * len(names)
    return build_table(table, len(rows), **dict(zip(names, columns, strict=True)))


@cache
def _declarations(table: Any) -> tuple[ColumnSpec, ...]:
    return tuple(ColumnSpec(name=item.name, **item.metadata["column"]) for item in fields(table))


def _build_column(spec: ColumnSpec, rows: int, values: npt.ArrayLike | None) -> Column:
    shape = (rows, *spec.shape_tail)
    if values is None:
        if spec.default is None and rows:
            raise TypeError(f"column {spec.name} is required")
        result = np.full(shape, spec.default or 0, dtype=spec.dtype)
    else:
        result = np.array(values, dtype=spec.dtype).reshape(shape)
    result.flags.writeable = False
    return result


def take_rows(table: TableT, index: npt.NDArray[Any]) -> TableT:
    """Return the rows at `index` (integers or a boolean mask), in that order.

    >>> row_count(take_rows(trace.ops, trace.ops.parent == MISSING))
    381
    """
    return type(table)(**{spec.name: getattr(table, spec.name)[index] for spec in columns(table)})


def renumber(table: TableT, referred: str, number: Column) -> TableT:
    """Return the table with the rows of another, such as `ops`, that it refers to renumbered; MISSING stays.

    `number` gives the new row of each old one, MISSING for rows that are gone.

    >>> renumber(trace.operands, "ops", np.arange(381) + 1).op[:2].tolist()
    [1, 2]
    """
    names = [spec.name for spec in columns(table) if spec.refers_to == referred]
    renumbered = {name: at_rows(number, getattr(table, name)) for name in names}
    return replace(table, **{name: values.astype(getattr(table, name).dtype) for name, values in renumbered.items()})


def tables_equal(left: Table, right: Table) -> bool:
    """Say whether two tables are of one type and hold the same values."""
    return type(left) is type(right) and all(
        np.array_equal(getattr(left, spec.name), getattr(right, spec.name)) for spec in columns(left)
    )


class Interner(dict[ItemT, int]):
    """Number distinct items from 0 in order of first appearance; its keys are the items in that order.

    `interner[item]` runs at the speed of a lookup, and gives an item that is new the next number.
    """

    def __missing__(self, item: ItemT) -> int:
        self[item] = number = len(self)
        return number

    def number(self, items: Sequence[ItemT]) -> Rows:
        """Return the number of each item."""
        return np.fromiter(map(self.__getitem__, items), dtype=np.int64, count=len(items))


def is_countable(shape: Iterable[int]) -> bool:
    """Say whether torch could number the elements of a tensor; sizes of 0 are left out.

    >>> is_countable((2**31, 2**31)), is_countable((2**32, 2**32))
    (True, False)
    """
    count = 1
    for size in shape:
        count *= size or 1
        if count > MAX_SCALAR:  # at once: the product of a hostile shape has no end of digits
            return False
    return True
