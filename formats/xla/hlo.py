"""Turns the text of an HLO instruction into the op of PyTorch that does the same, where nothing of it is in doubt."""

from __future__ import annotations

import re
from math import prod
from typing import Final

from ..trace.limits import MAX_SCALAR, is_countable
from ..trace.signature import Signature, TensorSpec

_DTYPES: Final = {
    "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "s8": "int8", "s32": "int32",
    "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2",
}  # fmt: skip
_MOST_CHARACTERS: Final = 1 << 16
_SHAPE: Final = re.compile(r"\b([a-z]+[0-9]+(?:e[0-9]+m[0-9]+\w*)?)\[([0-9,]{0,200})\]")
_PRODUCT: Final = re.compile(
    r"=\s*(?P<result>\(?[a-z][^=]*?)\s(?:dot|custom-call)\((?P<operands>[^()]*)\)(?P<rest>.*)", re.DOTALL
)
_GEMM_TARGET: Final = re.compile(r'custom_call_target="__cublas\$(?:lt\$)?(?:gemm|matmul)(?:\$f8)?"')
_SIDES: Final = ("lhs", "rhs")
_Tensor = tuple[str, tuple[int, ...]]
Call = tuple[str, Signature]


def read_product(text: str) -> Call | None:
    """Return the op and inputs of a `dot`, or of a call of cuBLAS for one; None for other instructions.

    Operands are taken as contiguous with their contracted dimension inside, which is what XLA's layouts amount to.

    >>> read_product("%dot.1 = f32[8,4]{1,0} dot(f32[8,2]{1,0} %a, f32[2,4]{1,0} %b), "
    ...              "lhs_contracting_dims={1}, rhs_contracting_dims={0}")[0]
    'aten::mm'
    """
    match = _PRODUCT.search(text) if len(text) <= _MOST_CHARACTERS else None
    if match is None or (" dot(" not in text and not _GEMM_TARGET.search(match["rest"])):
        return None
    tensors = _tensors(match["operands"])
    if len(tensors) < 2:
        return None
    left, right = (_part(tensor, match["rest"], side) for tensor, side in zip(tensors, _SIDES, strict=False))
    if left is None or right is None:
        return None
    (batch, rows, depth), (other_batch, columns, other_depth) = left, right
    results = _tensors(match["result"])
    if batch != other_batch or depth != other_depth or not results or prod(results[0][1]) != batch * rows * columns:
        return None
    shapes = ((rows, depth), (depth, columns)) if batch == 1 else ((batch, rows, depth), (batch, depth, columns))
    if not all(is_countable(shape) for shape in shapes):
        return None
    inputs = tuple(TensorSpec(tensor[0], shape) for tensor, shape in zip(tensors, shapes, strict=False))
    return ("aten::mm" if batch == 1 else "aten::bmm"), Signature(inputs)


def _tensors(text: str) -> list[_Tensor]:
    """Return the tensors that a text names whose dtypes are known; none where one is not."""
    found = []
    for name, sizes in _SHAPE.findall(text):
        shape = tuple(int(size) for size in sizes.split(",") if size)
        if name not in _DTYPES or any(size > MAX_SCALAR for size in shape):
            return []
        found.append((_DTYPES[name], shape))
    return found


def _part(tensor: _Tensor, rest: str, side: str) -> tuple[int, int, int] | None:
    """Return batch, free and contracted sizes of an operand; None where the text does not tell."""
    shape = tensor[1]
    contracted, batch = _dimensions(rest, side, "contracting"), _dimensions(rest, side, "batch") or ()
    if (
        not contracted
        or max((*contracted, *batch)) >= len(shape)
        or len({*contracted, *batch}) < len((*contracted, *batch))
    ):
        return None
    free = [size for at, size in enumerate(shape) if at not in contracted and at not in batch]
    return prod(shape[at] for at in batch), prod(free), prod(shape[at] for at in contracted)


def _dimensions(rest: str, side: str, kind: str) -> tuple[int, ...] | None:
    """Return the numbers of an operand's dimensions, as HLO or as the backend's configuration writes them."""
    match = re.search(rf'{side}_{kind}_dim(?:s=\{{|ensions":\s*\[)([0-9," ]{{0,100}})[}}\]]', rest)
    return tuple(map(int, re.findall(r"[0-9]{1,3}", match[1]))) if match else None
