"""Kernels of a graph get the shapes of iterations in the same file that ran them without it. All files are made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from wavecast.analyzer.page.markdown import draw_markdown
from wavecast.analyzer.prediction.capture_join import join_captures
from wavecast.analyzer.questions.show.page import describe_overview
from wavecast.analyzer.recorded.graphs import graph_kernels
from wavecast.analyzer.recorded.overview import describe_trace
from wavecast.formats.kineto import import_kineto
from wavecast.formats.trace.codec import decode, encode
from wavecast.formats.trace.tables import Trace
from wavecast.formats.trace.validate import validate

GEMM, SPLIT, RELU = "ampere_bf16_s16816gemm_bf16_128x64_tn", "splitKreduce_kernel", "void at::native::relu_kernel"
Work = tuple[str, list[list[int]], list[tuple[str, int]]]
"""An op, the shapes of its inputs, and its kernels with their grids."""


def layer(batch: int, width: int = 64) -> list[Work]:
    return [
        ("aten::addmm", [[width], [batch, 64], [64, width]], [(GEMM, batch), (SPLIT, batch // 2)]),
        ("aten::relu", [[batch, width]], [(RELU, batch)]),
    ]


class File:
    """A profiler file of steps that run ops, or launch a graph of their kernels."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.time, self.step, self.number = 1000.0, 0, 0

    def eager(self, *work: Work) -> File:
        with_step = self._begin()
        for op, shapes, kernels in work:
            start = self.time
            for name, grid in kernels:
                self._call("cudaLaunchKernel")
                self._kernel(name, grid, stream=7)
            types = {"Input Dims": shapes, "Input type": ["c10::BFloat16"] * len(shapes)}
            outer = {"linear": "aten::linear"}.get(op.replace("aten::addmm", "linear"))
            if outer:
                self._span("cpu_op", outer, start - 1, self.time - start + 3)
            self._span("cpu_op", op, start - 0.5, self.time - start + 2, **types)
            self.time += 5
        return self._end(with_step)

    def graph(self, *work: Work, modules: Sequence[str] = (), grid: bool = True) -> File:
        start = self._begin()
        self._call("cudaGraphLaunch")
        for at, (_, _, kernels) in enumerate(work):
            note = {"module_fqn": modules[at]} if modules else {}
            for name, size in kernels:
                self._kernel(name, size if grid else 0, stream=40, **{"graph id": 3, "graph node id": at}, **note)
        return self._end(start)

    def load(self) -> Trace:
        gpu = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "numSms": 108, "totalGlobalMem": 85_000_000_000}
        document = {"schemaVersion": 1, "deviceProperties": [gpu], "traceEvents": self.events}
        trace = join_captures(import_kineto(json.dumps(document).encode()), {})
        validate(trace)
        assert decode(encode(trace)) == trace
        return trace

    def _begin(self) -> float:
        self.time += 100
        return self.time - 10

    def _end(self, start: float) -> File:
        self.time += 100
        self.step += 1
        self._span("user_annotation", f"ProfilerStep#{self.step}", start, self.time - start)
        return self

    def _call(self, name: str) -> None:
        self.number += 1
        self._span("cuda_runtime", name, self.time, 1, correlation=self.number)
        self.time += 2

    def _kernel(self, name: str, grid: int, **args: Any) -> None:
        sizes = {"grid": [grid, 1, 1], "block": [128 if grid else 0, 1, 1]}
        self._span("kernel", name, self.time + 3, 2, device=0, correlation=self.number, **sizes, **args)
        self.time += 4

    def _span(self, cat: str, name: str, start: float, lasting: float, **args: Any) -> None:
        event = {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": lasting, "pid": 1, "tid": 1, "args": args}
        self.events.append(event)


def found(trace: Trace) -> list[tuple[str, tuple[int, ...] | None, str | None]]:
    """Return op, shape of its first tensor and module of each kernel from a graph."""
    result: list[tuple[str, tuple[int, ...] | None, str | None]] = []
    for op in trace.kernels.op[graph_kernels(trace)].tolist():
        if op < 0:
            result.append(("", None, None))
            continue
        row, module = int(trace.ops.signature[op]), int(trace.ops.module[op])
        shape = trace.signatures[row].tensors()[0].shape if row >= 0 else None
        name = trace.strings[trace.ops.name[op]]
        result.append((name, shape, trace.strings[module] if module >= 0 else None))
    return result


@pytest.fixture
def file() -> File:
    return File()


def test_kernels_get_the_ops_and_shapes_of_warm_up_and_keep_their_modules(file: File) -> None:
    trace = file.eager(*layer(8) * 2).graph(*layer(8) * 2, modules=("a", "b", "c", "d")).load()
    assert found(trace) == [
        ("aten::addmm", (64,), "a"),
        ("aten::addmm", (64,), "a"),
        ("aten::relu", (8, 64), "b"),
        ("aten::addmm", (64,), "c"),
        ("aten::addmm", (64,), "c"),
        ("aten::relu", (8, 64), "d"),
    ]
    ops, of_graph = trace.ops, trace.kernels.op[graph_kernels(trace)]
    assert of_graph[0] == of_graph[1] != of_graph[3]  # an op has all its kernels, a second one its own
    around = ops.parent[of_graph]
    assert [trace.strings[ops.name[row]] for row in around[[0, 2]].tolist()] == ["aten::linear", "b"]
    assert set(ops.duration_ns[of_graph].tolist()) == {0}
    overview = describe_trace(replace(trace, meta=replace(trace.meta, iteration=1)))
    words = "of 100 % with shapes, from the recording of the capture, or from iterations without the graph"
    shown = draw_markdown(describe_overview(overview)).replace("\u202f", " ").replace("\xa0", " ")
    assert overview.graph_shaped_ns == overview.graph_gpu_ns > 0
    assert words in shown


def test_graphs_without_annotations_are_found_as_well_launch_by_launch(file: File) -> None:
    trace = file.eager(*layer(8)).graph(*layer(8)).graph(*layer(8)).load()
    assert (
        found(trace) == [("aten::addmm", (64,), None), ("aten::addmm", (64,), None), ("aten::relu", (8, 64), None)] * 2
    )
    starts = trace.ops.start_ns[trace.kernels.op[graph_kernels(trace)]]
    assert len(np.unique(starts)) == 2
    assert trace.meta.has_shapes


def test_another_batch_is_not_taken(file: File) -> None:
    trace = file.eager(*layer(8)).graph(*layer(16)).load()
    assert {shape for _, shape, _ in found(trace)} == {None}
    both = File().eager(*layer(8)).eager(*layer(16)).graph(*layer(16)).load()
    assert {shape for _, shape, _ in found(both)} == {(64,), (16, 64)}


def test_equal_kernels_on_other_shapes_are_told_apart_by_their_order(file: File) -> None:
    work = [*layer(8, 64), *layer(8, 32)]  # the same kernels and grids
    trace = file.eager(*work).eager(*work).graph(*work).load()
    assert [shape for _, shape, _ in found(trace)] == [(64,), (64,), (8, 64), (32,), (32,), (8, 32)]


def test_what_stays_in_doubt_gets_no_shapes(file: File) -> None:
    trace = file.eager(*layer(8, 64)).eager(*layer(8, 32)).graph(*layer(8), modules=("a", "b")).load()
    assert found(trace) == [("a", None, "a"), ("a", None, "a"), ("b", None, "b")]


def test_too_few_equal_kernels_are_another_model(file: File) -> None:
    other: list[Work] = [("", [], [(f"kernel_{number}", 8)]) for number in range(3)]
    trace = file.eager(*layer(8) * 4).graph(*layer(8) * 4, *other).load()
    assert {shape for _, shape, _ in found(trace)} == {None}


def test_names_alone_do_not_tell_a_batch(file: File) -> None:
    trace = file.eager(*layer(8)).graph(*layer(8), grid=False).load()
    assert {shape for _, shape, _ in found(trace)} == {None}


def test_a_file_without_eager_iterations_stays_as_it_is(file: File) -> None:
    trace = file.graph(*layer(8), modules=("a", "b")).load()
    assert found(trace) == [("a", None, "a"), ("a", None, "a"), ("b", None, "b")]
