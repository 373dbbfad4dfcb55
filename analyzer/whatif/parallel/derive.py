"""What each distinct rank of a plan runs, derived from the recording of one GPU."""

from collections.abc import Callable, Mapping

import numpy as np

from ....arrays import Rows, at_rows
from ....errors import InputError
from ....formats.trace.column import row_count
from ....formats.trace.tables import Phase, Trace
from ....records import dataclass
from ...work import Family, are_of_family
from ..axis.change import with_batch
from .data_parallel import Replication
from .insert import Inserted, Insertion, Insertions, Spot, insert_ops, take_ops
from .layers import Layers, find_layers, tail_start
from .memory import held_throughout
from .parameters import Parameters, cut_tail, empty_tail_ops, find_parameters, owners_of_tail
from .pieces import Piece, cut_pieces
from .plan import ParallelPlan, RecomputeMode, check_plan
from .ranks import RankTrace
from .shard.shard import Sharded, shard_tensors
from .unidentified import check_unidentified, identify_gradients, is_unidentified

Shard = Callable[[Trace, ParallelPlan], Sharded]


def derive_ranks(
    trace: Trace, plan: ParallelPlan, *, shard: Shard = shard_tensors, recorded_batch: int | None = None
) -> tuple[RankTrace, ...]:
    """Return what each distinct piece of the plan's pipeline runs per micro batch, and after the last one.

    `shard` gives what ranks run that share tensors, tokens or experts. Raises InputError in one line for plans that
    cannot be.

    >>> from wavecast.analyzer.whatif.parallel.plan import ParallelPlan
    >>> [rank.pieces for rank in derive_ranks(trace, ParallelPlan(pp=4))]  # the first, the middle ones, the last
    [(0,), (1, 2), (3,)]
    """
    check_plan(plan)
    taken = take_ops(trace, np.arange(row_count(trace.ops)))
    given, source = taken.trace, taken.source_op
    _check_kind(given, plan)
    is_told = not is_unidentified(given)
    if not is_told:
        check_unidentified(given, plan)
    batched = given
    if plan.micro_batch is not None:
        batched = with_batch(given, plan.micro_batch, from_batch=recorded_batch).trace
    experts = np.zeros(0, dtype=np.int64)
    if plan.tp > 1 or plan.cp > 1 or plan.ep > 1:
        shared = shard(batched, plan)
        batched, experts = shared.trace, shared.expert_storages
        source = at_rows(source, shared.source_op)
    if not is_told and plan.dp * plan.fsdp > 1 and (batched.ops.phase == Phase.BACKWARD).any():
        batched = identify_gradients(batched)
    layers = find_layers(batched)
    pieces = cut_pieces(batched, layers, plan.pp * plan.vp)
    tail = _find_tail(batched)
    return tuple(_derive_piece(piece, layers, plan, source, experts, tail) for piece in pieces)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tail:
    """Hold whose the tensors of clipping and optimizer are."""

    parameters: Parameters
    """Of the whole network."""
    owner: Rows
    """Row of the parameter that each storage belongs to; -1: none."""


def _find_tail(trace: Trace) -> Tail | None:
    """Return whose tensors are whose; None where that is not known, and need not be."""
    if is_unidentified(trace):
        return None  # one replica, or inference
    parameters = find_parameters(trace)
    return Tail(parameters=parameters, owner=owners_of_tail(trace, parameters))


def _check_kind(trace: Trace, plan: ParallelPlan) -> None:
    """Raise InputError for what only training has, asked of an iteration without a backward pass."""
    if (trace.ops.phase == Phase.BACKWARD).any():
        return
    if plan.zero or plan.recompute is not RecomputeMode.NONE:
        asked = f"zero={plan.zero}" if plan.zero else f"recompute={plan.recompute}"
        raise InputError(f"{asked}: the recording has no backward pass: of plans for inference give tp, pp, ep, dp")


