"""Ops to be measured: shapes in an order whose every beginning is spread over the sizes, and what runs them.

Sizes follow an additive recurrence (Roberts' R_d sequence), the same on every machine, evenly in their logarithms.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ...records import asdict, dataclass

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
HALVES = ("bf16", "fp16")
COLD_COPIES = 6
"""Operands of products are used in turn, as in the public tables: a weight comes from memory, not from L2."""

Build = Callable[[torch.device], Callable[[], object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row to be measured: where it goes, what its columns say, and what makes a call on new operands."""

    table: str
    row: Mapping[str, Any]
    build: Build
    flops: float
    elements: float
    """Elements of all tensors: what the largest shapes are cut by."""
    copies: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSizes:
    """Hold the sizes of an attention, as its table's columns have them."""

    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    seq_q: int
    seq_kv: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionSizes:
    """Hold the sizes of a square convolution, as its table's columns have them."""

    batch: int
    c_in: int
    c_out: int
    kernel_size: int
    input_size: int
    stride: int
    padding: int

    @property
    def output_size(self) -> int:
        """Return the side of the resulting image."""
        return (self.input_size + 2 * self.padding - self.kernel_size) // self.stride + 1


def spread(dimensions: int) -> Iterator[list[float]]:
    """Yield points in the unit cube, low in discrepancy at any count: multiples of powers of the root, modulo 1."""
    root = 2.0
    for _ in range(64):
        root = (1.0 + root) ** (1.0 / (dimensions + 1))
    steps = (1.0 / root) ** np.arange(1, dimensions + 1)
    at = 0
    while True:
        at += 1
        yield ((0.5 + at * steps) % 1.0).tolist()


def size(point: float, low: int, high: int, step: int = 1) -> int:
    """Return a size between `low` and `high`, evenly in its logarithm, a multiple of `step`."""
    value: float = low * (high / low) ** point
    return max(step, round(value / step) * step)


def choose(point: float, values: Sequence[Any]) -> Any:
    """Return one of `values`, evenly by `point`."""
    return values[int(point * len(values))]


def make(device: torch.device, dtype: str, *shape: int) -> Tensor:
    """Return a tensor of normal values: zeros would draw less power."""
    return torch.randn(shape, dtype=DTYPES[dtype], device=device)


def backward_of(run: Callable[[], Tensor], inputs: Sequence[Tensor]) -> Callable[[], object]:
    """Return what computes the gradients of `run()` again and again."""
    for item in inputs:
        item.requires_grad_()
    out = run()
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)


def matmul_cases(dtypes: Sequence[str]) -> Iterator[Case]:
    """Yield products as layers call them, batched ones, and those of the backward pass."""
    for number, (a, b, c, d) in enumerate(spread(4)):
        step = 64 if number % 3 else 8
        m, n, k = size(a, 1, 16384), size(b, 64, 16384, step), size(c, 64, 16384, step)
        heads, length, width = size(d, 2, 512), size(a, 16, 4096, 8), size(b, 32, 256, 8)
        for dtype in dtypes:
            layer = "linear" if dtype == "fp32" else "mm"
            yield product("matmul", layer, dtype, 1, m, n, k)
            columns, inner = (length, width) if number % 2 else (width, length)
            yield product("matmul", "bmm", dtype, heads, length, columns, inner)
            yield product("matmul_train", "mm_nn", dtype, 1, m, n, k)
            yield product("matmul_train", "mm_tn", dtype, 1, n, k, m)


def product(table: str, op: str, dtype: str, batch: int, m: int, n: int, k: int) -> Case:
    """Return a product whose operands lie as `op` has them."""

    def build(device: torch.device) -> Callable[[], object]:
        if op == "bmm":
            left, right = make(device, dtype, batch, m, k), make(device, dtype, batch, k, n)
            return lambda: torch.bmm(left, right)
        if op == "mm_nn":
            left, right = make(device, dtype, m, k), make(device, dtype, k, n)
            return lambda: torch.mm(left, right)
        if op == "mm_tn":
            left, right = make(device, dtype, k, m), make(device, dtype, k, n)
            return lambda: torch.mm(left.t(), right)
        left, weight = make(device, dtype, m, k), make(device, dtype, n, k)
        if op == "linear":
            bias = make(device, dtype, n)
            return lambda: functional.linear(left, weight, bias)
        return lambda: torch.mm(left, weight.t())

    return Case(
        table=table,
        row={"op": op, "batch": batch, "m": m, "n": n, "k": k, "dtype": dtype},
        build=build,
        flops=2.0 * batch * m * n * k,
        elements=float(batch * (m * k + k * n + m * n)),
        copies=COLD_COPIES,
    )


