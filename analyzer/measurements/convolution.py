"""Convolutions measured alone, as problems of the convolution model: two tables.

`ops/convolution.parquet`: fp32, forward, square, between CUDA events. The times hold more than the kernels': a delay
that is spread evenly from nothing to 260 us (V100), 400 (T4), 650 (P4) and 710 (P100), whatever the shape, but the same
share of it for a shape on every GPU, as if each call had become slower in the order in which the shapes were timed; the
table does not hold that order. Guessing its middle costs 10 to 21 % of error on a GPU, even by a perfect model: 14.7 %
on average.

`ops/convolution_general.parquet`: every direction, kind and format, half a million rows; at most `CELL_ROWS` of
one GPU, source, kind, direction and format are read, drawn by their sizes, so that a score takes seconds. Left out are
rows whose kernel computes one output per thread as a fallback (`is_naive`: MIOpen ran it since nothing better was tuned
or installed), and of KernelBench those that were compiled, or shorter than `LEAST_HOST_TIMED_US`: they hold the host's
work. TensorRT's rows are kept, as a library of its own: fused with bias and activation, in a layout of its choice, some
summed in half precision, which the table does not tell apart.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from ...arrays import Floats, Mask
from ...specs.gpu import Catalog, Rate
from ..models.convolution.problems import ConvolutionProblems, ConvolutionTiming, least_work, problems_of_dims
from ..work.work import ConvolutionDims, Direction
from .own_convolution import DIRECTIONS as OWN_DIRECTIONS, load_own
from .own_ops import RATES as OWN_RATES
from .samples import MeasurementTable, Samples, TableColumn, pick, read_table, records_of, samples_of, shape_share
from .table_columns import check_known

TABLE: Final = "ops/convolution.parquet"
GENERAL_TABLE: Final = "ops/convolution_general.parquet"
SIZES: Final = ("batch", "c_in", "c_out", "kernel_size", "input_size", "stride", "output_size")
GENERAL_SIZES: Final = (
    *("spatial", "batch", "c_in", "c_out", "groups"),
    *(f"{name}_{axis}" for name in ("input", "output", "kernel", "stride", "dilation") for axis in "dhw"),
)
TEXTS: Final = ("gpu", "direction", "dtype", "layout", "algorithm", "source", "mode")
CELL_ROWS: Final = 600
"""Of one GPU, source, kind, direction and format."""
FUSED_CELL_ROWS: Final = 150
"""The same of TensorRT's, which would outnumber all other rows of that GPU."""
LEAST_HOST_TIMED_US: Final = 200.0
"""KernelBench's events hold 20 to 90 us of the host's work (the data's README)."""


def load_samples(data: Path, catalog: Catalog | None = None) -> list[Samples[ConvolutionProblems]]:
    """Return the first table's rows that are not suspect, and where they exist drawn ones of the second and our own."""
    found = [_load_forward(data, catalog)]
    if (data / GENERAL_TABLE).exists():
        found.append(_load_general(data, catalog))
    return found + load_own(data, catalog)


def _load_forward(data: Path, catalog: Catalog | None) -> Samples[ConvolutionProblems]:
    table = read_table(data / TABLE)
    table = pick(table, ~table["suspect"].astype(bool))
    check_known(table.path, "dtype", table["dtype"], RATES)
    dtype = table["dtype"].astype(str)
    timing = np.where(table["timing"].astype(str) == "event_min5", ConvolutionTiming.CALL, ConvolutionTiming.KERNELS)
    dims = [_dims(row) for row in zip(*(table[name].tolist() for name in SIZES), strict=True)]
    return samples_of(
        table,
        "convolution",
        replace(problems_of_dims(dims, [RATES[name] for name in dtype.tolist()]), timing=timing),
        catalog,
        family="convolution",
        share=shape_share(*(table[name] for name in SIZES)),
    )


