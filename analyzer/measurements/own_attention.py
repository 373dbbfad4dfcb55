"""Fused attention as torch calls it, measured alone: rows of `own/ops.parquet` for the models of attention."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...specs.attention_kernels import AttentionKernel
from ...specs.gpu import Catalog
from ..models.attention.problems import ArithmeticFormat, AttentionProblems, Dispatch
from ..models.attention_backward.problems import BackwardProblems
from ..models.frame.problems import problems_from
from .own_ops import BYTES, own_share, read_own
from .samples import MeasurementTable, Samples, records_of, samples_of

KERNELS: Final[Mapping[str, AttentionKernel]] = {
    "default": AttentionKernel.CUDNN,
    "cudnn": AttentionKernel.CUDNN,
    "flash": AttentionKernel.FLASH2,
    "efficient": AttentionKernel.EFFICIENT,
}
"""By op. `default` is torch 2.11's choice on Hopper; `math` is many kernels of which each has its own model."""
FORMATS: Final = {"bf16": ArithmeticFormat.BF16, "fp16": ArithmeticFormat.FP16, "fp32": ArithmeticFormat.FP32}
COLD_COPIES: Final = 1e3
"""L2 is overwritten between calls."""
TRAINED_SHARES: Final[Mapping[str, float]] = {
    "attention_backward": 0.6,
    "attention_prefill": 0.25,
    "attention_decode": 0.25,
}
"""By model: shapes below train, as in its recipe."""


def load_own_attention(data: Path, model: str, catalog: Catalog | None = None) -> list[Samples[Any]]:
    """Return the rows that a model of attention predicts, none where there is no table."""

    def is_wanted(row: Mapping[str, Any]) -> bool:
        is_backward, is_decode = row["direction"] != "forward", row["dims"]["seq_q"] == 1
        wanted = "attention_backward" if is_backward else "attention_decode" if is_decode else "attention_prefill"
        return row["op"] in KERNELS and row["dtype"] in FORMATS and wanted == model

    table = read_own(data, "attention", is_wanted)
    if not len(table["gpu"]):
        return []
    kind = BackwardProblems if model == "attention_backward" else AttentionProblems
    return [
        samples_of(
            table,
            model,
            problems_from(kind, len(table["gpu"]), **_columns(table)),
            catalog,
            family=[f"attention {row['direction']}, own ({row['op']})" for row in records_of(table)],
            share=own_share(table, TRAINED_SHARES[model]),
        )
    ]


def _columns(table: MeasurementTable) -> dict[str, Any]:
    rows = records_of(table)
    sizes = {
        name: np.array([float(row["dims"][name]) for row in rows])
        for name in ("batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim")
    }
    is_causal = np.array([int(row["dims"]["causal"]) for row in rows])
    # Torch counts a causal mask's diagonal from the first key: no query sees those beyond the number of queries.
    seen = np.where(is_causal == 1, np.minimum(sizes["seq_kv"], sizes["seq_q"]), sizes["seq_kv"])
    return {
        **{name: sizes[name] for name in ("batch", "heads", "kv_heads")},
        "queries": sizes["seq_q"],
        "keys": seen,
        "query_dim": sizes["head_dim"],
        "value_dim": sizes["head_dim"],
        "is_causal": is_causal,
        "kernel": [KERNELS[row["op"]] for row in rows],
        "dispatch": Dispatch.FIXED,
        "arithmetic": [FORMATS[row["dtype"]] for row in rows],
        "kv_bytes": [BYTES[row["dtype"]] for row in rows],
        "copies": np.where(table["operands"].astype(str) == "dram", COLD_COPIES, 1.0),
    }
