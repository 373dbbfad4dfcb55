"""Fp32 matrix products measured alone: NeuSight's rows of `ops/matmul.parquet` as problems of the SIMT model."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from ...arrays import Floats
from ...specs.gpu import Catalog, Rate
from ..models.frame.problems import RATES, problems_from
from ..models.matmul_simt.problems import MatmulSimtProblems
from .matmul import SIMT_DTYPE
from .own_products import load_own_fp32
from .samples import MeasurementTable, Samples, pick, read_table, samples_of, shape_share

TABLE: Final = "ops/matmul.parquet"
COLUMNS: Final = ("gpu", "op", "batch", "m", "n", "k", "dtype", "latency_us", "suspect", "timing", "kernel")
LINEAR_HOST_RATIO: Final = 1.7
"""Floor of linear layers' event times over batched products': 1.62 to 1.71 on four hosts, 2.2 on P100's."""

HIDDEN_NS: Final = 5e3
"""Products whose work would take less at the GPU's peaks hide under the floor of any host here (24 us and more)."""
FEWEST_HIDDEN: Final = 20
REARRANGED: Final = "x8_NT"
"""In the kernel names of the P4's linear layers of one part of the table (13 %) and of no other GPU's: another library
that saw its operands transposed, so that k is not contiguous. A family of their own."""


def load_samples(data: Path, catalog: Catalog | None = None) -> list[Samples[MatmulSimtProblems]]:
    """Return all fp32 rows that are not suspect, and our own of torch's calls."""
    table = read_table(data / TABLE, COLUMNS)
    table = pick(table, (table["dtype"].astype(str) == SIMT_DTYPE) & ~table["suspect"].astype(bool))
    return [_samples(table, catalog), *load_own_fp32(data, catalog)]


def _samples(table: MeasurementTable, catalog: Catalog | None = None) -> Samples[MatmulSimtProblems]:
    is_linear = table["op"].astype(str) == "linear"
    is_rearranged = is_linear & (np.char.find(table["kernel"].astype(str), REARRANGED) >= 0)
    is_event = table["timing"].astype(str) == "event_min5"
    samples = samples_of(
        table,
        "matmul_simt",
        problems_from(
            MatmulSimtProblems,
            len(is_linear),
            **{name: table[name] for name in ("batch", "m", "n", "k")},
            element_bytes=4.0,
            copies=1.0,
            rate=RATES.index(Rate.MATRIX_FP32),
            contiguous=is_linear & ~is_rearranged,
            has_bias=is_linear & ~is_rearranged,
            host_floor_ns=np.where(is_event, np.nan, 0.0),
            host_ratio=np.where(is_linear, LINEAR_HOST_RATIO, 1.0),
        ),
        catalog,
        family=np.where(is_rearranged, "matmul (NT)", "matmul"),
        share=shape_share(table["batch"], table["m"], table["n"], table["k"]),
    )
    return replace(samples, problems=replace(samples.problems, host_floor_ns=_host_floors(samples)))


def _host_floors(samples: Samples[MatmulSimtProblems]) -> Floats:
    """Return the floor of each event-timed row's host, NaN where too few rows are short enough to tell it.

    As for vector ops, it is read off the host's own rows whose kernels hide under it: the lower quartile of them. So
    event times near the floor are not blind, of no GPU.
    """
    p, fleet = samples.problems, samples.fleet
    moved = p.element_bytes * p.batch * (p.m * p.k + p.k * p.n + p.m * p.n)
    compute_s = 2.0 * p.batch * p.m * p.n * p.k / fleet.flops_per_s[Rate.MATRIX_FP32]
    least_ns = np.maximum(compute_s, moved / fleet.bandwidth_bytes_per_s) * 1e9
    floors = p.host_floor_ns.copy()
    for gpu in range(len(samples.gpus)):
        mine = np.isnan(p.host_floor_ns) & (samples.gpu == gpu)
        hidden = mine & (least_ns < HIDDEN_NS)
        if hidden.sum() >= FEWEST_HIDDEN:
            floors[mine] = np.quantile(samples.measured_ns[hidden] / p.host_ratio[hidden], 0.25)
    return floors
