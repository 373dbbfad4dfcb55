"""How embedding ops look up rows is counted in an iteration that is not timed, and nothing else is kept of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from wavecast.formats.files.source import RecordingPart
from wavecast.formats.trace.codec import decode, encode
from wavecast.formats.trace.cut import cut_part
from wavecast.formats.trace.tables import Trace
from wavecast.tracer import record, trace_iteration
from wavecast.tracer.measured import lookups as counting
from wavecast.tracer.measured.lookups import MOST_LOOKUPS, count_lookups, count_rows

Rows = list[tuple[str, tuple[int, ...], int, int, int, int]]


def indices(rows: int, number: int, seed: int = 0) -> torch.Tensor:
    drawn = np.random.default_rng(seed).zipf(1.5, number) % rows
    return torch.from_numpy(drawn)


def expected(drawn: torch.Tensor) -> list[tuple[int, int, int]]:
    """Return the histogram, counted another way."""
    often = Counter(Counter(drawn.flatten().tolist()).values())
    found: dict[int, list[int]] = {}
    for count, rows in often.items():
        part = found.setdefault(1 << (count.bit_length() - 1), [0, 0])
        part[0] += rows
        part[1] += rows * count
    return [(least, rows, number) for least, (rows, number) in sorted(found.items())]


def told(trace: Trace) -> Rows:
    table, ops = trace.lookups, trace.ops
    names = [trace.strings[ops.name[op]] for op in table.op]
    shapes = [trace.signatures[ops.signature[op]].arguments[0].shape for op in table.op]
    columns = (table.table_index, table.least_count, table.distinct_rows, table.lookup_count)
    return list(zip(names, shapes, *(column.tolist() for column in columns), strict=True))


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, 4, mode="sum") for rows in (1000, 50))
        self.rows = nn.Embedding(300, 4)
        self.top = nn.Linear(4, 1)
        self.given = [indices(1000, 256), indices(50, 256, 1), indices(300, 64, 2)]

    def forward(self, few: torch.Tensor | None = None) -> torch.Tensor:
        found = [bag(given.view(64, 4)) for bag, given in zip(self.bags, self.given, strict=False)]
        rows = self.rows(self.given[2] if few is None else few)
        return self.top(torch.cat([*found, rows])).sum()  # type: ignore[no-any-return]


@pytest.fixture
def tables() -> Tables:
    torch.manual_seed(0)
    return Tables()


def test_a_step_is_counted_once_for_every_table(tables: Tables) -> None:
    trace = trace_iteration(lambda: tables().backward(), device="cpu", warmup=1, repeats=1)
    bag, row = "aten::_embedding_bag", "aten::embedding"
    assert told(trace) == [
        *((bag, (1000, 4), 0, *item) for item in expected(tables.given[0])),
        *((bag, (50, 4), 0, *item) for item in expected(tables.given[1])),
        *((row, (300, 4), 0, *item) for item in expected(tables.given[2])),
    ]
    assert decode(encode(trace)) == trace


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_inference_is_counted_too(tables: Tables, guard: Any) -> None:
    def step() -> None:
        with guard():
            tables()

    trace = trace_iteration(step, device="cpu", warmup=0, repeats=0)
    assert [item[1] for item in told(trace) if item[3] == 1] == [(1000, 4), (50, 4), (300, 4)]


def test_only_the_iteration_that_warms_the_profiler_up_is_watched(tables: Tables) -> None:
    watched: list[int] = []

    def step() -> None:
        watched.append(len(_python_dispatch._get_current_dispatch_mode_stack()))
        tables()

    trace_iteration(step, device="cpu", warmup=1, repeats=2)
    assert watched == [0, 0, 0, 1, 0]
    assert not _python_dispatch._get_current_dispatch_mode_stack()


def test_every_captured_iteration_of_a_loop_has_what_was_counted(tables: Tables, tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(tables.parameters(), 0.1)
    with record(tmp_path / "steps.json", iterations=(2, 4)) as recorder:
        for _ in range(5):
            tables().backward()
            optimizer.step()
    trace = recorder.trace
    assert trace is not None
    first, second = np.split(np.arange(len(trace.lookups.op)), 2)
    rows = told(trace)
    assert [rows[at] for at in first] == [rows[at] for at in second]
    assert trace.lookups.op[first].max() < trace.lookups.op[second].min()
    start, end = int(trace.iterations.start_ns[-1]), int(trace.iterations.end_ns[-1])
    last = cut_part(trace, RecordingPart(start_ns=start, end_ns=end, cpu_start_ns=start, cpu_end_ns=end))
    assert told(last) == [rows[at] for at in second]
    assert recorder.summarise().endswith("; lookups of 6 embedding ops counted")


def test_calls_that_come_more_or_less_often_have_no_histogram(tables: Tables) -> None:
    runs: Iterator[int] = iter(range(10))

    def step() -> None:
        tables()
        for _ in range(next(runs)):
            tables.rows(tables.given[2])

    trace = trace_iteration(step, device="cpu", warmup=0, repeats=0)
    assert {item[0] for item in told(trace)} == {"aten::_embedding_bag"}


def test_what_few_lookups_touch_is_not_told(tables: Tables) -> None:
    trace = trace_iteration(lambda: tables(torch.arange(31)), device="cpu", warmup=0, repeats=0)
    assert {item[0] for item in told(trace)} == {"aten::_embedding_bag"}
    trace = trace_iteration(lambda: tables(torch.arange(32)), device="cpu", warmup=0, repeats=0)
    assert ("aten::embedding", (300, 4), 0, 1, 32, 32) in told(trace)


def test_padding_is_no_lookup_of_a_bag() -> None:
    bag, given = nn.EmbeddingBag(100, 4, mode="sum", padding_idx=3), indices(100, 256)
    trace = trace_iteration(lambda: bag(given.view(64, 4)), device="cpu", warmup=0, repeats=0)
    assert [item[3:] for item in told(trace)] == expected(given[given != 3])


def test_shapes_have_no_values_to_count(tables: Tables) -> None:
    bag = nn.EmbeddingBag(1000, 4, mode="sum", device="meta")
    given = torch.zeros(64, 4, dtype=torch.int64, device="meta")
    assert not len(trace_iteration(lambda: bag(given), device="meta").lookups.op)
    with count_lookups() as calls:
        bag(given)
    assert [call.tables for call in calls] == [()]


def test_a_mode_of_the_code_itself_is_left_alone(tables: Tables) -> None:
    class Counting(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Counting.seen += 1
            return func(*args, **(kwargs or {}))

    with Counting(), count_lookups() as calls:  # type: ignore[no-untyped-call]
        tables()
    assert not calls
    assert Counting.seen
    watch = count_lookups()
    watch.__enter__()
    with Counting() as late:  # type: ignore[no-untyped-call]
        watch.__exit__(None, None, None)
        assert _python_dispatch._get_current_dispatch_mode_stack() == [late]
    assert not _python_dispatch._get_current_dispatch_mode_stack()


def test_whatever_fails_while_counting_the_step_goes_on(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_indices: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(counting, "count_rows", fail)
    trace = trace_iteration(tables, device="cpu", warmup=0, repeats=0)
    assert not len(trace.lookups.op)
    assert "aten::_embedding_bag" in trace.strings


def test_compiled_code_runs_as_it_was_compiled(tables: Tables) -> None:
    graphs: list[int] = []

    def backend(module: torch.fx.GraphModule, _inputs: object) -> Any:
        graphs.append(1)
        return module.forward

    torch._dynamo.reset()
    compiled = torch.compile(tables.top, backend=backend)
    compiled(torch.ones(2, 4))
    with count_lookups() as calls:
        compiled(tables.rows(tables.given[2]).detach()[:2])
        tables()
    compiled(torch.ones(2, 4))
    torch._dynamo.reset()
    assert len(graphs) == 1
    assert len(calls) == 4


@pytest.fixture
def fbgemm() -> Iterator[Any]:
    """Define FBGEMM's forward, by its schema, where the library is not installed."""
    library = torch.library.Library("fbgemm", "FRAGMENT")
    name = "split_embedding_codegen_forward_unweighted_wavecast"
    library.define(
        f"{name}(Tensor dev_weights, Tensor uvm_weights, Tensor weights_placements, Tensor weights_offsets, "
        "Tensor D_offsets, int total_D, int max_D, Tensor indices, Tensor offsets) -> Tensor"
    )
    library.impl(name, lambda weights, *others: weights.new_zeros(len(others[-1]) - 1), "CPU")
    yield getattr(torch.ops.fbgemm, name)
    library._destroy()


