"""What a compiled forward pass keeps: the cheapest cut, and reductions cut in two."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from wavecast import load_trace
from wavecast.analyzer.prediction.workload import shape_workload
from wavecast.analyzer.recorded.window import select_window
from wavecast.analyzer.whatif.fusion.kernels import generate_kernels
from wavecast.analyzer.whatif.fusion.partition import Edge, reachable_side
from wavecast.analyzer.whatif.fusion.values import split_count
from wavecast.formats.trace.tables import Phase

NODES = 5
EDGES = st.lists(
    st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1), st.integers(0, 9)),
    min_size=1,
    max_size=12,
    unique_by=lambda edge: edge[:2],
)


def cost(edges: list[Edge], side: Collection[int]) -> int:
    return sum(size or 0 for begin, finish, size in edges if begin in side and finish not in side)


@given(EDGES)
def test_no_cut_is_cheaper_and_none_so_cheap_is_nearer(edges: list[Edge]) -> None:
    found = reachable_side(NODES, edges, 0, NODES - 1)
    every = [{0, *inner} for size in range(NODES - 1) for inner in combinations(range(1, NODES - 1), size)]
    cheapest = [side for side in every if cost(edges, side) == min(cost(edges, other) for other in every)]
    assert found == min(cheapest, key=len)


def test_what_may_not_be_cut_is_not() -> None:
    assert reachable_side(3, [(0, 1, None), (1, 2, 10**12)], 0, 2) == {0, 1}


@pytest.mark.parametrize(
    ("outer", "reduced", "is_rows", "parts"),
    [
        (1, 4096, True, 1),  # short enough for one block
        (16, 1 << 22, True, 33),
        (1 << 14, 1 << 14, False, 1),  # columns enough for all SMs
        (96, 512, False, 4),
    ],
)
def test_reductions_of_few_results_are_cut(outer: int, reduced: int, is_rows: bool, parts: int) -> None:
    assert split_count(outer, reduced, is_rows=is_rows) == parts


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 26), st.booleans())
def test_parts_are_no_more_than_elements(outer: int, reduced: int, is_rows: bool) -> None:
    assert 1 <= split_count(outer, reduced, is_rows=is_rows) <= reduced


def test_residuals_behind_products_are_kept_and_not_computed_anew(root_dir: Path) -> None:
    trace = load_trace(root_dir / "samples" / "vit_b16-training-fp32-b32-shapes.json.gz")
    phase = trace.ops.phase.astype(np.int64)
    region = np.where(phase != Phase.OPTIMIZER, phase, -1)
    found = generate_kernels(trace, shape_workload(trace, select_window(trace)), region)
    names = [trace.strings[at] for at in trace.ops.name.tolist()]
    again = [
        [op for op in kernel.ops if phase[op] != Phase.BACKWARD and names[op] == "aten::add"]
        for kernel in found
        if phase[kernel.carrier] == Phase.BACKWARD
    ]
    assert max(map(len, again)) <= 1
    assert any(names[op] == "aten::gelu" for kernel in found for op in kernel.ops if kernel.region == Phase.BACKWARD)