def attention_cases(dtypes: Sequence[str]) -> Iterator[Case]:
    """Yield scaled dot-product attention: causal, plain and of one query, and its gradients."""
    for a, b, c, d in spread(4):
        heads, head_dim = choose(b, (4, 8, 12, 16, 32, 40, 64)), choose(c, (64, 64, 80, 96, 128, 128, 256))
        shared = choose(d, (1, 1, 1, 4, 8))
        kv_heads = heads // shared if heads % shared == 0 else heads
        length = size(a, 64, 16384, 16)
        batch = size((b + d) % 1.0, 1, 64)
        for dtype in dtypes:
            table = "attention" if dtype in HALVES else "attention_train"
            for phase in ("context", "encoder", "generation"):
                own = kv_heads if phase != "encoder" and dtype in HALVES else heads  # no fused kernel groups fp32
                queries = 1 if phase == "generation" else length
                sizes = AttentionSizes(
                    batch=batch, heads=heads, kv_heads=own, head_dim=head_dim, seq_q=queries, seq_kv=length
                )
                yield attention(table, phase, dtype, sizes)
                if phase != "generation":
                    yield attention("attention_train", phase, dtype, sizes, is_backward=True)


def attention(table: str, phase: str, dtype: str, sizes: AttentionSizes, *, is_backward: bool = False) -> Case:
    """Return an attention, or its gradients."""
    batch, heads, kv_heads, head_dim = sizes.batch, sizes.heads, sizes.kv_heads, sizes.head_dim
    queries, keys = sizes.seq_q, sizes.seq_kv

    def build(device: torch.device) -> Callable[[], object]:
        query = make(device, dtype, batch, heads, queries, head_dim)
        key, value = (make(device, dtype, batch, kv_heads, keys, head_dim) for _ in range(2))

        def run() -> Tensor:
            return functional.scaled_dot_product_attention(
                query, key, value, is_causal=phase == "context", enable_gqa=kv_heads != heads
            )

        return backward_of(run, (query, key, value)) if is_backward else run

    row = {"phase": phase, **asdict(sizes), "window": 0, "dtype": dtype, "kv_dtype": dtype}
    if table == "attention_train":
        row["direction"] = "backward" if is_backward else "forward"
    passes = (3.5 if is_backward else 1.0) * (0.5 if phase == "context" else 1.0)
    return Case(
        table=table,
        row=row,
        build=build,
        flops=4.0 * batch * heads * queries * keys * head_dim * passes,
        elements=2.0 * batch * head_dim * (heads * queries + kv_heads * keys),
    )


def convolution_cases(dtypes: Sequence[str]) -> Iterator[Case]:
    """Yield square two-dimensional convolutions and their gradients."""
    for a, b, c, d, e in spread(5):
        kernel = choose(d, (1, 3, 3, 3, 5, 7))
        c_in = 3 if e < 0.1 else size(b, 8, 1024, 8)
        stride = 2 if 0.1 <= e < 0.35 else 1
        image = max(size(a, 7, 224), kernel)
        sizes = ConvolutionSizes(
            batch=size(e, 1, 256),
            c_in=c_in,
            c_out=size(c, 16, 1024, 8),
            kernel_size=kernel,
            input_size=image,
            stride=stride,
            padding=kernel // 2,
        )
        for dtype in dtypes:
            yield convolution("convolution", dtype, sizes)
            yield convolution("convolution_train", dtype, sizes)


def convolution(table: str, dtype: str, sizes: ConvolutionSizes, *, is_channels_last: bool = False) -> Case:
    """Return a convolution, or its gradients."""
    batch, c_in, c_out = sizes.batch, sizes.c_in, sizes.c_out
    kernel, image, output = sizes.kernel_size, sizes.input_size, sizes.output_size
    is_backward = table == "convolution_train"

    def build(device: torch.device) -> Callable[[], object]:
        order = torch.channels_last if is_channels_last else torch.contiguous_format
        value = make(device, dtype, batch, c_in, image, image).to(memory_format=order)
        weight = make(device, dtype, c_out, c_in, kernel, kernel).to(memory_format=order)

        def run() -> Tensor:
            return functional.conv2d(value, weight, stride=sizes.stride, padding=sizes.padding)

        return backward_of(run, (value, weight)) if is_backward else run

    row: dict[str, Any] = asdict(sizes) | {"output_size": output, "dtype": dtype}
    return Case(
        table=table,
        row=row | ({"direction": "backward"} if is_backward else {}),
        build=build,
        flops=2.0 * batch * c_out * output**2 * c_in * kernel**2 * (2 if is_backward else 1),
        elements=float(batch * (c_in * image**2 + c_out * output**2) + c_in * c_out * kernel**2),
    )


def plain_dtypes(dtypes: Sequence[str]) -> list[str]:
    """Return the formats of ops without matrix units: TF32 is none of theirs."""
    return list(dict.fromkeys("fp32" if dtype == "tf32" else dtype for dtype in dtypes))
