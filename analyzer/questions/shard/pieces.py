"""How long a piece of a table takes: its lookups, their gradient and the optimizer, by the library's op models."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ....arrays import Floats
from ....formats.trace.column import build_table
from ....formats.trace.signature import Argument, Signature, TensorSpec
from ....formats.trace.tables import Meta, OpTable, Phase, Trace
from ....records import dataclass, replace
from ....specs.gpu import Gpu
from ....specs.nodes import Node
from ...models.embedding.problems import with_indices
from ...models.embedding.spread import spread_of
from ...models.library import Library
from ...prediction.predict import predict_shapes
from ...prediction.workload import shape_workload
from ...work import Work
from ...work.embedding_dims import EmbeddingDims
from ...work.indices import USUAL, Indices, Spread
from .tables import EmbeddingTable, TableStep

_INDEX: Final = "int64"
NO_INTERVAL_LOG_WIDTH: Final = 0.5
"""90 % half-width, natural log, of times that no model covers: declared, as for plans on many GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePiece:
    """Hold what one rank has of a table, and what an iteration asks of it."""

    table: int
    rows: int
    width: int
    lookups: int
    outputs: int
    hottest: int = 0
    """How many of the lookups are of one row that other ranks do not have."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PieceCosts:
    """Hold the times of p pieces."""

    lookup_ns: Floats
    update_ns: Floats
    """The gradient and the optimizer; 0 of inference."""
    log_width: float
    """Half-width of the 90 % interval of all of it together, natural log: errors of one model go together."""


def price_pieces(
    tables: Sequence[EmbeddingTable],
    steps: Mapping[tuple[int, int], Sequence[TableStep]],
    pieces: Sequence[TablePiece],
    gpu: Gpu,
    library: Library,
    *,
    nodes: Sequence[Node] | None = None,
    is_training: bool = True,
) -> PieceCosts:
    """Return the times of pieces on a GPU, each op as the recording has it, with the piece's sizes."""
    names: dict[str, int] = {}
    signatures: dict[Signature, int] = {}
    op, number, phase, owner, calls = [], [], [], [], []
    for at, piece in enumerate(pieces):
        for name, signature, when, count in _ops(tables[piece.table], steps, piece, is_training=is_training):
            op.append(names.setdefault(name, len(names)))
            number.append(signatures.setdefault(signature, len(signatures)))
            phase.append(int(when))
            owner.append(at)
            calls.append(count)
    trace = Trace(
        meta=Meta(capture="shapes", has_shapes=True),
        strings=tuple(names),
        signatures=tuple(signatures),
        ops=build_table(OpTable, len(op), name=op, signature=number, phase=phase),
    )
    workload = shape_workload(trace)
    rows = workload.row_of[: len(op)]
    works = list(workload.works)
    for row, at in zip(rows.tolist(), owner, strict=True):
        work = works[row] if row >= 0 else None
        if work is not None:
            works[row] = _with_spread(work, library.indices, tables[pieces[at].table], pieces[at])
    workload = replace(workload, works=tuple(works))
    predicted = predict_shapes(workload, [gpu], replace(library, indices=None), nodes=nodes)
    time = np.where(rows >= 0, predicted.time_ns[np.maximum(rows, 0), 0], 0.0) * np.array(calls)
    width = np.where(rows >= 0, predicted.half_width[np.maximum(rows, 0), 0], np.nan)
    width = np.where(np.isnan(width), NO_INTERVAL_LOG_WIDTH, width)
    is_lookup = np.array(phase) == Phase.FORWARD
    lookup_ns, update_ns = np.zeros(len(pieces)), np.zeros(len(pieces))
    np.add.at(lookup_ns, np.array(owner)[is_lookup], time[is_lookup])
    np.add.at(update_ns, np.array(owner)[~is_lookup], time[~is_lookup])
    return PieceCosts(
        lookup_ns=lookup_ns,
        update_ns=update_ns,
        log_width=float(np.hypot((time @ width) / max(time.sum(), 1.0), predicted.shared_half_width[0])),
    )


def _with_spread(work: Work, spread: Spread | None, table: EmbeddingTable, piece: TablePiece) -> Work:
    """Return the work of a piece with its lookups spread as those of the table, but for those of its hottest row."""
    if spread is None and not (piece.hottest and isinstance(work.dims, EmbeddingDims)):
        return work
    indices = (spread or USUAL).of(float(table.rows))
    if piece.hottest:
        counts, share = spread_of(indices, float(piece.rows))
        others = float(piece.lookups - piece.hottest) * counts * share
        bins = [(size, part) for size, part in zip(counts.tolist(), others.tolist(), strict=True) if size > 0]
        indices = Indices(bins=((1.0, float(piece.hottest)), *bins))
    return with_indices(work, indices)


def _ops(
    table: EmbeddingTable, steps: Mapping[tuple[int, int], Sequence[TableStep]], piece: TablePiece, *, is_training: bool
) -> Iterator[tuple[str, Signature, Phase, float]]:
    """Yield the ops of a piece: name, signature, phase, calls."""
    weight = TensorSpec(table.dtype, (piece.rows, piece.width))
    indices = TensorSpec(_INDEX, (piece.lookups,))
    found = TensorSpec(table.dtype, (piece.outputs, piece.width))
    bags = TensorSpec(_INDEX, (piece.outputs,))
    none = TensorSpec(_INDEX, (0,))
    if table.is_bag:
        arguments = (weight, indices, bags, False, table.mode, table.is_sparse, None, False, -1)
        yield "aten::_embedding_bag", Signature(arguments, (found, indices, bags, none)), Phase.FORWARD, 1.0
    else:
        yield "aten::embedding", Signature((weight, indices, -1, False, table.is_sparse), (found,)), Phase.FORWARD, 1.0
    if not is_training:
        return
    stored = (piece.lookups, piece.width)
    gradient = TensorSpec(table.dtype, weight.shape, None, stored) if table.is_sparse else weight
    if table.is_bag:
        saved = (found, indices, bags, indices, bags, none, piece.rows, False, table.mode, table.is_sparse, None, -1)
        yield "aten::_embedding_bag_backward", Signature(saved, (gradient,)), Phase.BACKWARD, 1.0
    elif not table.is_sparse:
        saved_rows = (found, indices, piece.rows, -1, False)
        yield "aten::embedding_dense_backward", Signature(saved_rows, (gradient,)), Phase.BACKWARD, 1.0
    for step in steps.get((table.rows, table.width), ()):
        yield step.op, _resized(step.signature, table, piece), Phase.OPTIMIZER, step.calls


def _resized(signature: Signature, table: EmbeddingTable, piece: TablePiece) -> Signature:
    """Return the optimizer's call on a piece: what has the table's shape, or a number per row, gets the piece's."""

    def resize(item: Any) -> Any:
        if not isinstance(item, TensorSpec):
            return item
        shape = {(table.rows, table.width): (piece.rows, piece.width), (table.rows,): (piece.rows,)}.get(
            item.shape, item.shape
        )
        stored = None if item.stored is None else (piece.lookups, *((piece.width,) if len(item.stored) > 1 else ()))
        return TensorSpec(item.dtype, shape, None, stored)

    def resize_all(arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
        return tuple(
            tuple(resize(part) for part in item) if isinstance(item, tuple) else resize(item) for item in arguments
        )

    return Signature(resize_all(signature.arguments), resize_all(signature.results))
