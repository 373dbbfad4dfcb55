"""What an XLA instruction computes, as PyTorch's op with its inputs: products, convolutions, attention, fusions."""

import re
from math import prod
from typing import Final

from ..trace.column import MAX_SCALAR, is_countable
from ..trace.signature import UNKNOWN, Argument, Signature, TensorSpec

_DTYPES: Final = {
    "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "s8": "int8", "s32": "int32",
    "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2fnuz": "float8_e5m2fnuz", "s16": "int16", "s64": "int64", "u8": "uint8", "pred": "bool",
}  # fmt: skip
_MOST_CHARACTERS: Final = 1 << 16
_SHAPE: Final = re.compile(r"\b(pred|[a-z]+[0-9]+(?:e[0-9]+m[0-9]+\w*)?)\[([0-9,]{0,200})\]")
_INSTRUCTION: Final = re.compile(
    r"=\s*(?P<result>\(?[a-z][^=]*?)\s(?P<opcode>[a-z][a-z-]*)\((?P<operands>[^()]*)\)(?P<rest>.*)", re.DOTALL
)
_GEMM_TARGET: Final = re.compile(r'custom_call_target="__cublas\$(?:lt\$)?(?:gemm|matmul)(?:\$f8)?"')
_SIDES: Final = ("lhs", "rhs")
_Tensor = tuple[str, tuple[int, ...]]
Call = tuple[str, Signature]
_CONVOLUTION_TARGET: Final = re.compile(
    r'custom_call_target="__cudnn\$conv(?P<what>Forward|Bias|BackwardInput|BackwardFilter)'
)
_ATTENTION_TARGET: Final = re.compile(r'custom_call_target="__cudnn\$fmha(?P<rest>\w*)"')
_LABELS: Final = re.compile(r"dim_labels=([0-9bf]{2,8})_([0-9io]{2,8})->([0-9bf]{2,8})")
_WINDOW: Final = re.compile(r"(size|stride|pad|lhs_dilate|rhs_dilate)=([0-9x_-]{1,100})")
_ROOT: Final = re.compile(r"root=([a-z-]+)")
_POINTWISE: Final = ("aten::relu", "aten::add", "aten::addcmul")
"""One, two or three tensors of a size into one: what a fused loop reads and writes decides."""


def read_call(text: str) -> Call | None:
    """Return the op and inputs that an instruction amounts to; None where the text does not tell.

    >>> read_call("%f = f32[64]{0} fusion(f32[64]{0} %a, f32[64]{0} %b), kind=kLoop")[0]
    'aten::add'
    """
    match = _INSTRUCTION.search(text) if len(text) <= _MOST_CHARACTERS else None
    if match is None:
        return None
    operands, results = _tensors(match["operands"]), _tensors(match["result"])
    product = read_product(text)
    if product or not operands or not results or not all(is_countable(shape) for _, shape in (*operands, *results)):
        return product
    convolution, attention = (pattern.search(match["rest"]) for pattern in (_CONVOLUTION_TARGET, _ATTENTION_TARGET))
    if convolution or match["opcode"] == "convolution":
        return _read_convolution(operands, results, match["rest"], convolution["what"] if convolution else "Forward")
    if attention:
        return _read_attention(operands, match["rest"], is_backward="Backward" in attention["rest"])
    return _read_fusion(operands, results, text) if match["opcode"] in ("fusion", "reduce") else None


def _read_convolution(operands: list[_Tensor], results: list[_Tensor], rest: str, what: str) -> Call | None:
    """Return a convolution, or one of its gradients; windows and labels are the forward pass's in each."""
    labels, window = _LABELS.search(rest), dict(_WINDOW.findall(rest))
    if labels is None or len(operands) < 2 or "size" not in window:
        return None
    first, second, result = operands[0], operands[1], results[0]
    sides = {"BackwardInput": (result, second, first), "BackwardFilter": (first, result, second)}
    x, weight, out = sides.get(what, (first, second, result))
    found = [
        _ordered(tensor, label, order)
        for tensor, label, order in zip((x, weight, out), labels.groups(), ("bf", "oi", "bf"), strict=True)
    ]
    rank = len(window["size"].split("x"))
    if any(item is None or len(item.shape) != rank + 2 for item in found):
        return None
    pads = [part.split("_")[0] for part in window.get("pad", "x".join(["0"] * rank)).split("x")]
    stride, dilation = (_numbers(window.get(name, ""), rank, 1) for name in ("stride", "rhs_dilate"))
    padding = tuple(int(part) if part.isdigit() else 0 for part in pads)
    groups = re.search(r"feature_group_count=([0-9]{1,9})", rest)
    count = int(groups[1]) if groups else 1
    image, kernel, gradient = found
    if image is None or kernel is None or gradient is None or len(padding) != rank:
        return None
    settings: tuple[Argument, ...] = (stride, padding, dilation, False, (0,) * rank, count)
    if what.startswith("Backward"):
        mask: Argument = (what == "BackwardInput", what == "BackwardFilter", False)
        return "aten::convolution_backward", Signature((gradient, image, kernel, None, *settings, mask))
    return "aten::convolution", Signature((image, kernel, None, *settings))


