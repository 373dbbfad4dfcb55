"""Latent attention measured alone: `ops/context_mla.parquet` and `ops/generation_mla.parquet` as problems.

What is left out, and why: vLLM 0.14's rows hold its host's work, 110 to 500 us whatever the shape: its prefill also
projects the latent and copies keys and values together. Only its long decodes in Triton are read. SGLang's
decode on Hopper with an FP8 cache casts the whole pool first (ten bytes moved per element): a time of the pool. One
head alone takes another kernel of Triton, without products of matrices.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...arrays import Codes, Mask
from ...specs.gpu import Catalog, Rate
from ..models.frame.problems import RATES, problems_from
from ..models.latent_attention.problems import LatentAttentionProblems
from ..models.matmul.problems import MatmulKernel, MatmulProblems
from ..work.work import LatentKernel
from .samples import MeasurementTable, Samples, pick, read_table, samples_of, shape_share
from .table_columns import check_known

TABLE: Final = "ops/context_mla.parquet"
DECODE_TABLE: Final = "ops/generation_mla.parquet"
PRODUCTS_TABLE: Final = "ops/mla_bmm.parquet"
COLUMNS: Final = (
    *("gpu", "kernel_source", "kv_cache_dtype", "num_heads", "batch_size", "isl", "step", "source", "latency_us"),
)
SIZES: Final = ("num_heads", "batch_size", "isl", "step")
LEAST_BLOCK_KEYS: Final = 2.0**19
"""vLLM 0.14's decode: keys of all blocks of sixteen heads from which on kernels take longer than the host, 0.8 ms or
more; by sizes, not times, since some short rows hold milliseconds of the host's."""
LEAST_PRODUCT_ROWS: Final = 32768
"""Tokens times heads of the absorbed products that are read: shorter ones hold 5 to 12 us beside the kernel, of other
libraries other ones."""
MOST_QUERY_TOKENS: Final = 8192
"""Of the benchmark's products of queries (`collect_mla_bmm.py` of aiconfigurator, Apache-2.0)."""
KEPT_SHARE: Final = 0.6
"""Of the shapes of each GPU, by `shape_share`: all of them would be 18,766 rows on H100."""
OLD_TRTLLM: Final = "aiconfigurator/trtllm/1.0.0"
"""Its FP8 rows repeat the times of the bf16 cache within 0.5 %: the setting was not heard."""
CACHE_BYTES: Final = {"bfloat16": 2.0, "fp8": 1.0}
ABSORBED_SOURCES: Final = ("flash_attention", "triton")
"""SGLang's kernels that prefill on the latent itself, as their FLOP/s show: 2 * (576 + 512) per pair are 570 TFLOP/s on
H100, 2 * (192 + 128) would be 168."""


def load_samples(data: Path, catalog: Catalog | None = None) -> list[Samples[LatentAttentionProblems]]:
    """Return prefill and decode, each where its table is there."""
    return [
        _samples(data, name, catalog, is_decode=name == DECODE_TABLE)
        for name in (TABLE, DECODE_TABLE)
        if (data / name).exists()
    ]


def load_scored(data: Path, catalog: Catalog | None = None) -> list[Samples[Any]]:
    """Return what `load_samples` does, and the absorbed products, which the model of matrix products predicts.

    It is not trained on them: its own tables have products of all sizes.
    """
    return [*load_samples(data, catalog), *load_absorbed_products(data, catalog)]


def load_absorbed_products(data: Path, catalog: Catalog | None = None) -> list[Samples[MatmulProblems]]:
    """Return the products of queries (or results) with each head's projection, in bf16; none without the table.

    Per head, queries are [tokens, 128] @ [128, 512], results [tokens, 512] @ [512, 128]. The file does not say which a
    row is, but its benchmark measured all queries, then all results, which alone go beyond `MOST_QUERY_TOKENS`. FP8
    rows also quantise, in ways of their own.
    """
    path = data / PRODUCTS_TABLE
    if not path.exists():
        return []
    columns = ("gpu", "kernel_source", "source", "bmm_dtype", "num_tokens", "num_heads")
    table = read_table(path, (*columns, "latency_us"))
    is_result = (_places(table, columns) % 2 == 1) | (table["num_tokens"] > MOST_QUERY_TOKENS)
    table["n"], table["k"] = np.where(is_result, 128.0, 512.0), np.where(is_result, 512.0, 128.0)
    is_long = table["num_tokens"].astype(np.float64) * table["num_heads"] >= LEAST_PRODUCT_ROWS
    table = pick(table, (table["bmm_dtype"].astype(str) == "bfloat16") & is_long)
    return [
        samples_of(
            table,
            "matmul",
            problems_from(
                MatmulProblems,
                len(table["gpu"]),
                batch=table["num_heads"],
                m=table["num_tokens"],
                n=table["n"],
                k=table["k"],
                **dict.fromkeys(("left_bytes", "right_bytes", "out_bytes"), 2.0),
                rate=RATES.index(Rate.MATRIX_BF16),
                kind=MatmulKernel.PLAIN,
                copies=1.0,
                distinct=1.0,
                lone=1,
            ),
            catalog,
            family="latent attention, absorbed products",
            dtype="bf16",
            share=shape_share(table["num_heads"], table["num_tokens"]),
        )
    ]


