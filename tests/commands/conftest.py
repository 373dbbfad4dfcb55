"""Builders, a runner and golden files for the command line's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from wavecast.__main__ import wavecast
from wavecast.analyzer.analysis.report import GpuPrediction, OpPrediction, Report, Source, TraceSummary
from wavecast.analyzer.commands.analyze import analyze
from wavecast.analyzer.prediction.method import Method
from wavecast.analyzer.replay.causes import IdleCause
from wavecast.formats.codec import encode
from wavecast.formats.column import build_table
from wavecast.formats.signature import Signature, TensorSpec
from wavecast.formats.trace import (
    CallTable,
    Device,
    IterationTable,
    KernelTable,
    Meta,
    OpTable,
    Phase,
    Quality,
    Trace,
    Workload,
)

GOLDEN = Path(__file__).with_name("golden")
MILLISECOND_NS = 1e6


@pytest.fixture
def check_golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare text with a golden file; `pytest tests/commands --rewrite-golden` accepts what is printed now."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--rewrite-golden", default=False):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return check


@pytest.fixture
def run() -> Callable[..., Result]:
    """Run a command in-process: `run("show", path, COLUMNS=80)`; without COLUMNS it prints as into a pipe."""

    def invoke(command: str, *arguments: object, stdin: bytes | None = None, **environment: object) -> Result:
        settings: dict[str, str | None] = {"COLUMNS": None, "NO_COLOR": None, "FORCE_COLOR": None}
        settings |= {name: str(value) for name, value in environment.items()}
        words = [str(argument) for argument in arguments]
        if command == "analyze":
            return CliRunner().invoke(analyze, words, input=stdin, env=settings, prog_name="analyze")
        return CliRunner().invoke(wavecast, [command, *words], input=stdin, env=settings, prog_name="wavecast")

    return invoke


def build_prediction(gpu: str, iteration_ms: float, **changes: Any) -> GpuPrediction:
    values: dict[str, Any] = {
        "gpu": gpu,
        "vendor": "AMD" if "Instinct" in gpu else "NVIDIA",
        "is_source": False,
        "iteration_ns": iteration_ms * MILLISECOND_NS,
        "iteration_low_ns": None,
        "iteration_high_ns": None,
        "gpu_busy_ns": (iteration_ms - 2) * MILLISECOND_NS,
        "communication_ns": 0.25 * MILLISECOND_NS,
        "idle_ns": {
            IdleCause.HOST: 1.5 * MILLISECOND_NS,
            IdleCause.SYNC: 0.25 * MILLISECOND_NS,
            IdleCause.COMMUNICATION: 0.0,
            IdleCause.DEPENDENCY: 0.25 * MILLISECOND_NS,
            IdleCause.UNEXPLAINED: 0.0,
        },
        "fits": True,
        "is_tight": False,
        "memory_needed_bytes": 3 << 30,
        "memory_usable_bytes": 80 << 30,
        "methods": {Method.BOUND_RATIO: 0.7, Method.WAVE_SCALING: 0.297, Method.UNMODELLED: 0.003},
        "speedup": 10 / iteration_ms,
        "samples_per_s": 32e3 / iteration_ms,
        "price_usd_per_hour": None,
        "price_date": None,
    }
    return GpuPrediction(**(values | changes))


def build_op(op: str, predicted_ms: float, **changes: Any) -> OpPrediction:
    values: dict[str, Any] = {
        "op": op,
        "shapes": "float16[32,1024] float16[1024,4096]",
        "module": "Net/layers.0/mlp",
        "family": "matmul",
        "count": 24,
        "source_ns": predicted_ms * MILLISECOND_NS,
        "predicted_ns": predicted_ms * MILLISECOND_NS,
        "predicted_low_ns": None,
        "predicted_high_ns": None,
        "bound_ns": 0.4 * predicted_ms * MILLISECOND_NS,
        "bound_by": "compute",
        "method": Method.MEASURED,
        "reason": "this is the source",
        "share": predicted_ms / 8,
    }
    return OpPrediction(**(values | changes))


KERNEL_NAME = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<c10::Half, c10::Half, "
    "at::native::binary_internal::MulFunctor<float>>, std::array<char*, 3ul>>(int, float)"
)


@pytest.fixture
def measured_report() -> Report:
    """A report with everything that a report can hold."""
    return Report(
        trace=TraceSummary(
            name="small net",
            source_format="kineto",
            capture="measured",
            framework="torch 2.6.0",
            mode="training",
            batch_size=32,
            samples_per_iteration=32,
            iteration_count=5,
            iteration_index=2,
            op_count=1234,
            kernel_count=1,
        ),
        source=Source(gpu="A100 SXM4 80GB", iteration_ns=10 * MILLISECOND_NS, gpu_busy_ns=8 * MILLISECOND_NS),
        predictions=(
            build_prediction("B200 SXM (HGX, 180GB)", 4.6543, price_usd_per_hour=6.25, price_date="2024-05-01"),
            build_prediction(
                "Instinct MI300X", 7.2, iteration_low_ns=5.9 * MILLISECOND_NS, iteration_high_ns=9.12 * MILLISECOND_NS
            ),
            build_prediction(
                "A100 SXM4 80GB",
                10.0,
                is_source=True,
                methods={Method.MEASURED: 1.0},
                price_usd_per_hour=3.0,
                price_date="2023-11-20",
            ),
            build_prediction(
                "Tesla P4",
                123.456,
                fits=False,
                is_tight=True,
                memory_usable_bytes=8 << 30,
                methods={Method.BOUND_RATIO: 0.9996, Method.LINK_RATIO: 0.0004},
            ),
        ),
        ops_gpu="A100 SXM4 80GB",
        ops=(
            build_op("aten::addmm", 4.0),
            build_op(KERNEL_NAME, 0.0123, shapes="", module=None, bound_ns=None, bound_by=None, family=None),
        ),
        warnings=("80% of the GPU time is in kernels without shapes: record with record_shapes=True",),
    )


@pytest.fixture
def shapes_report() -> Report:
    """A report of a trace without timings: most is not known."""
    return Report(
        trace=TraceSummary(
            name=None,
            source_format="wavecast",
            capture="shapes",
            framework=None,
            mode=None,
            batch_size=None,
            samples_per_iteration=None,
            iteration_count=0,
            iteration_index=None,
            op_count=1,
            kernel_count=0,
        ),
        source=Source(),
        predictions=tuple(
            build_prediction(
                gpu,
                time_ms,
                iteration_low_ns=0.8 * time_ms * MILLISECOND_NS,
                gpu_busy_ns=time_ms * MILLISECOND_NS,
                communication_ns=0.0,
                idle_ns=dict.fromkeys(IdleCause, 0.0),
                fits=None,
                memory_needed_bytes=None,
                methods={Method.ROOFLINE: 1.0},
                speedup=None,
                samples_per_s=None,
            )
            for gpu, time_ms in (("H100 SXM5 80GB", 0.0451), ("Tesla T4", 0.391))
        ),
        ops_gpu="H100 SXM5 80GB",
        ops=(build_op("aten::mm", 0.0451, source_ns=None, module=None, count=1, method=Method.ROOFLINE, share=1.0),),
    )


def build_small_trace() -> Trace:
    """A measured trace of two iterations: a matrix product, its activation, a copy and a kernel without an op."""
    strings = (
        "aten::linear",
        "aten::addmm",
        "aten::relu",
        "sgemm_128x64",
        "relu_kernel",
        "Memcpy HtoD",
        "lone",
        "launch",
    )
    shape = Signature((TensorSpec("float32", (64,)), TensorSpec("float32", (32, 64)), TensorSpec("float32", (64, 64))))
    return Trace(
        meta=Meta(
            producer="wavecast test",
            framework="torch 2.6.0",
            has_shapes=True,
            workload=Workload(name="tiny", mode="inference", batch_size=32, samples_per_iteration=32),
        ),
        devices=(Device(name="NVIDIA A100-SXM4-80GB", compute_capability="8.0", sm_count=108),),
        strings=strings,
        signatures=(shape, Signature((TensorSpec("float32", (32, 64)),))),
        iterations=build_table(
            IterationTable, 2, start_ns=[0, 500_000], end_ns=[400_000, 950_000], cpu_start_ns=[0, 500_000],
            cpu_end_ns=[390_000, 940_000],
        ),
        ops=build_table(
            OpTable, 6, name=[0, 1, 2] * 2, signature=[0, 0, 1] * 2, parent=[-1, 0, -1, -1, 3, -1],
            phase=[Phase.FORWARD] * 6,
            start_ns=[10_000, 20_000, 150_000, 510_000, 520_000, 650_000],
            duration_ns=[100_000, 80_000, 60_000, 100_000, 80_000, 60_000],
        ),
        calls=build_table(
            CallTable, 4, name=[7] * 4, start_ns=[30_000, 160_000, 530_000, 660_000], duration_ns=[5_000] * 4,
            op=[1, 2, 4, 5],
        ),
        kernels=build_table(
            KernelTable, 6, name=[3, 4, 3, 4, 5, 6], kind=[0, 0, 0, 0, 1, 0], call=[0, 1, 2, 3, -1, -1],
            op=[1, 2, 4, 5, -1, -1], grid=[[8, 4, 1]] * 6, block=[[128, 1, 1]] * 6, registers=[64] * 6,
            shared_memory_bytes=[0] * 6, size_bytes=[-1, -1, -1, -1, 8192, -1], stream=[7] * 6,
            start_ns=[40_000, 170_000, 540_000, 670_000, 700_000, 800_000],
            duration_ns=[100_000, 20_000, 110_000, 20_000, 10_000, 40_000],
        ),
        quality=Quality(kernels_without_op=2, kernels_without_call=2),
    )  # fmt: skip


@pytest.fixture
def trace_bytes() -> bytes:
    """A small valid trace as a file's content."""
    return encode(build_small_trace())


@pytest.fixture
def trace_file(tmp_path: Path, trace_bytes: bytes) -> Path:
    """A small valid trace file."""
    path = tmp_path / "tiny.json"
    path.write_bytes(trace_bytes)
    return path
