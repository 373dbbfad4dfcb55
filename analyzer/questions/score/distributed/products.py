"""Layers as torch records them, forward and backward: products in 16 bits or fewer, adapters, norms."""

from __future__ import annotations

from math import prod

from .....records import dataclass, field
from ....recorded.tape import FLOAT, Tape, Variable
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
        found = self.tape.tensor(dtype, *x.shape)
        self.tape.op("aten::_to_copy", (x, dtype, None, None, None, False, None), found)
        return found

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
    writer: Writer, x: Variable, out: int, name: str, *, weight: Variable | None = None, is_wide: bool = False
) -> Variable:
    """Write y = x Wᵀ of x [..., in] and W [out, in], and an adapter's share; `is_wide` stays in 16 bits."""
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

    def undo() -> None:
        grad = tape.gradient.get(result.row)
        if grad is None:
            return
        grad = writer.view(grad, prod(x.shape[:-1]), result.shape[-1])
        grad = writer.narrow(grad, kernels.products.dtypes[1]) if narrows else grad
        if any(weight is item for item in writer.trained):
            known = tape.tensor(kernels.gradient_dtype, *weight.shape) if kernels.accumulates else None
            tape.add_gradient(weight, writer.product(writer.turn(grad), flat, kernels.gradient_dtype, known))
        found = writer.product(grad, writer.turn(turned), kernels.dtype)
        tape.add_gradient(x, writer.view(found, *x.shape))

    tape.differentiate(row, undo)


def _differentiate_bias(writer: Writer, row: int, bias: Variable, result: Variable) -> None:
    """Remember a bias's gradient: its output's, summed over tokens in a pass of its own, as torch does."""
    tape = writer.tape

    def undo() -> None:
        if result.row in tape.gradient and any(bias is item for item in writer.trained):
            grad = writer.view(tape.gradient[result.row], prod(result.shape[:-1]), result.shape[-1])
            found = writer.activation(1, result.shape[-1])
            tape.op("aten::sum", (grad, (0,), True, None), found)
            tape.add_gradient(bias, writer.view(found, *bias.shape))

    tape.differentiate(row, undo)


def _adapted(writer: Writer, x: Variable, y: Variable, out: int) -> Variable:
    """Write y + B (A x) for an adapter of small rank (LoRA)."""
    rank = writer.kernels.lora_rank
    low = writer.parameter(rank, x.shape[-1], is_adapter=True)
    high = writer.parameter(out, rank, is_adapter=True)
    inner = linear(writer, x, rank, "lora_A", weight=low, is_wide=True)
    return add(writer, y, linear(writer, inner, out, "lora_B", weight=high, is_wide=True))


def add(writer: Writer, a: Variable, b: Variable) -> Variable:
    """Write the sum of two activations; each has the sum's gradient."""
    tape = writer.tape
    total = writer.activation(*a.shape)
    row = tape.op("aten::add", (a, b, 1), total)

    def undo() -> None:
        for item in (a, b):
            if total.row in tape.gradient:
                tape.add_gradient(item, tape.gradient[total.row])

    tape.differentiate(row, undo)
    return total


def norm(writer: Writer, x: Variable, name: str) -> Variable:
    """Write a fused RMS or layer norm."""
    tape, hidden = writer.tape, x.shape[-1]
    with tape.module(name):
        weight, found = writer.parameter(hidden), writer.activation(*x.shape)
        spread = tape.tensor(FLOAT, *x.shape[:-1], 1)
        if writer.sizes.has_rms_norm:
            row = tape.op("aten::_fused_rms_norm", (x, (hidden,), weight, 1e-5), found, spread)
        else:
            shift, mean = writer.parameter(hidden), tape.tensor(FLOAT, *x.shape[:-1], 1)
            row = tape.op("aten::native_layer_norm", (x, (hidden,), weight, shift, 1e-5), found, mean, spread)

        def undo() -> None:
            if found.row not in tape.gradient:
                return
            grad, given, trains = writer.activation(*x.shape), writer.activation(hidden), not writer.kernels.lora_rank
            outer = tape.gradient[found.row]
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

        tape.differentiate(row, undo)
    return found


def activate(writer: Writer, x: Variable) -> Variable:
    """Write what stands between the products of a feed-forward block, one fused kernel each way."""
    tape, kind = writer.tape, writer.sizes.activation
    width = x.shape[-1] // 2 if kind.is_gated else x.shape[-1]
    found = writer.activation(*x.shape[:-1], width)
    name, more = {
        Activation.SWIGLU: ("aten::glu", (-1,)),
        Activation.GELU: ("aten::gelu", ()),
        Activation.SQUARED_RELU: ("aten::square", ()),
    }[kind]
    row = tape.op(name, (x, *more), found)

    def undo() -> None:
        grad, outer = writer.activation(*x.shape), tape.gradient[found.row]
        name, more = {
            Activation.SWIGLU: ("aten::glu_backward", (-1,)),
            Activation.GELU: ("aten::gelu_backward", ()),
            Activation.SQUARED_RELU: ("aten::threshold_backward", (0,)),
        }[kind]
        tape.op(name, (outer, x, *more), grad)
        tape.add_gradient(x, grad)

    tape.differentiate(row, undo)
    return found


