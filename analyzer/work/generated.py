"""Kernels that inductor generated, which profilers name as ops of their own: `triton_poi_fused_add_mul_3`.

The name says what they do: `poi` computes element by element, `red` and `per` reduce rows (in a loop, or held in
registers). The call's tensors are what the kernel reads and writes, each once; which are which, it does not say.
"""

from __future__ import annotations

from ...formats.trace.signature import Signature, TensorSpec
from .arguments import LackingArgumentError
from .registry import GENERATED_POINTWISE, GENERATED_REDUCTION, Formula, register
from .traffic import tensor_bytes
from .work import Family, Work


def _moves_all(family: Family) -> Formula:
    """Return the formula of a kernel that moves each tensor of its call once and computes little."""

    def formula(call: Signature) -> Work:
        tensors: tuple[TensorSpec, ...] = call.tensors()
        if not tensors:
            raise LackingArgumentError("the tensors of a generated kernel")
        *read, written = tensors
        return Work(
            family=family,
            flops=float(max(tensor.element_count for tensor in tensors)),
            read_bytes=sum(map(tensor_bytes, read)),
            written_bytes=tensor_bytes(written),
            dtype=max(tensors, key=tensor_bytes).dtype,
        )

    return formula


register(GENERATED_POINTWISE, family=Family.ELEMENTWISE)(_moves_all(Family.ELEMENTWISE))
register(GENERATED_REDUCTION, family=Family.REDUCTION)(_moves_all(Family.REDUCTION))
