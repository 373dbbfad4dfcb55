"""Layers as torch records them, forward and backward: products in 16 bits or fewer, adapters, norms.

Norms and rotary embeddings of uncompiled models stand in the single operations of their formulas, in float32 of 16-bit
activations and given back in 16 bits: `torch.nn.functional.rms_norm` until it had a kernel of its own, and the models
of transformers and torchtitan.
"""

from collections.abc import Callable, Sequence
from math import prod

from .....records import dataclass, field
from ....recorded.tape import FLOAT, Operand, Tape, Variable
from .sizes import Activation, Kernels, TransformerSizes


@dataclass(slots=True, kw_only=True)
class Writer:
    """Write layers of one model to a tape; one owner, one use."""

    tape: Tape
    sizes: TransformerSizes
    kernels: Kernels
    batch: int
    tokens: int
    """Of a sample."""
    trained: list[Variable] = field(default_factory=list)
    """Parameters that the optimizer steps."""
    casts: dict[int, Variable] = field(default_factory=dict)
    """Activations in fewer bits, by the row of what they were cast from."""

    @property
    def rows(self) -> int:
        """Return the tokens of a micro batch."""
        return self.batch * self.tokens

    def parameter(self, *shape: int, dtype: str | None = None, is_adapter: bool = False) -> Variable:
        """Return a new parameter; beside adapters the others are not trained."""
        found = self.tape.tensor(dtype or self.kernels.dtype, *shape)
        if is_adapter or not self.kernels.lora_rank:
            self.trained.append(found)
        return found

    def activation(self, *shape: int, dtype: str | None = None) -> Variable:
        """Return a new tensor of the model's dtype."""
        return self.tape.tensor(dtype or self.kernels.dtype, *shape)

    def write(self, name: str, inputs: Sequence[Operand], *shape: int, dtype: str | None = None) -> Variable:
        """Write an op with one result, of the model's dtype where none is given."""
        found = self.activation(*shape, dtype=dtype)
        self.tape.op(name, inputs, found)
        return found

    def passes_back(self, found: Variable, to: Variable, gradient: Callable[[Variable], Variable]) -> Variable:
        """Remember an operand's gradient as a function of that of the result, written last; return the result."""
        self.tape.undoes(found)(lambda outer: self.tape.add_gradient(to, gradient(outer)))
        return found

    def view(self, x: Variable, *shape: int, name: str = "aten::view") -> Variable:
        """Write a view of other sizes."""
        found = self.tape.tensor(x.spec.dtype, *shape, view_of=x)
        self.tape.op(name, (x, shape), found)
        return found

    def turn(self, x: Variable) -> Variable:
        """Write a matrix's transpose."""
        (rows, columns), strides = x.shape, x.spec.strides or (x.shape[1], 1)
        found = self.tape.tensor(x.spec.dtype, columns, rows, strides=(strides[1], strides[0]), view_of=x)
        self.tape.op("aten::t", (x,), found)
        return found

    def cast(self, x: Variable, dtype: str) -> Variable:
        """Write a cast."""
        return self.write("aten::_to_copy", (x, dtype, None, None, None, False, None), *x.shape, dtype=dtype)

    def narrow(self, x: Variable, dtype: str) -> Variable:
        """Write the cast of a product's operand [rows, columns], with the passes that its format takes.

        Weights are cast once in an iteration, after the optimizer's step: what that moves is left out.
        """
        if self.kernels.products.reads_first:
            self.tape.op("aten::amax", (x, (), False), self.tape.tensor(x.spec.dtype))
        found = self.cast(x, dtype)
        if self.kernels.casts_turned:
            self.tape.op("aten::clone", (found, "contiguous_format"), self.tape.tensor(dtype, *x.shape))
        return found

    def narrow_once(self, x: Variable, flat: Variable) -> Variable:
        """Write the cast of an activation, the first time that a product asks for it."""
        if x.row not in self.casts:
            self.casts[x.row] = self.narrow(flat, self.kernels.products.dtypes[0])
        return self.casts[x.row]

    def product(self, a: Variable, b: Variable, dtype: str, addend: Variable | None = None) -> Variable:
        """Write [m, k] @ [k, n] of operands of any width, into the addend where there is one; a bias [n] counts."""
        is_bias = addend is not None and len(addend.shape) == 1
        found = self.tape.tensor(dtype, a.shape[0], b.shape[1], view_of=None if is_bias else addend)
        if is_narrow(a):
            one = self.tape.tensor(FLOAT)
            self.tape.op("aten::_scaled_mm", (a, b, one, one, addend, None, dtype, False), found)
        elif addend is not None:
            self.tape.op("aten::addmm", (addend, a, b), found)
        else:
            self.tape.op("aten::mm", (a, b), found)
        return found


