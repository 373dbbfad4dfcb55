"""Writes what the busiest GPU runs in an iteration, as a recording of shapes with its collectives.

The dense part stands op by op: bottom layers, what joins vectors, top layers, the loss; forward and backward. A layer
is one product each: bias and activation, and of the backward pass their gradients, are in its epilogue, as in HugeCTR's
fused layers. What stands between products reads and writes every tensor once.
"""

from __future__ import annotations

from typing import Final

from ....formats.trace.privacy import hide_private
from ....formats.trace.tables import Meta, Phase, Trace, Workload
from ....records import dataclass, field
from ...recorded.tape import FLOAT, Tape, Variable
from ...work.embedding_dims import EmbeddingStep
from ...work.table_parts import LOOK_UP, ONCE, UPDATE
from .placement import HeldTables, TablePart
from .sizes import Interaction, RecommenderSizes, TableLayout, Training, padded


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Hold dense layers as they ran forward."""

    name: str
    inputs: tuple[Variable, ...]
    """Of each layer."""
    weights: tuple[Variable, ...]
    result: Variable


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossLayer:
    """Hold what a cross layer keeps for its backward pass: x + x0 ⊙ (V U x)."""

    x: Variable
    low: Variable
    high: Variable
    down: Variable
    up: Variable


@dataclass(slots=True, kw_only=True)
class DenseWriter:
    """Write the dense part to a tape; one owner, one use."""

    sizes: RecommenderSizes
    training: Training
    tape: Tape = field(default_factory=Tape)
    weights: list[Variable] = field(default_factory=list)
    gradients: list[Variable] = field(default_factory=list)

    def activation(self, *shape: int) -> Variable:
        """Return a new tensor of the layers' dtype."""
        return self.tape.tensor(self.training.dtype, *shape)

    def weight(self, *shape: int) -> Variable:
        """Return a new parameter."""
        self.weights.append(self.activation(*shape))
        return self.weights[-1]

    def turned(self, x: Variable) -> Variable:
        """Return a matrix's transpose, which products read as it lies."""
        return self.tape.tensor(x.spec.dtype, x.shape[1], x.shape[0], strides=(1, x.shape[1]), view_of=x)

    def product(self, a: Variable, b: Variable, *, onto: Variable | None = None) -> Variable:
        """Write a product, added to a matrix where one is given; a bias would cost nothing beside it."""
        found = self.tape.tensor(a.spec.dtype, a.shape[0], b.shape[1], view_of=onto)
        if onto is None:
            self.tape.op("aten::mm", (a, b), found)
        else:
            self.tape.op("aten::addmm", (onto, a, b), found)
        return found

    def once(self, inputs: tuple[Variable, ...], *results: Variable, flops: int = 1) -> None:
        """Write a kernel that reads and writes each tensor once."""
        self.tape.op(ONCE, (inputs, flops * results[0].spec.element_count), *results)

    def weight_gradient(self, x: Variable, grad: Variable) -> None:
        """Write xᵀ g."""
        self.gradients.append(self.product(self.turned(x), grad))

    def stack(self, x: Variable, outputs: tuple[int, ...], name: str) -> Stack:
        """Write dense layers."""
        inputs, weights = [], []
        for at, size in enumerate(outputs):
            inputs.append(x)
            weights.append(self.weight(x.shape[1], size))
            with self.tape.module(f"{name}.{at}"):
                x = self.product(x, weights[-1])
        return Stack(name=name, inputs=tuple(inputs), weights=tuple(weights), result=x)

    def stack_back(self, stack: Stack, grad: Variable, *, onward: bool) -> Variable:
        """Write their gradients; `onward`: of what goes in as well, which is returned."""
        for at in range(len(stack.weights) - 1, -1, -1):
            with self.tape.module(f"{stack.name}.{at}"):
                self.weight_gradient(stack.inputs[at], grad)
                if at or onward:
                    grad = self.product(grad, self.turned(stack.weights[at]))
        return grad


def run_bottom(writer: DenseWriter) -> Stack:
    """Write the layers of the dense features."""
    x = writer.activation(writer.training.batch, padded(writer.sizes.dense_features))
    return writer.stack(x, writer.sizes.bottom, "bottom")


def run_joined(writer: DenseWriter, vectors: tuple[Variable, ...], bottom: Variable) -> tuple[Variable, Variable]:
    """Write what comes after the vectors, forward and backward: return the gradients of vectors and bottom layers."""
    batch, sizes = writer.training.batch, writer.sizes
    with writer.tape.module("interaction"):
        joined = writer.activation(batch, sizes.joined)
        writer.once((*vectors, bottom), joined)
        crossed, layers = _cross(writer, joined) if sizes.interaction is Interaction.CROSS else (joined, ())
    top = writer.stack(crossed, sizes.top, "top")
    with writer.tape.module("loss"):
        labels, grad = writer.activation(batch, 1), writer.activation(batch, 1)
        writer.once((top.result, labels), grad, flops=8)
    writer.tape.enter(Phase.BACKWARD)
    grad = writer.stack_back(top, grad, onward=True)
    back = writer.activation(batch * len(sizes.table_rows), sizes.width), writer.activation(batch, sizes.width)
    with writer.tape.module("interaction"):
        grad = _cross_back(writer, joined, layers, grad) if layers else grad
        read = (grad,) if layers else (grad, *vectors, bottom)
        writer.once(read, *back)
    return back


def _cross(writer: DenseWriter, first: Variable) -> tuple[Variable, tuple[CrossLayer, ...]]:
    x, found = first, []
    for at in range(writer.sizes.cross_layers):
        with writer.tape.module(f"cross.{at}"):
            down = writer.weight(first.shape[1], writer.sizes.cross_rank)
            up = writer.weight(writer.sizes.cross_rank, first.shape[1])
            low = writer.product(x, down)
            high = writer.product(low, up)
            found.append(CrossLayer(x=x, low=low, high=high, down=down, up=up))
            after = writer.activation(*first.shape)
            writer.once((first, high, x), after, flops=2)
            x = after
    return x, tuple(found)


def _cross_back(writer: DenseWriter, first: Variable, layers: tuple[CrossLayer, ...], grad: Variable) -> Variable:
    """Write the gradients of cross layers; those of x0 are gathered from all of them."""
    gathered: tuple[Variable, ...] = ()
    for at in range(len(layers) - 1, -1, -1):
        with writer.tape.module(f"cross.{at}"):
            layer, total, high = layers[at], writer.activation(*first.shape), writer.activation(*first.shape)
            writer.once((grad, first, layer.high, *gathered), high, total, flops=3)
            writer.weight_gradient(layer.low, high)
            low = writer.product(high, writer.turned(layer.up))
            writer.weight_gradient(layer.x, low)
            grad = writer.product(low, writer.turned(layer.down), onto=grad)
            gathered = (total,)
    found = writer.activation(*first.shape)
    writer.once((grad, *gathered), found)
    return found


VECTORS: Final = "vectors"
GRADIENTS: Final = "gradients"
"""Groups of ranks, named for what they send each other."""
ADAGRAD: Final = "adagrad"
FLOAT_BYTES: Final = 4
_INDEX: Final = "int32"


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
    """Write the sum of the layers' and the copies' gradients over all GPUs, in one buffer."""
    if writer.training.gpus == 1:
        return None
    count = sum(item.spec.element_count for item in writer.gradients)
    count += placement.touched_copies * writer.sizes.width
    given, after = writer.activation(count), (writer.gradients[-1], *gathered)
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
