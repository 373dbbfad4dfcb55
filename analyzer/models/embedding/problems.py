"""Lookups in embedding tables as columns."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ....arrays import Codes, Floats
from ....records import dataclass, replace
from ....specs.gpu import Rate
from ...work.embedding_dims import EmbeddingDims, EmbeddingStep
from ...work.indices import USUAL, Indices, Spread
from ...work.row_kernels import RowKernel
from ...work.work import Family, RowDims, Work
from ..frame.problems import dims_of
from .hits import touched_rows
from .spread import spread_of

GROUPS: Final = ("lookup", "dense gradient", "update")
_KNOWN: Final[list[Indices]] = []
"""Distributions that problems name by their place here: a column holds numbers."""
_CODES: Final[dict[Indices, int]] = {}
"""Their places."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EmbeddingProblems:
    """Hold lookups in embedding tables as columns; see `EmbeddingDims` for what they mean."""

    step: Codes
    """`EmbeddingStep`."""
    tables: Floats
    rows: Floats
    row_bytes: Floats
    lookups: Floats
    streamed_bytes: Floats
    state_bytes: Floats
    blocks: Floats
    unstated: Floats
    indices: Codes
    """Which distribution, for `spreads_of`."""
    moved_since_bytes: Floats
    """What the GPU moved since the tables were last touched; 0: the same call again and again; infinite where nobody
    knows, as in an iteration that moves far more than a cache holds."""


_SIZES: Final = ("tables", "rows", "row_bytes", "lookups", "streamed_bytes", "state_bytes", "blocks", "unstated")


def problems_of(works: Sequence[Work], rates: Sequence[Rate]) -> EmbeddingProblems:  # noqa: ARG001
    """Return the problems of lookups; the unit that computes says nothing."""
    dims = dims_of(works, EmbeddingDims)

    since = [np.inf if work.moved_since_bytes is None else work.moved_since_bytes for work in works]
    return EmbeddingProblems(
        step=np.array([int(item.step) for item in dims], dtype=np.int64),
        **{name: np.array([getattr(item, name) for item in dims], dtype=np.float64) for name in _SIZES},
        indices=np.array([_code(item.indices or USUAL) for item in dims], dtype=np.int64),
        moved_since_bytes=np.array(since, dtype=np.float64),
    )


def spreads_of(codes: Codes, rows: Floats) -> tuple[Floats, Floats]:
    """Return the bins of each problem: their rows, and the share of lookups of each row, both [n, bins]."""
    pairs = np.stack([codes.astype(np.float64), rows], axis=-1)
    distinct, place = np.unique(pairs, axis=0, return_inverse=True)
    found = [spread_of(_KNOWN[int(code)], float(count)) for code, count in distinct]
    counts, share = (np.stack(part)[place.reshape(-1)] for part in zip(*found, strict=True))
    return counts, share


def with_indices(work: Work, indices: Spread | None) -> Work:
    """Return a lookup's work with how its indices are spread; others, and without a distribution, as they are.

    A plain lookup is one of the vector model's gathers until somebody says how its indices are spread; a dense gradient
    keeps its kernel, of as many rows as are looked up.

    >>> from wavecast.analyzer.work.indices import UNIFORM
    >>> dims = RowDims(rows=64, columns=128, table_rows=1000)
    >>> sizes = {"flops": 0, "read_bytes": 33280, "written_bytes": 32768, "dtype": "float32"}
    >>> with_indices(Work(family=Family.EMBEDDING, dims=dims, **sizes), UNIFORM).dims.row_bytes
    512.0
    """
    dims = work.dims
    if indices is None:
        return work
    if isinstance(dims, EmbeddingDims):
        return replace(work, dims=replace(dims, indices=indices.of(dims.rows)))
    if not isinstance(dims, RowDims) or work.family is not Family.EMBEDDING or not dims.table_rows or not dims.rows:
        return work
    if dims.kernel is RowKernel.TABLE_GRADIENT:
        lookups = round(work.flops / max(dims.columns, 1))
        counts, share = spread_of(indices.of(dims.table_rows), float(dims.table_rows))
        rows = max(round(float(touched_rows(counts, share, np.array(float(lookups))))), 1)
        return replace(work, dims=replace(dims, rows=rows, run=max(round(lookups * float(share.max())), 1)))
    row_bytes = work.written_bytes / dims.rows
    read = work.read_bytes - min(dims.rows, dims.table_rows) * row_bytes
    return replace(
        work,
        dims=EmbeddingDims(
            rows=dims.table_rows,
            row_bytes=row_bytes,
            lookups=dims.rows,
            streamed_bytes=read + work.written_bytes,
            indices=indices.of(dims.table_rows),
        ),
    )


def with_distinct(work: Work, indices: Spread | None) -> Work:
    """Return work on rows that were looked up with the sizes of the different ones; others as they are.

    >>> from wavecast.analyzer.work.embedding_dims import DrawnRows
    >>> sizes = {"flops": 1000, "read_bytes": 64000, "written_bytes": 64000, "dtype": "float32"}
    >>> drawn = DrawnRows(table_rows=1000, lookups=1000)
    >>> round(with_distinct(Work(family=Family.ELEMENTWISE, drawn=drawn, **sizes), Indices(exponent=0.0)).flops)
    632
    """
    drawn, dims = work.drawn, work.dims
    if drawn is None or isinstance(dims, EmbeddingDims):
        return work
    counts, share = spread_of((indices or USUAL).of(drawn.table_rows), float(drawn.table_rows))
    part = float(touched_rows(counts, share, np.array(float(drawn.lookups)))) / drawn.lookups
    if isinstance(dims, RowDims):
        dims = replace(dims, rows=max(round(dims.rows * part), 1))
    return replace(
        work,
        flops=work.flops * part,
        read_bytes=work.read_bytes * part,
        written_bytes=work.written_bytes * part,
        dims=dims,
        drawn=None,
    )


def table_rows(work: Work) -> tuple[float, float]:
    """Return the rows of a table that a call looks up, on average, and how many tables; zeros where it looks up none.

    >>> dims = EmbeddingDims(tables=4, rows=1000.0, row_bytes=512.0, lookups=64, streamed_bytes=0.0)
    >>> table_rows(Work(family=Family.EMBEDDING, flops=0, read_bytes=1, written_bytes=1, dtype="float32", dims=dims))
    (1000.0, 4.0)
    """
    dims = work.dims
    if isinstance(dims, EmbeddingDims):
        return float(dims.rows), float(dims.tables)
    if isinstance(dims, RowDims) and work.family is Family.EMBEDDING and dims.kernel is not RowKernel.TABLE_GRADIENT:
        return float(dims.table_rows), 1.0
    return 0.0, 0.0


def group(problems: EmbeddingProblems) -> Codes:
    """Return the index into `GROUPS` of each problem."""
    return np.minimum(problems.step, EmbeddingStep.UPDATE)


def _code(indices: Indices) -> int:
    if indices not in _CODES:
        _CODES[indices] = len(_KNOWN)
        _KNOWN.append(indices)
    return _CODES[indices]
