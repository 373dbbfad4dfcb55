"""Collectives of recordings without times: their streams, and what waits for what."""

from __future__ import annotations

import numpy as np
import pytest
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.graph.graph import EdgeKind
from wavecast.analyzer.host.costs import load_host_costs
from wavecast.analyzer.host.launches import STREAM
from wavecast.analyzer.host.timeline import synthesize_timeline
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.signature import Signature, TensorSpec
from wavecast.formats.trace.tables import (
    CollectiveTable,
    GroupTable,
    KernelKind,
    Meta,
    OperandTable,
    OpTable,
    TensorTable,
    Trace,
)

Call = tuple[str, str, str]
"""An op's name, and the tensors that it reads and writes, a letter each."""
MM, RELU, REDUCE, GATHER = "aten::mm", "aten::relu", "c10d::allreduce_", "c10d::_allgather_base_"
FUNCTIONAL, WAIT = "_c10d_functional::all_reduce", "_c10d_functional::wait_tensor"
SQUARE = TensorSpec("bfloat16", (1024, 1024))


def build_trace(*calls: Call, groups: tuple[int, ...] = (), is_async: bool = True, has_operands: bool = True) -> Trace:
    names = sorted({name for name, _, _ in calls})
    letters = sorted({letter for _, read, written in calls for letter in read + written})
    collectives = [row for row, (name, _, _) in enumerate(calls) if "c10d" in name and "wait" not in name]
    uses = [
        (row, letters.index(letter), is_output)
        for row, (_, read, written) in enumerate(calls)
        for is_output, used in enumerate((read, written))
        for letter in used
    ]
    operands = {name: [use[at] for use in uses] for at, name in enumerate(("op", "tensor", "is_output"))}
    count = len(uses) if has_operands else 0
    return Trace(
        meta=Meta(capture="shapes"),
        strings=(*names, "bfloat16", "all_reduce"),
        signatures=(Signature((SQUARE, SQUARE)),),
        ops=build_table(
            OpTable,
            len(calls),
            name=[names.index(name) for name, _, _ in calls],
            signature=[0] * len(calls),
            phase=[0] * len(calls),
        ),
        tensors=build_table(
            TensorTable,
            len(letters),
            storage=range(len(letters)),
            dtype=[len(names)] * len(letters),
            element_count=[1 << 20] * len(letters),
        ),
        operands=build_table(OperandTable, count, **{name: values[:count] for name, values in operands.items()}),
        collectives=build_table(
            CollectiveTable,
            len(collectives),
            op=collectives,
            name=[len(names) + 1] * len(collectives),
            group=groups or [0] * len(collectives),
            is_async=[is_async] * len(collectives),
        ),
        groups=build_table(GroupTable, 2, size=[8, 2]),
    )


def waits_of(trace: Trace) -> set[tuple[int, int]]:
    """Return which op's kernel waits for which other op's on another stream."""
    timed = synthesize_timeline(trace, load_host_costs())
    graph = build_graph(timed)
    assert graph.quality.waits_rejected == graph.quality.edges_cut == 0
    op = np.append(timed.kernels.op, -1)[np.where(graph.nodes.is_gpu, graph.nodes.row, -1)]
    chosen = (graph.edges.kind == EdgeKind.COLLECTIVE) | (graph.edges.kind == EdgeKind.EVENT)
    return {
        (int(op[source]), int(op[target]))
        for source, target in zip(graph.edges.source[chosen], graph.edges.target[chosen], strict=True)
    }


def streams_of(trace: Trace) -> dict[int, int]:
    timed = synthesize_timeline(trace, load_host_costs())
    return dict(zip(timed.kernels.op.tolist(), timed.kernels.stream.tolist(), strict=True))


def test_a_collective_waits_for_what_it_reads_and_its_reader_for_it() -> None:
    trace = build_trace((MM, "aw", "b"), (FUNCTIONAL, "b", "c"), (RELU, "a", "d"), (MM, "cd", "e"))
    assert waits_of(trace) == {(0, 1), (1, 3)}
    timed = synthesize_timeline(trace, load_host_costs())
    assert timed.kernels.kind.tolist() == [0, KernelKind.COLLECTIVE, 0, 0]


def test_an_op_that_waits_launches_nothing_and_holds_up_what_comes_next() -> None:
    trace = build_trace((MM, "aw", "b"), (FUNCTIONAL, "b", "c"), (WAIT, "c", ""), (RELU, "a", "d"), (MM, "cd", "e"))
    assert 2 not in streams_of(trace)
    assert waits_of(trace) == {(0, 1), (1, 3)}


def test_groups_have_streams_of_their_own() -> None:
    trace = build_trace((FUNCTIONAL, "a", "b"), (FUNCTIONAL, "c", "d"), (MM, "bd", "e"), groups=(0, 1))
    streams = streams_of(trace)
    assert len({streams[0], streams[1], STREAM}) == 3
    assert streams[2] == STREAM
    assert waits_of(trace) == {(0, 2), (1, 2)}


@pytest.mark.parametrize(("is_async", "expected"), [(False, {(0, 1), (1, 2)}), (True, {(0, 1), (1, 4)})])
def test_without_tensors_the_order_of_issue_decides(is_async: bool, expected: set[tuple[int, int]]) -> None:
    calls = ((MM, "", ""), (REDUCE, "", ""), (RELU, "", ""), ("c10d::wait", "", ""), (MM, "", ""))
    assert waits_of(build_trace(*calls, is_async=is_async, has_operands=False)) == expected


def test_what_packs_parameters_for_a_gather_does_not_wait_for_the_layers_before() -> None:
    copy = "aten::_foreach_copy_"
    trace = build_trace((MM, "xw", "y"), (copy, "bp", "b"), (GATHER, "b", "g"), (MM, "yg", "z"))
    assert streams_of(trace)[1] not in (STREAM, streams_of(trace)[2])
    assert waits_of(trace) == {(1, 2), (2, 3)}


def test_gradients_are_packed_where_they_are_computed() -> None:
    trace = build_trace((MM, "xw", "y"), ("aten::mul", "y", "b"), (REDUCE, "b", "b"), ("aten::add_", "bp", "p"))
    assert streams_of(trace)[1] == STREAM
    assert waits_of(trace) == {(1, 2), (2, 3)}


def test_waits_that_others_imply_are_left_out() -> None:
    trace = build_trace((FUNCTIONAL, "a", "b"), (FUNCTIONAL, "c", "d"), (MM, "dw", "e"), (MM, "bw", "f"))
    assert waits_of(trace) == {(1, 2)}
