"""A runner and a small trace for the command line's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from wavecast.__main__ import wavecast
from wavecast.analyzer.questions.analyze.command import analyze_command as analyze
from wavecast.formats.trace.codec import encode
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.signature import Signature, TensorSpec
from wavecast.formats.trace.tables import (
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
