"""What stands between a transformer's products, as torch records it: norms, gates, experts, embeddings, the loss."""

from __future__ import annotations

from ....recorded.tape import FLOAT, Variable
from .products import Writer, linear
from .sizes import Activation


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


def feed_forward(writer: Writer, x: Variable) -> Variable:
    """Write the dense block."""
    sizes = writer.sizes
    if sizes.activation.is_gated:
        gated = linear(writer, x, sizes.ffn, "gate_proj")
        inner = gate(writer, gated, linear(writer, x, sizes.ffn, "up_proj"))
    else:
        inner = activate(writer, linear(writer, x, sizes.ffn, "up_proj"))
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
