"""Which tensors the ops of a measured recording read and returned."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from wavecast.analyzer.graph.export.ops import data_links
from wavecast.analyzer.whatif.calls import are_operands_flat
from wavecast.formats.trace.codec import decode, encode
from wavecast.formats.trace.column import row_count
from wavecast.formats.trace.signature import TensorSpec
from wavecast.formats.trace.tables import Trace
from wavecast.tracer import trace_iteration
from wavecast.tracer.measured import profiled as reader
from wavecast.tracer.measured.profiled import read_profiler
from wavecast.tracer.tensor_ids.events import OpEvent, read_events

from .watched import compare, record

READER = "wavecast.tracer.measured.profiled.read_events"


def profiled(step: Callable[[], object], **options: bool) -> Any:
    wanted: dict[str, Any] = {"record_shapes": True, "profile_memory": True, **options}
    with profile(activities=[ProfilerActivity.CPU], **wanted) as run:
        step()
    return run


def tensors_of(trace: Trace, name: str, *, outputs: bool) -> list[list[int]]:
    """Return the tensors that each call of an op read or returned."""
    table, names = trace.operands, [trace.strings[number] for number in trace.ops.name]
    return [
        table.tensor[(table.op == row) & (table.is_output == outputs)].tolist()
        for row, found in enumerate(names)
        if found == name
    ]


def attend() -> Any:
    """Return a step whose queries, keys and values are views of one storage."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    batch = torch.randn(2, 4, 16)
    return lambda: layer(batch).sum().backward()


@pytest.mark.parametrize(("build", "share"), [("convnet", 1.0), ("attention", 0.95)])
def test_data_flows_as_a_dispatch_mode_sees_it(training_step: Callable[..., Any], build: str, share: float) -> None:
    step = training_step("cpu", dropout=0.0) if build == "convnet" else attend()
    step()
    found = compare(*record(step))
    assert found.true_count > 100
    assert found.right_count >= share * found.true_count
    assert found.right_count >= share * found.found_count
    assert 60 < found.form_count == found.right_form_count


def test_views_share_a_storage_and_in_place_ops_return_what_they_were_given() -> None:
    weight, data = torch.randn(3, 4), torch.randn(2, 4)
    trace = read_profiler(profiled(lambda: (data @ weight.t()).add_(1.0).relu()))
    assert decode(encode(trace)) == trace
    [[given]], [[view]] = tensors_of(trace, "aten::t", outputs=False), tensors_of(trace, "aten::t", outputs=True)
    assert view != given
    assert trace.tensors.storage[view] == trace.tensors.storage[given]
    [product] = tensors_of(trace, "aten::mm", outputs=True)
    [[given, _]], [[returned]] = (tensors_of(trace, "aten::add_", outputs=is_output) for is_output in (False, True))
    assert [given] == [returned] == product
    assert tensors_of(trace, "aten::relu", outputs=False) == [product]
    row = [trace.strings[number] for number in trace.ops.name].index("aten::t")
    assert trace.signatures[trace.ops.signature[row]].results == (TensorSpec("float32", (4, 3), (1, 4)),)


def test_memory_that_is_used_again_is_another_storage() -> None:
    def step() -> None:
        for _ in range(8):
            (torch.ones(1000) * 2).sum()

    products = tensors_of(read_profiler(profiled(step)), "aten::mul", outputs=True)
    assert len({tensor for [tensor] in products}) == 8


def test_every_op_is_found_under_its_own_name(
    training_step: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[OpEvent, ...]] = []

    def read(*found: Any) -> Any:
        seen.append(read_events(*found)[0])
        return read_events(*found)

    monkeypatch.setattr(READER, read)
    trace = read_profiler(profiled(training_step("cpu")))
    [ops] = seen
    assert [op.row for op in ops] == list(range(row_count(trace.ops)))
    assert [op.name for op in ops] == [trace.strings[number] for number in trace.ops.name]


@pytest.mark.parametrize("missing", ["record_shapes", "profile_memory"])
def test_profilers_that_do_not_watch_shapes_and_memory_give_no_ids(missing: str) -> None:
    trace = read_profiler(profiled(lambda: torch.ones(3) + 1, **{missing: False}))
    assert row_count(trace.ops)
    assert not row_count(trace.operands)


@pytest.mark.parametrize("part", ["experimental_event_tree", "correlation_id"])
def test_a_torch_without_parts_of_the_tree_gives_no_ids(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = profiled(lambda: torch.ones(3) + 1)
    original = reader._event_tree

    def without(finished: Any) -> Any:
        if part == "experimental_event_tree":
            return finished.profiler.kineto_results.no_such_tree()
        return [SimpleNamespace(tag=root.tag, children=()) for root in original(finished)]

    monkeypatch.setattr("wavecast.tracer.measured.profiled._event_tree", without)
    trace = read_profiler(run)
    assert row_count(trace.ops)
    assert not row_count(trace.operands)


def test_python_frames_around_ops_change_nothing() -> None:
    trace = read_profiler(profiled(lambda: torch.ones(3) + 1, with_stack=True))
    assert trace.meta.has_stacks
    [[made]], [[given, _]] = (
        tensors_of(trace, "aten::ones", outputs=True),
        tensors_of(trace, "aten::add", outputs=False),
    )
    assert made == given


def test_events_under_another_name_give_no_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*found: Any) -> Any:
        ops, allocations = read_events(*found)
        return (ops[0]._replace(name="aten::other"), *ops[1:]), allocations

    monkeypatch.setattr(READER, read)
    trace = read_profiler(profiled(lambda: torch.ones(3) + 1))
    assert row_count(trace.ops)
    assert not row_count(trace.operands)


def test_recorded_iterations_have_edges_of_data(training_step: Callable[..., Any]) -> None:
    trace = trace_iteration(training_step("cpu"), device="cpu", warmup=1, repeats=0)
    links = data_links(trace)
    names = [trace.strings[number] for number in trace.ops.name]
    pairs = {(names[source], names[target]) for source, target in zip(links.source, links.target, strict=True)}
    assert {("aten::linear", "aten::cross_entropy_loss"), ("aten::relu", "aten::view")} <= pairs
    assert {("aten::t", "aten::addmm"), ("aten::log_softmax", "aten::nll_loss_nd")} <= pairs
    assert ("aten::linear", "aten::addmm") not in pairs


def test_only_a_recording_of_shapes_lists_each_use_once(training_step: Callable[..., Any]) -> None:
    assert are_operands_flat(trace_iteration(training_step(), device="meta"))
    assert not are_operands_flat(trace_iteration(training_step("cpu"), device="cpu", warmup=0, repeats=0))


def test_lists_of_tensors_have_their_own_dtypes() -> None:
    counts, data = [torch.ones(3, dtype=torch.int32), torch.ones(3, dtype=torch.float64)], torch.ones(2, 2)
    trace = read_profiler(profiled(lambda: (data @ data, torch._foreach_add_(counts, 1))))
    row = [trace.strings[number] for number in trace.ops.name].index("aten::_foreach_add_")
    listed = trace.signatures[trace.ops.signature[row]].arguments[0]
    assert listed == (TensorSpec("int32", (3,), (1,)), TensorSpec("float64", (3,), (1,)))