def gate(writer: Writer, gated: Variable, plain: Variable) -> Variable:
    """Write silu(a) · b: in kernels of its own as transformers does, or fused into one each way.

    A fused one reads a and b and writes their product; its backward reads the gradient, a and b and writes both their
    gradients, which the two ops here move together.
    """
    tape = writer.tape
    if writer.kernels.is_fused:
        return _fused_gate(writer, gated, plain)
    soft, found = writer.activation(*gated.shape), writer.activation(*gated.shape)
    with tape.module("act_fn"):
        row = tape.op("aten::silu", (gated,), soft)

        def undo_silu() -> None:
            grad = writer.activation(*gated.shape)
            tape.op("aten::silu_backward", (tape.gradient[soft.row], gated), grad)
            tape.add_gradient(gated, grad)

        tape.differentiate(row, undo_silu)
    row = tape.op("aten::mul", (soft, plain), found)

    def undo() -> None:
        outer = tape.gradient[found.row]
        for one, other in ((plain, soft), (soft, plain)):
            grad = writer.activation(*gated.shape)
            tape.op("aten::mul", (outer, other), grad)
            tape.add_gradient(one, grad)

    tape.differentiate(row, undo)
    return found


def _fused_gate(writer: Writer, gated: Variable, plain: Variable) -> Variable:
    tape, found = writer.tape, writer.activation(*gated.shape)
    row = tape.op("aten::mul", (gated, plain), found)

    def undo() -> None:
        outer = tape.gradient[found.row]
        one, other = writer.activation(*gated.shape), writer.activation(*gated.shape)
        tape.op("aten::silu_backward", (outer, gated), one)
        tape.op("aten::neg", (outer,), other)
        tape.add_gradient(gated, one)
        tape.add_gradient(plain, other)

    tape.differentiate(row, undo)
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
        found = writer.activation(*tokens.shape, writer.sizes.hidden)
        row = tape.op("aten::embedding", (table, tokens, -1, False, False), found)

        def undo() -> None:
            if writer.kernels.lora_rank or found.row not in tape.gradient:
                return
            grad = writer.activation(*table.shape)
            tape.op("aten::embedding_dense_backward", (tape.gradient[found.row], tokens, rows, -1, False), grad)
            tape.add_gradient(table, grad)

        tape.differentiate(row, undo)
    return found, table


def loss(writer: Writer, logits: Variable) -> None:
    """Write the cross entropy and its gradient, from logits in float32 unless it is fused."""
    tape, vocab, rows = writer.tape, logits.shape[-1], writer.rows
    labels = tape.tensor("int64", rows)
    dtype = logits.spec.dtype if writer.kernels.is_loss_fused else FLOAT
    wide = logits if writer.kernels.is_loss_fused else writer.cast(logits, FLOAT)
    flat = writer.view(wide, rows, vocab)
    chances, found, weight = tape.tensor(dtype, rows, vocab), tape.tensor(FLOAT), tape.tensor(FLOAT)
    first = tape.op("aten::_log_softmax", (flat, 1, False), chances)
    second = tape.op("aten::nll_loss_forward", (chances, labels, None, 1, -100), found, weight)

    def undo_softmax() -> None:
        grad = tape.tensor(dtype, rows, vocab)
        tape.op("aten::_log_softmax_backward_data", (tape.gradient[chances.row], chances, 1, dtype), grad)
        grad = writer.view(grad, *logits.shape)
        tape.add_gradient(logits, grad if dtype == logits.spec.dtype else writer.cast(grad, logits.spec.dtype))

    def undo_loss() -> None:
        grad = tape.tensor(dtype, rows, vocab)
        one = tape.tensor(FLOAT)
        tape.op("aten::nll_loss_backward", (one, chances, labels, None, 1, -100, weight), grad)
        tape.add_gradient(chances, grad)

    tape.differentiate(first, undo_softmax)
    tape.differentiate(second, undo_loss)
    for _ in range(writer.kernels.reported_losses):
        _report(writer, logits, labels)


def _report(writer: Writer, logits: Variable, labels: Variable) -> None:
    """Write a cross entropy that nothing learns from, as torch takes it under autocast: in float32."""
    tape, vocab, rows = writer.tape, logits.shape[-1], writer.rows
    flat = writer.view(writer.cast(logits, FLOAT), rows, vocab)
    chances = tape.tensor(FLOAT, rows, vocab)
    tape.op("aten::_log_softmax", (flat, 1, False), chances)
    tape.op("aten::nll_loss_forward", (chances, labels, None, 2, -100), tape.tensor(FLOAT), tape.tensor(FLOAT))
