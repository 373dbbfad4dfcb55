"""Writes what the busiest GPU runs in an iteration, as a recording of shapes with its collectives."""

from typing import Final

from ....formats.trace.privacy import hide_private
from ....formats.trace.tables import Meta, Phase, Trace, Workload
from ....records import dataclass
from ...recorded.tape import FLOAT, Variable
from ...work.embedding_dims import EmbeddingStep
from ...work.table_parts import LOOK_UP, UPDATE
from .dense import DenseWriter, run_bottom, run_joined
from .placement import HeldTables, TablePart
from .sizes import RecommenderSizes, TableLayout, Training

VECTORS: Final = "vectors"
GRADIENTS: Final = "gradients"
"""Groups of ranks, named for what they send each other."""
ADAGRAD: Final = "adagrad"
FLOAT_BYTES: Final = 4
_INDEX: Final = "int32"
_SECTOR_WORDS: Final = 8
"""Of 4 bytes: the least that DRAM gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Groups:
    """Numbers of process groups; -1: there is none."""

    every: int = -1
    near: int = -1
    """GPUs of a machine, where vectors are exchanged among them first."""
    across: int = -1
    """A GPU of each machine."""
    near_gradients: int = -1
    """GPUs of a machine, where switches between machines add up gradients."""
    across_gradients: int = -1
    gradients: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Hold a part of the tables as tensors."""

    part: TablePart
    table: Variable
    indices: Variable
    vectors: Variable


def write_iteration(sizes: RecommenderSizes, training: Training, placement: HeldTables) -> Trace:
    """Return the recording of one training iteration on the GPU that has most to do with tables."""
    writer = DenseWriter(sizes=sizes, training=training)
    groups = _groups(writer, placement)
    with writer.tape.module("Recommender"):
        _iterate(writer, placement, groups)
    many = training.gpus > 1
    meta = Meta(
        producer="wavecast, from sizes",
        capture="shapes",
        has_shapes=True,
        world_size=training.gpus if many else None,
        rank=0 if many else None,
        workload=Workload(
            name=hide_private(sizes.name),
            mode="training",
            batch_size=training.batch,
            samples_per_iteration=training.batch,
        ),
    )
    return writer.tape.finish(meta)


def _groups(writer: DenseWriter, placement: HeldTables) -> _Groups:
    """Return who sends to whom: machines first where the library does so, or their GPUs share parts."""
    tape, training = writer.tape, writer.training
    gpus, beside = training.gpus, min(training.gpus_per_node, training.gpus)
    if gpus == 1:
        return _Groups()
    is_split = placement.node_parts > 1 or (training.layout is TableLayout.HYBRID and training.nodes > 1)
    has_others = gpus > beside
    every = -1 if is_split else tape.group(VECTORS, range(gpus))
    near = tape.group(VECTORS, range(beside)) if is_split else -1
    across = tape.group(VECTORS, range(0, gpus, beside)) if is_split and has_others else -1
    if not (training.sums_in_network and has_others):
        return _Groups(every=every, near=near, across=across, gradients=tape.group(GRADIENTS, range(gpus)))
    within, between = tape.group(GRADIENTS, range(beside)), tape.group(GRADIENTS, (0, beside))
    return _Groups(every=every, near=near, across=across, near_gradients=within, across_gradients=between)


def _iterate(writer: DenseWriter, placement: HeldTables, groups: _Groups) -> None:
    training, tape = writer.training, writer.tape
    if training.layout is TableLayout.HYBRID and training.gpus > 1:
        _find_rows(writer, placement)
    parts = _look_up(writer, placement.parts, "parts")
    sent = () if parts is None else (_exchange(writer, parts.vectors, placement, groups),)
    copies = _look_up(writer, placement.copies, "copies")
    bottom = run_bottom(writer)
    vectors = sent if copies is None else (*sent, copies.vectors)
    if training.layout is TableLayout.COLLECTION and training.gpus > 1:
        added = writer.activation(training.batch * len(writer.sizes.table_rows), writer.sizes.width)
        writer.once(vectors, added)
        vectors = (added,)
    back, bottom_grad = run_joined(writer, vectors, bottom.result)
    returned = back if parts is None else _return(writer, parts.vectors, back, placement, groups)
    writer.stack_back(bottom, bottom_grad, onward=False)
    gathered = _gather_copies(writer, copies, back, placement)
    reduced = _reduce(writer, gathered, placement, groups)
    tape.enter(Phase.OPTIMIZER)
    if parts is not None:
        _update(writer, parts, returned)
    _step(writer, reduced, placement)


