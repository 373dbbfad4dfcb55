"""The kernels that PyTorch launches for the ops of KernelBench and of Liger's benchmark, from their arguments.

An op of several kernels is one problem: the kernel that walks over rows, and what elementwise ones around it move.
Left out are ops whose kernels the arguments do not tell: masked and exclusive scans, L1 and L2 norms of 65,535 columns
by Inductor, its layer norm whose weights are as long as a row (they may stay in cache or not), Liger's own losses,
rotary embeddings, and Hugging Face's forms with casts that nobody recorded.
"""

import json
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Final

from ...records import dataclass
from ..models.reduction.model import INPUT_FLOPS
from ..work.registry import names
from ..work.row_kernels import RowKernel

SINGLE: Final = names(
    "ELU GELU HardSigmoid HardTanh LeakyReLU Matrix_scalar_multiplication ReLU SELU Sigmoid Softplus Tanh"
)
"""One elementwise kernel."""
COMPOSED: Final[Mapping[str, tuple[float, int]]] = {"Softsign": (7.0, 3), "Swish": (5.0, 2), "MinGPTNewGelu": (18.0, 8)}
"""Tensors moved, and kernels, where Python composes the op: x / (1 + |x|), x σ(x), and GELU's tanh form."""
POOLING: Final = ("Average_Pooling", "Max_Pooling")
UNROLLED_WINDOW: Final = 25
"""Inductor leaves windows of more elements, and three dimensions, to PyTorch's kernels."""
SHARED_ROW_BYTES: Final = 48 * 1024
"""PyTorch's softmax keeps rows up to here in shared memory; longer ones are read three times."""
CACHED_ROW_BYTES: Final = 128 * 1024
"""From here on the rows in flight outgrow A100's L2; between, where the second reading comes from is not known."""
ONE_PER_ROW: Final = frozenset((RowKernel.POOL, RowKernel.COMPILED_POOL, RowKernel.PICK))
"""Kernels whose instructions are counted per row, or window."""
OLD_PICK_THREADS: Final = 32
"""`NLL_LOSS_THREADS` before it grew with the batch: Liger's times hold 570 us whatever the vocabulary, 512 steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """Hold one op as the columns of `ReductionProblems` that do not depend on how it was measured."""

    kernel: RowKernel
    rows: float
    columns: float
    run: float = 0.0
    """0: a row is one run."""
    flops: float = 0.0
    walked_bytes: float = 0.0
    streamed_bytes: float = 0.0
    launches: float = 1.0

    @property
    def elements(self) -> float:
        """Return what instructions are counted for."""
        return self.rows if self.kernel in ONE_PER_ROW else self.rows * self.columns

    @property
    def least_bytes(self) -> float:
        """Return what the op must move."""
        walked, streamed = self.walked_bytes, self.streamed_bytes
        return min(walked, streamed) if walked and streamed else walked


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """Hold the first input's sizes in fp32, and the arguments."""

    shape: tuple[int, ...]
    init: list[Any]

    @property
    def count(self) -> float:
        return float(prod(self.shape))

    @property
    def bytes(self) -> float:
        return 4.0 * self.count


def eager_of(item: Mapping[str, Any]) -> Launched | None:
    """Return what PyTorch launches for a row of KernelBench; None where that is not known."""
    call, op = _call_of(item), str(item["op"])
    if op in SINGLE or op in COMPOSED:
        tensors, launches = COMPOSED.get(op, (2.0, 1))
        return _by_count(call, RowKernel.STREAM, 0.0, tensors, launches)
    if op.startswith(POOLING):
        return _pooled(call, op, RowKernel.POOL, index_bytes=8.0 * op.startswith("Max"))
    if op.endswith("_over_a_dimension"):
        return _reduced(call, _reducing(call, op))
    form = _EAGER.get(op)
    return None if form is None else form(call)


