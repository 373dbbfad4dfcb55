"""A linear layer as torch records it, forward and backward: in 16 bits, cast to fp8, with an adapter beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Final

from ....recorded.tape import FLOAT, Tape, Variable
from .sizes import Kernels, TransformerSizes

FORWARD_FP8: Final = "float8_e4m3fn"
BACKWARD_FP8: Final = "float8_e5m2"
"""Of gradients: Transformer Engine's hybrid recipe."""


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
    """Activations in fp8, by the row of what they were cast from."""

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

    def cast_once(self, x: Variable, flat: Variable) -> Variable:
        """Write an activation's cast to fp8, the first time that a product asks for it."""
        if x.row not in self.casts:
            self.casts[x.row] = self.cast(flat, FORWARD_FP8)
        return self.casts[x.row]

    def product(self, a: Variable, b: Variable, dtype: str, addend: Variable | None = None) -> Variable:
        """Write [m, k] @ [k, n] of 16-bit or fp8 operands, into the addend where there is one; a bias [n] is added."""
        is_bias = addend is not None and len(addend.shape) == 1
        found = self.tape.tensor(dtype, a.shape[0], b.shape[1], view_of=None if is_bias else addend)
        if a.spec.dtype.startswith("float8"):
            one = self.tape.tensor(FLOAT)
            self.tape.op("aten::_scaled_mm", (a, b, one, one, addend, None, dtype, False), found)
        elif addend is not None:
            self.tape.op("aten::addmm", (addend, a, b), found)
        else:
            self.tape.op("aten::mm", (a, b), found)
        return found


def linear(
    writer: Writer, x: Variable, out: int, name: str, *, weight: Variable | None = None, is_wide: bool = False
) -> Variable:
    """Write y = x Wᵀ of x [..., in] and W [out, in], and an adapter's share; `is_wide` stays out of fp8."""
    tape, kernels, inner = writer.tape, writer.kernels, x.shape[-1]
    rows, is_fp8 = prod(x.shape[:-1]), kernels.is_fp8 and not is_wide
    with tape.module(name):
        if weight is None:
            weight = writer.parameter(out, inner, dtype=FORWARD_FP8 if is_fp8 else None)
        bias = writer.parameter(out) if writer.sizes.has_bias and not is_wide else None
        turned, flat = writer.turn(weight), writer.view(x, rows, inner)
        flat = writer.cast_once(x, flat) if is_fp8 else flat
        y = writer.product(flat, turned, kernels.dtype, bias)
        row = tape.last
        result = writer.view(y, *x.shape[:-1], out, name="aten::_unsafe_view")
        if bias is not None:
            _differentiate_bias(writer, row, bias, result)
        _differentiate(writer, row, (x, weight, turned, flat, result), is_fp8=is_fp8)
        if kernels.lora_rank and not is_wide and name in kernels.lora_products:
            return _adapted(writer, x, result, out)
    return result


def _differentiate(
    writer: Writer, row: int, saved: tuple[Variable, Variable, Variable, Variable, Variable], *, is_fp8: bool
) -> None:
    """Remember ∂W = gᵀ x, ∂x = g W."""
    x, weight, turned, flat, result = saved
    tape, kernels = writer.tape, writer.kernels

    def undo() -> None:
        grad = tape.gradient.get(result.row)
        if grad is None:
            return
        grad = writer.view(grad, prod(x.shape[:-1]), result.shape[-1])
        grad = writer.cast(grad, BACKWARD_FP8) if is_fp8 else grad
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
