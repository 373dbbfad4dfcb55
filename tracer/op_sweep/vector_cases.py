"""Ops to be measured that are no products: elementwise ones, layer normalization, softmax and embedding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from .cases import DTYPES, Case, make, plain_dtypes, size, spread

BINARY: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "mul": torch.mul,
    "div": torch.div,
    "pow": torch.pow,
}
UNARY: Mapping[str, Callable[[Tensor], Tensor]] = {
    "add_scalar": lambda value: value + 1.5,
    "mul_scalar": lambda value: value * 1.5,
    "div_scalar": lambda value: value / 1.5,
    "pow_scalar": lambda value: value**1.5,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "tanh": torch.tanh,
    "softmax": lambda value: torch.softmax(value, -1),
}
VOCABULARY = 32768
MOST_ELEMENTS = 1 << 28


def vector_cases(dtypes: Sequence[str]) -> Iterator[Case]:
    """Yield the forward ops of ops/vector.parquet."""
    for a, b in spread(2):
        columns = size(b, 32, 16384)
        rows = min(size(a, 1, 1 << 17), MOST_ELEMENTS // columns)
        for dtype in plain_dtypes(dtypes):
            for op in (*BINARY, *UNARY, "layernorm", "embedding"):
                yield vector(op, dtype, rows, columns)


def vector(op: str, dtype: str, rows: int, columns: int) -> Case:
    """Return a forward op of ops/vector.parquet."""
    width = DTYPES[dtype].itemsize
    whole = rows * columns * width
    read = {"layernorm": whole + 2 * columns * width, "embedding": whole + 8 * rows}.get(op, whole)

    def build(device: torch.device) -> Callable[[], object]:
        if op == "embedding":
            table = make(device, dtype, VOCABULARY, columns)
            ids = torch.randint(VOCABULARY, (rows,), device=device)
            return lambda: functional.embedding(ids, table)
        value = make(device, dtype, rows, columns)
        if op in BINARY:
            binary, other = BINARY[op], make(device, dtype, rows, columns)
            return lambda: binary(value, other)
        if op == "layernorm":
            weight, bias = make(device, dtype, columns), make(device, dtype, columns)
            return lambda: functional.layer_norm(value, (columns,), weight, bias)
        unary = UNARY[op]
        return lambda: unary(value)

    return Case(
        table="vector",
        row={"op": op, "rows": rows, "cols": columns, "dtype": dtype}
        | {"bytes_read": 2 * whole if op in BINARY else read, "bytes_written": whole},
        build=build,
        flops=0.0,
        elements=3.0 * rows * columns,
    )
