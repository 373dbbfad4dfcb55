"""Norms and rotary embeddings in the single operations of their formulas, as uncompiled PyTorch models run them.

Both are taken in float32 of 16-bit activations and given back in 16 bits: `torch.nn.functional.rms_norm` until it had a
kernel of its own, and the models of transformers and torchtitan.
"""

from __future__ import annotations

from ....recorded.tape import FLOAT, Variable
from .products import Writer


def root_mean_square_norm(writer: Writer, x: Variable, name: str) -> Variable:
    """Write y = w x / sqrt(mean(x²) + eps), and its gradients."""
    tape, hidden = writer.tape, x.shape[-1]
    with tape.module(name):
        weight, wide = writer.parameter(hidden), writer.cast(x, FLOAT)
        square, mean = tape.tensor(FLOAT, *x.shape), tape.tensor(FLOAT, *x.shape[:-1], 1)
        tape.op("aten::pow", (wide, 2), square)
        tape.op("aten::mean", (square, (-1,), True, None), mean)
        root = tape.tensor(FLOAT, *mean.shape)
        tape.op("aten::rsqrt", (mean,), root)
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
    tape = writer.tape
    angle = tape.tensor(FLOAT, 1, x.shape[1], 1, x.shape[3])
    found = writer.cast(_times(writer, writer.cast(x, FLOAT), angle), x.spec.dtype)

    @tape.undoes(found)
    def undo(outer: Variable) -> None:
        tape.add_gradient(x, writer.cast(_times(writer, writer.cast(outer, FLOAT), angle), x.spec.dtype))

    return found


def _times(writer: Writer, a: Variable, b: Variable) -> Variable:
    """Write the product of each element of `a` with that of `b`, which may be shared along some dims."""
    return writer.write("aten::mul", (a, b), *a.shape, dtype=a.spec.dtype)
