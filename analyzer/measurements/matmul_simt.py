"""Fp32 matrix products measured alone: NeuSight's rows of `ops/matmul.parquet` as problems of the SIMT model."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from ...specs.gpu import Catalog, Rate
from ..models.frame.units import RATES
from ..models.matmul_simt.problems import MatmulSimtProblems
from .samples import MeasurementTable, Samples, gpus_of, pick, read_table, shape_share

TABLE: Final = "ops/matmul.parquet"
COLUMNS: Final = ("gpu", "op", "batch", "m", "n", "k", "dtype", "latency_us", "suspect", "timing", "kernel")
LINEAR_HOST_RATIO: Final = 1.7
"""Floor of linear layers' event times over batched products': 1.62 to 1.71 on four hosts, 2.2 on P100's."""

AMD_HOST_FLOOR_NS: Final = 40e3
"""What MI100's host reads of the shortest launches (37 to 40 us): its table has too few of them for a quantile."""

REARRANGED: Final = "x8_NT"
"""In the kernel names of the P4's linear layers of one part of the table (13 %) and of no other GPU's: another library
that saw its operands transposed, so that k is not contiguous. A family of their own."""


def load_samples(data: Path, catalog: Catalog | None = None) -> list[Samples[MatmulSimtProblems]]:
    """Return all fp32 rows that are not suspect."""
    return [_samples(_table(data), catalog)]


def _table(data: Path) -> MeasurementTable:
    table = read_table(data / TABLE, COLUMNS)
    return pick(table, (table["dtype"].astype(str) == "fp32") & ~table["suspect"].astype(bool))


def _samples(table: MeasurementTable, catalog: Catalog | None = None) -> Samples[MatmulSimtProblems]:
    is_linear = table["op"].astype(str) == "linear"
    is_rearranged = is_linear & (np.char.find(table["kernel"].astype(str), REARRANGED) >= 0)
    batch, m, n, k = (table[name].astype(np.float64) for name in ("batch", "m", "n", "k"))
    gpus, gpu = gpus_of(table["gpu"], catalog)
    is_amd = np.array([known.vendor == "AMD" for known in gpus])[gpu]
    is_event = table["timing"].astype(str) == "event_min5"
    return Samples(
        table=TABLE,
        model="matmul_simt",
        problems=MatmulSimtProblems(
            batch=batch,
            m=m,
            n=n,
            k=k,
            element_bytes=np.full(len(m), 4.0),
            rate=np.full(len(m), RATES.index(Rate.MATRIX_FP32), dtype=np.int64),
            contiguous=(is_linear & ~is_rearranged).astype(np.int64),
            host_floor_ns=np.where(is_event, np.where(is_amd, AMD_HOST_FLOOR_NS, np.nan), 0.0),
            host_ratio=np.where(is_linear, LINEAR_HOST_RATIO, 1.0),
        ),
        gpus=gpus,
        gpu=gpu,
        measured_ns=table["latency_us"].astype(np.float64) * 1e3,
        family=np.where(is_rearranged, "matmul (NT)", "matmul").astype(object),
        dtype=table["dtype"].astype(str).astype(object),
        share=shape_share(table["batch"], table["m"], table["n"], table["k"]),
    )
