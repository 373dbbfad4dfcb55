"""Ops to be measured that are no products: elementwise, normalization, reductions, gathers, optimizers, recurrent."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...records import asdict, dataclass
from .cases import DTYPES, Case, backward_of, choose, make, plain_dtypes, size, spread

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
REDUCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "sum_rows": lambda value: value.sum(-1),
    "sum_columns": lambda value: value.sum(0),
    "sum_all": lambda value: value.sum(),
    "max_rows": lambda value: value.amax(-1),
}
NORMALIZED = ("layernorm", "softmax", "gelu")
OPTIMIZERS: Mapping[str, Callable[[list[Tensor], bool], torch.optim.Optimizer]] = {
    "adamw_foreach": lambda values, on_gpu: torch.optim.AdamW(values, foreach=True, capturable=on_gpu),
    "adamw_fused": lambda values, on_gpu: torch.optim.AdamW(values, fused=True, capturable=on_gpu),
    "sgd_foreach": lambda values, _: torch.optim.SGD(values, lr=0.01, foreach=True),
}
VOCABULARY = 32768
IMAGE = 14
"""Batch normalization is over rows x cols x 14 x 14: `inner` is 196."""
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
            return _embedding(device, dtype, rows, columns)
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
        row=_row(op, dtype, rows, columns)
        | {"bytes_read": 2 * whole if op in BINARY else read, "bytes_written": whole},
        build=build,
        flops=0.0,
        elements=3.0 * rows * columns,
    )


def _row(op: str, dtype: str, rows: int, columns: int) -> dict[str, Any]:
    return {"op": op, "rows": rows, "cols": columns, "dtype": dtype}


def _embedding(
    device: torch.device, dtype: str, rows: int, columns: int, *, is_backward: bool = False
) -> Callable[[], object]:
    table = make(device, dtype, VOCABULARY, columns)
    ids = torch.randint(VOCABULARY, (rows,), device=device)

    def run() -> Tensor:
        return functional.embedding(ids, table)

    return backward_of(run, (table,)) if is_backward else run


def training_cases(dtypes: Sequence[str]) -> Iterator[Case]:
    """Yield backward passes of vector ops, reductions, batch normalization, and optimizers' steps."""
    for a, b in spread(2):
        columns = size(b, 32, 16384)
        rows = min(size(a, 1, 1 << 17), MOST_ELEMENTS // columns)
        for dtype in plain_dtypes(dtypes):
            for op in (*NORMALIZED, "embedding"):
                yield _train(op, dtype, rows, columns, is_backward=True)
            for op in REDUCTIONS:
                yield _train(op, dtype, rows, columns)
            images, channels = size(a, 2, 256), size(b, 16, 2048, 8)
            for is_backward in (False, True):
                yield _train("batchnorm", dtype, images, channels, IMAGE * IMAGE, is_backward=is_backward)
            for op in OPTIMIZERS:
                tensors = size(a, 1, 256)
                yield _train(op, dtype, tensors, min(size(b, 256, 1 << 24), MOST_ELEMENTS // 4 // tensors))


def _train(op: str, dtype: str, rows: int, columns: int, inner: int = 1, *, is_backward: bool = False) -> Case:
    def build(device: torch.device) -> Callable[[], object]:
        if op in OPTIMIZERS:
            values = [nn.Parameter(make(device, dtype, columns)) for _ in range(rows)]
            for parameter in values:
                parameter.grad = torch.randn_like(parameter)
            step: Callable[[], object] = OPTIMIZERS[op](list(values), device.type == "cuda").step
            return step
        if op == "embedding":
            return _embedding(device, dtype, rows, columns, is_backward=True)
        if op == "batchnorm":
            value = make(device, dtype, rows, columns, IMAGE, IMAGE)
        else:
            value = make(device, dtype, rows, columns)
        if op in REDUCTIONS:
            return lambda: REDUCTIONS[op](value)
        weight, bias = make(device, dtype, columns), make(device, dtype, columns)
        forward: Mapping[str, Callable[[], Tensor]] = {
            "layernorm": lambda: functional.layer_norm(value, (columns,), weight, bias),
            "batchnorm": lambda: functional.batch_norm(value, None, None, weight, bias, training=True),
            "softmax": lambda: UNARY["softmax"](value),
            "gelu": lambda: UNARY["gelu"](value),
        }
        run = forward[op]
        inputs = (value, weight, bias) if op in ("layernorm", "batchnorm") else (value,)
        return backward_of(run, inputs) if is_backward else run

    direction = "step" if op in OPTIMIZERS else "backward" if is_backward else "forward"
    return Case(
        table="vector_train",
        row=_row(op, dtype, rows, columns) | {"inner": inner, "direction": direction},
        build=build,
        flops=0.0,
        elements=4.0 * rows * columns * inner,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentSizes:
    """Hold the sizes of a recurrent layer over whole sequences, as its table's columns have them."""

    batch: int
    steps: int
    input_size: int
    hidden_size: int
    layers: int


WHOLE_LAYERS: Final = {"bidirectional": False, "input_product": True}
"""What the layers that are measured have in common, as columns."""


def recurrent_cases(dtypes: Sequence[str]) -> Iterator[Case]:
    """Yield LSTM and GRU layers over whole sequences, and their gradients."""
    for a, b, c, d in spread(4):
        width = size(c, 32, 2048, 8)
        sizes = RecurrentSizes(
            batch=size(a, 1, 256),
            steps=size(b, 4, 512),
            input_size=width,
            hidden_size=width,
            layers=choose(d, (1, 1, 2, 3)),
        )
        for dtype in dtypes:
            for op in ("lstm", "gru"):
                for direction in ("forward", "backward_both"):
                    yield _recurrent(op, dtype, sizes, direction)


def _recurrent(op: str, dtype: str, sizes: RecurrentSizes, direction: str) -> Case:
    batch, steps, layers = sizes.batch, sizes.steps, sizes.layers
    inputs, hidden = sizes.input_size, sizes.hidden_size

    def build(device: torch.device) -> Callable[[], object]:
        kind = nn.LSTM if op == "lstm" else nn.GRU
        module = kind(inputs, hidden, layers, device=device, dtype=DTYPES[dtype])
        value = make(device, dtype, steps, batch, inputs)
        if direction == "backward_both":
            gradients: Callable[[], object] = backward_of(lambda: module(value)[0], (value, *module.parameters()))
            return gradients

        def run() -> object:
            with torch.no_grad():
                return module(value)

        return run

    gates = 4 if op == "lstm" else 3
    weights = gates * hidden * (inputs + hidden) * layers
    return Case(
        table="recurrent",
        row={"op": op, **asdict(sizes), **WHOLE_LAYERS, "dtype": dtype, "direction": direction},
        build=build,
        flops=2.0 * batch * steps * weights,
        elements=float(
            batch * steps * (inputs + gates * hidden * layers) + gates * hidden * (inputs + hidden) * layers
        ),
    )
