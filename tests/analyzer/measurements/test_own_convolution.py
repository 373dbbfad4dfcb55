"""Our own convolutions, read from a table: their sizes, what L2 held, their families."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from wavecast.analyzer.measurements.own_convolution import MOST_EARLY_US, load_own
from wavecast.analyzer.models.convolution.problems import ConvolutionTiming
from wavecast.analyzer.work.work import Direction

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

SIZES = {
    **{"batch": 8, "c_in": 64, "c_out": 32, "size": 16, "kernel": 4, "stride": 2, "padding": 1},
    **{"groups": 1, "dilation": 1, "spatial": 2},
}


def row(op: str = "conv", operands: str = "dram", direction: str = "forward", **sizes: int) -> dict[str, object]:
    return {
        **{"gpu": "H100 SXM5 80GB", "family": "conv", "op": op, "dims": orjson.dumps({**SIZES, **sizes}).decode()},
        **{"dtype": "bf16", "layout": "NHWC", "direction": direction, "operands": operands, "latency_us": 9.0},
        **{"kernels": ["kernel"], "kernel_us": [9.0]},
    }


def test_rows_become_problems_as_the_forward_pass_has_them(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    rows = [
        row(),
        row("conv_transpose", "reused"),
        row(direction="backward_weights", groups=64, c_out=64),
        row(groups=4),
        row(c_in=3),
        {**row(), "family": "norm"},
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "own" / "ops.parquet")
    (samples,) = load_own(tmp_path)
    problems = samples.problems
    assert problems.output_pixels[0] == 8 * 8
    assert (problems.input_pixels[1], problems.output_pixels[1]) == (32 * 32, 16 * 16)
    assert problems.direction.tolist()[:3] == [Direction.FORWARD, Direction.INPUT_GRADIENT, Direction.WEIGHT_GRADIENT]
    assert problems.timing.tolist()[:2] == [ConvolutionTiming.COLD, ConvolutionTiming.KERNELS]
    assert problems.is_channels_last.all()
    assert samples.family.tolist() == [
        *("convolution, own", "transposed convolution, own", "depthwise convolution, own"),
        *("grouped convolution, own", "convolution of few channels, own"),
    ]


def test_a_kernel_that_waits_for_the_call_before_is_not_counted_twice(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    early = {"kernels": ["init_device_workspace", "main"], "kernel_us": [100.0, 120.0], "latency_us": 220.0}
    parquet.write_table(pyarrow.Table.from_pylist([{**row(), **early}, row()]), tmp_path / "own" / "ops.parquet")
    (samples,) = load_own(tmp_path)
    assert samples.measured_ns.tolist() == pytest.approx([(120.0 + MOST_EARLY_US) * 1e3, 9e3])


def test_nothing_without_the_table(tmp_path: Path) -> None:
    assert load_own(tmp_path) == []
