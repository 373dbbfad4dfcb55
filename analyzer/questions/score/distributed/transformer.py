"""A one-GPU recording of a transformer's training iteration, written from its sizes: no torch, no weights."""

from typing import Final

from .....formats.trace.tables import Meta, Trace, Workload
from .....specs.attention_kernels import AttentionKernel
from ....recorded.tape import FLOAT, Operand, Tape, Variable
from .experts import experts
from .products import Writer, add, copied, embed, feed_forward, linear, loss, norm, root_mean_square_norm, rotate
from .sizes import Kernels, TransformerSizes

FRAMEWORKS: Final = {AttentionKernel.CUDNN: "torch 2.9.0"}
OTHER_FRAMEWORK: Final = "torch 2.8.0"
"""That the recordings name: 2.9.0 puts cuDNN's attention first where a GPU has it, 2.8.0 does not."""


def synthesise(sizes: TransformerSizes, kernels: Kernels, batch: int, tokens: int) -> Trace:
    """Return what `wavecast record --shapes-only` would write of one iteration of `batch` samples of `tokens` each.

    Module paths are transformers': `model.layers.0.self_attn.o_proj`. Weights that run in fewer than 16 bits are held
    so, as Transformer Engine keeps them between micro batches; gradients and moments are what the optimizer reads and
    writes.
    """
    tape = Tape()
    writer = Writer(tape=tape, sizes=sizes, kernels=kernels, batch=batch, tokens=tokens)
    with tape.module("TransformerForCausalLM"):
        ids = tape.tensor("int64", batch, tokens)
        with tape.module("model"):
            x, table = embed(writer, ids, sizes.vocab, "embed_tokens")
            if sizes.learned_positions:
                places = tape.tensor("int64", 1, tokens)
                x = add(writer, x, embed(writer, places, sizes.learned_positions, "embed_positions")[0])
            x = _scale(writer, x)
            for index in range(sizes.layers):
                with tape.module(f"layers.{index}"):
                    x = _layer(writer, x)
            last, x = x, _norm(writer, x, "norm")
        head = table if sizes.is_tied else writer.parameter(sizes.vocab, sizes.hidden)
        loss(writer, linear(writer, x, sizes.vocab, "lm_head", weight=head, is_wide=True))
        if sizes.predicts_ahead:
            with tape.module("mtp"):
                x = _norm(writer, _layer(writer, _joined(writer, last)), "final_layernorm")
            loss(writer, linear(writer, x, sizes.vocab, "lm_head", weight=head, is_wide=True))
    tape.backward()
    _optimize(writer)
    meta = Meta(
        producer="wavecast, from sizes",
        capture="shapes",
        framework=FRAMEWORKS.get(kernels.attention, OTHER_FRAMEWORK),
        has_shapes=True,
        workload=Workload(name=sizes.name, mode="training", batch_size=batch, samples_per_iteration=batch),
    )
    return tape.finish(meta)


def _joined(writer: Writer, x: Variable) -> Variable:
    """Write x beside the next token's embedding, each after a norm, and their product [2 hidden, hidden]."""
    hidden = writer.sizes.hidden
    beside, inner = writer.activation(*x.shape), _norm(writer, x, "hnorm")
    whole = writer.write("aten::cat", ((_norm(writer, beside, "enorm"), inner), 2), *x.shape[:2], 2 * hidden)

    @writer.tape.undoes(whole)
    def undo(outer: Variable) -> None:
        piece = writer.tape.tensor(outer.spec.dtype, *x.shape, strides=outer.spec.strides, view_of=outer)
        writer.tape.op("aten::slice", (outer, 2, hidden, 2 * hidden, 1), piece)
        writer.tape.add_gradient(inner, piece)

    return linear(writer, whole, hidden, "eh_proj")


def _scale(writer: Writer, x: Variable, factor: Operand = 1.0) -> Variable:
    """Write a product with a factor that nothing learns from, one pass each way.

    By default the embedding's dropout or scale: ranks that share the table add up what they found before it.
    """
    found = writer.write("aten::mul", (x, factor), *x.shape)
    return writer.passes_back(found, x, lambda outer: writer.write("aten::mul", (outer, factor), *x.shape))


def _norm(writer: Writer, x: Variable, name: str) -> Variable:
    """Write a norm; layer norms have a kernel of their own everywhere."""
    is_split = writer.kernels.is_eager and writer.sizes.has_rms_norm
    return root_mean_square_norm(writer, x, name) if is_split else norm(writer, x, name)


