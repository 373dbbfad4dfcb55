"""The calls of a recorded workload that measurement tables can hold, as cases to be measured."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Final

import numpy as np
import torch
from torch import Tensor

from ...formats.trace.column import MISSING
from ...formats.trace.signature import Argument, TensorSpec
from ...formats.trace.tables import Precision, Trace
from .cases import COLD_COPIES, DTYPES, HALVES, AttentionSizes, Case, ConvolutionSizes, attention, convolution
from .vector_cases import vector

Arguments = Sequence[Argument]
Read = Callable[[Arguments, Precision], Case | None]
"""Returns the case of a call; None where its table has no row for it."""

BALANCE_FLOPS_PER_BYTE: Final = 150.0
"""A100's dense bf16 rate over its bandwidth: only orders the calls by their share of the time."""
_RUNS: Final[Mapping[str, Callable[..., Tensor]]] = {"mm": torch.mm, "addmm": torch.addmm, "bmm": torch.bmm}
_PLAIN_NAMES: Final = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def trace_cases(trace: Trace, *, has_tf32: bool = True) -> dict[str, list[Case]]:
    """Return the distinct calls of a trace by family, those first that take most of the time.

    On a GPU without TF32, what was recorded with it is fp32.
    """
    switches = trace.meta.precision
    precision = switches if has_tf32 else replace(switches, matmul_tf32=False, cudnn_tf32=False)
    known = {number: CALLS[name] for number, name in enumerate(trace.strings) if name in CALLS}
    names, signatures = np.asarray(trace.ops.name), np.asarray(trace.ops.signature)
    is_known = np.isin(names, list(known)) & (signatures != MISSING)
    pairs, counts = np.unique(np.c_[names, signatures][is_known], axis=0, return_counts=True)
    cases: dict[str, dict[object, Case]] = defaultdict(dict)
    seconds: dict[object, float] = defaultdict(float)
    for (name, signature), count in zip(pairs.tolist(), counts.tolist(), strict=True):
        family, read = known[name]
        case = _read(read, trace.signatures[signature].arguments, precision)
        if case is not None:
            key = (case.table, *case.row.values())
            cases[family].setdefault(key, case)
            moved_bytes = case.elements * DTYPES[case.row["dtype"]].itemsize
            seconds[key] += count * max(case.flops / BALANCE_FLOPS_PER_BYTE, moved_bytes)  # at least, up to a factor
    return {
        family: [found[key] for key in sorted(found, key=lambda key: -seconds[key])] for family, found in cases.items()
    }


def _read(read: Read, arguments: Arguments, precision: Precision) -> Case | None:
    """Return None too where the recording lacks arguments, or a tensor dimensions."""
    try:
        return read(arguments, precision)
    except (IndexError, ValueError):
        return None


def _dtype(tensors: Sequence[Argument], *, allows_tf32: bool | None = False) -> str | None:
    """Return the name of the format that all have in the tables; None where there is none, or where one is empty."""
    names = {item.dtype if isinstance(item, TensorSpec) and item.element_count else "" for item in tensors}
    name = _PLAIN_NAMES.get(names.pop()) if len(names) == 1 else None
    return "tf32" if name == "fp32" and allows_tf32 else name


def _product(first: int, arguments: Arguments, precision: Precision) -> Case | None:
    """Return a product whose operands lie in memory as they were recorded; `first` is the left one's place."""
    left, right = arguments[first : first + 2]
    dtype = _dtype((left, right), allows_tf32=precision.matmul_tf32)
    if dtype is None or not isinstance(left, TensorSpec) or not isinstance(right, TensorSpec):
        return None
    *batch, m, k = left.shape
    n = right.shape[-1]
    if len(batch) != len(right.shape) - 2 or right.shape[-2] != k or len(batch) > 1:
        return None
    operands = [left, right]
    bias = arguments[0] if first else None
    if isinstance(bias, TensorSpec) and bias.shape == (n,):
        operands = [bias, left, right]
    run = _RUNS["bmm" if batch else "mm" if len(operands) == 2 else "addmm"]

    def build(device: torch.device) -> Callable[[], object]:
        tensors = [lay_out(item, device, dtype) for item in operands]
        return lambda: run(*tensors)

    count = prod(batch)
    return Case(
        table="matmul",
        row={"op": "bmm" if batch else _layout(left, right, dtype)}
        | {"batch": count, "m": m, "n": n, "k": k, "dtype": dtype},
        build=build,
        flops=2.0 * count * m * n * k,
        elements=float(count * (m * k + k * n + m * n)),
        copies=COLD_COPIES,
    )


def _layout(left: TensorSpec, right: TensorSpec, dtype: str) -> str:
    """Name a product by how its operands lie, as in the tables; plain `mm` has k contiguous in both."""
    is_left_turned = left.strides is not None and left.strides[-1] != 1 and left.shape[-1] > 1
    is_right_turned = right.strides is not None and right.strides[-2] == 1
    if is_right_turned and not is_left_turned:
        return "linear" if dtype == "fp32" else "mm"
    return f"mm_{'t' if is_left_turned else 'n'}{'t' if is_right_turned else 'n'}"


def lay_out(spec: TensorSpec, device: torch.device, dtype: str) -> Tensor:
    """Return random values with a recorded shape and strides."""
    if spec.strides is None:
        return torch.randn(spec.shape, dtype=DTYPES[dtype], device=device)
    return torch.randn(_span(spec), dtype=DTYPES[dtype], device=device).as_strided(spec.shape, spec.strides)


def _span(spec: TensorSpec) -> int:
    """Return the elements from the first to the last, which views may leave some out of."""
    return 1 + sum((length - 1) * stride for length, stride in zip(spec.shape, spec.strides or (), strict=True))


