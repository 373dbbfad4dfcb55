"""The attention of a layer as torch records it, forward and backward."""

from __future__ import annotations

from .....specs.attention_kernels import AttentionKernel
from ....recorded.tape import FLOAT, Variable
from .products import Writer, linear

FUSED = {
    AttentionKernel.CUDNN: "aten::_scaled_dot_product_cudnn_attention",
    AttentionKernel.FLASH2: "aten::_scaled_dot_product_flash_attention",
    AttentionKernel.EFFICIENT: "aten::_scaled_dot_product_efficient_attention",
}
ALL = (True, True, True, False)
"""Whose gradients are asked for: those of queries, keys and values, not of a bias."""
VALUE = 2
"""Position of the values, after queries and keys."""


def attention(writer: Writer, x: Variable) -> Variable:
    """Write queries, keys and values, their rotation, the fused kernel and the output's product."""
    sizes = writer.sizes
    heads, kv_heads, width = sizes.heads, sizes.kv_heads, sizes.head_dim
    if writer.kernels.is_fused:
        query, key, value = _split(writer, linear(writer, x, (heads + 2 * kv_heads) * width, "qkv_proj"))
    else:
        query = _heads(writer, linear(writer, x, heads * width, "q_proj"), heads)
        key = _heads(writer, linear(writer, x, kv_heads * width, "k_proj"), kv_heads)
        value = _heads(writer, linear(writer, x, kv_heads * width, "v_proj"), kv_heads)
    if sizes.has_rotary:
        query, key = _rotate(writer, query), _rotate(writer, key)
    mixed = _mix(writer, query, key, value)
    return linear(writer, mixed, sizes.hidden, "o_proj")


def _heads(writer: Writer, x: Variable, heads: int) -> Variable:
    """Write [batch, tokens, heads, width] of [batch, tokens, heads x width]."""
    tape = writer.tape
    found = writer.view(x, *x.shape[:2], heads, writer.sizes.head_dim)

    def undo() -> None:
        tape.add_gradient(x, writer.view(tape.gradient[found.row], *x.shape))

    tape.differentiate(tape.last, undo)
    return found


