"""The rule for iteration time: launches decide membership, iterations telescope."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from wavecast.formats.trace.iterations import NEVER_NS, iteration_table, locate_iterations, whole_iteration


def test_a_single_step_ends_with_the_later_of_host_and_gpu() -> None:
    table = iteration_table([100], [200], launch_ns=[150, 160], kernel_end_ns=[190, 260])
    assert (table.start_ns.tolist(), table.end_ns.tolist()) == ([100], [260])
    table = iteration_table([100], [200], launch_ns=[150], kernel_end_ns=[190])
    assert table.end_ns.tolist() == [200]


def test_several_steps_telescope_over_their_last_kernels() -> None:
    table = iteration_table(
        [0, 100, 200],
        [99, 199, 299],
        launch_ns=[10, 90, 110, 210, 300, NEVER_NS],
        kernel_end_ns=[50, 150, 400, 700, 9000, 8000],
    )
    assert table.start_ns.tolist() == [0, 150, 400]
    assert table.end_ns.tolist() == [150, 400, 700]
    assert table.cpu_start_ns.tolist() == [0, 100, 200]
    assert table.cpu_end_ns.tolist() == [99, 199, 299]


def test_a_step_that_launches_nothing_ends_with_its_host_part() -> None:
    table = iteration_table([0, 100], [90, 190], launch_ns=[10], kernel_end_ns=[95])
    assert table.end_ns.tolist() == [95, 190]


def test_without_steps_the_iteration_is_the_span() -> None:
    table = whole_iteration([5, 2, 40], [50, 60, 41])
    assert (table.start_ns.tolist(), table.end_ns.tolist()) == ([2], [60])
    assert locate_iterations(table, [1, 2, 60, 61]).tolist() == [-1, 0, 0, -1]
    assert len(whole_iteration([], []).start_ns) == 0


def test_launches_are_located_by_the_host_interval() -> None:
    table = iteration_table([0, 100], [90, 190], launch_ns=[10], kernel_end_ns=[500])
    assert locate_iterations(table, [0, 90, 95, 100, 190, 191, -1, NEVER_NS]).tolist() == [0, 0, -1, 1, 1, -1, -1, -1]
    empty = iteration_table([], [], launch_ns=[5], kernel_end_ns=[50])
    assert locate_iterations(empty, [0, 1]).tolist() == [-1, -1]


@given(
    edges=st.lists(st.integers(0, 10_000), min_size=4, max_size=20, unique=True),
    kernels=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 10_000)), max_size=30),
)
def test_iterations_never_overlap_nor_run_backwards(edges: Any, kernels: Any) -> None:
    edges = sorted(edges)[: len(edges) // 2 * 2]
    launch = [at for at, _ in kernels]
    finish = [at + more for at, more in kernels]
    table = iteration_table(edges[::2], edges[1::2], launch_ns=launch, kernel_end_ns=finish)
    assert np.all(table.end_ns >= table.start_ns)
    assert np.array_equal(table.start_ns[1:], table.end_ns[:-1])
    at = locate_iterations(table, launch)
    for kernel, row in enumerate(at):
        if row >= 0:
            assert finish[kernel] <= table.end_ns[row]


@pytest.mark.parametrize("launch", [[], [NEVER_NS]])
def test_a_step_without_known_launches_is_its_host_part(launch: Any) -> None:
    table = iteration_table([7], [9], launch_ns=launch, kernel_end_ns=[100] * len(launch))
    assert (table.start_ns.tolist(), table.end_ns.tolist()) == ([7], [9])