def _ordered(tensor: _Tensor, labels: str, first: str) -> TensorSpec | None:
    """Return a tensor with its two named dimensions first, then those of space in order; None where labels misfit."""
    order = first + "".join(sorted(set(labels) - set(first)))
    if len(labels) != len(tensor[1]) or sorted(order) != sorted(labels):
        return None
    return TensorSpec(tensor[0], tuple(tensor[1][labels.index(label)] for label in order))


def _numbers(text: str, rank: int, default: int) -> tuple[int, ...]:
    parts = text.split("x")
    return tuple(map(int, parts)) if len(parts) == rank and all(part.isdigit() for part in parts) else (default,) * rank


def _read_attention(operands: list[_Tensor], rest: str, *, is_backward: bool) -> Call | None:
    """Return cuDNN's fused attention of queries, keys and values, heads before positions as torch has them."""
    match = re.search(r'"bmm1_dot_dimension_numbers":\{[^}]*?"lhs_batch_dimensions":\[([0-9," ]{0,40})\]', rest)
    batch = [int(part) for part in re.findall(r"[0-9]", match[1])] if match else [0, 1]
    if len(operands) < 3 or len(batch) != 2 or any(len(shape) != 4 for _, shape in operands[:3]) or max(batch) > 2:
        return None
    place = 3 - sum(batch)
    query, key, value = (
        TensorSpec(dtype, tuple(shape[at] for at in (*batch, place, 3))) for dtype, shape in operands[:3]
    )
    is_causal = "CAUSAL" in rest
    if not is_backward:
        arguments: tuple[Argument, ...] = (query, key, value, None, False, 0.0, is_causal)
        return "aten::_scaled_dot_product_cudnn_attention", Signature(arguments)
    out = TensorSpec(query.dtype, (*query.shape[:3], value.shape[3]))
    unknown: tuple[Argument, ...] = (UNKNOWN,) * 5
    sums = TensorSpec("float32", query.shape[:3])
    arguments = (out, query, key, value, out, sums, UNKNOWN, UNKNOWN, None, *unknown, is_causal)
    return "aten::_scaled_dot_product_cudnn_attention_backward", Signature(arguments)


def _read_fusion(operands: list[_Tensor], results: list[_Tensor], text: str) -> Call | None:
    """Return a fused loop as one that reads as much: a reduction, or up to three tensors into one of their size."""
    root = _ROOT.search(text)
    largest = max(operands, key=lambda tensor: prod(tensor[1]))
    source, result = TensorSpec(*largest), TensorSpec(*results[0])
    is_reduction = "reduce" in (root[1] if root else text.partition("=")[0]) and " reduce-" not in text
    if is_reduction and len(result.shape) < len(source.shape):
        kept = list(result.shape)
        dims = tuple(at for at, size in enumerate(source.shape) if not (kept and kept[0] == size and [kept.pop(0)]))
        return None if kept else ("aten::sum", Signature((source, dims, False, None), (result,)))
    same = [TensorSpec(*tensor) for tensor in operands if prod(tensor[1]) == result.element_count][: len(_POINTWISE)]
    if not same or is_reduction:
        return None
    alike = tuple(TensorSpec(item.dtype, result.shape) for item in same)
    return _POINTWISE[len(alike) - 1], Signature(alike, (result,))


def read_product(text: str) -> Call | None:
    """Return the op and inputs of a `dot`, or of a call of cuBLAS for one; None for other instructions.

    Operands are taken as contiguous with their contracted dimension inside, which is what XLA's layouts amount to.

    >>> read_product("%dot.1 = f32[8,4]{1,0} dot(f32[8,2]{1,0} %a, f32[2,4]{1,0} %b), "
    ...              "lhs_contracting_dims={1}, rhs_contracting_dims={0}")[0]
    'aten::mm'
    """
    match = _INSTRUCTION.search(text) if len(text) <= _MOST_CHARACTERS else None
    if match is None or (match["opcode"] != "dot" and not _GEMM_TARGET.search(match["rest"])):
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