def test_tables_of_one_batched_lookup_are_counted_apart(fbgemm: Any) -> None:
    first, second = indices(500, 128), indices(90, 64, 1)
    offsets = torch.tensor([0, 60, 128, 160, 192])  # two bags in each of two tables
    none, where = torch.empty(0), torch.tensor([0, 4000])

    def step() -> None:
        fbgemm(
            torch.ones(4720), none, none, where, torch.tensor([0, 8, 16]), 16, 8, torch.cat([first, second]), offsets
        )

    trace = trace_iteration(step, device="cpu", warmup=0, repeats=0)
    found = [item[2:] for item in told(trace)]
    assert found == [*((0, *item) for item in expected(first)), *((1, *item) for item in expected(second))]


def test_counts_are_classes_of_a_power_of_two() -> None:
    rows = np.repeat(np.arange(7), [1, 2, 3, 4, 7, 8, 1 << 20])
    assert count_rows(rows) == ((1, 1, 1), (2, 2, 5), (4, 2, 11), (8, 1, 8), (1 << 20, 1, 1 << 20))
    assert count_rows(rows[:0]) == ()


def test_of_very_many_lookups_the_first_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_LOOKUPS == 1 << 22
    monkeypatch.setattr(counting, "MOST_LOOKUPS", 64)
    monkeypatch.setattr(counting, "MOST_COUNTED", 100)
    layer, given = nn.Embedding(100, 2), indices(100, 80)
    with count_lookups() as calls:
        for _ in range(3):
            layer(given)
    assert [sum(item[2] for table in call.tables for item in table) for call in calls] == [64, 64, 0]