def _layer(writer: Writer, x: Variable) -> Variable:
    """Write a layer: both blocks after a norm, and around them the sums."""
    inner = _norm(writer, x, "input_layernorm")
    with writer.tape.module("self_attn"):
        mixed = attention(writer, inner)
    x = add(writer, x, mixed)
    inner = _norm(writer, x, "post_attention_layernorm")
    with writer.tape.module("mlp"):
        found = experts(writer, inner) if writer.sizes.experts else feed_forward(writer, inner)
        if writer.sizes.shared_experts:
            with writer.tape.module("shared_experts"):
                shared = feed_forward(writer, inner, writer.sizes.shared_experts * writer.sizes.moe_ffn)
            found = add(writer, found, shared)
    return add(writer, x, found)


def _optimize(writer: Writer) -> None:
    """Write an AdamW step over all that was trained, moments in float32: fused, or as Composer writes its formula."""
    tape = writer.tape
    stepped = [item for item in writer.trained if item.row in tape.gradient]
    grads = [tape.gradient[item.row] for item in stepped]
    moments = [[tape.tensor(FLOAT, *item.shape) for item in stepped] for _ in range(2)]
    if not writer.kernels.is_optimizer_fused:
        _step_by_step(writer, stepped, grads, moments)
        return
    steps = [tape.tensor(FLOAT) for _ in stepped]
    arguments = (stepped, grads, *moments, [], steps)
    tape.op("aten::_fused_adamw_", (*arguments, 1e-4, 0.9, 0.95, 0.1, 1e-8, False, False))


def _step_by_step(
    writer: Writer, stepped: list[Variable], grads: list[Variable], moments: list[list[Variable]]
) -> None:
    """Write m = 0.9 m + 0.1 g, v = 0.95 v + 0.05 g g, p = p - s m / (sqrt(v) / c + eps), an op per operation.

    Lists stand for the few flat parameters that FSDP has for each layer.
    """
    tape, (mean, square) = writer.tape, moments
    root = [tape.tensor(FLOAT, *item.shape) for item in stepped]
    tape.op("aten::_foreach_mul_", (mean, 0.9), *mean)
    tape.op("aten::_foreach_add_", (mean, grads, 0.1), *mean)
    tape.op("aten::_foreach_mul_", (square, 0.95), *square)
    tape.op("aten::_foreach_addcmul_", (square, grads, grads, 0.05), *square)
    tape.op("aten::_foreach_sqrt", (square,), *root)
    tape.op("aten::_foreach_div_", (root, 1.0), *root)
    tape.op("aten::_foreach_add_", (root, 1e-8), *root)
    tape.op("aten::_foreach_addcdiv_", (stepped, mean, root, -1e-4), *stepped)


FUSED = {
    AttentionKernel.CUDNN: "aten::_scaled_dot_product_cudnn_attention",
    AttentionKernel.FLASH2: "aten::_scaled_dot_product_flash_attention",
    AttentionKernel.FLASH1: "flash_attn_triton::_flash_attn_forward",
}
VALUE = 2
"""Position of the values, after queries and keys."""


def attention(writer: Writer, x: Variable) -> Variable:
    """Write queries, keys and values, their rotation, the fused kernel and the output's product."""
    sizes = writer.sizes
    heads, kv_heads, width = sizes.heads, sizes.kv_heads, sizes.head_dim
    if sizes.query_rank:
        query, key, value = _latent(writer, x)
    elif writer.kernels.is_fused:
        query, key, value = _split(writer, linear(writer, x, (heads + 2 * kv_heads) * width, "qkv_proj"))
    else:
        query = _heads(writer, linear(writer, x, heads * width, "q_proj"), heads)
        key = _heads(writer, linear(writer, x, kv_heads * width, "k_proj"), kv_heads)
        value = _heads(writer, linear(writer, x, kv_heads * width, "v_proj"), kv_heads)
    if sizes.has_head_norms:
        query, key = _norm(writer, query, "q_norm"), _norm(writer, key, "k_norm")
    if sizes.has_rotary:
        turn = _rotate if writer.kernels.is_rotation_fused else rotate
        query, key = turn(writer, query), turn(writer, key)
    mixed = _mix(writer, query, key, value)
    return linear(writer, mixed, sizes.hidden, "o_proj")


