"""Matrix products of every format but fp32, measured alone: `ops/matmul.parquet` for the models of matrix units."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from ...arrays import Floats
from ...specs.gpu import Catalog
from ..models.frame.units import rate_codes
from ..models.matmul.problems import COLD_COPIES, FORMATS, MatmulKernel, MatmulProblems
from .samples import Samples, TableColumn, gpus_of, pick, read_table, shape_share

TABLE: Final = "ops/matmul.parquet"
COLUMNS: Final = ("gpu", "batch", "m", "n", "k", "dtype", "latency_us", "suspect")
OUT_BYTES: Final = 2.0
"""Every format here writes 2-byte floats."""


def load_samples(data: Path, catalog: Catalog | None = None) -> list[Samples[MatmulProblems]]:
    """Return the rows of bf16 and fp16."""
    names = [name for name, item in FORMATS.items() if item.kind == MatmulKernel.PLAIN]
    return [_samples(data, "matmul", names, catalog)]


def load_training_samples(data: Path) -> list[Samples[MatmulProblems]]:
    """Return the rows of bf16 alone: the fp16 ones are of an older library, 9 % slower on H100 at the same shapes."""
    return [_samples(data, "matmul", ["bf16"])]


def load_quantized_samples(data: Path, catalog: Catalog | None = None) -> list[Samples[MatmulProblems]]:
    """Return the rows of narrower formats."""
    names = [name for name, item in FORMATS.items() if item.kind != MatmulKernel.PLAIN]
    return [_samples(data, "matmul_quantized", names, catalog)]


def load_quantized_training_samples(data: Path) -> list[Samples[MatmulProblems]]:
    """Return the rows of narrower formats, and those of bf16, which alone show what each GPU has beside the format."""
    return [*load_quantized_samples(data), *load_training_samples(data)]


def _samples(data: Path, model: str, formats: Sequence[str], catalog: Catalog | None = None) -> Samples[MatmulProblems]:
    """Return the rows of these formats that are not suspect."""
    table = read_table(data / TABLE, COLUMNS)
    is_known = np.isin(table["dtype"].astype(str), formats)
    table = pick(table, is_known & ~table["suspect"].astype(bool))
    gpus, gpu = gpus_of(table["gpu"], catalog)
    return Samples(
        table=TABLE,
        model=model,
        problems=problems_of_rows(table),
        gpus=gpus,
        gpu=gpu,
        measured_ns=table["latency_us"].astype(np.float64) * 1e3,
        family=np.full(len(gpu), "matmul", dtype=object),
        dtype=table["dtype"].astype(str).astype(object),
        share=shape_share(table["batch"], table["m"], table["n"], table["k"]),
    )


def problems_of_rows(table: dict[str, TableColumn]) -> MatmulProblems:
    """Return rows of the table as problems.

    Integer formats come with a plugin's launches, the dynamic float formats with the activations' conversion.
    """
    names, index = np.unique(table["dtype"].astype(str), return_inverse=True)
    formats = [FORMATS[name] for name in names.tolist()]

    def column(values: list[float]) -> Floats:
        return np.array(values, dtype=np.float64)[index]

    batch, m, n, k = (table[name].astype(np.float64) for name in ("batch", "m", "n", "k"))
    is_wrapped = [item.is_quantized or item.kind >= MatmulKernel.WEIGHT_ONLY for item in formats]
    return MatmulProblems(
        batch=batch,
        m=m,
        n=n,
        k=k,
        left_bytes=column([item.left_bytes for item in formats]),
        right_bytes=column([item.right_bytes for item in formats]),
        out_bytes=np.full(len(m), OUT_BYTES),
        rate=rate_codes([item.rate for item in formats])[index],
        kind=np.array([int(item.kind) for item in formats])[index],
        quantized=np.array(is_wrapped, dtype=np.int64)[index],
        copies=np.full(len(m), COLD_COPIES),
    )
