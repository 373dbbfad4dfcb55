"""Recordings through torch's profiler, on the CPU; the GPU's are in test_cuda.py."""

from __future__ import annotations

import os
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from wavecast.analyzer.recorded.overview import describe_trace
from wavecast.analyzer.recorded.window import select_window
from wavecast.errors import CaptureError
from wavecast.formats.trace.column import row_count
from wavecast.formats.trace.tables import Phase, Precision, Trace
from wavecast.tracer import trace_iteration


def test_the_steps_result_is_what_it_would_be_without_us(training_step: Callable[..., Any]) -> None:
    plain, recorded, steps = training_step("cpu", dropout=0.0), training_step("cpu", dropout=0.0), []
    trace_iteration(lambda: steps.append(recorded()), device="cpu", warmup=1, repeats=2)
    assert len(steps) >= 1 + 2 + 2  # more where a busy machine held up the captured one, which is then taken again
    for _ in steps:
        plain()
    for ours, theirs in zip(recorded.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_unprofiled_iterations_stand_beside_the_captured_one(training_step: Callable[..., Any]) -> None:
    trace = trace_iteration(training_step("cpu"), device="cpu", warmup=1, repeats=3)
    iterations = trace.iterations
    assert list(iterations.profiled) == [False, False, False, True]
    assert (iterations.end_ns > iterations.start_ns).all()
    assert (iterations.end_ns[:3] <= 0).all()
    assert (iterations.start_ns[1:3] == iterations.end_ns[:2]).all()
    assert iterations.start_ns[3] >= 0


def test_a_cpu_trace_holds_timed_ops_and_no_kernels(
    training_step: Callable[..., Any], op_names: Callable[..., list[str]]
) -> None:
    trace = trace_iteration(training_step("cpu"), device="cpu", warmup=1, repeats=1, name="small")
    assert (trace.meta.capture, trace.meta.source_format, trace.meta.has_shapes) == ("cpu", "wavecast", True)
    assert trace.meta.workload.mode == "training"
    assert trace.meta.workload.name == "small"
    assert not trace.is_measured
    assert trace.devices == ()
    assert "aten::addmm" in op_names(trace, Phase.FORWARD)
    assert "aten::convolution_backward" in op_names(trace, Phase.BACKWARD)
    assert "aten::addcdiv_" in op_names(trace, Phase.OPTIMIZER)
    assert (trace.ops.duration_ns >= 0).all()
    addmm = [trace.signatures[s] for n, s in zip(trace.ops.name, trace.ops.signature, strict=True)
             if trace.strings[n] == "aten::addmm"]  # fmt: skip
    assert addmm[0].tensors()[1].shape == (4, 288)


def test_autocast_is_noted() -> None:
    layer = torch.nn.Linear(4, 4)

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            layer(torch.ones(2, 4))

    trace = trace_iteration(step, device="cpu", warmup=0, repeats=0)
    assert trace.meta.precision.autocast_dtype == "bfloat16"
    assert trace.meta.workload.mode == "inference"


def test_without_autocast_none_is_noted(training_step: Callable[..., Any]) -> None:
    trace = trace_iteration(training_step("cpu"), device="cpu", warmup=0, repeats=0)
    assert trace.meta.precision.autocast_dtype is None


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_switches_that_choose_kernels_are_noted(
    device: str, training_step: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def record() -> Precision:
        return trace_iteration(training_step(device), device=device, warmup=0, repeats=0).meta.precision

    plain = record()
    assert (plain.cudnn_benchmark, plain.deterministic_algorithms) == (False, False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    changed = record()
    assert (changed.cudnn_benchmark, changed.deterministic_algorithms) == (True, True)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_tf32_is_read_off_the_new_switches_too(device: str, training_step: Callable[..., Any]) -> None:
    def record() -> tuple[bool | None, bool | None]:
        precision = trace_iteration(training_step(device), device=device, warmup=0, repeats=0).meta.precision
        return precision.matmul_tf32, precision.cudnn_tf32

    backends: Any = torch.backends
    if not hasattr(backends, "fp32_precision"):
        pytest.skip("this torch has the old switches alone")
    before = backends.fp32_precision
    try:
        for wanted in ("tf32", "ieee"):
            backends.fp32_precision = wanted
            for switches in (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn):
                switches.fp32_precision = wanted
            assert record() == (wanted == "tf32", wanted == "tf32")
        backends.cudnn.rnn.fp32_precision = "tf32"
        assert record() == (False, None)
    finally:
        backends.fp32_precision = before
        torch.set_float32_matmul_precision("highest")
        backends.cudnn.allow_tf32 = True


def test_temporary_files_are_removed(
    training_step: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    trace_iteration(training_step("cpu"), device="cpu", warmup=0, repeats=0)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_export_left_is_removed_by_the_next(
    training_step: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folders = {name: tmp_path / f"wavecast-{name}" for name in ("left", "young", "used", "other")}
    for name, folder in folders.items():
        folder.mkdir()
        (folder / ("lock" if name != "other" else "file")).touch()
        if name != "young":
            os.utime(folder, (0, 0))
    fcntl = pytest.importorskip("fcntl")
    with (folders["used"] / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        trace_iteration(training_step("cpu"), device="cpu", warmup=0, repeats=0)
    assert {folder.name for folder in tmp_path.iterdir()} == {"wavecast-young", "wavecast-used", "wavecast-other"}


def test_the_captured_iteration_is_the_one_that_is_analysed(training_step: Callable[..., Any]) -> None:
    trace = trace_iteration(training_step("cpu"), device="cpu", warmup=1, repeats=3)
    window = select_window(trace)
    assert window.index == 3
    assert len(window.op_rows) == row_count(trace.ops)
    lengths = (trace.iterations.end_ns - trace.iterations.start_ns)[:3]
    assert window.duration_ns == np.median(lengths)


def paths_of(trace: Trace, op: str, phase: Phase) -> list[str | None]:
    """Return the module paths of all calls of an op in a phase."""
    rows = [row for row, name in enumerate(trace.ops.name) if trace.strings[name] == op]
    modules = [trace.ops.module[row] for row in rows if trace.ops.phase[row] == phase]
    return [trace.strings[module] if module >= 0 else None for module in modules]


def test_ops_carry_the_path_of_their_module(training_step: Callable[..., Any]) -> None:
    trace = trace_iteration(training_step("cpu"), device="cpu", warmup=0, repeats=0)
    assert paths_of(trace, "aten::addmm", Phase.FORWARD) == ["Sequential.5"]
    assert paths_of(trace, "aten::convolution", Phase.FORWARD) == ["Sequential.0"]
    assert paths_of(trace, "aten::convolution_backward", Phase.BACKWARD) == ["Sequential.0"]
    assert not any("wavecast.module" in text for text in trace.strings)


def test_recomputed_ops_have_the_path_they_had_in_forward() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())

        def forward(self, data: torch.Tensor) -> Any:
            return torch.utils.checkpoint.checkpoint(self.block, data, use_reentrant=False)

    model, data = Net(), torch.randn(2, 4)
    trace = trace_iteration(lambda: model(data).sum().backward(), device="cpu", warmup=0, repeats=0)
    paths = [*paths_of(trace, "aten::addmm", Phase.FORWARD), *paths_of(trace, "aten::addmm", Phase.BACKWARD)]
    assert paths == ["Net.block.0", "Net.block.0"]


def test_ops_of_compiled_code_lie_inside_an_op_that_names_their_region() -> None:
    torch._dynamo.reset()
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    model = torch.compile(layers, backend="aot_eager")
    trace = trace_iteration(lambda: model(torch.ones(3, 4)).sum().backward(), device="cpu", warmup=2, repeats=0)
    names, parent = [trace.strings[number] for number in trace.ops.name], trace.ops.parent

    def around(name: str) -> list[str]:
        row, found = names.index(name), []
        while row >= 0:
            found.append(names[row])
            row = parent[row]
        return found

    function, region = around("aten::addmm")[1:]
    assert (function, region.partition(":")[0]) == ("CompiledFunction", "Torch-Compiled Region")
    assert around("aten::tanh_backward")[1] == "CompiledFunctionBackward"
    assert names[trace.ops.forward[names.index("CompiledFunctionBackward")]] == "CompiledFunction"
    assert describe_trace(trace).compiled_region_count == 2


class Resizing:
    """A compiled step whose input grows, which compiles, in the calls that are named (numbered from 1)."""

    def __init__(self, grows_at: Container[int]) -> None:
        torch._dynamo.reset()
        self.layer = torch.compile(torch.nn.Linear(4, 4), backend="eager", dynamic=False)
        self.call_count, self.rows, self.grows_at = 0, 2, grows_at

    def __call__(self) -> None:
        self.call_count += 1
        self.rows += self.call_count in self.grows_at
        self.layer(torch.ones(self.rows, 4))


def test_a_captured_run_that_compiles_is_captured_again() -> None:
    step = Resizing(grows_at={5})
    trace = trace_iteration(step, device="cpu", warmup=1, repeats=2)
    assert step.call_count == 7  # 1 + 2 + 2, and a warm-up and a capture more
    assert trace.iterations.profiled.tolist() == [False, False, True]
    names = {trace.strings[name] for name in trace.ops.name}
    assert "aten::linear" in names
    assert not any("dynamo_timed" in name or "PythonDispatchMode" in name for name in names)


def test_a_step_that_compiles_in_every_run_is_refused() -> None:
    with pytest.raises(CaptureError, match="compiled in each of 3 captured runs"):
        trace_iteration(Resizing(grows_at=range(1, 100)), device="cpu", warmup=0, repeats=0)


def test_hooks_of_a_recording_do_not_compile_in_the_captured_run() -> None:
    step = Resizing(grows_at=())
    trace_iteration(step, device="cpu", warmup=1, repeats=1)
    assert step.call_count == 4  # one that compiles is followed by two more
