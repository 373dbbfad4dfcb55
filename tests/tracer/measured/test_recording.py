"""Recording in code: `record` around a loop as it is, and `trace_handler` for torch's own profiler."""

from __future__ import annotations

import pickle
import signal
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo  # torch 2.5 refuses to load it where a test has replaced classes of torch.cuda
from torch.nn.modules import module as module_hooks
from torch.profiler import ProfilerActivity, profile, schedule
from wavecast import load_trace
from wavecast.errors import CaptureError, InputError, OutputError
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.tables import MemoryTable, Phase, Trace
from wavecast.tracer import record, trace_handler, trace_iteration
from wavecast.tracer.hooks.boundaries import Turns
from wavecast.tracer.measured.profiled import read_profiler


def hook_counts() -> list[int]:
    optimizer = import_module("torch.optim.optimizer")
    return [
        len(module_hooks._global_forward_pre_hooks),
        len(module_hooks._global_forward_hooks),
        len(optimizer._global_optimizer_pre_hooks),
        len(optimizer._global_optimizer_post_hooks),
        sum("global hooks" in str(item) for item in warnings.filters),
    ]


@pytest.fixture(autouse=True)
def nothing_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """No test leaves hooks, filters, signal handlers, a running profiler or temporary files behind."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    before, handler = hook_counts(), signal.getsignal(signal.SIGINT)
    yield
    assert hook_counts() == before
    assert signal.getsignal(signal.SIGINT) is handler
    assert not torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
    assert [path for path in folder.iterdir() if not path.name.startswith("torchinductor")] == []  # torch's own cache


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json.gz"


class Training:
    """A loop with one optimizer per named part; `order` says which step in which order in one iteration."""

    def __init__(self, order: str = "a") -> None:
        self.order = order
        self.layers = {name: torch.nn.Linear(4, 2) for name in order}
        self.optimizers = {name: torch.optim.SGD(layer.parameters()) for name, layer in self.layers.items()}

    def run(self, count: int) -> None:
        for _ in range(count):
            for name in self.order:
                self.optimizers[name].zero_grad()
                self.layers[name](torch.ones(3, 4)).sum().backward()
                self.optimizers[name].step()


def op_count(trace: Trace, name: str) -> int:
    return sum(trace.strings[row] == name for row in trace.ops.name)


def test_a_loop_is_recorded_as_it_is(path: Path) -> None:
    with record(path, name="small", batch_size=3) as recorder:
        Training().run(24)
    trace = load_trace(path)
    assert list(trace.iterations.profiled) == [False] * 10 + [True] * 5
    assert (trace.meta.workload.mode, trace.meta.workload.name) == ("training", "small")
    assert trace.meta.has_shapes
    assert op_count(trace, "aten::linear") == 5
    assert (recorder.trace, recorder.path, recorder.error) == (trace, path, None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, events in its stream tell the time")
def test_iterations_outside_the_capture_are_timed_by_the_clock_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(perf_counter_ns=count(step=7_000_000).__next__)
    monkeypatch.setattr("wavecast.tracer.measured.recorder.time", clock)
    with record(path):
        Training().run(30)
    iterations = load_trace(path).iterations
    lengths_ns = iterations.end_ns - iterations.start_ns
    assert set(lengths_ns[~iterations.profiled].tolist()) == {7_000_000}
    assert (lengths_ns[iterations.profiled] > 0).all()


@pytest.mark.parametrize("order", ["ab", "aab", "aaaaab", "ba", "abcde"])
def test_several_optimizers_make_one_iteration(path: Path, order: str) -> None:
    with record(path, iterations=(8, 10)) as recorder:
        Training(order).run(12)
    assert recorder.iteration_count == 12
    assert op_count(load_trace(path), "aten::linear") == 2 * len(order)


def test_an_optimizer_that_steps_now_and_then_does_not_set_the_pace() -> None:
    turns, often, seldom = Turns(), torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    assert [turns.take(often) for _ in range(10)] == list(range(1, 11))
    assert turns.take(seldom) is None
    assert turns.take(often) == 11


def test_a_new_optimizer_after_the_old_one_is_gone_starts_anew() -> None:
    turns = Turns()
    assert [turns.take(item) for item in [torch.nn.Linear(1, 1)] * 9][-1] == 9
    other = torch.nn.Linear(1, 1)
    assert [turns.take(other) for _ in range(2)] == [1, 2]


def test_gradient_accumulation_is_one_iteration(path: Path) -> None:
    training = Training()
    with record(path, iterations=(3, 4)):
        for _ in range(8):
            for _ in range(16):
                training.layers["a"](torch.ones(3, 4)).sum().backward()
            training.optimizers["a"].step()
    assert op_count(load_trace(path), "aten::linear") == 16


def test_evaluation_before_training_does_not_count(path: Path) -> None:
    training = Training()
    with record(path, iterations=(5, 7)) as recorder:
        training.layers["a"].eval()
        for _ in range(6):  # the profiler has begun by then
            training.layers["a"](torch.ones(3, 4))
        training.layers["a"].train()
        training.run(20)
    trace = load_trace(path)
    assert trace.meta.workload.mode == "training"
    assert list(trace.iterations.profiled) == [False] * 10 + [True] * 2
    assert recorder.error is None


def test_an_inference_loop_with_preprocessing_modules_is_one_iteration_per_round(path: Path) -> None:
    scale, model = torch.nn.BatchNorm1d(4).eval(), torch.nn.Sequential(torch.nn.Linear(4, 2)).eval()
    with record(path, iterations=(5, 8)), torch.inference_mode():
        for _ in range(20):
            model(scale(torch.ones(3, 4)))
    trace = load_trace(path)
    assert trace.meta.workload.mode == "inference"
    assert (op_count(trace, "aten::linear"), op_count(trace, "aten::batch_norm")) == (3, 3)
    assert set(trace.ops.phase.tolist()) == {Phase.FORWARD}


def test_inference_in_training_mode_can_be_asked_for(path: Path) -> None:
    layer = torch.nn.Linear(4, 2)
    with record(path, iterations=(2, 3), mode="inference"):
        for _ in range(5):
            layer(torch.ones(3, 4))
    assert load_trace(path).meta.workload.mode == "inference"


def test_a_forward_that_fails_is_no_iteration_and_its_error_is_the_users(path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 2)).eval()
    with record(path, iterations=(4, 6)) as recorder:
        for number in range(12):
            if number % 3 == 2:
                with pytest.raises(RuntimeError, match="cannot be multiplied"):
                    model(torch.ones(3, 5))
            else:
                model(torch.ones(3, 4))
    assert recorder.iteration_count == 8
    assert load_trace(path).iterations.profiled.sum() == 2
    assert not model._forward_hooks
    pickle.dumps(model)


def test_a_closure_that_the_optimizer_runs_is_forward_and_backward(path: Path) -> None:
    layer = torch.nn.Linear(4, 2)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = layer(torch.ones(3, 4)).pow(2).sum()
        loss.backward()
        return loss

    with record(path, iterations=(2, 4)):
        for _ in range(6):
            optimizer.step(closure)
    trace = load_trace(path)
    phases: dict[str, set[int]] = {}
    for name, phase in zip(trace.ops.name, trace.ops.phase, strict=True):
        phases.setdefault(trace.strings[name], set()).add(int(phase))
    assert phases["aten::addmm"] == {Phase.FORWARD}
    assert phases["aten::pow"] == {Phase.FORWARD, Phase.BACKWARD}
    assert phases["PowBackward0"] == {Phase.BACKWARD}
    assert phases["aten::cat"] == {Phase.OPTIMIZER}  # gathers the gradients in every step


def test_compiled_modules_are_not_compiled_again(path: Path) -> None:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    model = torch.compile(layers, backend="eager")
    optimizer = torch.optim.SGD(layers.parameters())
    with record(path, iterations=(5, 7)):
        for _ in range(10):
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    assert load_trace(path).iterations.profiled.sum() == 2


def test_iterations_in_which_torch_compiles_are_left_out(path: Path) -> None:
    torch._dynamo.reset()
    layer = torch.nn.Linear(4, 4)
    model = torch.compile(layer, backend="eager", dynamic=False)
    optimizer = torch.optim.SGD(layer.parameters())
    with record(path, iterations=(5, 8)):
        for index in range(10):
            model(torch.ones(3 if index < 6 else 4, 4)).sum().backward()  # compiles in the second one that is captured
            optimizer.step()
    assert load_trace(path).iterations.profiled.sum() == 2


def test_compiling_in_every_captured_iteration_is_a_warning_and_no_file(path: Path) -> None:
    torch._dynamo.reset()
    layer = torch.nn.Linear(4, 4)
    model = torch.compile(layer, backend="eager", dynamic=False)
    optimizer = torch.optim.SGD(layer.parameters())

    def train() -> None:
        for index in range(6):
            model(torch.ones(3 + index, 4)).sum().backward()
            optimizer.step()

    with (
        pytest.warns(RuntimeWarning, match="compiled in each of the 2 captured iterations"),
        record(path, iterations=(2, 4)),
    ):
        train()
    assert not path.exists()


@pytest.mark.filterwarnings("ignore")  # of torch, about itself
def test_a_compiled_optimizer_step_ends_iterations_and_our_hooks_are_not_compiled(path: Path) -> None:
    from torch._dynamo.utils import counters

    training = Training()
    step = torch.compile(training.optimizers["a"].step, backend="eager")

    def run() -> tuple[int, int]:
        torch._dynamo.reset()
        counters.clear()
        for _ in range(20):
            training.layers["a"](torch.ones(3, 4)).sum().backward()
            step()
        return counters["stats"]["unique_graphs"], counters["stats"]["calls_captured"]

    expected = run()
    with record(path, iterations=(5, 7)) as recorder:
        assert run() == expected
    assert recorder.iteration_count >= 17
    assert load_trace(path).iterations.profiled.sum() == 2


def test_the_loops_own_exception_passes_and_what_was_captured_is_kept(path: Path) -> None:
    problem = KeyError("the user's own")

    def fail() -> None:
        Training().run(13)
        raise problem

    with pytest.raises(KeyError) as caught, record(path):
        fail()
    assert caught.value is problem
    assert load_trace(path).iterations.profiled.sum() == 3


@pytest.mark.parametrize("count", [2, 3])
def test_a_loop_of_few_iterations_is_recorded_with_its_last_one(path: Path, count: int) -> None:
    with record(path) as recorder:
        Training().run(count)
    assert recorder.summarise().endswith(f"the code ended after {count} iterations: one of its first was captured")
    trace = load_trace(path)
    assert list(trace.iterations.profiled) == [True]
    assert np.count_nonzero(trace.ops.phase == Phase.OPTIMIZER) > 0


def test_a_loop_that_is_too_short_is_a_warning_and_no_file(path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="ended after 1 iteration"), record(path) as recorder:
        Training().run(1)
    assert isinstance(recorder.error, CaptureError)
    assert not path.exists()


def test_what_fails_while_recording_does_not_reach_the_loop(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("wavecast.tracer.measured.recorder.save_trace", fail)
    with pytest.warns(RuntimeWarning, match="no space left"), record(path, iterations=(3, 5)) as recorder:
        Training().run(20)
    assert recorder.iteration_count == 5
    assert not path.exists()


@pytest.mark.filterwarnings("ignore:wavecast")
def test_other_threads_do_not_end_iterations(path: Path) -> None:
    with record(path, iterations=(3, 5)) as recorder:
        Training().run(3)
        thread = threading.Thread(target=Training().run, args=(7,))
        thread.start()
        thread.join()
    assert recorder.iteration_count == 3


@pytest.mark.filterwarnings("ignore:wavecast")
def test_recordings_do_not_nest(path: Path) -> None:
    with record(path), pytest.raises(CaptureError, match="another recording"):
        trace_iteration(lambda: None, device="cpu")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"iterations": (5, 5)}, InputError),
        ({"iterations": (1, 5)}, InputError),
        ({"iterations": (1, 2, 3)}, InputError),
        ({"mode": "both"}, InputError),
        ({"batch_size": 0}, InputError),
        ({"path": "trace.txt"}, OutputError),
        ({"path": "nowhere/trace.json"}, OutputError),
    ],
)
def test_bad_arguments_are_refused_before_the_loop_runs(path: Path, options: dict[str, Any], error: Any) -> None:
    with pytest.raises(error) as caught, record(**({"path": path} | options)):
        pytest.fail("the loop ran")
    assert "\n" not in str(caught.value)


@pytest.fixture
def profile_steps() -> Callable[..., None]:
    """Run training steps under a profiler of the user's own."""

    def run(handler: Any, **options: Any) -> None:
        training = Training()
        plan = schedule(wait=1, warmup=1, active=3, repeat=1)
        with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=handler, **options) as profiler:
            for _ in range(6):
                training.run(1)
                profiler.step()

    return run