def _derive_piece(
    piece: Piece, layers: Layers, plan: ParallelPlan, source: Rows, experts: Rows, tail: Tail | None
) -> RankTrace:
    """Add to a piece what it computes again and exchanges, its clipping and optimizer cut to what the rank holds."""
    trace, of_op, source_op = piece.ops.trace, piece.of_op, source[piece.ops.source_op]
    if plan.recompute is not RecomputeMode.NONE:
        again = recompute(trace, of_op, layers.count, plan.recompute)
        trace, of_op, source_op = again.trace, of_op[again.source_op], source_op[again.source_op]
    is_last = np.arange(row_count(trace.ops)) >= tail_start(trace)
    if tail is None:
        return RankTrace(
            trace=trace,
            pieces=piece.pieces,
            source_op=source_op,
            is_last=is_last.astype(np.int64),
            sent_bytes=piece.sent_bytes,
        )
    parameters = find_parameters(trace)
    replication = Replication(
        trace=trace,
        of_op=of_op,
        parameters=parameters,
        plan=plan,
        rank=piece.pieces[0] % plan.pp * (plan.ranks // plan.pp),
        layer_count=layers.count,
        expert_storages=experts,
    )
    replication.run()
    inserted = insert_ops(trace, replication.insertions)
    changed, over = inserted.trace, replication.over()
    is_last = np.isin(inserted.insertion, list(replication.last_only))
    is_last |= np.arange(row_count(changed.ops)) >= tail_start(changed)
    source_op = at_rows(source_op, inserted.source_op)
    rest, kept = _cut_to_rank(changed, parameters, over, tail)
    return RankTrace(
        trace=rest,
        pieces=piece.pieces,
        source_op=source_op[kept],
        is_last=is_last[kept].astype(np.int64),
        sent_bytes=piece.sent_bytes,
        held=held_throughout(rest, parameters, replication.kept_bytes(), tail.owner),
        gradient_storages=replication.gradient_storages(),
    )


def _cut_to_rank(trace: Trace, parameters: Parameters, over: Rows, tail: Tail) -> tuple[Trace, Rows]:
    """Return the trace whose optimizer holds this rank's parts of this piece's parameters, and the rows that are left.

    A piece holds the parameters that its forward reads: a head that is the embedding stands in the first and last.
    """
    shares: Rows = np.zeros(len(tail.parameters.storage), dtype=np.int64)
    row_of: Rows = np.full(len(tail.owner), -1, dtype=np.int64)
    row_of[tail.parameters.storage] = np.arange(len(shares))
    shares[row_of[parameters.storage]] = over
    size = int(trace.tensors.storage.max(initial=-1)) + 1
    owner = np.concatenate([tail.owner, np.full(max(size - len(tail.owner), 0), -1, dtype=np.int64)])
    if (shares == 1).all():
        return trace, np.arange(row_count(trace.ops))
    cut = cut_tail(trace, owner, shares)
    kept = np.flatnonzero(~empty_tail_ops(cut, trace))
    return (cut if len(kept) == row_count(cut.ops) else take_ops(cut, kept).trace), kept


def recompute(trace: Trace, of_op: Rows, layer_count: int, mode: RecomputeMode) -> Inserted:
    """Return the trace in which each layer's forward runs again before its backward, or the part that `mode` names.

    Later readers read the second results; the first ones are dropped after their last use in forward. Collectives run
    again with what is recomputed. `of_op` gives each op's layer, of `layer_count`; `source_op` of a repeated op is the
    op that it repeats.
    """
    insertions = Insertions(trace)
    phase, operands = trace.ops.phase, trace.operands
    bounds = np.searchsorted(operands.op, np.arange(row_count(trace.ops) + 1)).tolist()
    is_attention, is_product = (
        are_of_family(trace.strings, family)[trace.ops.name] for family in (Family.ATTENTION, Family.MATMUL)
    )
    uses = list(zip(operands.tensor.tolist(), operands.is_output.tolist(), strict=True))
    storage = trace.tensors.storage.tolist()
    for layer in np.unique(of_op[(of_op >= 0) & (of_op < layer_count)]).tolist():
        backward = np.flatnonzero((of_op == layer) & (phase == Phase.BACKWARD))
        chosen = (of_op == layer) & (phase != Phase.BACKWARD)
        if mode is RecomputeMode.SELECTIVE:
            chosen &= is_attention
        elif mode is RecomputeMode.OPS:
            chosen &= ~is_attention
            chosen[np.flatnonzero(chosen & is_product)[1::2]] = False
        forward = np.flatnonzero(chosen)
        if not len(backward) or not len(forward):
            continue
        at = int(backward[0])
        if mode is RecomputeMode.SELECTIVE:
            links = np.isin(trace.ops.forward[backward], forward)
            at = int(backward[links][0]) if links.any() else at
        uses_of = {op: uses[bounds[op] : bounds[op + 1]] for op in forward.tolist()}
        if mode is RecomputeMode.EARLY:
            used = [use for op in backward.tolist() for use in uses[bounds[op] : bounds[op + 1]]]
            read = {storage[tensor] for tensor, output in used if not output}
            while uses_of and read.isdisjoint(storage[item] for item, output in uses_of[max(uses_of)] if output):
                uses_of.popitem()
        _repeat(insertions, uses_of, storage, at)
    return insert_ops(trace, insertions)


def _repeat(insertions: Insertions, uses: Mapping[int, list[tuple[int, int]]], storage_of: list[int], at: int) -> None:
    """Insert the ops again before op `at`: what they read of one another is new.

    `uses` are the tensors of each op, and whether it makes them.
    """
    trace = insertions.trace
    again: dict[int, int] = {}
    storages: dict[int, int] = {}
    for op, used in uses.items():
        reads = tuple(again.get(tensor, tensor) for tensor, output in used if not output)
        olds = [tensor for tensor, output in used if output]
        made = {storage_of[tensor] for tensor, output in used if not output}
        for old in olds:
            storage = storage_of[old]
            is_view = storage in made
            if is_view and storage not in storages:  # a view of a parameter or of the layer's input stays one
                again[old] = old
                continue
            dtype, count = trace.strings[trace.tensors.dtype[old]], int(trace.tensors.element_count[old])
            again[old] = insertions.tensor(dtype, count, storage=storages.get(storage))
            storages.setdefault(storage, insertions.storage(again[old]))
        news = [old for old in olds if again[old] != old]
        insertions.add(
            Insertion(
                place=Spot(at=at, is_after=False, phase=Phase.BACKWARD, module=int(trace.ops.module[op]), source_op=op),
                name=trace.strings[trace.ops.name[op]],
                signature=trace.signatures[trace.ops.signature[op]],
                reads=reads,
                writes=(*(again[old] for old in news), *(old for old in olds if again[old] == old)),
                replaces=tuple(news),
            )
        )
