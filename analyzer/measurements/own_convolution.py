"""Our own measurements of convolutions as torch runs them, as problems of the convolution model."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...specs.gpu import Catalog
from ..models.convolution.problems import ConvolutionProblems, ConvolutionTiming, problems_of_dims
from ..work.work import ConvolutionDims, Direction
from .own_ops import COLUMNS, RATES, own_share, read_own
from .samples import Samples, records_of, samples_of

TRAINED_SHARE: Final = 0.5
"""Shapes below train: as in the model's recipe."""
DIRECTIONS: Final = {
    "forward": Direction.FORWARD,
    "backward_data": Direction.INPUT_GRADIENT,
    "backward_weights": Direction.WEIGHT_GRADIENT,
}
FEW_CHANNELS: Final = 4
EARLY_KERNEL, MOST_EARLY_US = "init_device_workspace", 4.7
"""A kernel that starts while the call before still runs, and the most it took behind others (612 trained rows)."""


def load_own(data: Path, catalog: Catalog | None = None) -> list[Samples[ConvolutionProblems]]:
    """Return our own rows, none where there is no table: calls after other data filled L2, and calls repeated."""
    table = read_own(
        data, "conv", lambda row: row["dtype"] in RATES and row["direction"] in DIRECTIONS, (*COLUMNS, "kernel_us")
    )
    rows = records_of(table)
    if not rows:
        return []
    table["latency_us"] = table["latency_us"] - np.array([_waited_us(row) for row in rows])
    problems = problems_of_dims([_dims(row) for row in rows], [RATES[row["dtype"]] for row in rows])
    is_cold = np.array([row["operands"] == "dram" for row in rows])
    timing = np.where(is_cold, int(ConvolutionTiming.COLD), int(ConvolutionTiming.KERNELS))
    return [
        samples_of(
            table,
            "convolution",
            replace(problems, timing=timing),
            catalog,
            family=[_family(row) for row in rows],
            dtype=table["dtype"],
            share=own_share(table, TRAINED_SHARE),
        )
    ]


def _waited_us(row: Mapping[str, Any]) -> float:
    """Return what a kernel that starts early waited for the call before, whose own kernels count that time already."""
    timed = zip(row["kernels"], row["kernel_us"], strict=True)
    return float(sum(max(us - MOST_EARLY_US, 0.0) for name, us in timed if EARLY_KERNEL in name))


def _dims(row: Mapping[str, Any]) -> ConvolutionDims:
    sizes = row["dims"]
    kernel, stride, padding, dilation = (sizes[name] for name in ("kernel", "stride", "padding", "dilation"))
    reach, is_transposed = dilation * (kernel - 1), row["op"] == "conv_transpose"
    if is_transposed:
        made = (sizes["size"] - 1) * stride - 2 * padding + reach + 1
    else:
        made = (sizes["size"] + 2 * padding - reach - 1) // stride + 1
    axes = sizes["spatial"]
    return ConvolutionDims(
        batch=sizes["batch"],
        c_in=sizes["c_in"],
        c_out=sizes["c_out"],
        groups=sizes["groups"],
        input_size=(sizes["size"],) * axes,
        output_size=(made,) * axes,
        kernel_size=(kernel,) * axes,
        stride=(stride,) * axes,
        dilation=(dilation,) * axes,
        is_transposed=is_transposed,
        is_channels_last=row["layout"] == "NHWC",
        direction=DIRECTIONS[row["direction"]],
    )


def _family(row: Mapping[str, Any]) -> str:
    """Return the group of the score."""
    sizes = row["dims"]
    if row["op"] == "conv_transpose":
        return "transposed convolution, own"
    if sizes["groups"] > 1:
        return f"{'depthwise' if sizes['groups'] == sizes['c_in'] else 'grouped'} convolution, own"
    if sizes["spatial"] == 3:
        return "convolution, 3-D, own"
    if sizes["dilation"] > 1:
        return "dilated convolution, own"
    return "convolution of few channels, own" if sizes["c_in"] <= FEW_CHANNELS else "convolution, own"
