"""Layouts of convolutions in compiled graphs: where inductor puts channels innermost, and what is copied for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from wavecast.analyzer.models.library import Library
from wavecast.analyzer.prediction.workload import shape_workload
from wavecast.analyzer.recorded.window import select_window
from wavecast.analyzer.whatif.apply import change_trace
from wavecast.analyzer.whatif.fusion.layouts import with_compiled_layouts
from wavecast.analyzer.whatif.scenario import Scenario
from wavecast.analyzer.work.work import ConvolutionDims
from wavecast.formats.trace.column import MISSING, build_table
from wavecast.formats.trace.signature import Signature, TensorSpec
from wavecast.formats.trace.tables import Meta, OperandTable, OpTable, Phase, TensorTable, Trace

FUSED = Scenario(fuse_elementwise=True)
SIZE = 16


def image(channels: int, *, is_last: bool = False) -> TensorSpec:
    strides = (channels * SIZE * SIZE, SIZE * SIZE, SIZE, 1)
    last = (channels * SIZE * SIZE, 1, SIZE * channels, channels)
    return TensorSpec("float16", (8, channels, SIZE, SIZE), last if is_last else strides)


def kernel(c_out: int, c_in: int, size: int = 3) -> TensorSpec:
    return TensorSpec("float16", (c_out, c_in, size, size), (c_in * size * size, size * size, size, 1))


def convolution(c_in: int, c_out: int, groups: int = 1) -> Signature:
    rest = (None, (1, 1), (1, 1), (1, 1), False, (0, 0), groups)
    return Signature((image(c_in), kernel(c_out, c_in // groups), *rest), (image(c_out),))


def gradient(c_in: int, c_out: int) -> Signature:
    rest = (None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1, (True, True, False))
    weight = kernel(c_out, c_in)
    return Signature((image(c_out), image(c_in), weight, *rest), (image(c_in), weight))


def record(calls: Sequence[Signature], *, is_training: bool = False, relus: int = 1) -> Trace:
    """Record convolutions, each of what the relu after the last one wrote, and their gradients in reverse."""
    names = ("aten::convolution", "aten::relu", "aten::convolution_backward")
    rows: list[tuple[int, Signature, int, int]] = []  # name, signature, phase, forward
    uses: list[tuple[int, int, bool]] = []
    tensors: list[int] = [0]
    current, saved = 0, list[tuple[int, int, int]]()

    def tensor() -> int:
        tensors.append(len(tensors))
        return tensors[-1]

    def add(name: int, call: Signature, reads: Sequence[int], phase: Phase, forward: int = MISSING) -> int:
        made = tensor()
        uses.extend([*((len(rows), item, False) for item in reads), (len(rows), made, True)])
        rows.append((name, call, int(phase), forward))
        return made

    for call in calls:
        weight = tensor()
        saved.append((len(rows), current, weight))
        current = add(0, call, (current, weight), Phase.FORWARD)
        after = Signature((call.results[0],), (call.results[0],))
        for _ in range(relus):
            current = add(1, after, (current,), Phase.FORWARD)
    if is_training:
        for (row, x, weight), call in zip(reversed(saved), reversed(calls), strict=True):
            widths = [item.shape[1] for item in (call.tensors()[0], call.results[0]) if isinstance(item, TensorSpec)]
            current = add(2, gradient(*widths), (current, x, weight), Phase.BACKWARD, row)
    signatures = list(dict.fromkeys(call for _, call, _, _ in rows))
    return Trace(
        meta=Meta(capture="shapes"),
        strings=(*names, "float16"),
        signatures=tuple(signatures),
        ops=build_table(
            OpTable,
            len(rows),
            name=[name for name, _, _, _ in rows],
            signature=[signatures.index(call) for _, call, _, _ in rows],
            parent=[MISSING] * len(rows),
            phase=[phase for _, _, phase, _ in rows],
            forward=[forward for _, _, _, forward in rows],
        ),
        tensors=build_table(
            TensorTable, len(tensors), storage=tensors, dtype=[3] * len(tensors), element_count=[1] * len(tensors)
        ),
        operands=build_table(
            OperandTable,
            len(uses),
            op=[op for op, _, _ in uses],
            tensor=[item for _, item, _ in uses],
            is_output=[written for _, _, written in uses],
        ),
    )


def dims_of(trace: Trace) -> list[ConvolutionDims]:
    workload = shape_workload(trace, select_window(trace))
    return [work.dims for work in workload.works if work is not None and isinstance(work.dims, ConvolutionDims)]


def layouts(trace: Trace, scenario: Scenario = FUSED) -> list[bool]:
    return [item.is_channels_last for item in dims_of(with_compiled_layouts(trace, scenario))]


@pytest.mark.parametrize(
    ("calls", "in_inference", "in_training"),
    [
        ((convolution(64, 128), convolution(128, 256)), True, True),
        ((convolution(32, 64), convolution(64, 64)), True, False),
        ((convolution(64, 128), convolution(128, 64)), True, False),
        ((convolution(128, 128, 4), convolution(64, 65)), False, False),
        ((convolution(128, 128, 4), convolution(128, 256)), True, False),
        ((convolution(128, 128, 128), convolution(128, 256)), True, True),
    ],
    ids=("wide", "small", "narrowing", "mostly grouped", "grouped in part", "depthwise"),
)
def test_where_channels_are_put_innermost(calls: Sequence[Signature], *, in_inference: bool, in_training: bool) -> None:
    assert set(layouts(record(calls))) == {in_inference}
    if all(call.arguments[-1] == 1 for call in calls):
        assert set(layouts(record(calls, is_training=True))) == {in_training}


def test_graphs_of_few_convolutions_keep_their_layouts() -> None:
    calls = (convolution(64, 128),)
    assert layouts(record(calls, relus=100)) == [True]
    assert layouts(record(calls, relus=300)) == [False]


def test_what_a_graph_is_given_is_copied_and_what_it_makes_is_not() -> None:
    dims = dims_of(with_compiled_layouts(record((convolution(64, 128), convolution(128, 256))), FUSED))
    assert [item.copied_elements for item in dims] == [image(64).element_count, 0]


def test_layouts_stay_without_a_compiler() -> None:
    trace = record((convolution(64, 128),))
    assert with_compiled_layouts(trace, Scenario()) is trace
    unnamed = replace(trace, operands=build_table(OperandTable, 0, op=[], tensor=[], is_output=[]))
    assert with_compiled_layouts(unnamed, FUSED) is unnamed


def test_the_scenario_changes_the_trace() -> None:
    changed = change_trace(record((convolution(64, 128),)), None, Library(fitted={}), FUSED)
    assert [item.is_channels_last for item in dims_of(changed.trace)] == [True]
