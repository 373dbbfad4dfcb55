"""The script's own time between ops: what counts, what does not, and before which op it stands."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.utils.data import DataLoader
from wavecast.formats.trace.tables import Trace, Workload
from wavecast.tracer.fake_cuda import devices
from wavecast.tracer.fake_cuda.session import ScriptShapes
from wavecast.tracer.host_times.measure import add_host_times
from wavecast.tracer.meta import script_clock
from wavecast.tracer.meta.script_times import (
    RecordingCost,
    ScriptStretch,
    ScriptTime,
    ScriptTimes,
    ScriptWalk,
    merge_walks,
)

MS = 1_000_000


@pytest.fixture
def spend(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let time pass only where a script says so."""
    now = [0]
    monkeypatch.setattr(time, "thread_time_ns", lambda: now[0])

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
        out.register_hook(lambda _gradient: spend(9 * MS))
        out.sum().backward()

    assert leads(record(iterate)) == {}


def test_what_cpp_issues_for_a_replica_of_many_is_none_of_it(
    spend: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buffers are broadcast, and copied back one by one, in C++: no function of torch tells of these ops."""
    find_tensors = torch.utils._pytree.tree_leaves

    def find_slowly(tree: object) -> list[Any]:
        spend(MS)
        return find_tensors(tree)

    monkeypatch.setattr(devices, "tree_leaves", find_slowly)  # as ops arrive
    session = ScriptShapes(Workload(), lambda: None)
    with session:
        torch.distributed.init_process_group("nccl", rank=0, world_size=2, store=HashStore())
        model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).cuda())
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.ones(2, 4, device="cuda")).sum().backward()
            sgd.step()
            sgd.zero_grad()
        torch.distributed.destroy_process_group()
    assert session.trace is not None
    names = [session.trace.strings[name] for name in session.trace.ops.name.tolist()]
    cpp = [lead for name, lead in zip(names, session.trace.ops.lead_ns.tolist(), strict=True) if name == "aten::slice"]
    assert cpp == [-1] * len(cpp)
    assert len(cpp) > 2


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

    def slow(x: torch.Tensor) -> torch.Tensor:
        spend(4 * MS)
        return x.clone()

    library.impl("slow", slow, "CPU")

    def iterate(model: nn.Module, _sgd: torch.optim.Optimizer) -> None:
        on_host = torch.relu(torch.ops.wavecast_clock.slow(torch.ones(2, 4)))
        model(on_host.cuda()).sum().backward()

    assert leads(record(iterate)) == {"aten::_to_copy": (4 * MS, 0)}


def test_what_stands_in_for_values_of_the_gpu_does_not_count(
    spend: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    make, library = devices._ones_like, torch.library.Library("wavecast_reads", "DEF")
    library.define("slow(Tensor x) -> Tensor")

    def slow(x: torch.Tensor) -> torch.Tensor:
        spend(4 * MS)
        return x.clone()

    library.impl("slow", slow, "CPU")

    def make_slowly(*arguments: Any) -> torch.Tensor:
        made: torch.Tensor = torch.ops.wavecast_reads.slow(make(*arguments))
        return made

    monkeypatch.setattr(devices, "_ones_like", make_slowly)

    def iterate(model: nn.Module, _sgd: torch.optim.Optimizer) -> None:
        loss = model(torch.ones(2, 4).cuda())
        assert loss.tolist() == [[1.0] * 4] * 2
        spend(3 * MS)
        loss.sum().backward()

    assert leads(record(iterate)) == {"aten::sum": (3 * MS, 0)}


def test_what_recording_adds_is_taken_off_each_stretch() -> None:
    cost = RecordingCost(after_call_ns=2.0, after_op_ns=10.0)
    assert cost.own_ns([]) == (0.0, 0.0)
    assert cost.own_ns([ScriptStretch(15.0, True), ScriptStretch(3.0, False)]) == (6.0, 0.0)
    assert cost.own_ns([ScriptStretch(15.0, True), ScriptStretch(4.0, True)]) == (
        5.0,
        0.0,
    )  # less than nothing is nothing
    assert cost.own_ns([ScriptStretch(15.0, True, True), ScriptStretch(17.0, False)]) == (20.0, 5.0)


def test_code_is_slower_once_where_the_recorder_took_its_place_in_the_caches() -> None:
    cost = RecordingCost(after_op_ns=10.0, usual_ns=30.0, cold_ns=40.0)
    assert cost.own_ns([ScriptStretch(30.0, True)])[0] == pytest.approx(15.0)  # 20 ns of three quarters the speed
    assert cost.own_ns([ScriptStretch(50.0, True)])[0] == pytest.approx(30.0)
    assert cost.own_ns([ScriptStretch(510.0, True)])[0] == pytest.approx(490.0)  # it takes 10 ns and no more
    assert cost.own_ns([ScriptStretch(30.0, True), ScriptStretch(20.0, False)])[0] == pytest.approx(30.0)
    assert cost.own_ns([ScriptStretch(30.0, True), ScriptStretch(30.0, True)])[0] == pytest.approx(30.0)
    warmer = RecordingCost(usual_ns=40.0, cold_ns=30.0)
    assert warmer.own_ns([ScriptStretch(10.0, True)])[0] == pytest.approx(10.0)


def test_calls_of_modules_take_what_three_of_four_take_at_least() -> None:
    calls = [[ScriptStretch(12.0 + extra, True, opens_module=True)] for extra in (0.0, 10.0, 20.0, 30.0, 1000.0)]
    times = ScriptTimes(before_op=[ScriptTime(stretches=item) for item in calls])
    limit = RecordingCost(after_op_ns=2.0, usual_ns=10.0, cold_ns=100.0)
    assert times.usual_module_ns(limit) == pytest.approx(20.0)
    assert times.usual_module_ns(RecordingCost(after_op_ns=2.0, usual_ns=15.0)) == pytest.approx(15.0)
    assert ScriptTimes().usual_module_ns(limit) == 0.0
    assert times.settled(RecordingCost(after_op_ns=2.0, module_ns=20.0)) == [(0, 0), (0, 0), (10, 0), (20, 0), (990, 0)]


def test_work_on_the_host_counts_beside_the_stretches() -> None:
    times = ScriptTimes(
        before_op=[
            ScriptTime(stretches=[ScriptStretch(10.0, True, True)], host_ns=7.0, host_loading_ns=3.0),
            ScriptTime(),
        ]
    )
    assert times.settled(RecordingCost(after_op_ns=4.0)) == [(13, 9), (0, 0)]


def test_known_python_is_run_amid_the_recording_alone(spend: Callable[[int], None], monkeypatch: Any) -> None:
    """Its time counts for none of the script's, and tells how much slower code runs there."""
    calls = []

    class Known:
        def __init__(self, _width: int) -> None:
            pass

        def call(self, position: int) -> None:
            calls.append(position)
            spend(40_000 if len(calls) > script_clock._ROUNDS else 20_000)

    def iterate(model: nn.Module, _sgd: torch.optim.Optimizer) -> None:
        out = model(torch.ones(2, 4, device="cuda"))
        spend(30_000)
        out = out * 2
        spend(2 * MS)
        out.sum().backward()

    monkeypatch.setattr(script_clock, "PlainLayer", Known)
    found = leads(record(iterate))
    assert len(calls) > script_clock._ROUNDS
    assert found == {"aten::mul": (15_000, 0), "aten::sum": (2 * MS - 20_000, 0)}


def test_of_short_gaps_the_least_counts_and_of_long_ones_the_lower_quarter_at_the_speed_of_the_fastest_walk() -> None:
    short, long = MS // 20, 10 * MS
    times = [(1.0, long, short), (2.0, 2 * long, 4 * short), (2.0, 3 * long, 2 * short), (4.0, 2 * long, 9 * short)]
    walks = [ScriptWalk(leads=[(took, took // 2), (little, 0)], round_ns=speed) for speed, took, little in times]
    told = merge_walks(walks)
    assert told.lead_ns.tolist() == [long * 7 // 8, short]
    assert told.loading_ns.tolist() == [long * 7 // 16, 0]
    assert told.round_ns == 1.0
    assert told.spread == pytest.approx(1.645 * np.std(np.log([1, 1, 1.5, 0.5])) / 2)
    assert told.has_long
    alike = merge_walks([ScriptWalk(leads=[(short, 0)], round_ns=3.0)] * 2)
    assert (alike.has_long, alike.spread) == (False, 0.0)


def walk(
    takes_ns: list[int], spend: Callable[[int], None], lengths: list[int] | None = None, ran: list[int] | None = None
) -> tuple[Trace, int]:
    """Return the recording of a script whose iterations take such times of their own, and how many it ran."""
    ran = ran or [0]

    def stop() -> None:
        raise SystemExit(0)

    session = ScriptShapes(Workload(), stop)
    with session, contextlib.suppress(SystemExit):
        model = nn.Linear(4, 4).cuda()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        for number, time_ns in enumerate(takes_ns):
            ran[0] += 1
            out = model(torch.ones(2, 4, device="cuda"))
            for _ in range((lengths or [0] * len(takes_ns))[number]):
                out = out * 2
            spend(time_ns)
            out.sum().backward()
            sgd.step()
            sgd.zero_grad()
    assert session.trace is not None
    return session.trace, ran[0]


def test_a_script_that_does_much_between_ops_is_walked_through_more_often(spend: Callable[[int], None]) -> None:
    trace, ran = walk([9 * MS, 9 * MS, 8 * MS, 6 * MS, 7 * MS, 5 * MS, 5 * MS, *[MS] * 9], spend)
    assert ran == 7
    assert leads(trace) == {"aten::sum": (5.25 * MS, 0)}
    assert trace.meta.script_walks == 6
    assert trace.meta.script_spread == pytest.approx(1.645 * np.std(np.log([9, 8, 6, 7, 5, 5])) / 6**0.5, abs=1e-4)


def test_a_script_is_held_against_a_known_piece_of_python_beside_it(
    monkeypatch: pytest.MonkeyPatch, spend: Callable[[int], None]
) -> None:
    """The machine gets slower and slower: so does the known piece, and what is recorded stays."""
    ran = [0]

    class Known:
        def __init__(self, _width: int) -> None:
            pass

        def call(self, _position: int) -> None:
            spend(5_000 * max(ran[0], 1))

    monkeypatch.setattr(script_clock, "PlainLayer", Known)
    trace, ran_count = walk([2 * MS * (1 + number) for number in range(9)], spend, ran=ran)
    assert ran_count == 7
    found = leads(trace)["aten::sum"][0] / (trace.meta.host.python_ns or 0)
    assert found == pytest.approx(2 * MS / 5_000, rel=0.01)
    assert (trace.meta.script_spread or 0.0) < 0.06  # 0.28 by the times as they are
    assert add_host_times(trace).meta.host.python_ns == pytest.approx(trace.meta.host.python_ns, abs=0.1)


def test_a_script_that_does_little_between_ops_ends_with_the_recorded_iteration(spend: Callable[[int], None]) -> None:
    trace, ran = walk([9 * MS, *[150_000] * 9], spend)
    assert ran == 3
    assert trace.meta.script_walks == 2


def test_a_script_that_ends_before_it_was_walked_through_often_is_recorded(spend: Callable[[int], None]) -> None:
    trace, ran = walk([9 * MS] * 4, spend)
    assert ran == 4
    assert (trace.meta.script_walks, leads(trace)) == (3, {"aten::sum": (9 * MS, 0)})


def test_walks_through_other_ops_tell_nothing(spend: Callable[[int], None]) -> None:
    trace, _ = walk([5 * MS, 5 * MS, 5 * MS, MS, 5 * MS, MS, MS, 5 * MS], spend, [0, 0, 0, 2, 0, 3, 1, 0])
    assert leads(trace) == {"aten::sum": (5 * MS, 0)}
    assert trace.meta.script_walks == 3


def test_copies_that_the_end_of_autocast_drops_are_no_work_of_the_script(
    spend: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave = torch.autocast.__exit__

    def leave_slowly(self: torch.autocast, *raised: Any) -> Any:
        spend(4 * MS)
        return leave(self, *raised)

    monkeypatch.setattr(torch.autocast, "__exit__", leave_slowly)

    def iterate(model: nn.Module, _sgd: torch.optim.Optimizer) -> None:
        with torch.autocast("cuda", dtype=torch.float16):
            out = model(torch.ones(2, 4, device="cuda"))
        out.sum().backward()

    assert leads(record(iterate)) == {}