def _places(table: MeasurementTable, columns: Sequence[str]) -> Codes:
    """Return how many rows before each row say the same in these columns."""
    seen, places = Counter[tuple[object, ...]](), []
    for row in zip(*(table[name].tolist() for name in columns), strict=True):
        places.append(seen[row])
        seen[row] += 1
    return np.array(places, dtype=np.int64)


def _samples(data: Path, name: str, catalog: Catalog | None, *, is_decode: bool) -> Samples[LatentAttentionProblems]:
    table = read_table(data / name, COLUMNS)
    check_known(table.path, "kv_cache_dtype", table["kv_cache_dtype"], CACHE_BYTES)
    table = pick(
        table, _is_read(table, is_decode=is_decode) & (shape_share(*(table[key] for key in SIZES)) < KEPT_SHARE)
    )
    phase = "decode" if is_decode else "prefill"
    problems = _problems(table, is_decode=is_decode)
    names = [f"latent attention {phase} ({LatentKernel(code).name.lower()})" for code in problems.kernel.tolist()]
    return samples_of(
        table,
        "latent_attention",
        problems,
        catalog,
        family=names,
        dtype=[f"bf16, {kind} cache" for kind in table["kv_cache_dtype"]],
        share=shape_share(*(table[key] for key in SIZES)),
    )


def _is_read(table: MeasurementTable, *, is_decode: bool) -> Mask:
    kernel, is_fp8 = table["kernel_source"].astype(str), table["kv_cache_dtype"].astype(str) == "fp8"
    repeats = is_fp8 & (table["source"].astype(str) == OLD_TRTLLM)
    is_vllm = np.char.startswith(kernel.astype(np.str_), "vllm_")
    blocks = table["batch_size"] * np.ceil(table["num_heads"] / 16.0)
    long = blocks * (table["isl"] + table["step"]) >= LEAST_BLOCK_KEYS
    casts = (kernel == "flash_attention") & is_fp8
    is_triton = kernel == "vllm_triton_mla"
    if is_decode:
        one = np.isin(kernel, ("triton", "vllm_triton_mla")) & (table["num_heads"].astype(np.int64) == 1)
        return np.asarray((~is_vllm | (is_triton & long)) & ~casts & ~one & ~repeats)
    return np.asarray(~is_vllm & ~repeats)


def _problems(table: MeasurementTable, *, is_decode: bool) -> LatentAttentionProblems:
    count = len(table["gpu"])
    source = table["kernel_source"].astype(str)
    is_absorbed = np.full(count, True) if is_decode else np.isin(source, ABSORBED_SOURCES)
    length, step = table["isl"].astype(np.float64), table["step"].astype(np.float64)
    return problems_from(
        LatentAttentionProblems,
        count,
        batch=table["batch_size"],
        heads=table["num_heads"],
        queries=1.0 if is_decode else length,
        keys=length + step,
        query_dim=np.where(is_absorbed, 576.0, 192.0),
        value_dim=np.where(is_absorbed, 512.0, 128.0),
        is_absorbed=is_absorbed,
        is_causal=not is_decode,
        kernel=_kernels(table),
        rate=RATES.index(Rate.MATRIX_BF16),
        element_bytes=2.0,
        cache_bytes=np.where(table["kv_cache_dtype"].astype(str) == "fp8", 1.0, 2.0),
        copies=1.0,
    )


def _kernels(table: MeasurementTable) -> Codes:
    kernel, source = table["kernel_source"].astype(str), table["source"].astype(str)
    is_old = source == OLD_TRTLLM
    found = np.where(kernel == "triton", LatentKernel.SPLIT_TRITON, LatentKernel.LIBRARY)
    found = np.where(kernel == "vllm_triton_mla", LatentKernel.TRITON, found)
    return np.where(is_old, LatentKernel.UNSPLIT, found).astype(np.int64)