def inductor_of(item: Mapping[str, Any]) -> Launched | None:
    """Return what Inductor launches for a row of KernelBench: fused passes, or PyTorch's kernel where it falls back."""
    call, op = _call_of(item), str(item["op"])
    if op in SINGLE or op in COMPOSED:
        return _by_count(call, RowKernel.STREAM, 0.0, 2.0, 1)
    if op.startswith(POOLING):
        _, window = _window(call, op)
        if window <= UNROLLED_WINDOW and not op.endswith("3D"):
            return _pooled(call, op, RowKernel.COMPILED_POOL, index_bytes=0.0)
        return _pooled(call, op, RowKernel.POOL, index_bytes=0.0) if op.startswith("Average") else None
    if op.endswith("_over_a_dimension"):
        return _reduced(call, RowKernel.COMPILED_REDUCE)
    if op in ("cumsum", "cumprod"):
        return _scan(call)
    form = _COMPILED.get(op)
    return None if form is None else _by_count(call, RowKernel.COMPILED_REDUCE, *form)


def liger_of(item: Mapping[str, Any]) -> Launched | None:
    """Return what a row of Liger's benchmark launches; None where that is not known."""
    config, size = json.loads(item["config"]), int(item["x_value"])
    key = (item["op"], item["backend"], item["direction"])
    if key == ("cross_entropy", "huggingface", "forward"):
        return _picked_softmax(config["B"] * config["T"], size)
    if key == ("tvd", "torch", "forward"):
        call = _Call(shape=(config["B"], config["T"], size), init=[])
        return _by_count(call, RowKernel.REDUCE, 1.0, 7.0, 4)
    if item["op"] not in ("layer_norm", "rms_norm"):
        return None
    tensor = (4.0 if "float32" in config["dtype"] else 2.0) * config["M"] * size
    if key[1:] == ("liger", "forward"):
        return Launched(kernel=RowKernel.COMPILED_FORWARD, rows=config["M"], columns=size, walked_bytes=2.0 * tensor)
    if key == ("layer_norm", "huggingface", "backward"):
        # What is asked of it again adds to the parameters' gradients of before: two short kernels.
        moves = {"walked_bytes": 3.0 * tensor, "streamed_bytes": 2.0 * tensor, "launches": 5.0}
        flops = (INPUT_FLOPS + 2.0) * config["M"] * size
        return Launched(kernel=RowKernel.ROW_BACKWARD, rows=config["M"], columns=size, flops=flops, **moves)
    return None


def _picked_softmax(rows: int, columns: int) -> Launched | None:
    """Return log-softmax, then the sum of the targets' entries by one block."""
    row_bytes = 4.0 * columns
    if SHARED_ROW_BYTES < row_bytes < CACHED_ROW_BYTES:
        return None
    tensors = 2.0 if row_bytes <= SHARED_ROW_BYTES else 4.0
    return _picked(rows, OLD_PICK_THREADS, tensors * rows * row_bytes)


def _call_of(item: Mapping[str, Any]) -> _Call:
    inputs = json.loads(item["inputs"])
    return _Call(shape=tuple(inputs[0][0]), init=json.loads(item["init"]))


def _by_count(call: _Call, kernel: RowKernel, walked: float, streamed: float, launches: int) -> Launched:
    """Return a reduction of everything, with elementwise passes around it; both in tensors of the first's size."""
    return Launched(
        kernel=kernel,
        rows=1,
        columns=call.count,
        walked_bytes=walked * call.bytes,
        streamed_bytes=streamed * call.bytes,
        launches=launches,
    )


def _reducing(call: _Call, op: str) -> RowKernel:
    """Return which of PyTorch's reductions runs: along rows or over columns, with or without places."""
    is_along = int(call.init[0]) % len(call.shape) == len(call.shape) - 1
    if op.startswith(("Arg", "Max", "Min", "arg", "max", "min")):
        return RowKernel.SELECT_ROWS if is_along else RowKernel.SELECT_COLUMNS
    return RowKernel.REDUCE if is_along else RowKernel.REDUCE_COLUMNS


def _reduced(call: _Call, kernel: RowKernel) -> Launched:
    columns = call.shape[int(call.init[0])]
    return Launched(
        kernel=kernel, rows=call.count / columns, columns=columns, walked_bytes=call.bytes * (1 + 2 / columns)
    )


def _scan(call: _Call, flips: int = 0) -> Launched:
    columns = call.shape[-1]
    moves = {"walked_bytes": 2.0 * call.bytes, "streamed_bytes": 2.0 * flips * call.bytes, "launches": 1.0 + flips}
    return Launched(kernel=RowKernel.SCAN, rows=call.count / columns, columns=columns, **moves)