def _split(writer: Writer, x: Variable) -> tuple[Variable, Variable, Variable]:
    """Write queries, keys and values of one product, grouped by key head as Megatron lays them out.

    Keys are a view; queries of several heads per key head are copied together, values too (as ranks that exchange keys
    and values do before they send them), and so are all gradients.
    """
    tape, sizes, dtype = writer.tape, writer.sizes, x.spec.dtype
    batch, tokens = x.shape[:2]
    kv_heads, group, width = sizes.kv_heads, sizes.heads // sizes.kv_heads, sizes.head_dim
    grouped = writer.view(x, batch, tokens, kv_heads, group + 2, width)
    steps = grouped.spec.strides or ()
    found = []
    for begin, end in ((0, group), (group, group + 1), (group + 1, group + 2)):
        count = end - begin
        piece = tape.tensor(dtype, batch, tokens, kv_heads, count, width, strides=steps, view_of=grouped)
        tape.op("aten::slice", (grouped, 3, begin, end, 1), piece)
        if count > 1:
            whole = tape.tensor(dtype, *piece.shape)
            tape.op("aten::clone", (piece, "contiguous_format"), whole)
            found.append(writer.view(whole, batch, tokens, kv_heads * count, width))
        else:
            flat = (steps[0], steps[1], steps[2], steps[4])
            head = tape.tensor(dtype, batch, tokens, kv_heads, width, strides=flat, view_of=grouped)
            tape.op("aten::squeeze", (piece, 3), head)
            if len(found) == VALUE:
                head = _copied(writer, head)
            found.append(head)
    query, key, value = found

    def undo() -> None:
        grads = [tape.gradient[item.row] for item in found]
        pieces = [writer.view(item, batch, tokens, kv_heads, item.shape[2] // kv_heads, width) for item in grads]
        whole = tape.tensor(dtype, *grouped.shape)
        tape.op("aten::cat", (pieces, 3), whole)
        tape.add_gradient(x, writer.view(whole, *x.shape))

    tape.differentiate(tape.last, undo)
    return query, key, value


def _copied(writer: Writer, x: Variable) -> Variable:
    found = writer.activation(*x.shape)
    writer.tape.op("aten::clone", (x, "contiguous_format"), found)
    return found


def _rotate(writer: Writer, x: Variable) -> Variable:
    """Write a fused rotary embedding: every element read and written once each way."""
    tape = writer.tape
    angle = tape.tensor(x.spec.dtype, 1, x.shape[1], 1, x.shape[3])
    found = tape.tensor(x.spec.dtype, *x.shape)
    row = tape.op("aten::mul", (x, angle), found)

    def undo() -> None:
        grad = tape.tensor(x.spec.dtype, *x.shape)
        tape.op("aten::mul", (tape.gradient[found.row], angle), grad)
        tape.add_gradient(x, grad)

    tape.differentiate(row, undo)
    return found


def _mix(writer: Writer, *operands: Variable) -> Variable:
    """Write the fused kernel: softmax(Q Kᵀ / √d) V, [batch, tokens, heads x width]."""
    tape, sizes, kernels = writer.tape, writer.sizes, writer.kernels
    batch, tokens = writer.batch, writer.tokens
    turned = [_swap(writer, item) for item in operands]
    out = _heads_first(writer, batch, tokens, sizes.heads)
    spread = tape.tensor(FLOAT, batch, sizes.heads, tokens)
    kind, causal, scale = kernels.attention, sizes.is_causal, sizes.head_dim**-0.5
    arguments = {
        AttentionKernel.CUDNN: (*turned, None, True, 0.0, causal, False, scale),
        AttentionKernel.FLASH2: (*turned, 0.0, causal, False, scale),
        AttentionKernel.EFFICIENT: (*turned, None, True, 0.0, causal, scale),
    }
    row = tape.op(FUSED[kind], arguments[kind], out, spread)
    plain = _swap(writer, out)
    result = writer.view(plain, batch, tokens, sizes.heads * sizes.head_dim)

    def undo() -> None:
        grad = tape.gradient[result.row]
        grad = _swap(writer, writer.view(grad, batch, tokens, sizes.heads, sizes.head_dim))
        found = [_heads_first(writer, batch, tokens, item.shape[1]) for item in turned]
        flags = (None, None, tokens, tokens, 0.0, causal)
        backward = {
            AttentionKernel.CUDNN: (grad, *turned, out, spread, None, None, None, *flags, scale),
            AttentionKernel.FLASH2: (grad, *turned, out, spread, *flags, None, None, scale),
            AttentionKernel.EFFICIENT: (grad, *turned, None, out, spread, None, None, 0.0, ALL, causal, scale),
        }
        tape.op(f"{FUSED[kind]}_backward", backward[kind], *found)
        for item, gradient in zip(operands, found, strict=True):
            tape.add_gradient(item, _swap(writer, gradient))

    tape.differentiate(row, undo)
    return result


def _heads_first(writer: Writer, batch: int, tokens: int, heads: int) -> Variable:
    """Return a new [batch, heads, tokens, width] whose memory is [batch, tokens, heads, width]."""
    width = writer.sizes.head_dim
    strides = (tokens * heads * width, width, heads * width, 1)
    return writer.tape.tensor(writer.kernels.dtype, batch, heads, tokens, width, strides=strides)


def _swap(writer: Writer, x: Variable) -> Variable:
    """Write the view with tokens and heads swapped."""
    strides = x.spec.strides or ()
    shape = (x.shape[0], x.shape[2], x.shape[1], x.shape[3])
    swapped = (strides[0], strides[2], strides[1], strides[3])
    found = writer.tape.tensor(x.spec.dtype, *shape, strides=swapped, view_of=x)
    writer.tape.op("aten::transpose", (x, 1, 2), found)
    return found
