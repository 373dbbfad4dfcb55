"""Prints how far whole modules of latent attention are from the sum of their ops, on GPUs that no op's model saw.

    python -m benchmarks.check.latent_modules ../shared/data [--rows 400]

`ops/mla_context_module.parquet` and `ops/mla_generation_module.parquet` time DeepSeek-V3's attention modules whole:
projections, norms, rotation, attention, and in decode the absorbed products. Nothing is fitted to them: each row (bf16
weights) is the sum of its ops' predicted kernel times, by weights without its chip. Per table, GPU and library: rows,
mean error, bias and median in %, and the error of rows over 200 us. Rows of one library on two GPUs of a chip that
deviate in opposite directions tell of hosts, not of kernels.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from wavecast.analyzer.measurements.samples import MeasurementTable, gpus_of, pick, read_table, shape_share
from wavecast.analyzer.models.assignment import assign_models
from wavecast.analyzer.models.frame.problems import as_columns
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.work import Family, Work
from wavecast.analyzer.work.latent_attention import latent_attention_work
from wavecast.analyzer.work.work import LatentAttentionDims, MatmulDims, RowDims
from wavecast.arrays import Floats
from wavecast.specs.fleet import build_fleet
from wavecast.specs.gpu import Gpu, Rate, chip_of

HIDDEN, QUERY_RANK, LATENT, ROTATED, NOPE, VALUE = 7168, 1536, 512, 64, 128, 128
"""DeepSeek-V3's sizes (arXiv 2412.19437, section 4.2)."""
TABLES: Final = {"prefill": "ops/mla_context_module.parquet", "decode": "ops/mla_generation_module.parquet"}
SIZES: Final = ("num_heads", "batch_size", "isl", "step")
COLUMNS: Final = ("gpu", "source", "gemm_type", "mla_dtype", "kv_cache_dtype", "latency_us", *SIZES)
LONG_US: Final = 200.0
DTYPE: Final = "bfloat16"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--rows", type=int, default=400, help="at most so many per GPU and library (400)")
    options = parser.parse_args()
    print(f"{'phase':9}{'GPU':24}{'library':24}{'rows':>6}{'error':>8}{'bias':>8}{'median':>8}{'long':>8}")
    for phase, name in TABLES.items():
        table = read_table(options.data / name, COLUMNS)
        table = pick(table, (table["gemm_type"] == DTYPE) & (table["mla_dtype"] == DTYPE))
        for source in np.unique(table["source"].astype(str)):
            own = pick(table, table["source"] == source)
            gpus, gpu = gpus_of(own["gpu"])
            for at, known in enumerate(gpus):
                print_errors(phase, known, str(source), few(pick(own, gpu == at), options.rows))


def few(table: MeasurementTable, most: int) -> MeasurementTable:
    """Return at most so many rows, by their sizes alone."""
    order = np.argsort(shape_share(*(table[name] for name in SIZES)), kind="stable")[:most]
    return MeasurementTable(table.path, {name: column[order] for name, column in table.items()})


def print_errors(phase: str, gpu: Gpu, source: str, table: MeasurementTable) -> None:
    measured = table["latency_us"].astype(np.float64)
    error = 100.0 * (predict_us(gpu, table, is_decode=phase == "decode") / measured - 1.0)
    long = np.abs(error[measured > LONG_US])
    figures = (np.abs(error).mean(), error.mean(), np.median(error), long.mean() if len(long) else np.nan)
    label = f"{phase:9}{gpu.name:24}{source.removeprefix('aiconfigurator/'):24}{len(error):6}"
    print(label + "".join(f"{figure:8.1f}" for figure in figures))


def predict_us(gpu: Gpu, table: MeasurementTable, *, is_decode: bool) -> Floats:
    """Return the sum of each row's ops on the GPU, by weights that never saw its chip."""
    library, fleet = load_library(frozenset({chip_of(gpu)})), build_fleet([gpu])
    works, owner = [], []
    for row in range(len(table["gpu"])):
        for work in module_works(table, row, is_decode=is_decode):
            works.append(work)
            owner.append(row)
    rates = np.array([Rate.MATRIX_BF16 if work.is_matrix else Rate.FP32 for work in works], dtype=object)
    time_ns = np.zeros(len(works))
    for item in assign_models(works, rates, library.fitted):
        time_ns[item.rows] = library.predict(item.model, as_columns(item.problems), fleet).time_ns[:, 0]
    return np.bincount(np.array(owner), time_ns) / 1e3


def module_works(table: MeasurementTable, row: int, *, is_decode: bool) -> Iterator[Work]:
    """Yield the work of a module's ops; `num_heads` are this GPU's."""
    heads, batch, queries, step = (int(table[name][row]) for name in SIZES)
    tokens, cache_bytes = batch * queries, 1.0 if table["kv_cache_dtype"][row] == "fp8" else 2.0
    yield product(tokens, QUERY_RANK + LATENT + ROTATED, HIDDEN)
    for rank in (QUERY_RANK, LATENT):
        yield move(Family.NORMALIZATION, tokens, rank)
    yield product(tokens, heads * (NOPE + ROTATED), QUERY_RANK)
    yield move(Family.ELEMENTWISE, tokens, (heads + 1) * ROTATED)
    keys = queries + step
    if is_decode:
        yield product(tokens, LATENT, NOPE, heads)
        dims = LatentAttentionDims(batch=batch, heads=heads, queries=queries, keys=keys, cache_bytes=cache_bytes)
        yield product(tokens, VALUE, LATENT, heads)
    else:
        yield product(tokens, heads * (NOPE + VALUE), LATENT)
        yield move(Family.ELEMENTWISE, tokens, heads * (NOPE + ROTATED))
        dims = LatentAttentionDims(
            batch=batch,
            heads=heads,
            queries=queries,
            keys=keys,
            query_dim=NOPE + ROTATED,
            value_dim=VALUE,
            is_absorbed=False,
            is_causal=True,
            cache_bytes=cache_bytes,
        )
    yield latent_attention_work(dims, DTYPE)
    yield product(tokens, HIDDEN, heads * VALUE)


def product(m: int, n: int, k: int, batch: int = 1) -> Work:
    return Work(
        family=Family.MATMUL,
        flops=2.0 * batch * m * n * k,
        read_bytes=2.0 * batch * (m * k + n * k),
        written_bytes=2.0 * batch * m * n,
        dtype=DTYPE,
        is_matrix=True,
        dims=MatmulDims(batch=batch, m=m, n=n, k=k, is_k_contiguous=True if batch == 1 else None),
    )


def move(family: Family, rows: int, columns: int) -> Work:
    """Return an op that reads and writes vectors once."""
    size = 2.0 * rows * columns
    dims = RowDims(rows=rows, columns=columns) if family is Family.NORMALIZATION else None
    return Work(family=family, flops=2.0 * size, read_bytes=size, written_bytes=size, dtype=DTYPE, dims=dims)


if __name__ == "__main__":
    main()
