"""Problems of the attention models: sizes, formats, and whose kernel runs."""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import numpy as np

from ....arrays import Codes, Floats
from ....formats.trace.signature import DTYPE_BYTES
from ....records import dataclass
from ....specs.attention_kernels import AttentionKernel
from ....specs.fleet import Fleet
from ....specs.generations import is_amd
from ....specs.gpu import Rate
from ...work.table import WorkTable
from ...work.work import AttentionDims, Work
from ..frame.problems import copies_between, dims_of, rates_of, shared_columns


class Dispatch(IntEnum):
    """Say who chooses the kernel."""

    FIXED = 0
    """The problem names it: it was recorded, measured or asked for."""
    FLASH_FIRST = 1
    """PyTorch, by the GPU: flash attention before all others."""
    CUDNN_FIRST = 2
    """PyTorch in a version that puts cuDNN's first on some GPUs."""
    SERVED = 3
    """A serving engine, by the GPU."""


COLD_COPIES: Final = 6.0
"""Working sets between two uses of the same one, as for products: in a step the rest of the model lies between."""


class ArithmeticFormat(IntEnum):
    """Name the format of the two products, which decides the unit."""

    BF16 = 0
    FP8 = 1
    FP32 = 2
    FP16 = 3


RATES: Final = (Rate.MATRIX_BF16, Rate.MATRIX_FP8, Rate.MATRIX_TF32, Rate.MATRIX_FP16)
"""Unit per `ArithmeticFormat`; memory-efficient attention on FP32 runs on TF32 units where there are any."""
WIDE_RATES: Final = frozenset({Rate.FP32, Rate.FP64, Rate.MATRIX_FP32, Rate.MATRIX_TF32, Rate.MATRIX_FP64})
FORMAT_BYTES: Final = (2.0, 1.0, 4.0, 2.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionProblems:
    """Hold scaled dot-product attentions as columns."""

    batch: Floats
    heads: Floats
    """Query heads."""
    kv_heads: Floats
    queries: Floats
    keys: Floats
    query_dim: Floats
    value_dim: Floats
    window: Floats
    """Keys that a query sees at most; 0: all."""
    is_causal: Codes
    """1: a query sees no key after its own place, aligned at the end."""
    has_dropout: Codes
    """1: some of the scores are dropped at random."""
    kernel: Codes
    """`AttentionKernel`."""
    dispatch: Codes
    """`Dispatch`: whether another one runs where the GPU's default is another."""
    arithmetic: Codes
    """`ArithmeticFormat`."""
    kv_bytes: Floats
    """Per element of the keys and values."""
    planned_kv_heads: Floats
    """KV heads that an engine planned the parts of keys for; 0: those that there are."""
    copies: Floats
    """Working sets of this size between two uses of the same one; 1: the same tensors again and again."""


def problems_of(works: Sequence[Work], rates: Sequence[Rate]) -> AttentionProblems:
    """Return the problems of works with attention dims."""
    dims = dims_of(works, AttentionDims)

    return AttentionProblems(
        **shared_columns(AttentionProblems, dims, AttentionDims),
        dispatch=np.array([_dispatch(item) for item in dims], dtype=np.int64),
        arithmetic=np.array([_arithmetic(rate) for rate in rates], dtype=np.int64),
        kv_bytes=np.array([DTYPE_BYTES.get(work.dtype, 2) for work in works], dtype=np.float64),
        planned_kv_heads=np.zeros(len(works)),
        copies=np.array([copies_between(work, COLD_COPIES) for work in works], dtype=np.float64),
    )


def peak_flops_per_s(problems: AttentionProblems, fleet: Fleet) -> Floats:
    """Return the peak rate of the unit that computes the products; FP32's on AMD are no TF32."""
    peak = np.choose(problems.arithmetic, [fleet.flops_per_s[rate] for rate in RATES])
    is_single = is_amd(fleet) & (problems.arithmetic == ArithmeticFormat.FP32)
    return np.asarray(np.where(is_single, fleet.flops_per_s[Rate.MATRIX_FP32], peak))


def operand_bytes(problems: AttentionProblems) -> Floats:
    """Return the bytes per element of the queries as the products take them."""
    return np.asarray(np.array(FORMAT_BYTES)[problems.arithmetic])


def visible_keys(problems: AttentionProblems) -> Floats:
    """Return the keys that the last query sees."""
    return np.where(problems.window > 0, np.minimum(problems.keys, problems.window), problems.keys)


DROPOUT_CYCLES: Final = {"EFFICIENT": 0.8, "FLASH2": 0.07, "TRITON": 0.4, "CK": 0.1}
"""What a random number for each score takes of a multiprocessor, by kernel but cuDNN's, whatever the head dim. No table
has any: the memory-efficient kernels' is read off recordings of BERT base and GPT-2 small on Hopper with and without
dropout; flash attention's is a Philox draw (some hundred instructions) for 16 scores, as of composable kernels on half
as many lanes. Triton's serve four: counted, right within a factor of three."""


def dropout_cycles(problems: AttentionProblems, cudnn: float) -> Floats:
    """Return the cycles of a multiprocessor that a score takes to be dropped or kept; 0 without dropout."""
    by_kernel = np.array([{**DROPOUT_CYCLES, "CUDNN": cudnn}.get(kernel.name, 0.0) for kernel in AttentionKernel])
    return np.where(problems.has_dropout > 0, by_kernel[problems.kernel], 0.0)


def seen_pairs(problems: AttentionProblems) -> Floats:
    """Return the pairs of a query and a key that it sees, of one head."""
    queries, keys, window = problems.queries, problems.keys, visible_keys(problems)
    climbing = np.clip(window - (keys - queries), 0.0, queries)
    first = np.minimum(keys - queries, window)
    triangle = climbing * first + climbing * (climbing + 1.0) / 2.0 + (queries - climbing) * window
    return np.where(problems.is_causal == 1, triangle, queries * window)


def least_work(problems: AttentionProblems) -> WorkTable:
    """Return the least that any kernel computes and moves; FP8 caches may be multiplied as they are."""
    dims = problems.query_dim + problems.value_dim
    pairs = problems.batch * problems.heads * seen_pairs(problems)
    queries = problems.batch * problems.heads * problems.queries
    cached = problems.batch * problems.kv_heads * np.minimum(visible_keys(problems) + problems.queries, problems.keys)
    arithmetic = np.where(problems.kv_bytes == 1, ArithmeticFormat.FP8, problems.arithmetic)
    return WorkTable(
        flops=2.0 * pairs * dims,
        moved_bytes=queries * dims * operand_bytes(problems) + cached * dims * problems.kv_bytes,
        rate=rates_of(arithmetic, RATES),
    )


def _dispatch(dims: AttentionDims) -> Dispatch:
    if not dims.is_chosen_by_torch:
        return Dispatch.SERVED if dims.is_chosen_by_engine else Dispatch.FIXED
    return Dispatch.CUDNN_FIRST if dims.prefers_cudnn else Dispatch.FLASH_FIRST


def _arithmetic(rate: Rate) -> ArithmeticFormat:
    if rate in WIDE_RATES:
        return ArithmeticFormat.FP32
    return ArithmeticFormat(RATES.index(rate)) if rate in RATES else ArithmeticFormat.BF16


SIZES: Final = (
    *("log batch", "log heads", "log KV heads", "log queries", "log keys", "head dim", "log window"),
    *("causal", "FP8", "bytes of the cache", "TensorRT-LLM"),
)


def sizes_of(problems: AttentionProblems) -> Floats:
    """Return what the learned corrections see, [..., s]."""
    p = problems
    logs = [np.log2(size) for size in (p.batch, p.heads, p.kv_heads, p.queries, p.keys)]
    others = (p.query_dim / 128.0, np.log1p(p.window) / 8.0, p.is_causal, p.arithmetic == ArithmeticFormat.FP8)
    columns = (*logs, *others, p.kv_bytes, p.kernel == AttentionKernel.TENSORRT_LLM)
    return np.stack(np.broadcast_arrays(*columns), axis=-1).astype(np.float64)
