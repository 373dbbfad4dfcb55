"""What a call of FBGEMM's says of its tables: how many, how wide, how many rows, and in whose memory they lie.

All tables lie in one flat tensor; which columns and rows are whose is in tensors whose values no recording holds. Of
them it has the sizes, the scalars where the profiler kept them, and what else the call moves:

- tables: the entries of `D_offsets` but one, or of `weights_offsets` where all are of one width;
- columns of all tables together: `total_D`, else bags' results or gradients over bags;
- rows of all tables together: what an optimizer that keeps one number per row keeps (`momentum1`);
- elements over rows: the mean width by rows, which is every table's where it is the widest one's (`max_D`) too.

The arguments' places differ from version to version (FBGEMM 0.1 to 1.9): they are counted from `D_offsets`, the first
vector between a vector and a number.
"""

import re
from enum import Enum
from math import isclose, log
from typing import Final

from ...formats.trace.signature import Argument, Signature, TensorSpec
from ...records import dataclass
from .arguments import LackingArgumentError, argument_at, result_at, size_at, tensor_at
from .traffic import bytes_of

NO_POOLING: Final = 2
"""FBGEMM's `PoolingMode.NONE`: a result per lookup, all tables of one width."""
HOST_TABLES: Final = "tables in host memory"
UNSTATED_SHARE: Final = 0.5
"""Of the way from the mean width to the widest, as a logarithm: how far a lookup's mean width may be off (90 %), where
tables differ and nothing says which of them is looked up how often. Declared: nobody measured it."""
UNSTATED_WIDTH: Final = 0.35
"""The same where the widest is not known either: a factor of the root of two."""
WIDTH_STEP: Final = 4
"""FBGEMM's tables have a multiple of so many columns: a mean that is none is of tables of several widths."""


class Placed(Enum):
    """Say where a call's tables are among its arguments, counted back from `D_offsets` (of a lone width from it)."""

    SPLIT = 5
    """On a GPU, in host memory, cached, placements, offsets; before them, in some versions, those of a CPU."""
    ON_CPU = 3
    """A CPU's, placements, offsets."""
    FLAT = 2
    """One tensor, and offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCall:
    """Hold what a call says of its tables and lookups."""

    table: TensorSpec
    """All tables, flat."""
    tables: int
    width: float
    """Columns of a table, the mean over tables."""
    rows: float
    """Of a table, the mean."""
    unstated: float
    """How far the width of a lookup may be off, natural log; 0: all tables are of one width."""
    indices: TensorSpec
    offsets: TensorSpec
    weights: TensorSpec | None
    is_pooled: bool
    """Whether the rows of a bag are added up."""
    result_dtype: str

    @property
    def row_bytes(self) -> float:
        """Return the bytes of a row, the mean over tables."""
        return bytes_of(1, self.table.dtype) * self.width

    @property
    def results(self) -> int:
        """Return the rows of the results: bags, or lookups where nothing is added up."""
        return max(self.offsets.element_count - 1, 0) if self.is_pooled else self.indices.element_count

    @property
    def beside(self) -> tuple[TensorSpec, ...]:
        """Return what is read beside rows."""
        given = (self.indices, self.offsets if self.is_pooled else None, self.weights)
        return tuple(item for item in given if item is not None)


def read_call(
    signature: Signature,
    placed: Placed,
    *,
    is_listed: bool = True,
    gradient: TensorSpec | None = None,
    is_rowwise: bool = False,
    has_total: bool = True,
) -> TableCall:
    """Return what a call says of its tables; raise where it says too little, or they lie in host memory.

    `is_listed`: it has `D_offsets`, else the one width of all tables; `gradient`: of its results; `is_rowwise`: its
    optimizer keeps a number per row; `has_total`: the columns of all tables follow `D_offsets`, else the widest one's.
    """
    at = _width_place(signature, is_listed)
    table = _table(signature, at, placed)
    tables = _table_count(signature, at, is_listed)
    found = read_lookups(signature, at, tables)
    is_pooled = is_listed and argument_at(signature, found.end) != NO_POOLING
    moved = gradient or result_at(signature)
    count = max(found.offsets.element_count - 1, 0) if is_pooled else found.indices.element_count
    widest = _size(signature, at + 1 + has_total) if is_listed else _size(signature, at)
    total = _size(signature, at + 1) if is_listed and has_total else None
    known = total / tables if total and is_pooled else None if is_pooled else widest
    if known is None and moved is not None and count:
        known = moved.element_count / count
    all_rows = _rows_kept(signature, at, found.indices, tables) if is_rowwise else None
    by_rows = table.element_count / all_rows if all_rows else None
    width = known or by_rows
    if not width or table.element_count < tables * width:
        raise LackingArgumentError("rows and columns")
    return TableCall(
        table=table,
        tables=tables,
        width=width,
        rows=(all_rows or table.element_count / width) / tables,
        unstated=_unstated(known, by_rows, widest) if tables > 1 and is_pooled else 0.0,
        indices=found.indices,
        offsets=found.offsets,
        weights=found.weights,
        is_pooled=is_pooled,
        result_dtype="float32" if moved is None else moved.dtype,
    )


def holds_host_tables(signature: Signature) -> bool:
    """Say whether some of a call's tables lie in the host's memory, with or without a cache of them on the GPU.

    >>> holds_host_tables(Signature(()))
    False
    """
    at = _find_place(signature, is_listed=True) or _find_place(signature, is_listed=False)
    return at is not None and _has_elements(_split_tensors(signature, at)[1])


def _width_place(signature: Signature, is_listed: bool) -> int:
    at = _find_place(signature, is_listed)
    if at is None:
        raise LackingArgumentError("D_offsets")
    return at


def _find_place(signature: Signature, is_listed: bool) -> int | None:
    """Return the place of `D_offsets`, or of the lone width of tables whose rows are not added up; None: neither."""
    arguments = signature.arguments
    for at in range(1, len(arguments) - 1):
        if isinstance(arguments[at - 1], tuple) and _is_vector(arguments[at]):
            return at
        is_last = not isinstance(arguments[at + 1], TensorSpec | tuple)
        if is_last and _is_vector(arguments[at]) and _is_vector(arguments[at - 1]):
            return at if is_listed else at + 1
    return None


def _table(signature: Signature, at: int, placed: Placed) -> TensorSpec:
    """Return the tensor that holds all tables; raise where they lie in the host's memory."""
    if placed is Placed.SPLIT:
        own, host = _split_tensors(signature, at)
        if _has_elements(host):
            raise LackingArgumentError(HOST_TABLES)
        has_before = at >= 6 and not isinstance(signature.arguments[at - 1], tuple)
        before = argument_at(signature, at - 6) if has_before else None
        found = own if _has_elements(own) or at < 6 else before
    else:
        found = argument_at(signature, at - placed.value) if at >= placed.value else None
    if not isinstance(found, TensorSpec) or len(found.shape) != 1 or not found.element_count:
        raise LackingArgumentError("a table")
    return found


