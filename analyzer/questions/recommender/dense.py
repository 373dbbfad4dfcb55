"""Writes a recommender's dense part op by op: bottom layers, what joins vectors, top layers, the loss; and back.

A layer is one product each: bias and activation, and of the backward pass their gradients, are in its epilogue, as in
HugeCTR's fused layers. What stands between products reads and writes every tensor once.
"""

from ....formats.trace.tables import Phase
from ....records import dataclass, field
from ...recorded.tape import Tape, Variable
from ...work.table_parts import ONCE
from .sizes import Interaction, RecommenderSizes, Training, padded


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
