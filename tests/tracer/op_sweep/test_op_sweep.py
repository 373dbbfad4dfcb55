"""The op sweep writes tables that the score and the calibration read as they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from wavecast import __version__
from wavecast.analyzer.measurements.readers import load_tables
from wavecast.analyzer.measurements.samples import read_table
from wavecast.analyzer.models.convolution.problems import ConvolutionTiming
from wavecast.analyzer.questions.analyze.command import analyze_command as analyze
from wavecast.analyzer.questions.score.command import score_command as score
from wavecast.formats.measured.ops_file import read_ops
from wavecast.specs.attention_kernels import AttentionKernel
from wavecast.specs.gpu import Rate
from wavecast.tracer.op_sweep.cases import Case
from wavecast.tracer.op_sweep.sweep import FAMILIES, Sweep, SweepLimits, plan_sizes
from wavecast.tracer.op_sweep.timing import time_call, time_calls

GPU = "H100 SXM5 80GB"
SHAPES = 24
ON_CPU = ("--device", "cpu", "--gpu-name", "h100 sxm5")
SMALL = (*ON_CPU, "--most-gflop", "0.005", "--most-elements", "1e5", "--seconds", "1e9")
"""Shapes that take a CPU no time, and all the time that they take: what is measured ends on counts."""


@pytest.fixture(scope="module")
def sweep(root_dir: Path) -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(root_dir))
        return import_module("benchmarks.make.measure_ops")


@pytest.fixture(scope="module")
def measured(sweep: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("measured") / "h100.json.gz"
    sweep.main(["-o", str(file), *SMALL, "--shapes", str(SHAPES), "--dtypes", "fp32,tf32,bf16"])
    return file


def test_every_family_has_its_rows(measured: Path) -> None:
    runs = read_ops(measured).families
    assert list(runs) == ["matmul", "attention", "convolution", "vector", "training", "recurrent"]
    for found in runs.values():
        assert found.left_out_counts == {}
        assert sum(len(columns["latency_us"]) for columns in found.tables.values()) == SHAPES
        for name, columns in found.tables.items():
            count = len(columns["latency_us"])
            table = read_table(measured / "ops" / f"{name}.parquet")
            assert len(table["latency_us"]) == count
            assert set(table["gpu"]) == {GPU}
            assert set(table["source"]) == {f"wavecast/{__version__}"}
            assert set(table["timing"]) == {"host_min5"}
            assert not table["suspect"].any()
            assert (table["latency_us"] > 0).all()
            assert np.isfinite(table["latency_us"]).all()


@pytest.mark.data
@pytest.mark.parametrize("name", ["matmul", "attention", "convolution", "vector"])
def test_columns_are_those_of_the_public_table(measured: Path, data_dir: Path, name: str) -> None:
    from pyarrow import parquet

    public = parquet.read_schema(data_dir / "ops" / f"{name}.parquet").names
    assert set(read_table(measured / "ops" / f"{name}.parquet")) <= set(public)


def test_the_models_read_what_was_measured(measured: Path) -> None:
    samples = {found.model: found for found in load_tables(measured)}
    assert set(samples) == {
        *("matmul", "matmul_simt", "attention_prefill", "attention_decode", "vector", "convolution", "recurrent"),
    }
    assert set(samples["matmul"].dtype) == {"tf32", "bf16"}
    for model in ("attention_prefill", "attention_decode"):
        assert set(samples[model].problems.kernel.tolist()) == {AttentionKernel.FLASH2}
    assert set(samples["attention_prefill"].family) <= {
        "attention prefill (torch)",
        "attention encoder (torch)",
    }
    assert set(samples["vector"].family) == {"elementwise", "layernorm", "softmax", "embedding"}
    assert not samples["recurrent"].problems.is_host_timed.any()
    assert (samples["recurrent"].problems.input_size > 0).all()
    assert set(samples["convolution"].problems.timing.tolist()) == {ConvolutionTiming.KERNELS}
    rates = {list(Rate)[code] for code in samples["convolution"].problems.rate.tolist()}
    assert rates == {Rate.MATRIX_FP32, Rate.MATRIX_TF32, Rate.MATRIX_BF16}


def test_traffic_is_what_tensors_hold(measured: Path) -> None:
    table = read_table(measured / "ops" / "vector.parquet")
    width = np.where(table["dtype"] == "fp32", 4, 2)
    whole = table["rows"] * table["cols"] * width
    assert (table["bytes_written"] == whole).all()
    assert (table["bytes_read"][table["op"] == "add"] == 2 * whole[table["op"] == "add"]).all()


def test_score_and_calibration_take_the_file(measured: Path, root_dir: Path) -> None:
    found = CliRunner().invoke(score, [str(measured)], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    names = ("matmul", "attention", "convolution", "vector", "recurrent")
    count = sum(len(read_table(measured / "ops" / f"{name}.parquet")["gpu"]) for name in names)
    assert f"Score of {count} op measurements" in found.output
    trace = next((root_dir / "samples").glob("resnet50-training-bf16*.json.gz"))
    found = CliRunner().invoke(
        analyze, [str(trace), "--to", GPU, "--calibration", str(measured), "--format", "json"], catch_exceptions=False
    )
    assert found.exit_code == 0, found.output
    calibration = json.loads(found.stdout)["calibration"]
    counts = {item["model"]: item["point_count"] for item in calibration}
    assert counts["vector"] == SHAPES


def test_it_ends_where_no_shape_is_small_enough(sweep: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    sweep.main(["-o", str(out), *SMALL, "--families", "matmul", "--most-elements", "1", "--seconds", "0.1"])
    assert not read_ops(out).tables


@pytest.mark.parametrize("family", ["matmul", "attention", "convolution", "vector"])
def test_a_short_beginning_is_spread_over_the_sizes(family: str) -> None:
    def sizes(count: int) -> Any:
        return np.log([case.elements for case in islice(FAMILIES[family](["bf16"]), count)])

    few, many = sizes(600), sizes(6000)
    quartiles = (25, 50, 75)
    assert np.abs(np.percentile(few, quartiles) - np.percentile(many, quartiles)).max() < 0.1 * np.ptp(many)


def test_what_fails_is_left_out_and_counted() -> None:
    def fail(message: str) -> Callable[[Any], Callable[[], object]]:
        def build(_: Any) -> Callable[[], object]:
            raise RuntimeError(message)

        return build

    found = Sweep(gpu=GPU, device="cpu")
    for message in ("CUDA out of memory. Tried to allocate", "not implemented for 'Half'"):
        found.measure(Case(table="matmul", row={"dtype": "bf16"}, build=fail(message), flops=1.0, elements=1.0))
    assert found.left_out == {"out_of_memory": 1, "unsupported": 1}
    assert not found.rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "cpu"], "say with --gpu-name"),
        (["--device", "cpu", "--gpu-name", "H1000"], "no GPU of the catalogue"),
        (["--families", "matmul,fft"], "fft: expected some of matmul"),
    ],
)
def test_wrong_options_are_one_line(
    sweep: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: Sequence[str], message: str
) -> None:
    with pytest.raises(SystemExit):
        sweep.main(["-o", str(tmp_path / "out.json"), *options])
    assert message in capsys.readouterr().err


def test_no_time_writes_no_table(sweep: ModuleType, tmp_path: Path) -> None:
    sweep.main(["-o", str(tmp_path / "out.json"), *SMALL, "--seconds", "0", "--families", "vector"])
    assert not read_ops(tmp_path / "out.json").tables


class FakeGpu:
    """torch.cuda as far as the timing uses it: a call takes the time by which it moves `now_us`, a replay the sum."""

    class OutOfMemoryError(RuntimeError):
        pass

    def __init__(self, *, can_capture: bool) -> None:
        self.now_us, self.can_capture = 0.0, can_capture
        self.used: list[int] = []
        gpu = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at_us = gpu.now_us

            def elapsed_time(self, end: Any) -> float:
                return float(end.at_us - self.at_us) * 1e-3

        class CUDAGraph:
            def replay(self) -> None:
                gpu.now_us += self.length_us  # type: ignore[attr-defined]

        class Capture:
            def __init__(self, graph: Any, stream: object) -> None:
                self.graph = graph

            def __enter__(self) -> None:
                gpu.used.clear()
                self.start_us = gpu.now_us

            def __exit__(self, *_: object) -> None:
                if not gpu.can_capture:
                    raise RuntimeError("operation not permitted when stream is capturing")
                self.graph.length_us, gpu.now_us = gpu.now_us - self.start_us, self.start_us

        self.Event, self.CUDAGraph, self.graph = Event, CUDAGraph, Capture

    def synchronize(self) -> None:
        self.now_us += 100.0  # between the events, none may be

    def current_stream(self) -> None:
        return None

    def call(self, number: int, length_us: float) -> Callable[[], None]:
        def run() -> None:
            self.now_us += length_us
            self.used.append(number)

        return run


@pytest.mark.parametrize(
    ("can_capture", "length_us", "timing", "used"),
    [
        (True, 7.0, "graph_mean", [0, 1, 2, 0, 1, 2]),
        (True, 9000.0, "graph_mean", [0]),
        (False, 7.0, "event_min5", [0, 1, 2, 0, 1, 2] + [0] * 25),
        (False, 9000.0, "event_min5", [0] * 6),
    ],
)
def test_a_gpu_call_is_timed_alone_and_in_a_graph(
    monkeypatch: pytest.MonkeyPatch,
    can_capture: bool,
    length_us: float,
    timing: str,
    used: list[int],
) -> None:
    fake = FakeGpu(can_capture=can_capture)
    monkeypatch.setattr(torch, "cuda", fake)
    found = time_calls([fake.call(number, length_us) for number in range(3)], "cuda")
    assert found.timing == timing
    assert found.latency_us == pytest.approx(length_us)
    assert fake.used == used


@pytest.mark.parametrize(("length_us", "count"), [(7.0, 25), (30_000.0, 5)])
def test_a_call_is_timed_on_the_cpu_by_its_clock(length_us: float, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeGpu(can_capture=False)
    clock = SimpleNamespace(perf_counter_ns=lambda: round(fake.now_us * 1e3))
    monkeypatch.setattr("wavecast.tracer.op_sweep.timing.time", clock)
    found = time_call(fake.call(0, length_us), "cpu")
    assert found.timing == "host_min5"
    assert found.latency_us == pytest.approx(length_us)
    assert len(fake.used) == 2 + count  # one to warm up, one to see how long it takes


def test_attention_in_single_precision_alone_ends_at_once() -> None:
    (stage,) = plan_sizes(["attention"], ["fp32", "tf32"], SweepLimits(seconds=0.1))["attention"]
    assert not list(stage.cases)