def _split_tensors(signature: Signature, at: int) -> tuple[Argument, Argument]:
    """Return the tables on the GPU and those in the host's memory; a list holds both, or a CPU's alone."""
    before = signature.arguments[at - 1]
    if isinstance(before, tuple):
        return (before[0], before[1]) if len(before) >= 5 else (before[0] if before else None, None)
    back = Placed.SPLIT.value
    return (signature.arguments[at - back], signature.arguments[at - back + 1]) if at >= back else (None, None)


def _table_count(signature: Signature, at: int, is_listed: bool) -> int:
    listed = tensor_at(signature, at if is_listed else at - 1, rank=1)
    count = listed.shape[0] - is_listed
    if count < 1:
        raise LackingArgumentError("a table")
    return count


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookups:
    """Hold the tensors that say what is looked up."""

    indices: TensorSpec
    offsets: TensorSpec
    weights: TensorSpec | None
    end: int
    """Place of the first argument behind the offsets."""


def read_lookups(signature: Signature, at: int, tables: int) -> Lookups:
    """Return indices, offsets, and the weights of lookups where there are any.

    After the columns at place `at` come tensors of integers alone: rows up to each table, where they are given; then
    these. Raises where they are missing.
    """
    arguments = signature.arguments
    after = [place for place in range(at + 1, len(arguments)) if isinstance(arguments[place], TensorSpec)]
    if len(after) > 2 and tensor_at(signature, after[0]).shape == (tables + 1,):
        after = after[1:]
    if len(after) < 2:
        raise LackingArgumentError("indices and offsets")
    indices, offsets = tensor_at(signature, after[0], rank=1), tensor_at(signature, after[1], rank=1)
    given = tensor_at(signature, after[2]) if len(after) > 2 else None
    weights = given if given is not None and given.shape == indices.shape and _is_floating(given) else None
    return Lookups(indices=indices, offsets=offsets, weights=weights, end=after[1] + 1)


def _rows_kept(signature: Signature, at: int, indices: TensorSpec, tables: int) -> int | None:
    """Return the elements of the first state of an optimizer that keeps one number per row; None: not found.

    It is a vector of numbers after the lookups, or the first of a list that ends with placements and offsets.
    """
    for argument in signature.arguments[at + 1 :]:
        if isinstance(argument, tuple) and len(argument) in (3, 4):
            first, last = argument[0], argument[-1]
            if isinstance(first, TensorSpec) and isinstance(last, TensorSpec) and last.shape == (tables,):
                return first.element_count or None
        if not isinstance(argument, TensorSpec) or not _is_vector(argument) or not _is_floating(argument):
            continue
        if argument.shape != indices.shape and argument.element_count >= tables:
            return argument.element_count
    return None


def _size(signature: Signature, place: int) -> float | None:
    try:
        return float(size_at(signature, place)) or None
    except LackingArgumentError:
        return None


def _unstated(by_table: float | None, by_rows: float | None, widest: float | None) -> float:
    """Return how far the width of a lookup may be off, natural log, from the means by tables and by rows."""
    width = by_table or by_rows or 1.0
    if widest is not None and widest >= width * (1 - 1e-9):
        return UNSTATED_SHARE * log(max(widest / width, 1.0))
    if by_table and by_rows:
        return 0.0 if isclose(by_table, by_rows, rel_tol=1e-3) else UNSTATED_WIDTH
    return 0.0 if isclose(width % WIDTH_STEP, 0.0, abs_tol=1e-9) else UNSTATED_WIDTH


def _is_vector(argument: Argument) -> bool:
    return isinstance(argument, TensorSpec) and len(argument.shape) == 1


def _has_elements(argument: Argument) -> bool:
    return isinstance(argument, TensorSpec) and argument.element_count > 0 and len(argument.shape) > 0


def _is_floating(tensor: TensorSpec) -> bool:
    return re.match(r"float|bfloat|half|double", tensor.dtype) is not None