def is_narrow(x: Variable) -> bool:
    """Say whether a product takes scales beside this operand."""
    return x.spec.dtype.startswith(("float8", "float4"))


def linear(
    writer: Writer,
    x: Variable,
    out: int,
    name: str,
    *,
    weight: Variable | None = None,
    is_wide: bool = False,
    recomputes: bool = False,
) -> Variable:
    """Write y = x Wᵀ of x [..., in] and W [out, in], and an adapter's share; `is_wide` stays in 16 bits.

    `recomputes`: the backward pass multiplies once more.
    """
    tape, kernels, inner = writer.tape, writer.kernels, x.shape[-1]
    rows, narrows = prod(x.shape[:-1]), kernels.products.is_narrow and not is_wide
    with tape.module(name):
        if weight is None:
            weight = writer.parameter(out, inner, dtype=kernels.products.dtypes[0] if narrows else None)
        bias = writer.parameter(out) if writer.sizes.has_bias and not is_wide else None
        turned, flat = writer.turn(weight), writer.view(x, rows, inner)
        flat = writer.narrow_once(x, flat) if narrows else flat
        y = writer.product(flat, turned, kernels.dtype, bias)
        row = tape.last
        result = writer.view(y, *x.shape[:-1], out, name="aten::_unsafe_view")
        if bias is not None:
            _differentiate_bias(writer, row, bias, result)
        if recomputes:

            @tape.undoes(result, row)
            def multiply_again(_: Variable) -> None:
                writer.product(flat, turned, kernels.dtype)

        _differentiate(writer, row, (x, weight, turned, flat, result), narrows=narrows)
        if kernels.lora_rank and not is_wide and name in kernels.lora_products:
            return _adapted(writer, x, result, out)
    return result


def _differentiate(
    writer: Writer, row: int, saved: tuple[Variable, Variable, Variable, Variable, Variable], *, narrows: bool
) -> None:
    """Remember ∂W = gᵀ x, ∂x = g W."""
    x, weight, turned, flat, result = saved
    tape, kernels = writer.tape, writer.kernels

    @tape.undoes(result, row)
    def undo(grad: Variable) -> None:
        grad = writer.view(grad, prod(x.shape[:-1]), result.shape[-1])
        grad = writer.narrow(grad, kernels.products.dtypes[1]) if narrows else grad
        if any(weight is item for item in writer.trained):
            known = tape.tensor(kernels.gradient_dtype, *weight.shape) if kernels.accumulates else None
            tape.add_gradient(weight, writer.product(writer.turn(grad), flat, kernels.gradient_dtype, known))
        found = writer.product(grad, writer.turn(turned), kernels.dtype)
        tape.add_gradient(x, writer.view(found, *x.shape))