def _find_rows(writer: DenseWriter, placement: HeldTables) -> None:
    """Write how HugeCTR's hybrid embedding finds rows, of all GPUs' samples (`compute_indices` in its source).

    Two passes over these note the copies that are touched and what is asked of the own parts, one over the own samples
    where copies are. Each reads indices, and a sector for the place of a row that is not looked up often.
    """
    tape, training, rows = writer.tape, writer.training, (placement.copies, placement.parts, placement.copies)
    every = int(training.global_batch * sum(writer.sizes.pooling))
    seldom = 0 if placement.parts is None else placement.parts.lookups * training.gpus
    for part, ranks in zip(rows, (1, 1, training.gpus), strict=True):
        if part is not None:
            places = tape.tensor(_INDEX, max(seldom * _SECTOR_WORDS // ranks, 1))
            writer.once((tape.tensor(_INDEX, every // ranks), places), tape.tensor(_INDEX, part.lookups))


def _look_up(writer: DenseWriter, part: TablePart | None, name: str) -> _Rows | None:
    if part is None:
        return None
    tape, width = writer.tape, writer.sizes.width
    found = writer.activation(part.vectors, width)
    table, indices = tape.tensor(FLOAT, part.rows, width), tape.tensor(_INDEX, part.lookups)
    with tape.module(name):
        tape.op(LOOK_UP, (table, indices, found, part.bins), found)
    return _Rows(part=part, table=table, indices=indices, vectors=found)


def _update(writer: DenseWriter, parts: _Rows, grads: Variable) -> None:
    """Write the update of rows: HugeCTR's SGD adds to them atomically, but for collections; others sort."""
    tape, width, training = writer.tape, writer.sizes.width, writer.training
    is_sorted = training.optimizer == ADAGRAD or training.layout is TableLayout.COLLECTION
    step = EmbeddingStep.UPDATE if is_sorted else EmbeddingStep.UNSORTED_UPDATE
    state = width * FLOAT_BYTES if training.optimizer == ADAGRAD else 0
    grad = tape.tensor(grads.spec.dtype, parts.part.vectors, width, view_of=grads)
    after = tape.tensor(FLOAT, *parts.table.shape, view_of=parts.table)
    with tape.module("parts"):
        tape.op(UPDATE, (parts.table, parts.indices, grad, parts.part.bins, int(step), state), after)


def _exchange(writer: DenseWriter, x: Variable, placement: HeldTables, groups: _Groups) -> Variable:
    """Write the way of looked up vectors to the GPUs that have the samples."""
    if writer.training.gpus == 1:
        return x
    x = writer.tape.tensor(x.spec.dtype, max(placement.sent, x.shape[0]), x.shape[1], view_of=x)
    if groups.every >= 0:
        return _sent(writer, "all_to_all", x, placement.taken, groups.every)
    kind = "reduce_scatter" if placement.node_parts > 1 else "all_to_all"
    found = _sent(writer, kind, x, -(-x.shape[0] // placement.node_parts), groups.near)
    return found if groups.across < 0 else _sent(writer, "all_to_all", found, placement.taken, groups.across)


def _return(writer: DenseWriter, x: Variable, back: Variable, placement: HeldTables, groups: _Groups) -> Variable:
    """Write the way back of gradients; what the busiest GPU gets decides how long it takes."""
    if writer.training.gpus == 1:
        return back
    rows = max(placement.sent, x.shape[0])
    each = -(-rows // placement.node_parts)
    given = writer.tape.tensor(back.spec.dtype, max(placement.taken, each), back.shape[1], view_of=back)
    if groups.every >= 0:
        given = writer.tape.tensor(back.spec.dtype, rows, back.shape[1], view_of=back)
        return _sent(writer, "all_to_all", given, rows, groups.every)
    if groups.across >= 0:
        given = _sent(writer, "all_to_all", given, each, groups.across)
    return _sent(writer, "all_gather" if placement.node_parts > 1 else "all_to_all", given, rows, groups.near)


_NAMES: Final = {
    "all_to_all": "_c10d_functional::all_to_all_single",
    "all_reduce": "_c10d_functional::all_reduce",
    "reduce_scatter": "_c10d_functional::reduce_scatter_tensor",
    "all_gather": "_c10d_functional::all_gather_into_tensor",
    "send": "c10d::send",
}
OWN_ALL_REDUCE: Final = "symm_mem::two_shot_all_reduce_"
"""Each GPU adds up a part and writes it to all, by loads and stores: as HugeCTR's `OneShot` does within a machine."""


def _sent(
    writer: DenseWriter, kind: str, x: Variable, rows: int, group: int, *, after: tuple[Variable, ...] = ()
) -> Variable:
    """Write a collective that gives `rows` vectors; nothing runs beside it where the framework waits for it.

    `after` is what it sends as well, in the buffer of `x`.
    """
    tape, training = writer.tape, writer.training
    found = writer.activation(rows, *x.shape[1:])
    arguments = {"reduce_scatter": ("sum", training.gpus_per_node), "all_gather": (training.gpus_per_node,)}
    is_own = kind == "all_reduce" and training.layout is TableLayout.HYBRID
    name = OWN_ALL_REDUCE if is_own else _NAMES[kind]
    tape.collective(name, kind, (x, *arguments.get(kind, ()), *after), found, group)
    if training.overlaps:
        return found
    waited = tape.tensor(found.spec.dtype, *found.shape, view_of=found)
    tape.op("_c10d_functional::wait_tensor", (found,), waited)
    return waited


def _gather_copies(
    writer: DenseWriter, copies: _Rows | None, back: Variable, placement: HeldTables
) -> tuple[Variable, ...]:
    """Write how gradients of the own samples are added up by row of the copies."""
    if copies is None:
        return ()
    tape, part = writer.tape, copies.part
    is_hybrid = writer.training.layout is TableLayout.HYBRID
    step = EmbeddingStep.UNSORTED_UPDATE if is_hybrid else EmbeddingStep.DENSE_GRADIENT
    grad = tape.tensor(back.spec.dtype, part.vectors, back.shape[1], view_of=back)
    # HugeCTR's hybrid embedding adds up in float32, of the rows that are touched, and casts these.
    into = tape.tensor(FLOAT if is_hybrid else writer.training.dtype, part.rows, back.shape[1])
    with tape.module("copies"):
        tape.op(UPDATE, (into, copies.indices, grad, part.bins, int(step), 0), into)
        if not is_hybrid or not writer.training.is_half:
            return (into,)
        touched = tape.tensor(FLOAT, placement.touched_copies, back.shape[1], view_of=into)
        cast = writer.activation(*touched.shape)
        writer.once((touched,), cast)
    return (cast,)


def _reduce(
    writer: DenseWriter, gathered: tuple[Variable, ...], placement: HeldTables, groups: _Groups
) -> Variable | None:
    """Write the sum of the layers' and the copies' gradients over all GPUs, in one buffer.

    HugeCTR's hybrid embedding within a machine sums the copies' by kernels of its own (`update_model_direct`).
    """
    if writer.training.gpus == 1:
        return None
    count = sum(item.spec.element_count for item in writer.gradients)
    copied = placement.touched_copies * writer.sizes.width
    after = (writer.gradients[-1], *gathered)
    if writer.training.layout is TableLayout.HYBRID and writer.training.nodes == 1 and gathered:
        own = _sent(writer, "all_reduce", writer.activation(copied), copied, groups.gradients, after=gathered)
        copied, after = 0, (writer.gradients[-1], own)
    count += copied
    given = writer.activation(count)
    if groups.gradients >= 0:
        return _sent(writer, "all_reduce", given, count, groups.gradients, after=after)
    added = _sent(writer, "all_reduce", given, count, groups.near_gradients, after=after)
    share = -(-count // min(writer.training.gpus_per_node, writer.training.gpus))
    part = writer.tape.tensor(added.spec.dtype, share, view_of=added)
    return _sent(writer, "send", part, share, groups.across_gradients)


def _step(writer: DenseWriter, reduced: Variable | None, placement: HeldTables) -> None:
    """Write the optimizer's pass over layers and copies: master weights and state in float32."""
    tape, training = writer.tape, writer.training
    count = sum(item.spec.element_count for item in writer.weights)
    every = count + placement.touched_copies * writer.sizes.width
    gradient = reduced if reduced is not None else writer.gradients[-1]
    grads = tape.tensor(gradient.spec.dtype, every, view_of=gradient)
    kept = tuple(tape.tensor(FLOAT, every) for _ in range(2 if training.optimizer == ADAGRAD else 1))
    layers = writer.activation(count)
    with tape.module("optimizer"):
        fused = (layers,) if training.is_half and training.fuses_casts else ()
        after = tuple(tape.tensor(FLOAT, *item.shape, view_of=item) for item in kept)
        writer.once((grads, *kept), *after, *fused, flops=4)
        if training.is_half and not fused:
            master = tape.tensor(FLOAT, count, view_of=kept[0])
            writer.once((master,), layers)
