"""The script's own time between ops: what counts, what does not, and before which op it stands."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from wavecast.formats.trace import Trace, Workload
from wavecast.tracer.fake_cuda.session import ScriptShapes
from wavecast.tracer.meta import script_clock
from wavecast.tracer.meta.script_clock import ScriptTime, ScriptTimes, lesser_leads

MS = 1_000_000


@pytest.fixture
def spend(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let time pass only where a script says so."""
    now = [0]
    monkeypatch.setattr(script_clock.time, "thread_time_ns", lambda: now[0])

    def pass_time(time_ns: int) -> None:
        now[0] += time_ns

    return pass_time


def record(iterate: Callable[[nn.Module, torch.optim.Optimizer], Any]) -> Trace:
    session = ScriptShapes(Workload(), lambda: None)
    with session:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).cuda()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            iterate(model, sgd)
            sgd.step()
            sgd.zero_grad()
    assert session.trace is not None
    return session.trace


def leads(trace: Trace) -> dict[str, tuple[int, int]]:
    """Return the script's time, and what loaded data, before the first op of each name that has any."""
    table = trace.ops
    rows = zip(table.name.tolist(), table.lead_ns.tolist(), table.loading_ns.tolist(), strict=True)
    return {trace.strings[name]: (lead, loading) for name, lead, loading in reversed(list(rows)) if lead}


def test_what_a_script_does_stands_before_the_op_that_follows(spend: Callable[[int], None]) -> None:
    def iterate(model: nn.Module, _sgd: torch.optim.Optimizer) -> None:
        spend(3 * MS)
        out = model(torch.ones(2, 4, device="cuda"))
        spend(2 * MS)
        out.sum().backward()

    assert leads(record(iterate)) == {"aten::ones": (3 * MS, 0), "aten::sum": (2 * MS, 0)}


def test_ops_optimizers_garbage_and_hooks_take_none_of_it(spend: Callable[[int], None]) -> None:
    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(_context: Any, x: torch.Tensor) -> torch.Tensor:
            spend(7 * MS)  # runs inside a function of torch
            return x * 1

        @staticmethod
        def backward(_context: Any, gradient: torch.Tensor) -> torch.Tensor:
            spend(7 * MS)
            return gradient

    def collect(phase: str, _details: Any) -> None:
        spend(5 * MS if phase == "start" else 0)

    def iterate(model: nn.Module, sgd: torch.optim.Optimizer) -> None:
        gc.callbacks.append(collect)  # before the clock's end of it, after its beginning
        gc.collect()
        gc.callbacks.remove(collect)
        out = model(torch.ones(2, 4, device="cuda"))
        out.register_hook(lambda gradient: spend(9 * MS) or gradient)
        out.sum().backward()

    assert leads(record(iterate)) == {}


def test_loading_of_data_is_told_apart(spend: Callable[[int], None]) -> None:
    class Slow(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> torch.Tensor:
            spend(MS)
            return torch.ones(4)

    batches: Iterator[torch.Tensor] | None = None

    def iterate(model: nn.Module, _sgd: torch.optim.Optimizer) -> None:
        nonlocal batches
        batches = batches or iter(DataLoader(Slow(), batch_size=2))
        x = next(batches)
        spend(MS)
        model(x.cuda()).sum().backward()

    assert leads(record(iterate)) == {"aten::_to_copy": (3 * MS, 2 * MS)}


def test_work_on_tensors_of_the_host_counts(spend: Callable[[int], None]) -> None:
    library = torch.library.Library("wavecast_clock", "DEF")
    library.define("slow(Tensor x) -> Tensor")
    library.impl("slow", lambda x: spend(4 * MS) or x.clone(), "CPU")

    def iterate(model: nn.Module, _sgd: torch.optim.Optimizer) -> None:
        on_host = torch.relu(torch.ops.wavecast_clock.slow(torch.ones(2, 4)))
        model(on_host.cuda()).sum().backward()

    assert leads(record(iterate)) == {"aten::_to_copy": (4 * MS, 0)}


def test_the_usual_stretch_is_what_recording_adds() -> None:
    times = ScriptTimes(
        before_op=[
            ScriptTime(time_ns=10_000.0, op_count=1),
            ScriptTime(time_ns=35_000.0, op_count=2, call_count=1),
            ScriptTime(time_ns=212_000.0, op_count=1, call_count=1, loading_ns=500_000.0),
            ScriptTime(time_ns=10_000.0, op_count=1, host_ns=7_000.0, host_loading_ns=3_000.0),
        ],
        after_calls_ns=[2_000.0, 2_000.0, 90_000.0],
        after_ops_ns=[10_000.0, 10_000.0, 11_000.0, 200_000.0, 9_000.0],
    )
    assert times.settled() == [(0, 0), (0, 0), (200_000, 200_000), (7_000, 3_000)]
    assert ScriptTimes().settled() == []


def test_of_two_iterations_the_lesser_time_counts_where_both_ran_as_many_ops() -> None:
    assert lesser_leads([(5, 1), (0, 0)], [(3, 3), (8, 0)]) == [(3, 3), (0, 0)]
    assert lesser_leads([(5, 1)], [(3, 3), (8, 0)]) == [(3, 3), (8, 0)]