def _differentiate_bias(writer: Writer, row: int, bias: Variable, result: Variable) -> None:
    """Remember a bias's gradient: its output's, summed over tokens in a pass of its own, as torch does."""

    @writer.tape.undoes(result, row)
    def undo(outer: Variable) -> None:
        if any(bias is item for item in writer.trained):
            grad = writer.view(outer, prod(result.shape[:-1]), result.shape[-1])
            found = writer.write("aten::sum", (grad, (0,), True, None), 1, result.shape[-1])
            writer.tape.add_gradient(bias, writer.view(found, *bias.shape))


def _adapted(writer: Writer, x: Variable, y: Variable, out: int) -> Variable:
    """Write y + B (A x) for an adapter of small rank (LoRA)."""
    rank = writer.kernels.lora_rank
    low = writer.parameter(rank, x.shape[-1], is_adapter=True)
    high = writer.parameter(out, rank, is_adapter=True)
    inner = linear(writer, x, rank, "lora_A", weight=low, is_wide=True)
    return add(writer, y, linear(writer, inner, out, "lora_B", weight=high, is_wide=True))


def add(writer: Writer, a: Variable, b: Variable) -> Variable:
    """Write the sum of two activations; each has the sum's gradient."""
    total = writer.write("aten::add", (a, b, 1), *a.shape)

    @writer.tape.undoes(total)
    def undo(outer: Variable) -> None:
        for item in (a, b):
            writer.tape.add_gradient(item, outer)

    return total


def norm(writer: Writer, x: Variable, name: str) -> Variable:
    """Write a fused RMS or layer norm."""
    tape, hidden = writer.tape, x.shape[-1]
    with tape.module(name):
        weight, found = writer.parameter(hidden), writer.activation(*x.shape)
        spread = tape.tensor(FLOAT, *x.shape[:-1], 1)
        if writer.sizes.has_rms_norm:
            tape.op("aten::_fused_rms_norm", (x, (hidden,), weight, 1e-5), found, spread)
        else:
            shift, mean = writer.parameter(hidden), tape.tensor(FLOAT, *x.shape[:-1], 1)
            tape.op("aten::native_layer_norm", (x, (hidden,), weight, shift, 1e-5), found, mean, spread)

        @tape.undoes(found)
        def undo(outer: Variable) -> None:
            grad, given, trains = writer.activation(*x.shape), writer.activation(hidden), not writer.kernels.lora_rank
            if writer.sizes.has_rms_norm:
                masked = (outer, x, (hidden,), spread, weight, (True, trains))
                tape.op("aten::_fused_rms_norm_backward", masked, grad, given)
            else:
                moved = writer.activation(hidden)
                arguments = (outer, x, (hidden,), mean, spread, weight, shift, (True, trains, trains))
                tape.op("aten::native_layer_norm_backward", arguments, grad, given, moved)
                tape.add_gradient(shift, moved)
            tape.add_gradient(weight, given)
            tape.add_gradient(x, grad)

    return found


def copied(writer: Writer, x: Variable) -> Variable:
    """Write a copy without gaps."""
    return writer.write("aten::clone", (x, "contiguous_format"), *x.shape)


def activate(writer: Writer, x: Variable) -> Variable:
    """Write what stands between the products of a feed-forward block, one fused kernel each way."""
    kind = writer.sizes.activation
    width = x.shape[-1] // 2 if kind.is_gated else x.shape[-1]
    forward, more, backward, more_back = {
        Activation.SWIGLU: ("aten::glu", (-1,), "aten::glu_backward", (-1,)),
        Activation.GELU: ("aten::gelu", (), "aten::gelu_backward", ()),
        Activation.SQUARED_RELU: ("aten::square", (), "aten::threshold_backward", (0,)),
    }[kind]
    found = writer.write(forward, (x, *more), *x.shape[:-1], width)
    return writer.passes_back(found, x, lambda outer: writer.write(backward, (outer, x, *more_back), *x.shape))


