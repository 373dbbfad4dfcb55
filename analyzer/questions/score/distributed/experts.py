"""A layer of experts as Megatron runs it: route, gather by expert, two grouped products, scatter back."""

from __future__ import annotations

from ....recorded.tape import FLOAT, Variable
from .blocks import activate
from .products import BACKWARD_FP8, FORWARD_FP8, Writer, linear


def experts(writer: Writer, x: Variable) -> Variable:
    """Write the routed block; every expert gets the same number of tokens."""
    sizes, tape = writer.sizes, writer.tape
    rows, chosen = writer.rows, writer.rows * sizes.top_k
    logits = linear(writer, x, sizes.experts, "gate", is_wide=True)
    chances, best = tape.tensor(FLOAT, *logits.shape), tape.tensor(FLOAT, *logits.shape[:-1], sizes.top_k)
    index = tape.tensor("int64", *logits.shape[:-1], sizes.top_k)
    tape.op("aten::_softmax", (writer.cast(logits, FLOAT), -1, False), chances)
    tape.op("aten::topk", (chances, sizes.top_k, -1, True, True), best, index)
    flat = writer.view(x, rows, sizes.hidden)
    gathered = writer.activation(chosen, sizes.hidden)
    order = tape.tensor("int64", chosen)
    row = tape.op("aten::index_select", (flat, 0, order), gathered)

    def undo() -> None:
        grad = writer.activation(rows, sizes.hidden)
        tape.op("aten::index_add", (grad, 0, order, tape.gradient[gathered.row], 1), grad)
        tape.add_gradient(x, writer.view(grad, *x.shape))

    tape.differentiate(row, undo)
    with tape.module("experts"):
        width = sizes.moe_ffn * (2 if sizes.activation.is_gated else 1)
        inner = activate(writer, _grouped(writer, gathered, width))
        outer = _grouped(writer, inner, sizes.hidden)
    return _combine(writer, outer, order, x)


def _grouped(writer: Writer, x: Variable, out: int) -> Variable:
    """Write one product per expert, of the rows that chose it."""
    tape, kernels, sizes = writer.tape, writer.kernels, writer.sizes
    is_fp8 = kernels.is_fp8
    weight = writer.parameter(sizes.experts, x.shape[-1], out, dtype=FORWARD_FP8 if is_fp8 else None)
    ends = tape.tensor("int32", sizes.experts)
    left = writer.cast(x, FORWARD_FP8) if is_fp8 else x
    found = writer.activation(x.shape[0], out)
    row = _multiply(writer, left, weight, ends, found)

    def undo() -> None:
        grad = tape.gradient[found.row]
        grad = writer.cast(grad, BACKWARD_FP8) if is_fp8 else grad
        given = tape.tensor(kernels.gradient_dtype, *weight.shape)
        _multiply(writer, writer.turn(left), grad, ends, given)
        tape.add_gradient(weight, given)
        turned = tape.tensor(
            weight.spec.dtype, sizes.experts, out, x.shape[-1], strides=(x.shape[-1] * out, 1, out), view_of=weight
        )
        tape.op("aten::transpose", (weight, 1, 2), turned)
        outer = writer.activation(*x.shape)
        _multiply(writer, grad, turned, ends, outer)
        tape.add_gradient(x, outer)

    tape.differentiate(row, undo)
    return found


def _multiply(writer: Writer, a: Variable, b: Variable, ends: Variable, found: Variable) -> int:
    if a.spec.dtype.startswith("float8"):
        arguments = (a, b, None, None, ends, None, None, found.spec.dtype, False)
        return writer.tape.op("aten::_scaled_grouped_mm", arguments, found)
    return writer.tape.op("aten::_grouped_mm", (a, b, ends, None, None), found)


def _combine(writer: Writer, x: Variable, order: Variable, like: Variable) -> Variable:
    """Write the sum over each token's experts, weighted."""
    tape = writer.tape
    weight, weighted = tape.tensor(x.spec.dtype, x.shape[0], 1), writer.activation(*x.shape)
    total = writer.activation(writer.rows, x.shape[-1])
    row = tape.op("aten::mul", (x, weight), weighted)
    tape.op("aten::index_add", (total, 0, order, weighted, 1), total)
    result = writer.view(total, *like.shape)

    def undo() -> None:
        spread, grad = writer.activation(*x.shape), writer.activation(*x.shape)
        outer = writer.view(tape.gradient[result.row], writer.rows, x.shape[-1])
        tape.op("aten::index_select", (outer, 0, order), spread)
        tape.op("aten::mul", (spread, weight), grad)
        tape.add_gradient(x, grad)

    tape.differentiate(row, undo)
    return result