def _load_general(data: Path, catalog: Catalog | None) -> Samples[ConvolutionProblems]:
    columns = (*TEXTS, *GENERAL_SIZES, "latency_us", "is_naive", "fused_add")
    table = read_table(data / GENERAL_TABLE, columns, may_lack=("mode",))
    check_known(table.path, "dtype", table["dtype"], RATES)
    check_known(table.path, "direction", table["direction"], DIRECTIONS)
    is_naive = np.array([value is True for value in table["is_naive"].tolist()])
    is_hosted = table["source"] == "kernelbench"
    is_compiled = is_hosted & (table["mode"] != "eager")
    is_short = is_hosted & (table["latency_us"].astype(np.float64) < LEAST_HOST_TIMED_US)
    table = pick(table, np.asarray(~is_naive & ~is_compiled & ~is_short, dtype=bool))
    family, share = _families(table), shape_share(*(table[name].astype(np.int64) for name in GENERAL_SIZES))
    cells = [table[name].astype(str) for name in ("gpu", "source", "direction", "dtype")]
    rows = _draw(family, cells, share, table["source"] == "alibaba_tinynas")
    table, family, share = pick(table, rows), family[rows], share[rows]
    dims = [_general_dims(row) for row in records_of(table)]
    problems = problems_of_dims(dims, [RATES[name] for name in table["dtype"].tolist()])
    problems = replace(problems, timing=np.array([TIMINGS.get(name, 0) for name in table["source"].tolist()]))
    return replace(
        samples_of(table, "convolution", problems, catalog, family=family, dtype=table["dtype"], share=share),
        work=least_work(problems),
    )


def _draw(
    family: TableColumn, cells: list[TableColumn], share: Floats, is_fused: Mask
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the first rows of each cell by further digits of the share, which training does not look at."""
    codes = np.zeros(len(share), dtype=np.int64)
    for cell in (family.astype(str), *cells):
        _, index = np.unique(cell, return_inverse=True)
        codes = np.unique(codes * (index.max(initial=0) + 1) + index, return_inverse=True)[1]
    digits = (share * 2.0**16) % 1.0
    order = np.lexsort((digits, codes))
    start = np.searchsorted(codes[order], np.arange(codes.max(initial=-1) + 1))
    rank = np.arange(len(order)) - start[codes[order]]
    most = np.where(is_fused, FUSED_CELL_ROWS, CELL_ROWS)[order]
    return np.sort(order[rank < most])


RATES: Final = {**OWN_RATES, "int8": Rate.MATRIX_INT8}
DIRECTIONS: Final = {**OWN_DIRECTIONS, "backward_both": Direction.BOTH_GRADIENTS}
TIMINGS: Final = {
    "alibaba_tinynas": ConvolutionTiming.TENSORRT,
    "deepbench": ConvolutionTiming.HOST_MEAN,
    "xwang233": ConvolutionTiming.HOST_MEAN,
    "miopen_find_db": ConvolutionTiming.MIOPEN,
}
"""By source; others are as long as their kernels."""
FAMILIES: Final = {
    "forward": "convolution",
    "backward_data": "convolution, data gradient",
    "backward_weights": "convolution, weight gradient",
    "backward_both": "convolution, 3-D",
}
"""The score's, of dense ones."""


def _families(table: MeasurementTable) -> TableColumn:
    """Return the groups of the score."""
    groups = table["groups"].astype(np.int64)
    is_deep = table["spatial"].astype(np.int64) == 3
    is_dilated = np.max([table[f"dilation_{axis}"].astype(np.int64) for axis in "dhw"], axis=0) > 1
    family = np.array([FAMILIES[name] for name in table["direction"].tolist()], dtype=object)
    family[is_dilated] = "dilated convolution"
    family[is_deep] = "convolution, 3-D"
    family[groups > 1] = "grouped convolution"
    family[(groups > 1) & (groups == table["c_in"].astype(np.int64))] = "depthwise convolution"
    family[table["algorithm"] == "transposed"] = "transposed convolution"
    return family


def _general_dims(row: dict[str, object]) -> ConvolutionDims:
    spatial = int(str(row["spatial"]))
    axes = "dhw"[3 - spatial :]

    def sizes(name: str) -> tuple[int, ...]:
        return tuple(int(str(row[f"{name}_{axis}"])) for axis in axes)

    layout = str(row["layout"])
    return ConvolutionDims(
        batch=int(str(row["batch"])),
        c_in=int(str(row["c_in"])),
        c_out=int(str(row["c_out"])),
        groups=int(str(row["groups"])),
        input_size=sizes("input"),
        output_size=sizes("output"),
        kernel_size=sizes("kernel"),
        stride=sizes("stride"),
        dilation=sizes("dilation"),
        is_channels_last=not layout.startswith("NC") or layout.startswith("NC/"),
        added_tensors=int(row["fused_add"] == 1.0),
        direction=DIRECTIONS[str(row["direction"])],
    )


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
