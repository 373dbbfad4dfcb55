"""cuDNN's attention as measured alone, `ops/attention_backward.parquet`: its backward, and forward passes for prefill.

Kernel times of the profiler, on operands that L2 does not hold. The benchmark adds up kernels of cuDNN's name, so what
clears the queries' gradients, a memset, is in none of them (`benchmark_single_sdpa.py` of cudnn-frontend).
"""

from pathlib import Path
from typing import Any, Final

import numpy as np

from ...specs.attention_kernels import AttentionKernel
from ...specs.gpu import Catalog
from ..models.attention.problems import ArithmeticFormat, AttentionProblems, Dispatch
from ..models.attention_backward.problems import BackwardProblems
from ..models.frame.problems import P, problems_from
from .own_attention import load_own_attention
from .samples import MeasurementTable, Samples, pick, read_table, samples_of, shape_share
from .table_columns import check_known

TABLE: Final = "ops/attention_backward.parquet"
SIZES: Final = ("batch", "seq_q", "seq_kv", "heads", "kv_heads", "head_dim_qk", "head_dim_v", "window")
COLUMNS: Final = ("gpu", *SIZES, "mask", "dtype", "backend", "deterministic", "direction", "latency_us")
BACKENDS: Final = {
    "cudnn": AttentionKernel.CUDNN,
    "flash2": AttentionKernel.FLASH2,
    "flash3": AttentionKernel.FLASH3,
    "efficient": AttentionKernel.EFFICIENT,
    "math": AttentionKernel.MATH,
    "triton": AttentionKernel.TRITON,
    "ck": AttentionKernel.CK,
}
NO_MASK: Final = "no_mask"
MASKS: Final = ("top_left", "bottom_right", NO_MASK)
DIRECTIONS: Final = ("forward", "backward")
BLOCK_SCALED: Final = "mxfp8"
FORMATS: Final = {
    "bf16": ArithmeticFormat.BF16,
    "fp16": ArithmeticFormat.FP16,
    "fp32": ArithmeticFormat.FP32,
    "fp8": ArithmeticFormat.FP8,
    BLOCK_SCALED: ArithmeticFormat.FP8,
}
COLD_COPIES: Final = 1e3
"""L2 is flushed between calls."""


def load_samples(data: Path, catalog: Catalog | None = None) -> list[Samples[BackwardProblems]]:
    """Return the backward rows, and our own of torch's calls."""
    table = _table(data, "backward")
    own = load_own_attention(data, "attention_backward", catalog)
    problems = problems_from(BackwardProblems, len(table["gpu"]), **_columns(table))
    return [_samples(table, problems, "attention_backward", catalog), *own]


def load_forward(data: Path, catalog: Catalog | None = None) -> Samples[AttentionProblems]:
    """Return the forward rows as problems of the prefill model, which knows no block scales: without such rows."""
    table = _table(data, "forward")
    table = pick(table, table["dtype"] != BLOCK_SCALED)
    problems = problems_from(AttentionProblems, len(table["gpu"]), **_columns(table))
    return _samples(table, problems, "attention_prefill", catalog)


def _table(data: Path, direction: str) -> MeasurementTable:
    table = read_table(data / TABLE, COLUMNS)
    known = (("mask", MASKS), ("direction", DIRECTIONS), ("dtype", FORMATS), ("backend", BACKENDS))
    for name, names in known:
        check_known(table.path, name, table[name], names)
    return pick(table, table["direction"] == direction)


def _samples(table: MeasurementTable, problems: P, model: str, catalog: Catalog | None) -> Samples[P]:
    pairs = zip(table["direction"].tolist(), table["backend"].tolist(), strict=True)
    is_causal = (table["mask"] != NO_MASK).astype(np.int64)
    return samples_of(
        table,
        model,
        problems,
        catalog,
        family=[f"attention {direction} ({backend})" for direction, backend in pairs],
        share=shape_share(*(table[name] for name in SIZES), is_causal),
    )


def _columns(table: MeasurementTable) -> dict[str, Any]:
    arithmetic = np.array([FORMATS[name] for name in table["dtype"].tolist()], dtype=np.int64)
    return {
        **{name: table[name] for name in ("batch", "heads", "kv_heads", "window")},
        "queries": table["seq_q"],
        "keys": table["seq_kv"],
        "query_dim": table["head_dim_qk"],
        "value_dim": table["head_dim_v"],
        "is_causal": table["mask"] != NO_MASK,
        "kernel": [BACKENDS[name] for name in table["backend"].tolist()],
        "dispatch": Dispatch.FIXED,
        "arithmetic": arithmetic,
        "kv_bytes": np.where(arithmetic == ArithmeticFormat.FP8, 1.0, np.where(table["dtype"] == "fp32", 4.0, 2.0)),
        "copies": COLD_COPIES,
        "is_deterministic": table["deterministic"].astype(bool),
        "is_block_scaled": table["dtype"] == BLOCK_SCALED,
        "lacks_clearing": 1,
    }