def test_torchs_profiler_writes_our_trace_with_the_handler(path: Path, profile_steps: Any) -> None:
    profile_steps(trace_handler(path, name="mine"), record_shapes=True, profile_memory=True)
    trace = load_trace(path)
    assert list(trace.iterations.profiled) == [True] * 3
    assert (trace.meta.source_format, trace.meta.capture) == ("wavecast", "cpu")
    assert (trace.meta.workload.name, trace.meta.workload.mode) == ("mine", "training")
    assert trace.meta.has_shapes
    assert trace.meta.has_memory


def test_a_gpu_that_the_profiler_was_not_told_to_watch_is_no_cpu(
    path: Path, profile_steps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_a_gpu(finished: profile) -> Trace:
        trace = read_profiler(finished)
        table = build_table(MemoryTable, 1, time_ns=[1], device=[0], size_bytes=[8])
        return replace(trace, memory=table, meta=replace(trace.meta, capture="host", accelerator="gpu"))

    monkeypatch.setattr("wavecast.tracer.measured.files.read_profiler", on_a_gpu)
    profile_steps(trace_handler(path, name="mine"), record_shapes=True)
    assert (load_trace(path).meta.capture, load_trace(path).meta.accelerator) == ("host", "gpu")


def test_the_handler_reads_the_dtype_of_autocast_off_the_casts(path: Path) -> None:
    layer = torch.nn.Linear(4, 4)
    profiler = profile(activities=[ProfilerActivity.CPU], record_shapes=True, on_trace_ready=trace_handler(path))
    with profiler, torch.autocast("cpu", dtype=torch.bfloat16):
        layer(torch.ones(2, 4))
    assert load_trace(path).meta.precision.autocast_dtype == "bfloat16"


def test_a_profiler_without_shapes_is_a_warning(path: Path, profile_steps: Any) -> None:
    with pytest.warns(RuntimeWarning, match="record_shapes=True"):
        profile_steps(trace_handler(path))
    assert not load_trace(path).meta.has_shapes


def test_a_handler_that_fails_does_not_reach_the_loop(
    path: Path, profile_steps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wavecast.tracer.measured.profiled.import_numbered", lambda _data: 1 / 0)
    with pytest.warns(RuntimeWarning, match="division by zero"):
        profile_steps(trace_handler(path), record_shapes=True)
    assert not path.exists()


def test_each_rank_has_a_file_of_its_own(path: Path, profile_steps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("SLURM_NTASKS", "8")
    profile_steps(trace_handler(path), record_shapes=True)
    trace = load_trace(path.with_name("trace.rank3.json.gz"))
    assert (trace.meta.rank, trace.meta.world_size) == (3, 8)
