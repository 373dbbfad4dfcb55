"""Busy time, its division among kernels, and grouping."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from wavecast.analyzer.recorded.window import select_window
from wavecast.arrays import group_rows, share_busy_time
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.tables import CallTable, IterationTable, KernelTable, OpTable, Trace


def test_overlap_is_shared_in_equal_parts() -> None:
    # [0, 10) and [5, 15): 5 alone, 5 shared, 5 alone.
    assert share_busy_time(np.array([0, 5]), np.array([10, 10])).tolist() == [7.5, 7.5]


def test_idle_between_kernels_belongs_to_none() -> None:
    assert share_busy_time(np.array([0, 100]), np.array([10, 10])).tolist() == [10.0, 10.0]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=40),
)
def test_the_shares_sum_to_the_union(intervals: list[tuple[int, int]]) -> None:
    start, duration = (np.array(column, dtype=np.int64) for column in zip(*intervals, strict=True))
    union = {tick for begin, length in intervals for tick in range(begin, begin + length)}
    shares = share_busy_time(start, duration)
    assert shares.sum() == pytest.approx(len(union))
    assert (shares >= 0).all()
    assert (shares <= duration + 1e-9).all()


@given(st.lists(st.tuples(st.integers(-2, 3), st.integers(0, 2)), max_size=60))
def test_groups_are_exactly_the_equal_rows(rows: list[tuple[int, int]]) -> None:
    keys = [np.array([row[axis] for row in rows], dtype=np.int64) for axis in range(2)]
    first, group = group_rows(keys)
    assert len(first) == len(set(rows))
    assert [rows[first[number]] for number in group.tolist()] == rows


def two_step_trace(*, unprofiled_ns: list[int]) -> Trace:
    """Two host steps of 100 ns; each kernel ends after the step that launched it."""
    count = len(unprofiled_ns)
    return Trace(
        strings=("aten::add", "k", "cudaLaunchKernel"),
        iterations=build_table(
            IterationTable,
            2 + count,
            start_ns=[0, 130] + [-1000] * count,
            end_ns=[130, 260] + [-1000 + length for length in unprofiled_ns],
            profiled=[True, True] + [False] * count,
            cpu_start_ns=[0, 100] + [-1000] * count,
            cpu_end_ns=[99, 200] + [-1000 + length for length in unprofiled_ns],
        ),
        ops=build_table(OpTable, 2, name=[0, 0], start_ns=[10, 110], duration_ns=[50, 50]),
        calls=build_table(CallTable, 2, name=[2, 2], start_ns=[20, 120], duration_ns=[5, 5], op=[0, 1]),
        kernels=build_table(
            KernelTable, 2, name=[1, 1], start_ns=[115, 210], duration_ns=[15, 50], call=[0, 1], op=[0, 1]
        ),
    )


def test_a_kernel_belongs_to_the_step_that_launched_it() -> None:
    window = select_window(two_step_trace(unprofiled_ns=[]))
    assert window.index == 0
    assert window.kernel_rows.tolist() == [0]
    assert window.op_rows.tolist() == [0]
    assert window.duration_ns == 130


def test_iterations_timed_without_the_profiler_give_the_length() -> None:
    window = select_window(two_step_trace(unprofiled_ns=[90, 100, 80]))
    assert window.index == 0
    assert window.duration_ns == 90


def test_kernels_of_other_devices_are_left_out_and_counted() -> None:
    trace = Trace(
        strings=("k",),
        kernels=build_table(
            KernelTable, 3, name=[0, 0, 0], start_ns=[0, 0, 20], duration_ns=[10, 90, 10], device=[0, 1, 0]
        ),
    )
    window = select_window(trace)
    assert window.device == 1
    assert window.kernel_rows.tolist() == [1]
    assert window.other_device_kernel_count == 2
    assert window.duration_ns == 90


def test_without_the_hosts_interval_the_iteration_itself_counts() -> None:
    trace = two_step_trace(unprofiled_ns=[])
    bare = build_table(IterationTable, 2, start_ns=[0, 100], end_ns=[99, 260])
    assert select_window(replace(trace, iterations=bare)).kernel_rows.tolist() == [0]