def gate(writer: Writer, gated: Variable, plain: Variable) -> Variable:
    """Write silu(a) · b: in kernels of its own as transformers does, or fused into one each way.

    A fused one reads a and b and writes their product; its backward reads the gradient, a and b and writes both their
    gradients, which the two ops here move together.
    """
    tape = writer.tape
    if writer.kernels.is_fused:
        return _fused_gate(writer, gated, plain)
    with tape.module("act_fn"):
        soft = writer.write("aten::silu", (gated,), *gated.shape)
        writer.passes_back(soft, gated, lambda outer: writer.write("aten::silu_backward", (outer, gated), *gated.shape))
    found = writer.write("aten::mul", (soft, plain), *gated.shape)

    @tape.undoes(found)
    def undo(outer: Variable) -> None:
        for one, other in ((plain, soft), (soft, plain)):
            tape.add_gradient(one, writer.write("aten::mul", (outer, other), *gated.shape))

    return found


def _fused_gate(writer: Writer, gated: Variable, plain: Variable) -> Variable:
    found = writer.write("aten::mul", (gated, plain), *gated.shape)

    @writer.tape.undoes(found)
    def undo(outer: Variable) -> None:
        one = writer.write("aten::silu_backward", (outer, gated), *gated.shape)
        other = writer.write("aten::neg", (outer,), *gated.shape)
        writer.tape.add_gradient(gated, one)
        writer.tape.add_gradient(plain, other)

    return found


def feed_forward(writer: Writer, x: Variable, width: int | None = None) -> Variable:
    """Write a dense block, by default as wide as the model's."""
    sizes, width = writer.sizes, width or writer.sizes.ffn
    if sizes.activation.is_gated:
        gated = linear(writer, x, width, "gate_proj")
        inner = gate(writer, gated, linear(writer, x, width, "up_proj"))
    else:
        inner = activate(writer, linear(writer, x, width, "up_proj"))
    return linear(writer, inner, sizes.hidden, "down_proj")


def embed(writer: Writer, tokens: Variable, rows: int, name: str) -> tuple[Variable, Variable]:
    """Write a look-up; return what was found, and the table."""
    tape = writer.tape
    with tape.module(name):
        table = writer.parameter(rows, writer.sizes.hidden)
        found = writer.write("aten::embedding", (table, tokens, -1, False, False), *tokens.shape, writer.sizes.hidden)

        @tape.undoes(found)
        def undo(outer: Variable) -> None:
            if not writer.kernels.lora_rank:
                arguments = (outer, tokens, rows, -1, False)
                tape.add_gradient(table, writer.write("aten::embedding_dense_backward", arguments, *table.shape))

    return found, table


def loss(writer: Writer, logits: Variable) -> None:
    """Write the cross entropy and its gradient, from logits in float32 unless it is fused, and what is reported."""
    tape, vocab, rows = writer.tape, logits.shape[-1], writer.rows
    labels = tape.tensor("int64", rows)
    for _ in range(writer.kernels.reported_losses):
        _report(writer, logits, labels)
    if writer.kernels.is_loss_lean:
        _lean_loss(writer, logits, writer.view(logits, rows, vocab))
        return
    dtype = logits.spec.dtype if writer.kernels.is_loss_fused else FLOAT
    wide = logits if writer.kernels.is_loss_fused else writer.cast(logits, FLOAT)
    flat = writer.view(wide, rows, vocab)
    chances, found, weight = tape.tensor(dtype, rows, vocab), tape.tensor(FLOAT), tape.tensor(FLOAT)
    tape.op("aten::_log_softmax", (flat, 1, False), chances)

    @tape.undoes(chances)
    def undo_softmax(outer: Variable) -> None:
        arguments = (outer, chances, 1, dtype)
        grad = writer.write("aten::_log_softmax_backward_data", arguments, rows, vocab, dtype=dtype)
        grad = writer.view(grad, *logits.shape)
        tape.add_gradient(logits, grad if dtype == logits.spec.dtype else writer.cast(grad, logits.spec.dtype))

    def undo_loss() -> None:
        grad, one = tape.tensor(dtype, rows, vocab), tape.tensor(FLOAT)
        tape.op("aten::nll_loss_backward", (one, chances, labels, None, 1, -100, weight), grad)
        tape.add_gradient(chances, grad)

    row = tape.op("aten::nll_loss_forward", (chances, labels, None, 1, -100), found, weight)
    tape.differentiate(row, undo_loss)