def _window(call: _Call, op: str) -> tuple[float, float]:
    """Return the results of a pooling, and the elements of its window: kernel, stride, padding, dilation in order."""
    rank = int(op[-2])
    kernel, stride, padding, dilation = [*call.init[:1], *call.init[1:4], None, None, None][:4]
    if op.startswith("Average"):
        dilation = None
    step, edge, apart = stride or kernel, padding or 0, dilation or 1
    count = float(prod(call.shape[:-rank]))
    for size in call.shape[-rank:]:
        count *= (size + 2 * edge - apart * (kernel - 1) - 1) // step + 1
    return count, float(kernel**rank)


def _pooled(call: _Call, op: str, kernel: RowKernel, index_bytes: float) -> Launched:
    count, window = _window(call, op)
    return Launched(
        kernel=kernel,
        rows=count,
        columns=window,
        flops=count * window,
        walked_bytes=call.bytes + (4.0 + index_bytes) * count,
    )


def _norm(
    call: _Call, kernel: RowKernel, rows: int, run: int = 0, *, walked: float = 2.0, streamed: float = 0.0
) -> Launched:
    """Return a norm of so many rows; what it streams are two kernels more. In tensors of the input's size."""
    return Launched(
        kernel=kernel,
        rows=rows,
        columns=call.count / rows,
        run=run,
        walked_bytes=walked * call.bytes,
        streamed_bytes=streamed * call.bytes,
        launches=3 if streamed else 1,
    )


def _cross_entropy(call: _Call) -> Launched:
    return _picked(call.shape[0], 1, streamed_bytes=2.0 * call.bytes)


def _picked(rows: int, columns: int, streamed_bytes: float) -> Launched:
    """Return log-softmax, then the sum of the targets' entries."""
    moves = {"walked_bytes": 12.0 * rows, "streamed_bytes": streamed_bytes, "launches": 2.0}
    return Launched(kernel=RowKernel.PICK, rows=rows, columns=columns, **moves)


def _loss(walked: float, streamed: float, launches: int) -> Callable[[_Call], Launched]:
    return lambda call: _by_count(call, RowKernel.REDUCE, walked=walked, streamed=streamed, launches=launches)


_EAGER: Final[Mapping[str, Callable[[_Call], Launched]]] = {
    "BatchNorm": lambda call: _norm(call, RowKernel.BATCH_NORM, call.shape[1], prod(call.shape[2:])),
    "InstanceNorm": lambda call: _norm(
        call, RowKernel.MOMENTS, call.shape[0] * call.shape[1], walked=1.0, streamed=2.0
    ),
    "GroupNorm": lambda call: _norm(
        call, RowKernel.MOMENTS, call.shape[0] * int(call.init[1]), walked=1.0, streamed=2.0
    ),
    "LayerNorm": lambda call: _norm(call, RowKernel.ROW_FORWARD, call.shape[0]),
    "CrossEntropyLoss": _cross_entropy,
    "cumsum": _scan,
    "cumprod": _scan,
    "cumsum_reverse": lambda call: _scan(call, flips=2),
    # (tensors that the reduction reads, tensors that elementwise kernels move, kernels)
    "MSELoss": _loss(1.0, 5.0, 3),
    "HuberLoss": _loss(1.0, 3.0, 2),
    "KLDivLoss": _loss(1.0, 10.0, 5),
    "TripletMarginLoss": _loss(2.0, 10.0, 8),
    "HingeLoss": _loss(1.0, 6.0, 4),
    "FrobeniusNorm": _loss(1.0, 2.0, 2),
    "L1Norm": _loss(1.0, 4.0, 3),
    "L2Norm": _loss(1.0, 2.0, 2),
    "RMSNorm": _loss(1.0, 4.0, 5),
}
_COMPILED: Final[Mapping[str, tuple[float, float, int]]] = {
    # the same, fused: losses in one pass over their inputs, norms in one that reduces and one that writes
    "MSELoss": (2.0, 0.0, 2),
    "HuberLoss": (2.0, 0.0, 2),
    "KLDivLoss": (2.0, 0.0, 2),
    "TripletMarginLoss": (3.0, 0.0, 2),
    "HingeLoss": (1.0, 0.0, 2),
    **dict.fromkeys(("BatchNorm", "InstanceNorm", "GroupNorm", "FrobeniusNorm", "RMSNorm"), (1.0, 2.0, 3)),
}
