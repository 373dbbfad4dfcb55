"""A one-GPU recording of a transformer's training iteration, written from its sizes: no torch, no weights."""

from __future__ import annotations

from typing import Final

from .....formats.trace.tables import Meta, Trace, Workload
from .....specs.attention_kernels import AttentionKernel
from ....recorded.tape import FLOAT, Tape, Variable
from .attention import attention
from .blocks import activate, embed, feed_forward, loss, norm
from .products import BACKWARD_FP8, FORWARD_FP8, Writer, add, linear
from .sizes import Kernels, TransformerSizes

FRAMEWORKS: Final = {AttentionKernel.CUDNN: "torch 2.5.0"}
OTHER_FRAMEWORK: Final = "torch 2.4.0"
"""That the recordings name: 2.5.0 puts cuDNN's attention first where a GPU has it, 2.4.0 does not."""


def synthesise(sizes: TransformerSizes, kernels: Kernels, batch: int, tokens: int) -> Trace:
    """Return what `wavecast record --shapes-only` would write of one iteration of `batch` samples of `tokens` each.

    Module paths are transformers': `model.layers.0.self_attn.o_proj`. Weights that run in fp8 are held in fp8, as
    Transformer Engine keeps them between micro batches; gradients and moments are what the optimizer reads and writes.
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
            x = norm(writer, x, "norm")
        logits = linear(
            writer, x, sizes.vocab, "lm_head", weight=table if sizes.is_tied else None, is_wide=True
        )  # fmt: skip
        loss(writer, logits)
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


def _scale(writer: Writer, x: Variable) -> Variable:
    """Write the embedding's dropout or scale, one pass: ranks that share the table add up what they found before it."""
    found = writer.activation(*x.shape)
    row = writer.tape.op("aten::mul", (x, 1.0), found)

    def undo() -> None:
        if found.row in writer.tape.gradient:
            grad = writer.activation(*x.shape)
            writer.tape.op("aten::mul", (writer.tape.gradient[found.row], 1.0), grad)
            writer.tape.add_gradient(x, grad)

    writer.tape.differentiate(row, undo)
    return found


def _layer(writer: Writer, x: Variable) -> Variable:
    """Write a layer: both blocks after a norm, and around them the sums."""
    inner = norm(writer, x, "input_layernorm")
    with writer.tape.module("self_attn"):
        mixed = attention(writer, inner)
    x = add(writer, x, mixed)
    inner = norm(writer, x, "post_attention_layernorm")
    with writer.tape.module("mlp"):
        found = experts(writer, inner) if writer.sizes.experts else feed_forward(writer, inner)
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
