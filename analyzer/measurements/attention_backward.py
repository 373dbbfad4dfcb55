"""Attention's backward as measured alone: cuDNN's rows of `ops/attention_backward.parquet` as problems of its model.

Kernel times of the profiler, on operands that L2 does not hold.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from ...specs.attention_kernels import AttentionKernel
from ...specs.gpu import Catalog
from ..models.attention.problems import ArithmeticFormat, Dispatch
from ..models.attention_backward.problems import BackwardProblems
from .samples import MeasurementTable, Samples, TableColumn, gpus_of, pick, read_table, shape_share
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
MASKS: Final = ("top_left", "bottom_right", "no_mask")
DIRECTIONS: Final = ("forward", "backward")
FORMATS: Final = {
    "bf16": ArithmeticFormat.BF16,
    "fp16": ArithmeticFormat.FP16,
    "fp32": ArithmeticFormat.FP32,
    "fp8": ArithmeticFormat.FP8,
    "mxfp8": ArithmeticFormat.FP8,
}
COLD_COPIES: Final = 1e3
"""L2 is flushed between calls."""


def load_samples(data: Path, catalog: Catalog | None = None) -> list[Samples[BackwardProblems]]:
    """Return the backward rows."""
    table = read_table(data / TABLE, COLUMNS)
    known = (("mask", MASKS), ("direction", DIRECTIONS), ("dtype", FORMATS), ("backend", BACKENDS))
    for name, names in known:
        check_known(table.path, name, table[name], names)
    table = pick(table, table["direction"] == "backward")
    gpus, gpu = gpus_of(table["gpu"], catalog)
    problems = _problems(table)
    return [
        Samples(
            table=TABLE,
            model="attention_backward",
            problems=problems,
            gpus=gpus,
            gpu=gpu,
            measured_ns=table["latency_us"].astype(np.float64) * 1e3,
            family=np.array([f"attention backward ({name})" for name in table["backend"].tolist()], dtype=object),
            dtype=table["dtype"].astype(str).astype(object),
            share=shape_share(*(table[name] for name in SIZES), problems.is_causal),
        )
    ]


def _problems(table: MeasurementTable) -> BackwardProblems:
    def column(name: str) -> TableColumn:
        return table[name].astype(np.float64)

    dtype = table["dtype"].tolist()
    arithmetic = np.array([FORMATS[name] for name in dtype], dtype=np.int64)
    return BackwardProblems(
        batch=column("batch"),
        heads=column("heads"),
        kv_heads=column("kv_heads"),
        queries=column("seq_q"),
        keys=column("seq_kv"),
        query_dim=column("head_dim_qk"),
        value_dim=column("head_dim_v"),
        window=column("window"),
        is_causal=(table["mask"] != "no_mask").astype(np.int64),
        kernel=np.array([BACKENDS[name] for name in table["backend"].tolist()], dtype=np.int64),
        dispatch=np.full(len(dtype), int(Dispatch.FIXED)),
        arithmetic=arithmetic,
        kv_bytes=np.where(arithmetic == ArithmeticFormat.FP8, 1.0, np.where(table["dtype"] == "fp32", 4.0, 2.0)),
        copies=np.full(len(dtype), COLD_COPIES),
        is_deterministic=table["deterministic"].astype(bool).astype(np.int64),
        is_block_scaled=(table["dtype"] == "mxfp8").astype(np.int64),
    )