def _is_dense(spec: TensorSpec) -> bool:
    return spec.strides is None or (_span(spec) == spec.element_count and 0 not in spec.strides)


def _attention(causal: int, bias: int | None, arguments: Arguments, _: Precision) -> Case | None:
    """Return an attention without mask or dropout; `causal` and `bias` are the arguments' places."""
    query, key, value = arguments[:3]
    dtype = _dtype((query, key, value))
    if dtype not in HALVES or (bias is not None and arguments[bias] is not None):
        return None
    if not (isinstance(query, TensorSpec) and isinstance(key, TensorSpec) and isinstance(value, TensorSpec)):
        return None
    if len(query.shape) != 4 or len(key.shape) != 4 or key.shape != value.shape or query.shape[3] != key.shape[3]:
        return None
    batch, heads, queries, width = query.shape
    phase = "generation" if queries == 1 else "context" if arguments[causal] is True else "encoder"
    if heads % key.shape[1] or (phase == "context" and queries != key.shape[2]):
        return None
    sizes = AttentionSizes(
        batch=batch, heads=heads, kv_heads=key.shape[1], head_dim=width, seq_q=queries, seq_kv=key.shape[2]
    )
    return attention("attention", phase, str(dtype), sizes)


def _convolution(arguments: Arguments, precision: Precision) -> Case | None:
    """Return a square two-dimensional convolution without groups or dilation; its bias is left out."""
    value, weight = arguments[:2]
    stride, padding, dilation = (_side(item) for item in arguments[3:6])
    is_transposed, _, groups = arguments[6:9]
    dtype = _dtype((value, weight), allows_tf32=precision.cudnn_tf32)
    if dtype is None or not isinstance(value, TensorSpec) or not isinstance(weight, TensorSpec):
        return None
    image, kernel = _side(value.shape[2:]), _side(weight.shape[2:])
    if is_transposed is not False or groups != 1 or dilation != 1 or not stride or None in (image, kernel, padding):
        return None
    sizes = ConvolutionSizes(
        batch=value.shape[0],
        c_in=value.shape[1],
        c_out=weight.shape[0],
        kernel_size=kernel or 0,
        input_size=image or 0,
        stride=stride,
        padding=padding or 0,
    )
    is_channels_last = value.strides is not None and value.strides[1] == 1 and value.shape[1] > 1
    return convolution("convolution", dtype, sizes, is_channels_last=is_channels_last)


def _side(values: object) -> int | None:
    """Return the one size of both dimensions; None where they differ or are not two."""
    return int(values[0]) if isinstance(values, tuple) and len(values) == 2 and values[0] == values[1] else None


def _elementwise(name: str, arguments: Arguments, _: Precision) -> Case | None:
    """Return an op on one or two tensors of one shape and format, or on one and a number."""
    value = arguments[0]
    dtype = _dtype((value,))
    if dtype is None or not isinstance(value, TensorSpec) or not _is_dense(value):
        return None
    if name in _BINARY:
        other = arguments[1]
        if isinstance(other, TensorSpec) and other.shape:
            if (other.dtype, other.shape, other.strides) != (value.dtype, value.shape, value.strides):
                return None
        elif isinstance(other, TensorSpec | int | float):
            name = f"{name}_scalar"
        else:
            return None
    columns = value.shape[-1] if value.shape else 1
    return vector(name, dtype, value.element_count // columns, columns)


def _softmax(arguments: Arguments, precision: Precision) -> Case | None:
    value, dimension = arguments[:2]
    if not isinstance(value, TensorSpec) or dimension not in (-1, len(value.shape) - 1):
        return None
    return _elementwise("softmax", arguments[:1], precision)


def _layer_norm(arguments: Arguments, _: Precision) -> Case | None:
    value, normalized, weight = arguments[:3]
    dtype = _dtype((value, weight))
    if dtype is None or not isinstance(value, TensorSpec) or not isinstance(weight, TensorSpec) or not normalized:
        return None
    return vector("layernorm", dtype, value.element_count // weight.element_count, weight.element_count)


def _embedding(arguments: Arguments, _: Precision) -> Case | None:
    table, ids = arguments[:2]
    dtype = _dtype((table,))
    if dtype is None or not isinstance(table, TensorSpec) or not isinstance(ids, TensorSpec) or not ids.element_count:
        return None
    return vector("embedding", dtype, ids.element_count, table.shape[-1])


_BINARY: Final = ("add", "mul", "div", "pow")
_ELEMENTWISE: Final = (*_BINARY, "relu", "gelu", "tanh")
CALLS: Final[Mapping[str, tuple[str, Read]]] = {
    "aten::mm": ("matmul", partial(_product, 0)),
    "aten::bmm": ("matmul", partial(_product, 0)),
    "aten::addmm": ("matmul", partial(_product, 1)),
    "aten::baddbmm": ("matmul", partial(_product, 1)),
    "aten::_scaled_dot_product_flash_attention": ("attention", partial(_attention, 4, None)),
    "aten::_scaled_dot_product_efficient_attention": ("attention", partial(_attention, 6, 3)),
    "aten::_scaled_dot_product_cudnn_attention": ("attention", partial(_attention, 6, 3)),
    "aten::convolution": ("convolution", _convolution),
    **{f"aten::{name}": ("vector", partial(_elementwise, name)) for name in _ELEMENTWISE},
    **{f"aten::{name}_": ("vector", partial(_elementwise, name)) for name in _ELEMENTWISE},
    "aten::_softmax": ("vector", _softmax),
    "aten::native_layer_norm": ("vector", _layer_norm),
    "aten::embedding": ("vector", _embedding),
}
"""Op → the family whose table holds it, and what reads its arguments."""
