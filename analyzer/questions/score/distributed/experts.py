"""Layers of experts as a recording has them: routed, multiplied in groups, added up."""

from ....recorded.tape import FLOAT, Variable
from .products import Writer, activate, copied, is_narrow, linear


def experts(writer: Writer, x: Variable) -> Variable:
    """Write the routed block; every expert gets the same number of tokens, which the host waits to learn.

    Fused (Megatron), the router scores and chooses in one pass, rows are put in order and added up in one pass each,
    and the activation weights them: `index_copy` moves what adding them up does. Otherwise each is torch's own op.
    """
    sizes, tape = writer.sizes, writer.tape
    rows, chosen = writer.rows, writer.rows * sizes.top_k
    logits = linear(writer, x, sizes.experts, "gate", is_wide=True)
    chances = tape.tensor(FLOAT, *logits.shape)
    tape.op("aten::_softmax", (writer.cast(logits, FLOAT), -1, False), chances)
    if not writer.kernels.is_routing_fused:
        best, index = (tape.tensor(kind, *logits.shape[:-1], sizes.top_k) for kind in (FLOAT, "int64"))
        tape.op("aten::topk", (chances, sizes.top_k, -1, True, True), best, index)
    flat = writer.view(x, rows, sizes.hidden)
    gathered = writer.activation(chosen, sizes.hidden)
    order = tape.tensor("int64", chosen)
    tape.op("aten::_local_scalar_dense", (tape.tensor("int64"),))
    tape.op("aten::index_select", (flat, 0, order), gathered)

    @tape.undoes(gathered)
    def undo(outer: Variable) -> None:
        grad = writer.activation(rows, sizes.hidden)
        tape.op(_adds_rows(writer), (grad, 0, order, outer, 1), grad)
        tape.add_gradient(x, writer.view(grad, *x.shape))

    with tape.module("experts"):
        width = sizes.moe_ffn * (2 if sizes.activation.is_gated else 1)
        if writer.kernels.sorts_rows:
            gathered = _sorted(writer, gathered)
        inner = _grouped(writer, gathered, width)
        if sizes.has_expert_bias:
            inner = _clamped(writer, inner)
        outer = _grouped(writer, activate(writer, inner), sizes.hidden)
        if sizes.has_expert_bias:
            outer = _biased(writer, outer)
        if writer.kernels.sorts_rows:
            outer = _sorted(writer, outer)
    return _combine(writer, outer, order, x)


def _sorted(writer: Writer, x: Variable) -> Variable:
    """Write a copy each way, as of the rows of all ranks in the order of a rank's experts (`sort_chunks_by_idxs`)."""
    return writer.passes_back(copied(writer, x), x, lambda outer: copied(writer, outer))


def _clamped(writer: Writer, x: Variable) -> Variable:
    """Write gate and values clamped and put together again (`weighted_bias_quick_geglu_impl`)."""
    found = writer.write("aten::clamp", (x, -7.0, 7.0), *x.shape)
    writer.passes_back(found, x, lambda outer: writer.write("aten::threshold_backward", (outer, x, 0), *x.shape))
    return _sorted(writer, found)


def _biased(writer: Writer, x: Variable) -> Variable:
    """Write y + p b for rows of each expert, in float32 as the router's chances p are, put together, and narrowed.

    So do their gradients, which torch puts together again (`SplitWithSizesBackward`). The chances are where the rows
    are, as a view of them.
    """
    tape, shape = writer.tape, x.shape
    chance, bias = tape.tensor(FLOAT, shape[0], 1, view_of=x), writer.parameter(shape[1])
    scaled = writer.write("aten::mul", (bias, chance), *shape, dtype=FLOAT)
    total = writer.write("aten::add", (x, scaled, 1), *shape, dtype=FLOAT)
    found = writer.cast(writer.write("aten::clone", (total, "contiguous_format"), *shape, dtype=FLOAT), x.spec.dtype)

    @tape.undoes(found)
    def undo(outer: Variable) -> None:
        wide = writer.cast(outer, FLOAT)
        tape.add_gradient(x, copied(writer, writer.cast(wide, x.spec.dtype)))
        for operand, dims, kept in ((chance, (0,), shape[1:]), (bias, (1,), shape[:1])):
            product = writer.write("aten::mul", (wide, operand), *shape, dtype=FLOAT)
            summed = writer.write("aten::sum", (product, dims, False, None), *kept, dtype=FLOAT)
            if operand is chance:
                tape.add_gradient(bias, summed)

    return found


def _adds_rows(writer: Writer) -> str:
    return "aten::index_copy" if writer.kernels.is_routing_fused else "aten::index_add"


def _grouped(writer: Writer, x: Variable, out: int) -> Variable:
    """Write one product per expert, of the rows that chose it."""
    tape, kernels, sizes = writer.tape, writer.kernels, writer.sizes
    narrows, (forward, backward) = kernels.products.is_narrow, kernels.products.dtypes
    weight = writer.parameter(sizes.experts, x.shape[-1], out, dtype=forward if narrows else None)
    ends = tape.tensor("int32", sizes.experts)
    left = writer.narrow(x, forward) if narrows else x
    found = writer.activation(x.shape[0], out)
    _multiply(writer, left, weight, ends, found)

    @tape.undoes(found)
    def undo(grad: Variable) -> None:
        grad = writer.narrow(grad, backward) if narrows else grad
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

    return found


def _multiply(writer: Writer, a: Variable, b: Variable, ends: Variable, found: Variable) -> int:
    if is_narrow(a):
        arguments = (a, b, None, None, ends, None, None, found.spec.dtype, False)
        return writer.tape.op("aten::_scaled_grouped_mm", arguments, found)
    return writer.tape.op("aten::_grouped_mm", (a, b, ends, None, None), found)


def _combine(writer: Writer, x: Variable, order: Variable, like: Variable) -> Variable:
    """Write the sum over each token's experts, weighted here unless the activation was."""
    tape, is_fused = writer.tape, writer.kernels.is_routing_fused
    weight = tape.tensor(x.spec.dtype, x.shape[0], 1)
    total = writer.activation(writer.rows, x.shape[-1])
    weighted = x if is_fused else writer.write("aten::mul", (x, weight), *x.shape)
    row = tape.op(_adds_rows(writer), (total, 0, order, weighted, 1), total)
    result = writer.view(total, *like.shape)

    @tape.undoes(result, row)
    def undo(outer: Variable) -> None:
        outer = writer.view(outer, writer.rows, x.shape[-1])
        spread = writer.write("aten::index_select", (outer, 0, order), *x.shape)
        tape.add_gradient(x, spread if is_fused else writer.write("aten::mul", (spread, weight), *x.shape))

    return result