def _lean_loss(writer: Writer, logits: Variable, flat: Variable) -> None:
    """Write the sums of exponentials of rows, and one pass from logits to gradients."""

    def undo() -> None:
        writer.tape.add_gradient(logits, writer.view(writer.write("aten::exp", (flat,), *flat.shape), *logits.shape))

    row = writer.tape.op("aten::logsumexp", (flat, (1,), False), writer.tape.tensor(FLOAT, writer.rows))
    writer.tape.differentiate(row, undo)


def _report(writer: Writer, logits: Variable, labels: Variable) -> None:
    """Write a cross entropy that nothing learns from, as torch takes it under autocast: in float32."""
    tape, vocab, rows = writer.tape, logits.shape[-1], writer.rows
    chances = tape.tensor(FLOAT, rows, vocab)
    tape.op("aten::_log_softmax", (writer.view(writer.cast(logits, FLOAT), rows, vocab), 1, False), chances)
    tape.op("aten::nll_loss_forward", (chances, labels, None, 2, -100), tape.tensor(FLOAT), tape.tensor(FLOAT))


def root_mean_square_norm(writer: Writer, x: Variable, name: str) -> Variable:
    """Write y = w x / sqrt(mean(x²) + eps), and its gradients."""
    tape, hidden = writer.tape, x.shape[-1]
    with tape.module(name):
        weight, wide = writer.parameter(hidden), writer.cast(x, FLOAT)
        square = writer.write("aten::pow", (wide, 2), *x.shape, dtype=FLOAT)
        mean = writer.write("aten::mean", (square, (-1,), True, None), *x.shape[:-1], 1, dtype=FLOAT)
        root = writer.write("aten::rsqrt", (mean,), *mean.shape, dtype=FLOAT)
        narrow = writer.cast(_times(writer, wide, root), x.spec.dtype)
        found = _times(writer, narrow, weight)

        @tape.undoes(found)
        def undo(outer: Variable) -> None:
            if not writer.kernels.lora_rank:
                arguments = (_times(writer, outer, narrow), (0, 1), False, None)
                tape.add_gradient(weight, writer.write("aten::sum", arguments, hidden))
            inner = writer.cast(_times(writer, outer, weight), FLOAT)
            direct, spread = _times(writer, inner, root), tape.tensor(FLOAT, *mean.shape)
            tape.op("aten::sum", (_times(writer, inner, wide), (-1,), True, None), spread)
            doubled, total = tape.tensor(FLOAT, *x.shape), tape.tensor(FLOAT, *x.shape)
            tape.op("aten::mul", (wide, 2.0), doubled)
            tape.op("aten::add", (direct, _times(writer, doubled, spread), 1), total)
            tape.add_gradient(x, writer.cast(total, x.spec.dtype))

    return found


def rotate(writer: Writer, x: Variable) -> Variable:
    """Write a rotary embedding of [batch, tokens, heads, width]: widened, multiplied with the angles, narrowed."""
    angle = writer.tape.tensor(FLOAT, 1, x.shape[1], 1, x.shape[3])

    def turned(item: Variable) -> Variable:
        return writer.cast(_times(writer, writer.cast(item, FLOAT), angle), x.spec.dtype)

    return writer.passes_back(turned(x), x, turned)


def _times(writer: Writer, a: Variable, b: Variable) -> Variable:
    """Write the product of each element of `a` with that of `b`, which may be shared along some dims."""
    return writer.write("aten::mul", (a, b), *a.shape, dtype=a.spec.dtype)
