"""Attention measurements as problems of the attention models."""

from pathlib import Path
from typing import Final

import numpy as np

from ...records import replace
from ...specs.attention_kernels import AttentionKernel
from ...specs.gpu import Catalog
from ..models.attention.problems import ArithmeticFormat, AttentionProblems, Dispatch
from ..models.frame.problems import problems_from
from .attention_backward import TABLE as FORWARD, load_forward
from .own_attention import FORMATS as OWN_FORMATS, load_own_attention
from .own_ops import BYTES
from .samples import MeasurementTable, Samples, TableColumn, keep_known, pick, read_table, samples_of, shape_share
from .table_columns import check_known

TABLE: Final = "ops/attention.parquet"
COLUMNS: Final = (
    *("gpu", "phase", "batch", "heads", "kv_heads", "head_dim", "seq_q", "seq_kv", "window"),
    *("dtype", "kv_dtype", "latency_us", "source", "suspect"),
)
SIZES: Final = ("batch", "heads", "kv_heads", "head_dim", "seq_q", "seq_kv", "window")
DECODE: Final = "generation"
PHASE_NAMES: Final = {"context": "prefill", "encoder": "encoder", DECODE: "decode"}
KERNEL_NAMES: Final = {
    AttentionKernel.FLASH2: "torch",
    AttentionKernel.PAGED: "vllm",
    AttentionKernel.TENSORRT_LLM: "trtllm",
}
FORMATS: Final = OWN_FORMATS | {"fp8": ArithmeticFormat.FP8}
CACHE_BYTES: Final = BYTES | {"fp8": 1.0}
PLANNED_KV_HEADS: Final = 8.0
"""Of the model that aiconfigurator's benchmark names to vLLM, whatever it then measures: FlashAttention-3 reads one KV
head of 1 to 16 sequences at the same 0.97 TB/s on H100, two at twice that, eight at DRAM's."""
OWN_SOURCE: Final = "wavecast/"
"""Rows of `wavecast measure`: PyTorch's ops, called alone."""


def load_prefill(data: Path, catalog: Catalog | None = None) -> list[Samples[AttentionProblems]]:
    """Return the trusted rows of causal prefill and encoders, cuDNN's forward passes where their table is, and our own
    of torch's calls.
    """
    found = [_load(data, "attention_prefill", catalog)]
    if (data / FORWARD).exists():
        found.append(load_forward(data, catalog))
    return [*found, *load_own_attention(data, "attention_prefill", catalog)]


def load_decode(data: Path, catalog: Catalog | None = None) -> list[Samples[AttentionProblems]]:
    """Return the trusted rows of one query per sequence."""
    return [_load(data, "attention_decode", catalog)]


def _load(data: Path, model: str, catalog: Catalog | None) -> Samples[AttentionProblems]:
    table = read_table(data / TABLE, COLUMNS)
    check_known(table.path, "phase", table["phase"], PHASE_NAMES)
    is_wanted = (table["phase"] == DECODE) == (model == "attention_decode")
    table = pick(table, is_wanted & ~table["suspect"].astype(bool))
    table, notes = keep_known(table, {"dtype": FORMATS, "kv_dtype": CACHE_BYTES})
    return replace(_samples(table, model, catalog), notes=notes)


def _samples(table: MeasurementTable, model: str, catalog: Catalog | None) -> Samples[AttentionProblems]:
    problems = _problems(table)
    pairs = zip(table["phase"], (KERNEL_NAMES[code] for code in problems.kernel.tolist()), strict=True)
    return samples_of(
        table,
        model,
        problems,
        catalog,
        family=[f"attention {PHASE_NAMES[phase]} ({name})" for phase, name in pairs],
        dtype=_format_names(table),
        share=shape_share(*(table[name] for name in SIZES)),
    )


def _format_names(table: dict[str, TableColumn]) -> TableColumn:
    """Return the compute format, with the cache's where it differs."""
    pairs = zip(table["dtype"], table["kv_dtype"], strict=True)
    return np.array([own if own == cache else f"{own}, {cache} cache" for own, cache in pairs], dtype=object)


def _problems(table: dict[str, TableColumn]) -> AttentionProblems:
    kernel = np.array([_kernel(source) for source in table["source"]], dtype=np.int64)
    return problems_from(
        AttentionProblems,
        len(kernel),
        **{name: table[name] for name in ("batch", "heads", "kv_heads", "window")},
        queries=table["seq_q"],
        keys=table["seq_kv"],
        query_dim=table["head_dim"],
        value_dim=table["head_dim"],
        is_causal=table["phase"] == "context",
        kernel=kernel,
        dispatch=np.where(kernel == AttentionKernel.FLASH2, Dispatch.FLASH_FIRST, Dispatch.FIXED),
        arithmetic=[FORMATS[name] for name in table["dtype"]],
        kv_bytes=[CACHE_BYTES[name] for name in table["kv_dtype"]],
        planned_kv_heads=PLANNED_KV_HEADS,
        copies=1.0,
    )


def _kernel(source: str) -> AttentionKernel:
    if source.startswith(OWN_SOURCE):
        return AttentionKernel.FLASH2
    return AttentionKernel.TENSORRT_LLM if "/trtllm/" in source else AttentionKernel.PAGED
