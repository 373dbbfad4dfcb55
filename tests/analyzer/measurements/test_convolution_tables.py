"""Convolutions of every kind, read from a table: their sides, families, libraries, and what is left out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from wavecast.analyzer.measurements.convolution import CELL_ROWS, load_samples
from wavecast.analyzer.measurements.readers import by_library
from wavecast.analyzer.measurements.samples import Samples
from wavecast.analyzer.models.convolution.problems import ConvolutionProblems, ConvolutionTiming
from wavecast.analyzer.work.work import Direction

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

ROW: Mapping[str, object] = {
    "gpu": "Instinct MI100",
    "direction": "forward",
    "spatial": 2,
    "batch": 8,
    "c_in": 32,
    "c_out": 64,
    "groups": 1,
    **{f"{name}_{axis}": 1 for name in ("kernel", "stride", "dilation") for axis in "dhw"},
    **{f"{name}_d": 1 for name in ("input", "output")},
    **{f"{name}_{axis}": 14 for name in ("input", "output") for axis in "hw"},
    "dtype": "fp16",
    "layout": "NCHW",
    "algorithm": "ImplicitGEMM",
    "source": "miopen_find_db",
    "mode": None,
    "latency_us": 100.0,
    "is_naive": False,
    "fused_add": None,
}
FORWARD: Mapping[str, object] = {
    "gpu": "Tesla T4",
    **dict.fromkeys(("batch", "c_in", "c_out", "kernel_size", "stride"), 1),
    **dict.fromkeys(("input_size", "output_size"), 14),
    "dtype": "fp32",
    "latency_us": 100.0,
    "timing": "event_min5",
    "suspect": False,
}


def write(folder: Path, *rows: Mapping[str, object]) -> Samples[ConvolutionProblems]:
    """Write both tables, the second with the rows' changes to `ROW`; return its samples."""
    (folder / "ops").mkdir()
    parquet.write_table(pyarrow.Table.from_pylist([dict(FORWARD)]), folder / "ops" / "convolution.parquet")
    table = pyarrow.Table.from_pylist([{**ROW, **row} for row in rows])
    parquet.write_table(table, folder / "ops" / "convolution_general.parquet")
    first, second = load_samples(folder)
    assert first.problems.timing.tolist() == [ConvolutionTiming.CALL]
    return second


def test_families_and_directions(tmp_path: Path) -> None:
    cases: list[tuple[Mapping[str, object], str, Direction]] = [
        ({}, "convolution", Direction.FORWARD),
        ({"direction": "backward_data"}, "convolution, data gradient", Direction.INPUT_GRADIENT),
        ({"direction": "backward_weights"}, "convolution, weight gradient", Direction.WEIGHT_GRADIENT),
        ({"groups": 4}, "grouped convolution", Direction.FORWARD),
        ({"groups": 32}, "depthwise convolution", Direction.FORWARD),
        ({"spatial": 3, "direction": "backward_both"}, "convolution, 3-D", Direction.BOTH_GRADIENTS),
        ({"dilation_h": 2, "dilation_w": 2}, "dilated convolution", Direction.FORWARD),
        ({"algorithm": "transposed", "direction": "backward_data"}, "transposed convolution", Direction.INPUT_GRADIENT),
    ]
    samples = write(tmp_path, *(row for row, _, _ in cases))
    found = zip(samples.family.tolist(), samples.problems.direction.tolist(), strict=True)
    assert list(found) == [(family, direction) for _, family, direction in cases]


def test_layouts_and_libraries(tmp_path: Path) -> None:
    samples = write(
        tmp_path,
        {"layout": "NHWC"},
        {"gpu": "Tesla T4", "source": "deepbench", "layout": "NC/32HW32", "dtype": "int8", "is_naive": None},
        {"gpu": "Tesla T4", "source": "alibaba_tinynas", "layout": "TensorRT chooses", "fused_add": 1.0},
    )
    assert samples.problems.is_channels_last.tolist() == [1.0, 1.0, 1.0]
    assert samples.problems.timing.tolist() == [
        ConvolutionTiming.MIOPEN,
        ConvolutionTiming.HOST_MEAN,
        ConvolutionTiming.TENSORRT,
    ]
    assert samples.problems.added_tensors.tolist() == [0.0, 0.0, 1.0]
    of_cudnn, of_miopen = by_library(samples)
    assert (of_cudnn.model, of_miopen.model) == ("convolution", "convolution_miopen")
    assert of_cudnn.problems.timing.tolist() == [ConvolutionTiming.HOST_MEAN, ConvolutionTiming.TENSORRT]
    assert [gpu.name for gpu in (*of_cudnn.gpus, *of_miopen.gpus)] == ["Tesla T4", "Instinct MI100"]
    assert [*of_cudnn.gpu.tolist(), *of_miopen.gpu.tolist()] == [0, 0, 0]


def test_fallbacks_and_times_of_the_host_are_left_out(tmp_path: Path) -> None:
    hosted = {"gpu": "L40S", "source": "kernelbench", "dtype": "tf32", "mode": "eager", "is_naive": None}
    samples = write(
        tmp_path,
        {"is_naive": True},
        hosted | {"latency_us": 199.0},
        hosted | {"latency_us": 900.0, "mode": "inductor"},
        hosted | {"latency_us": 900.0},
    )
    assert samples.measured_ns.tolist() == [900e3]


def test_a_cell_gives_so_many_rows_and_the_same_shapes_on_every_gpu(tmp_path: Path) -> None:
    sizes = [{"batch": batch, "gpu": gpu} for batch in range(1, CELL_ROWS + 200) for gpu in GPUS]
    samples = write(tmp_path, *sizes, {"direction": "backward_data", "batch": 7})
    drawn = [set(samples.problems.batch[(samples.gpu == at) & is_forward(samples)].tolist()) for at in range(2)]
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == CELL_ROWS
    assert not is_forward(samples).all()


GPUS = ("Instinct MI100", "Instinct MI250X (1 GCD)")


def is_forward(samples: Samples[ConvolutionProblems]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.asarray(samples.problems.direction == Direction.FORWARD)
