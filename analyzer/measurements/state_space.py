"""Gated delta nets and causal convolutions measured alone: `ops/gdn.parquet`, `ops/mamba2.parquet`.

Of Mamba-2 the table times only the causal convolution before it. Each kernel's rows repeat for models that differ in
other sizes: of alike ones all count. Channels of a convolution: in vLLM 0.24 and SGLang 0.5.14 queries, keys and values
together; in TensorRT-LLM and SGLang 0.5.10 those of the keys alone, as their bytes per second show (three to four times
the datasheet's otherwise; times do not change with the heads of the values).
"""

from pathlib import Path
from typing import Final

import numpy as np

from ...specs.gpu import Catalog, Rate
from ..models.frame.problems import RATES, problems_from
from ..models.state_space.problems import StateSpaceProblems
from ..work.work import StateRule
from .samples import MeasurementTable, Samples, TableColumn, pick, read_table, samples_of, shape_share
from .table_columns import check_known

TABLE: Final = "ops/gdn.parquet"
MAMBA_TABLE: Final = "ops/mamba2.parquet"
"""Only its convolutions; a folder may lack it."""
COLUMNS: Final = ("gpu", "kernel_source", "phase", "batch_size", "seq_len", "d_conv", "source", "latency_us")
DELTA_SIZES: Final = ("num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim")
MAMBA_SIZES: Final = ("d_state", "nheads", "head_dim", "n_groups")
KEPT_SHARE: Final = 0.55
"""Of the shapes of the larger table, by `shape_share`: all of them would be 20,830 rows on GB200."""
FUSED: Final = ("chunk_gated_delta_rule_flashinfer",)
OLD_SGLANG: Final = "aiconfigurator/sglang/0.5.10"
OLD_SOURCES: Final = ("aiconfigurator/trtllm/1.3.0rc20", OLD_SGLANG)
"""Their convolutions are Tri Dao's kernels; their decode reads the state in FP32 and writes 16 bits."""
KERNELS: Final = {
    "causal_conv1d_fn": "convolution",
    "causal_conv1d_update": "convolution, update",
    "chunk_gated_delta_rule": "delta rule",
    "chunk_gated_delta_rule_triton": "delta rule",
    "chunk_gated_delta_rule_flashinfer": "delta rule (fused)",
    "fused_recurrent_gated_delta_rule": "delta rule, update",
    "fused_recurrent_gated_delta_rule_packed_decode": "delta rule, update",
}


def load_samples(data: Path, catalog: Catalog | None = None) -> list[Samples[StateSpaceProblems]]:
    """Return both tables, each where it is there."""
    found = [(TABLE, DELTA_SIZES), (MAMBA_TABLE, MAMBA_SIZES)]
    return [_samples(data, name, sizes, catalog) for name, sizes in found if (data / name).exists()]


def _samples(data: Path, name: str, sizes: tuple[str, ...], catalog: Catalog | None) -> Samples[StateSpaceProblems]:
    table = read_table(data / name, (*COLUMNS, *sizes))
    check_known(table.path, "kernel_source", table["kernel_source"], KERNELS)
    share = shape_share(*(table[key] for key in ("batch_size", "seq_len", *sizes)))
    table, share = (pick(table, share < KEPT_SHARE), share[share < KEPT_SHARE]) if name == TABLE else (table, share)
    own = "Mamba-2 " if name == MAMBA_TABLE else ""
    return samples_of(
        table,
        "state_space",
        _problems(table, sizes),
        catalog,
        family=[f"{own}{KERNELS[str(kernel)]}" for kernel in table["kernel_source"]],
        dtype="bf16",
        share=share,
    )


def _problems(table: MeasurementTable, sizes: tuple[str, ...]) -> StateSpaceProblems:
    def column(key: str) -> TableColumn:
        return table[key].astype(np.float64)

    kernel, source = table["kernel_source"].astype(str), table["source"].astype(str)
    is_convolution = np.char.startswith(kernel.astype(np.str_), "causal_conv1d")
    is_update = table["phase"].astype(str) == "generation"
    is_old = np.isin(source, OLD_SOURCES)
    if sizes == MAMBA_SIZES:
        heads, head_dim, groups, state_dim = column("nheads"), column("head_dim"), column("n_groups"), column("d_state")
        channels = heads * head_dim + 2.0 * groups * state_dim
    else:
        groups, state_dim, heads, head_dim = (column(key) for key in DELTA_SIZES)
        channels = groups * state_dim * np.where(is_old, 1.0, 2.0) + np.where(is_old, 0.0, heads * head_dim)
    return problems_from(
        StateSpaceProblems,
        len(kernel),
        rule=np.where(is_convolution, StateRule.CAUSAL_CONVOLUTION, StateRule.GATED_DELTA),
        batch=column("batch_size"),
        steps=column("seq_len"),
        heads=np.where(is_convolution, channels, heads),
        head_dim=np.where(is_convolution, 1.0, head_dim),
        state_dim=np.where(is_convolution, column("d_conv"), state_dim),
        groups=np.where(is_convolution, 1.0, groups),
        is_update=is_update,
        is_fused=np.where(is_convolution, is_old * (1 + (source == OLD_SGLANG)), np.isin(kernel, FUSED)),
        state_bytes=np.where(is_old, 3.0, 4.0),
        element_bytes=2.0,
        rate=RATES.index(Rate.MATRIX_BF16),
        copies=1.0,
    )
