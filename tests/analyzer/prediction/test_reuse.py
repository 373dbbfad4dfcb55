"""What lies between two touches of the same bytes: nothing after their producer, an iteration for weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from wavecast import load_trace
from wavecast.analyzer.models.matmul.problems import COLD_COPIES, problems_of
from wavecast.analyzer.prediction.workload import median_by_group, moved_since, shape_workload
from wavecast.analyzer.recorded.window import select_window
from wavecast.analyzer.work import Family
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.tables import OperandTable, OpTable, TensorTable, Trace
from wavecast.specs.gpu import Rate

Uses = list[tuple[int, int, bool]]
"""Op, tensor, and whether the op returns it."""


def trace_of(uses: Uses, sizes: list[int], op_count: int) -> Trace:
    op, tensor, is_output = (list(column) for column in zip(*uses, strict=True)) if uses else ([], [], [])
    return Trace(
        strings=("aten::op", "float32"),
        ops=build_table(OpTable, op_count, name=[0] * op_count),
        tensors=build_table(
            TensorTable, len(sizes), storage=list(range(len(sizes))), dtype=[1] * len(sizes), element_count=sizes
        ),
        operands=build_table(OperandTable, len(uses), op=op, tensor=tensor, is_output=is_output),
    )


def since(
    uses: Uses, sizes: list[int], moved: list[float], once: tuple[int, ...] = (), late: tuple[int, ...] = ()
) -> list[float]:
    ops = np.arange(len(moved))
    trace = trace_of(uses, sizes, len(moved))
    found = moved_since(trace, ops, np.array(moved), np.isin(ops, once), np.isin(ops, late))
    return [float(value) for value in found]


def test_what_the_op_before_wrote_was_touched_just_now() -> None:
    # op 0 makes tensor 1 of tensor 0, op 1 tensor 2 of it, op 2 reads tensor 1 again.
    uses = [(0, 0, False), (0, 1, True), (1, 1, False), (1, 2, True), (2, 1, False)]
    assert since(uses, [8, 8, 8], [10.0, 20.0, 40.0])[1:] == [0.0, 0.0]
    uses = [(0, 0, False), (0, 1, True), (1, 0, False), (1, 2, True), (2, 1, False)]
    assert since(uses, [8, 8, 8], [10.0, 20.0, 40.0])[1:] == [0.0, 20.0]


def test_weights_were_touched_an_iteration_ago() -> None:
    # Tensor 1 is a weight that op 1 alone reads; all but its own bytes lie between two iterations' uses of it.
    uses = [(0, 0, False), (0, 2, True), (1, 1, False), (1, 2, False), (1, 3, True)]
    assert since(uses, [8, 8, 8, 8], [10.0, 20.0])[1] == 10.0
    assert since([*uses, (2, 1, False)], [8, 8, 8, 8], [10.0, 20.0, 40.0])[1] == 10.0 + (40.0 - 20.0) / 2


def test_half_of_what_a_larger_op_moves_lies_between_and_nothing_after_what_a_product_writes() -> None:
    # op 0 makes tensor 1 of tensor 0; op 1 reads one of them.
    wrote, read = [[(0, 0, False), (0, 1, True), (1, place, False), (1, 2, True)] for place in (1, 0)]
    assert since(wrote, [8, 8, 8], [30.0, 20.0])[1] == 5.0
    assert since(wrote, [8, 8, 8], [30.0, 20.0], late=(0,))[1] == 0.0
    assert since(read, [8, 8, 8], [30.0, 20.0], late=(0,))[1] == 5.0


def test_small_operands_do_not_count() -> None:
    uses = [(0, 0, False), (0, 2, True), (1, 1, False), (1, 2, False), (1, 3, True)]
    assert since(uses, [8, 1, 8, 8], [10.0, 20.0])[1] == 0.0


def test_without_tensors_only_what_runs_once_is_known() -> None:
    found = since([], [], [10.0, 20.0, 40.0], once=(2,))
    assert np.isnan(found[:2]).all()
    assert found[2] == 30.0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4), st.booleans()), max_size=30))
def test_nothing_is_further_away_than_an_iteration(uses: Uses) -> None:
    moved = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    found = np.array(since(sorted(uses), [1, 2, 3, 4, 5], moved))
    known = ~np.isnan(found)
    assert (found[known] >= 0.0).all()
    assert (found[known] <= sum(moved) - np.array(moved)[known]).all()


def test_a_group_takes_the_lower_median_of_what_is_known() -> None:
    found = median_by_group(np.array([3.0, 1.0, np.nan, 2.0, np.nan, 7.0, 5.0]), np.array([0, 0, 0, 0, 1, 2, 2]), 4)
    np.testing.assert_array_equal(found, [2.0, np.nan, 5.0, np.nan])


def test_a_recorded_network_reads_activations_warm_and_weights_cold(root_dir: Path) -> None:
    trace = load_trace(root_dir / "samples" / "gpt2_small-inference-bf16-b4-shapes.json.gz")
    works = [work for work in shape_workload(trace, select_window(trace)).works if work is not None]
    total = sum(work.moved_bytes for work in works)
    norms = [work.moved_since_bytes for work in works if work.family is Family.NORMALIZATION]
    assert norms
    assert all(since is not None and since < 0.1 * total for since in norms)
    products = [work for work in works if work.family is Family.MATMUL]
    head = max(products, key=lambda work: work.moved_bytes)
    assert head.moved_since_bytes is not None
    assert head.moved_since_bytes > 0.5 * total
    cold, unknown = (
        problems_of([work], [Rate.MATRIX_BF16]).copies.tolist()
        for work in (head, replace(head, moved_since_bytes=None))
    )
    assert cold[0] == pytest.approx(1 + head.moved_since_bytes / head.moved_bytes)
    assert unknown == [COLD_COPIES]
