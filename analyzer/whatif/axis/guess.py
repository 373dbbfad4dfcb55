"""Judges by sizes alone which dimensions hold an axis, for traces that do not identify tensors."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from ....formats.trace.signature import TensorSpec
from ....formats.trace.tables import Phase, Trace
from ..calls import SignatureLayout, layout_of, short_name
from .axis import Axis, Carry
from .rules import WEIGHTS

_PRODUCTS = {"mm": 0, "addmm": 1, "_addmm_activation": 1, "linear": 0, "matmul": 0}
"""Where products take the operand whose rows are samples."""
_BATCHED = {"bmm": 0, "baddbmm": 1}
"""Products of batches, and of heads inside them: both operands begin with them."""


@dataclass(slots=True)
class Guess:
    """Hold the axis and the sizes that rows of samples have in the forward products, e.g. batch times length."""

    axis: Axis
    row_counts: frozenset[int]
    _memory: dict[tuple[str, int, bool], tuple[Carry, ...]] = field(default_factory=dict)

    def carries(self, name: str, number: int, layout: SignatureLayout, phase: int) -> tuple[Carry, ...]:
        """Return which dims of each input hold the axis."""
        backward = phase == Phase.BACKWARD
        key = (name, number, backward)
        if key not in self._memory:
            self._memory[key] = self._judge(name, layout, backward)
        return self._memory[key]

    def _judge(self, name: str, layout: SignatureLayout, backward: bool) -> tuple[Carry, ...]:
        weights = WEIGHTS.get(name, ())
        first = _PRODUCTS.get(name)
        if backward and name == "mm" and len(layout.inputs) == 2:
            return self._backward_product(layout.inputs[0], layout.inputs[1])
        if backward and name == "t":
            weights = ()
        return tuple(
            self._dims(spec)
            if position not in weights and (first is None or position == first or len(spec.shape) > 2)
            else (0,) * len(spec.shape)
            for spec, position in zip(layout.inputs, layout.input_positions, strict=True)
        )

    def _dims(self, spec: TensorSpec) -> Carry:
        """Return the first dim where it is rows; of tokens also what has exactly their number."""
        rank = len(spec.shape)
        if rank and self._holds(spec.shape[0]):
            return (self._inner(spec.shape[0]), *(0,) * (rank - 1))
        return (0,) * rank if self.axis.is_batch or rank < 2 else self.axis.dims_of(spec.shape)

    def _holds(self, size: int) -> bool:
        return size in self.row_counts or (self.axis.is_batch and size == self.axis.before)

    def _inner(self, size: int) -> int:
        return size // self.axis.before if self.axis.is_batch else 1

    def _backward_product(self, left: TensorSpec, right: TensorSpec) -> tuple[Carry, ...]:
        """[n, rows] @ [rows, k] is a weight's gradient, [rows, n] @ [n, k] an input's."""
        (m, k), n = left.shape, right.shape[1]
        if self._holds(k) and not (self._holds(m) and m > k):
            return ((0, self._inner(k)), (self._inner(k), 0))
        if self._holds(m):
            return ((self._inner(m), 0), (0, 0))
        return ((0, 0), (0, self._inner(n) if self._holds(n) else 0))


def build_guess(trace: Trace, axis: Axis) -> Guess:
    """Collect the leading sizes of forward products that are multiples of the batch, or all tokens of the samples."""
    if not axis.is_batch:
        return Guess(axis, frozenset([axis.samples * axis.before] if axis.samples else []))
    forward = (trace.ops.phase != Phase.BACKWARD) & (trace.ops.signature >= 0)
    pairs = np.unique(np.stack([trace.ops.name[forward], trace.ops.signature[forward]]), axis=1)
    counts: Counter[int] = Counter()
    for name, number in zip(*pairs.tolist(), strict=True):
        short = short_name(trace.strings[name])
        first = _PRODUCTS.get(short, _BATCHED.get(short))
        if first is None:
            continue
        layout = layout_of(trace.signatures[number])
        for spec, position in zip(layout.inputs, layout.input_positions, strict=True):
            is_rows = len(spec.shape) == (3 if short in _BATCHED else 2)
            if position == first and is_rows and spec.shape[0] % axis.before == 0:
                counts[spec.shape[0]] += 1
    return Guess(axis, frozenset(counts))
