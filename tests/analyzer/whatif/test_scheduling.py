"""Which loops of a compiled graph become one kernel, and in which order they lie in memory."""

from __future__ import annotations

import pytest
from wavecast.analyzer.whatif.fusion.loops import Loop, LoopGraph, Read
from wavecast.analyzer.whatif.fusion.reading import in_memory, is_channels_innermost, planes_of
from wavecast.analyzer.whatif.fusion.scheduling import schedule
from wavecast.formats.trace.signature import TensorSpec

ELEMENTS = 1 << 16


def kernel_sizes(graph: LoopGraph) -> list[int]:
    """Return how many loops each kernel holds."""
    return [len(kernel) for kernel in schedule(graph)]


def append(graph: LoopGraph, loop: Loop) -> int:
    """Add a loop with one result."""
    graph.loops.append(loop)
    buffer = graph.add_buffer(loop.outer, 4, len(graph.loops) - 1)
    loop.writes = frozenset((buffer,))
    return buffer


def pointwise(reads: int) -> Loop:
    return Loop(ops=frozenset((0,)), outer=ELEMENTS, reads=frozenset((Read(reads, ELEMENTS),)))


@pytest.mark.parametrize(("between", "joined"), [(10, True), (40, True), (80, False)])
def test_loops_that_only_share_a_reading_join_within_64_nodes(between: int, joined: bool) -> None:
    graph = LoopGraph(region=0)
    shared = graph.add_buffer(ELEMENTS, 4)
    append(graph, pointwise(shared))
    for _ in range(between):
        append(graph, Loop(ops=frozenset((1,)), outer=1, is_library=True))
    append(graph, pointwise(shared))
    assert kernel_sizes(graph) == ([2] if joined else [1, 1])


@pytest.mark.parametrize(("is_planes", "joined"), [(True, True), (False, False)])
def test_pointwise_loops_are_reordered_to_go_with_channels_planes_but_not_with_columns(
    is_planes: bool, joined: bool
) -> None:
    graph = LoopGraph(region=0)
    made = append(graph, pointwise(graph.add_buffer(ELEMENTS, 4)))
    sums = Loop(
        ops=frozenset((1,)), outer=64, reduced=ELEMENTS // 64, is_rows=False, is_planes=is_planes,
        reads=frozenset((Read(made, ELEMENTS),)),
    )  # fmt: skip
    append(graph, sums)
    assert kernel_sizes(graph) == ([2] if joined else [1, 1])


def test_images_that_lie_channels_innermost_are_tokens_from_front_to_back() -> None:
    images = TensorSpec("float32", (2, 3, 4, 5), (60, 20, 5, 1))
    planes = planes_of(images)
    assert planes == (3, 20)
    assert is_channels_innermost(in_memory(images, planes))
    tokens = TensorSpec("float32", (2, 20, 3), (60, 1, 20))
    assert in_memory(tokens, planes).strides == (60, 3, 1)
