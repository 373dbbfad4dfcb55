"""The pieces of a network that the stages of a pipeline hold."""

import numpy as np

from ....arrays import Floats, Rows
from ....errors import InputError
from ....formats.trace.column import MISSING, row_count
from ....formats.trace.tables import Phase, Trace
from ....records import dataclass
from ...prediction.workload import tensor_bytes
from ...recorded.graphs import is_graph_launch
from .insert import Inserted, take_ops
from .layers import NO_LAYER, Layers, tail_start
from .lives import storage_bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Piece:
    """Hold what of a recording one piece runs: its layers' ops, and all of clipping and optimizer."""

    ops: Inserted
    of_op: Rows
    """Layer of each op, as `Layers.of_op`."""
    pieces: tuple[int, ...]
    """All pieces that run the same."""
    sent_bytes: float


def count_layers(layers: int, pieces: int) -> tuple[int, ...]:
    """Return how many layers each piece holds: equally many, what is left over in the middle ones first.

    The first piece has the embedding beside its layers and the last one the head. Raises InputError where there are
    fewer layers than pieces.

    >>> count_layers(10, 4)
    (2, 3, 3, 2)
    """
    if pieces > layers:
        raise InputError(f"pp: the network has {layers} layers, too few for {pieces} pieces (pp x vp)")
    least, rest = divmod(layers, pieces)
    middle = (*range(1, pieces - 1), 0, pieces - 1)[:rest]
    return tuple(least + (piece in middle) for piece in range(pieces))


def cut_pieces(trace: Trace, layers: Layers, pieces: int) -> tuple[Piece, ...]:
    """Return the distinct pieces in order of the forward pass; pieces that run the same ops are one.

    A graph that launches ops of several pieces is one in each.
    """
    if pieces == 1:
        rows, none = np.arange(row_count(trace.ops)), np.full(row_count(trace.ops), MISSING, dtype=np.int64)
        whole = Inserted(trace=trace, source_op=rows, insertion=none)
        return (Piece(ops=whole, of_op=layers.of_op, pieces=(0,), sent_bytes=0.0),)
    of_layer = np.repeat(np.arange(pieces), count_layers(layers.count, pieces))
    place = layers.in_order
    piece_of = np.where(place >= 0, of_layer[np.maximum(place, 0)], MISSING)
    sent = _sent_bytes(trace, layers, piece_of, pieces)
    is_tail = np.arange(row_count(trace.ops)) >= tail_start(trace)
    ops, found = trace.ops, dict[bytes, list[int]]()
    held = piece_of == np.arange(pieces)[:, None]
    is_launch = np.array([is_graph_launch(name) for name in trace.strings], dtype=bool)[ops.name]
    inside = np.nonzero(held & is_launch[ops.parent] & (ops.parent >= 0))
    held[inside[0], ops.parent[inside[1]]] = True
    for piece in range(pieces):
        rows = np.flatnonzero(held[piece] & ~is_tail)
        key = b"".join(np.ascontiguousarray(column[rows]).tobytes() for column in (ops.name, ops.signature, ops.phase))
        found.setdefault(key + bytes([piece == pieces - 1]), []).append(piece)
    return tuple(
        Piece(
            ops=take_ops(trace, rows := np.flatnonzero(held[same[0]] | is_tail)),
            of_op=layers.of_op[rows],
            pieces=tuple(same),
            sent_bytes=float(sent[same[0]]),
        )
        for same in found.values()
    )


def _sent_bytes(trace: Trace, layers: Layers, piece_of: Rows, pieces: int) -> Floats:
    """Return the bytes of what the forward ops of each piece make and those of later ones read.

    What ops before the layers make and several layers read (masks, tables of angles) each stage makes for itself.
    """
    operands, ops = trace.operands, trace.ops
    is_forward = (ops.phase != Phase.BACKWARD) & (layers.of_op != NO_LAYER)
    storage = trace.tensors.storage[operands.tensor].astype(np.int64)
    count = int(trace.tensors.storage.max(initial=-1)) + 1
    made = np.flatnonzero(operands.is_output & is_forward[operands.op])[::-1]
    read = np.flatnonzero(~operands.is_output & is_forward[operands.op])
    maker: Rows = np.full(count, MISSING, dtype=np.int64)
    maker[storage[made]] = operands.op[made]
    first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, MISSING, dtype=np.int64)
    place = layers.in_order
    np.minimum.at(first, storage[read], place[operands.op[read]])
    np.maximum.at(last, storage[read], place[operands.op[read]])
    from_piece = np.where(maker >= 0, piece_of[maker], pieces)
    # The piece of each layer.
    known = place >= 0
    lookup: Rows = np.zeros(int(place.max(initial=0)) + 1, dtype=np.int64)
    lookup[place[known]] = piece_of[known]
    to_piece = lookup[np.maximum(last, 0)]
    is_shared = (maker >= 0) & (layers.of_op[maker] < 0) & (first < last)
    sizes = storage_bytes(trace)
    summed, parted_bytes = _scattered(trace)
    sizes[summed] = parted_bytes
    crossing = (maker >= 0) & (to_piece > from_piece) & ~is_shared
    change = np.zeros(pieces + 1)
    np.add.at(change, from_piece[crossing], sizes[crossing])
    np.add.at(change, to_piece[crossing], -sizes[crossing])
    return np.cumsum(change)[:pieces]


def _scattered(trace: Trace) -> tuple[Rows, np.ndarray]:
    """Return the storages that ranks add up and part, and the bytes of a part: that is what goes to the next stage.

    The exchange stands before the op that reads the sum, a layer later: it is done before sending.
    """
    operands, size = trace.operands, tensor_bytes(trace)
    parts = np.array(["reduce_scatter" in name for name in trace.strings], dtype=bool)[trace.ops.name]
    is_forward = parts & (trace.ops.phase != Phase.BACKWARD)
    read, made = (np.flatnonzero(is_forward[operands.op] & (operands.is_output == side)) for side in (0, 1))
    part_of = np.zeros(row_count(trace.ops))
    part_of[operands.op[made]] = size[operands.tensor[made]]
    return trace.tensors.storage[operands.tensor[read]].astype(np.int64), part_of[operands.op[read]]
