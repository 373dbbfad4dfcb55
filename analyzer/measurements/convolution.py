"""Convolutions measured alone: `ops/convolution.parquet` as problems of the convolution model.

The times hold more than the kernels': a delay that is spread evenly from nothing to 260 us (V100), 400 (T4), 650 (P4)
and 710 (P100), whatever the shape, but the same share of it for a shape on every GPU, as if each call had become
slower in the order in which the shapes were timed; the table does not hold that order. Guessing its middle costs 10 to
21 % of error on a GPU, even by a perfect model: 14.7 % on average.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from ...specs.gpu import Catalog, Rate
from ..models.convolution.problems import ConvolutionProblems, problems_of_dims
from ..work.work import ConvolutionDims
from .samples import Samples, gpus_of, pick, read_table, shape_share
from .table_columns import check_known

TABLE: Final = "ops/convolution.parquet"
SIZES: Final = ("batch", "c_in", "c_out", "kernel_size", "input_size", "stride", "output_size")


def load_samples(data: Path, catalog: Catalog | None = None) -> list[Samples[ConvolutionProblems]]:
    """Return all rows that are not suspect."""
    table = read_table(data / TABLE)
    table = pick(table, ~table["suspect"].astype(bool))
    gpus, gpu = gpus_of(table["gpu"], catalog)
    check_known(table.path, "dtype", table["dtype"], RATES)
    dtype = table["dtype"].astype(str)
    is_event = (table["timing"].astype(str) == "event_min5").astype(np.float64)
    dims = [_dims(row) for row in zip(*(table[name].tolist() for name in SIZES), strict=True)]
    return [
        Samples(
            table=TABLE,
            model="convolution",
            problems=replace(problems_of_dims(dims, [RATES[name] for name in dtype.tolist()]), is_event_timed=is_event),
            gpus=gpus,
            gpu=gpu,
            measured_ns=table["latency_us"].astype(np.float64) * 1e3,
            family=np.full(len(gpu), "convolution", dtype=object),
            dtype=dtype.astype(object),
            share=shape_share(*(table[name] for name in SIZES)),
        )
    ]


RATES: Final = {
    "fp32": Rate.MATRIX_FP32,
    "tf32": Rate.MATRIX_TF32,
    "bf16": Rate.MATRIX_BF16,
    "fp16": Rate.MATRIX_FP16,
}
"""Where a row says fp32, TF32 was off."""


def _dims(row: tuple[int, ...]) -> ConvolutionDims:
    batch, c_in, c_out, kernel_size, input_size, stride, output_size = row
    return ConvolutionDims(
        batch=batch,
        c_in=c_in,
        c_out=c_out,
        groups=1,
        input_size=(input_size, input_size),
        output_size=(output_size, output_size),
        kernel_size=(kernel_size, kernel_size),
        stride=(stride, stride),
    )