def _latent(writer: Writer, x: Variable) -> tuple[Variable, Variable, Variable]:
    """Write queries, and keys and values, from few features of their own (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Keys' rotary part, which heads share, is drawn for each head.
    """
    sizes, plain = writer.sizes, writer.sizes.heads * writer.sizes.head_dim
    deep = plain + sizes.heads * sizes.rotary_dim

    def drawn(inner: Variable, out: int, name: str) -> Variable:
        wide = linear(writer, inner, out, name, recomputes=writer.kernels.recomputes_latent)
        return _heads(writer, wide, sizes.heads)

    inner = norm(writer, linear(writer, x, sizes.query_rank, "q_a_proj"), "q_a_layernorm")
    query = drawn(inner, deep, "q_b_proj")
    inner = norm(writer, linear(writer, x, sizes.key_rank, "kv_a_proj"), "kv_a_layernorm")
    return query, drawn(inner, deep, "k_b_proj"), drawn(inner, plain, "v_b_proj")


def _heads(writer: Writer, x: Variable, heads: int) -> Variable:
    """Write [batch, tokens, heads, width] of [batch, tokens, heads x width]."""
    found = writer.view(x, *x.shape[:2], heads, x.shape[2] // heads)
    return writer.passes_back(found, x, lambda outer: writer.view(outer, *x.shape))


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
            whole = copied(writer, piece)
            found.append(writer.view(whole, batch, tokens, kv_heads * count, width))
        else:
            flat = (steps[0], steps[1], steps[2], steps[4])
            head = tape.tensor(dtype, batch, tokens, kv_heads, width, strides=flat, view_of=grouped)
            tape.op("aten::squeeze", (piece, 3), head)
            if len(found) == VALUE:
                head = copied(writer, head)
            found.append(head)
    query, key, value = found

    @tape.undoes(query)
    def undo(_: Variable) -> None:
        grads = [tape.gradient[item.row] for item in found]
        pieces = [writer.view(item, batch, tokens, kv_heads, item.shape[2] // kv_heads, width) for item in grads]
        whole = writer.write("aten::cat", (pieces, 3), *grouped.shape, dtype=dtype)
        tape.add_gradient(x, writer.view(whole, *x.shape))

    return query, key, value


def _rotate(writer: Writer, x: Variable) -> Variable:
    """Write a fused rotary embedding: every element read and written once each way."""
    return _scale(writer, x, writer.activation(1, x.shape[1], 1, x.shape[3]))


def _mix(writer: Writer, *operands: Variable) -> Variable:
    """Write the fused kernel: softmax(Q Kᵀ / √d) V, [batch, tokens, heads x width]."""
    tape, sizes, kernels = writer.tape, writer.sizes, writer.kernels
    batch, tokens = writer.batch, writer.tokens
    turned = [_swap(writer, item) for item in operands]
    out = _heads_first(writer, batch, tokens, sizes.heads, sizes.head_dim)
    spread = tape.tensor(FLOAT, batch, sizes.heads, tokens)
    kind, causal, scale = kernels.attention, sizes.is_causal, operands[0].shape[-1] ** -0.5
    arguments = {
        AttentionKernel.CUDNN: (*turned, None, True, 0.0, causal, False, scale),
        AttentionKernel.FLASH2: (*turned, 0.0, causal, False, scale),
        AttentionKernel.FLASH1: (*operands, None, causal, scale),
    }
    row = tape.op(FUSED[kind], arguments[kind], out, spread)
    plain = _swap(writer, out)
    result = writer.view(plain, batch, tokens, sizes.heads * sizes.head_dim)

    @tape.undoes(result, row)
    def undo(grad: Variable) -> None:
        flat = writer.view(grad, batch, tokens, sizes.heads, sizes.head_dim)
        grad = _swap(writer, flat)
        found = [_heads_first(writer, batch, tokens, *item.shape[1::2]) for item in turned]
        flags = (None, None, tokens, tokens, 0.0, causal)
        backward = {
            AttentionKernel.CUDNN: (grad, *turned, out, spread, None, None, None, *flags, scale),
            AttentionKernel.FLASH2: (grad, *turned, out, spread, *flags, None, None, scale),
            AttentionKernel.FLASH1: (flat, *operands, plain, spread, *operands, None, causal, scale),
        }
        tape.op(f"{FUSED[kind].removesuffix('_forward')}_backward", backward[kind], *found)
        for item, gradient in zip(operands, found, strict=True):
            tape.add_gradient(item, _swap(writer, gradient))

    return result


def _heads_first(writer: Writer, batch: int, tokens: int, heads: int, width: int) -> Variable:
    """Return a new [batch, heads, tokens, width] whose memory is [batch, tokens, heads, width]."""
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
