"""Tables of norms, pooling, losses and scans as problems: which kernels each row launched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wavecast.analyzer.measurements.reduction import KERNELBENCH, LIGER, NORMS, TABLE, load_samples
from wavecast.analyzer.measurements.samples import Samples
from wavecast.analyzer.models.reduction.problems import ReductionProblems
from wavecast.analyzer.work.row_kernels import RowKernel

pyarrow = pytest.importorskip("pyarrow")
H100 = "H100 SXM5 80GB"


def read(folder: Path, name: str, rows: list[dict[str, Any]]) -> Samples[ReductionProblems]:
    from pyarrow import parquet

    path = folder / name
    path.parent.mkdir(exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    (found,) = load_samples(folder)
    return found


def bench(op: str, shape: list[int], init: list[Any], *, mode: str = "eager", kind: str = "norm", **more: Any) -> Any:
    return {
        "gpu": H100,
        "machine": "host",
        "mode": mode,
        "latency_us": 900.0,
        "kind": kind,
        "op": op,
        "inputs": json.dumps([[shape, "float32"]]),
        "init": json.dumps(init),
        "dtype": "fp32",
        "input_bytes": 4.0 * float(np.prod(shape)),
        **more,
    }


def channel(op: str, layout: str, **more: Any) -> dict[str, Any]:
    return {
        "gpu": "Tesla V100 SXM2 16GB",
        "op": op,
        "direction": "forward",
        "batch": 4,
        "channels": 16,
        "depth": 1,
        "height": 7,
        "width": 7,
        "dtype": "fp32",
        "layout": layout,
        "latency_us": 12.0,
        "elements": 4 * 16 * 49,
        "library": "PyTorch git gitac07c64, cuDNN 8200",
        **more,
    }


def test_batch_norms_are_told_apart_by_layout(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        TABLE,
        [
            channel("batch_norm_stats", "NCHW"),
            channel("batch_norm_stats", "NHWC"),
            channel("batch_norm_backward_reduce", "NCHW"),
            channel("batch_norm_training", "NCDHW", dtype="fp16", latency_us=300.0, elements=16 * 49000),
            channel("batch_norm_training", "NCDHW", dtype="fp16", latency_us=70.0),
            channel("batch_norm_training", "NCDHW", dtype="fp16", latency_us=300.0, direction="backward"),
            channel("batch_norm_training", "NDHWC", dtype="fp16", latency_us=300.0, elements=16 * 49000),
        ],
    )
    kernels = [RowKernel.MOMENTS, RowKernel.COLUMN_MOMENTS, RowKernel.CHANNEL_SUMS, RowKernel.BATCH_NORM]
    kernels.append(RowKernel.BATCH_NORM_BACKWARD)
    assert found.problems.kernel.tolist() == kernels
    assert found.problems.run.tolist() == [49, 1, 49, 49, 49]
    assert found.problems.walked_bytes.tolist() == [4 * 3136, 4 * 3136, 8 * 3136, 4 * 16 * 49000, 6 * 3136]
    assert found.problems.streamed_bytes.tolist() == [0.0, 0.0, 0.0, 0.0, 6 * 3136]
    assert found.problems.host_floor_ns.tolist() == [0.0, 0.0, 0.0, 70e3, 300e3]


def test_whole_batch_norms_of_channels_last_are_those_of_the_version_that_has_kernels_for_them(tmp_path: Path) -> None:
    more = {"dtype": "fp16", "latency_us": 300.0, "elements": 64 * 49000, "channels": 64}
    own = "PyTorch git git7317dba, cuDNN 8200"
    found = read(
        tmp_path,
        TABLE,
        [
            channel("batch_norm_training", "NDHWC", **more),
            channel("batch_norm_training", "NDHWC", **more, library=own),
            channel("batch_norm_training", "NDHWC", **more, library=own, direction="backward"),
            channel("batch_norm_training", "NDHWC", **{**more, "channels": 16}, library=own),
        ],
    )
    tensor = 2 * 64 * 49000
    assert found.problems.kernel.tolist() == [RowKernel.COLUMN_MOMENTS, RowKernel.COLUMN_SUMS]
    assert found.problems.walked_bytes.tolist() == [tensor, 2 * tensor]
    assert found.problems.streamed_bytes.tolist() == [2 * tensor, 6 * tensor]


def test_norms_have_the_kernel_of_their_backend_and_kind(tmp_path: Path) -> None:
    shape = {"gpu": H100, "rows": 8, "cols": 64, "dtype": "bf16", "latency_us": 9.0}
    rows = [
        {**shape, "op": op, "direction": way, "backend": backend}
        for op, backend in (("layer_norm", "pytorch"), ("rms_norm", "pytorch"), ("rms_norm", "cudnn"))
        for way in ("forward", "backward")
    ]
    found = read(tmp_path, NORMS, rows)
    assert found.problems.kernel.tolist() == [
        RowKernel.ROW_FORWARD,
        RowKernel.ROW_BACKWARD,
        RowKernel.ROOT_NORM,
        RowKernel.ROW_BACKWARD,
        RowKernel.FUSED_FORWARD,
        RowKernel.FUSED_BACKWARD,
    ]
    assert found.problems.streamed_bytes.tolist() == [0.0, 2048.0, 0.0, 2048.0, 0.0, 0.0]
    assert (found.problems.flops / found.problems.elements).tolist() == [13.0, 13.0, 12.0, 12.0, 12.0, 12.0]
    assert np.isinf(found.problems.moved_since_bytes).all()


@pytest.mark.parametrize(
    ("row", "kernel", "rows", "walked", "streamed"),
    [
        (bench("LayerNorm", [16, 64, 256], [[64, 256]]), RowKernel.ROW_FORWARD, 16, 2, 0),
        (bench("GroupNorm", [16, 64, 256], [64, 8]), RowKernel.MOMENTS, 128, 1, 2),
        (bench("BatchNorm", [16, 64, 256], [64]), RowKernel.BATCH_NORM, 64, 2, 0),
        (bench("InstanceNorm", [16, 64, 256], [64]), RowKernel.MOMENTS, 1024, 1, 2),
        (bench("MSELoss", [128, 512], [], kind="loss"), RowKernel.REDUCE, 1, 1, 5),
        (bench("MSELoss", [128, 512], [], kind="loss", mode="inductor"), RowKernel.COMPILED_REDUCE, 1, 2, 0),
        (bench("cumsum_reverse", [128, 512], [1], kind="scan"), RowKernel.SCAN, 128, 2, 4),
        (bench("Swish", [128, 512], [], kind="elementwise"), RowKernel.STREAM, 1, 0, 5),
    ],
)
def test_an_op_is_the_kernels_that_torch_launches(
    tmp_path: Path, row: dict[str, Any], kernel: RowKernel, rows: int, walked: float, streamed: float
) -> None:
    problems = read(tmp_path, KERNELBENCH, [row]).problems
    assert (problems.kernel.tolist(), problems.rows.tolist()) == ([kernel], [rows])
    assert problems.walked_bytes.tolist() == [walked * row["input_bytes"]]
    assert problems.streamed_bytes.tolist() == [streamed * row["input_bytes"]]


@pytest.mark.parametrize(
    ("op", "shape", "init", "results", "window", "index_bytes"),
    [
        ("Max_Pooling_2D", [2, 3, 64, 64], [2, 2, 1, 3], 2 * 3 * 32 * 32, 4, 8),
        ("Average_Pooling_2D", [2, 3, 64, 64], [3], 2 * 3 * 21 * 21, 9, 0),
        ("Average_Pooling_1D", [2, 3, 64], [8, 1, 4], 2 * 3 * 65, 8, 0),
        ("Max_Pooling_3D", [2, 3, 16, 16, 16], [3, 2, 1, 3], 2 * 3 * 6**3, 27, 8),
    ],
)
def test_pooling_has_a_thread_per_window(
    tmp_path: Path, op: str, shape: list[int], init: list[int], results: int, window: int, index_bytes: int
) -> None:
    row = bench(op, shape, init, kind="pooling")
    problems = read(tmp_path, KERNELBENCH, [row]).problems
    assert problems.elements.tolist() == [results]
    assert problems.flops.tolist() == [results * window]
    assert problems.walked_bytes.tolist() == [row["input_bytes"] + (4 + index_bytes) * results]


def test_short_times_and_unknown_kernels_are_left_out(tmp_path: Path) -> None:
    rows = [
        bench("LayerNorm", [16, 64, 256], [[64, 256]]),
        bench("LayerNorm", [16, 64, 256], [[64, 256]], latency_us=60.0),
        bench("masked_cumsum", [128, 512], [1], kind="scan"),
        bench("ReLU", [128, 512], [], kind="elementwise", latency_us=25.0),
    ]
    found = read(tmp_path, KERNELBENCH, rows)
    assert found.measured_ns.tolist() == [900e3]
    assert found.problems.host_floor_ns.tolist() == [25e3]


def test_liger_reads_the_forms_whose_kernels_are_known(tmp_path: Path) -> None:
    def row(op: str, backend: str, size: int, config: dict[str, Any], direction: str = "forward") -> dict[str, Any]:
        return {
            "gpu": H100,
            "op": op,
            "backend": backend,
            "direction": direction,
            "x_value": size,
            "config": json.dumps(config),
            "latency_us": 500.0,
        }

    tokens, rows = {"B": 8, "T": 128}, {"M": 64, "dtype": "torch.float32"}
    found = read(
        tmp_path,
        LIGER,
        [
            row("cross_entropy", "huggingface", 4096, tokens),
            row("cross_entropy", "huggingface", 16384, tokens),
            row("cross_entropy", "huggingface", 65536, tokens),
            row("cross_entropy", "liger", 4096, tokens),
            row("layer_norm", "huggingface", 1024, rows, "backward"),
        ],
    )
    assert found.problems.kernel.tolist() == [RowKernel.PICK, RowKernel.PICK, RowKernel.ROW_BACKWARD]
    tensor = 1024 * 4.0
    assert found.problems.streamed_bytes.tolist() == [2 * 4096 * tensor, 4 * 65536 * tensor, 2 * 64 * tensor]
