"""Transfer and waiting of recorded collectives, on one rank and on several."""

from __future__ import annotations

import numpy as np
import pytest
from wavecast.analyzer.recorded.waiting import align_ranks, waiting_by_row
from wavecast.errors import InputError
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.tables import (
    CollectiveTable,
    GroupTable,
    KernelKind,
    KernelTable,
    MemberTable,
    Meta,
    OpTable,
    Trace,
)


def build_rank(rank: int, durations: list[int], *, clock: int = 0, numbers: list[int] | None = None) -> Trace:
    """Collectives that end at 1000, 2000, ... on all ranks, by their common clock."""
    count = len(durations)
    ends = 1000 * (np.arange(count) + 1) + clock
    return Trace(
        meta=Meta(rank=rank, world_size=8),
        strings=("c10d::allreduce_", "allreduce", "record_param_comms"),
        ops=build_table(
            OpTable, 2 * count, name=[0, 2] * count, parent=[-1 if at % 2 == 0 else at - 1 for at in range(2 * count)]
        ),
        kernels=build_table(
            KernelTable,
            count,
            name=[0] * count,
            kind=[KernelKind.COLLECTIVE] * count,
            start_ns=ends - np.array(durations),
            duration_ns=durations,
            op=2 * np.arange(count) + 1,
        ),
        collectives=build_table(
            CollectiveTable,
            count,
            op=2 * np.arange(count),
            name=[1] * count,
            group=[0] * count,
            sequence=[-1] * count if numbers is None else numbers,
        ),
        groups=build_table(GroupTable, 1, size=[2]),
        members=build_table(MemberTable, 2, group=[0, 0], rank=[3, 7]),
    )


def test_what_equal_calls_take_beyond_the_least_of_them_is_waiting() -> None:
    trace = build_rank(3, [100, 400, 250, 70])
    np.testing.assert_allclose(waiting_by_row(trace, np.array([0, 0, 0, 1]), 3), [150.0, 0.0, 0.0])


def test_ranks_are_aligned_without_common_clocks() -> None:
    aligned = align_ranks([build_rank(3, [100, 100, 300]), build_rank(7, [500, 120, 900], clock=10**9)])
    assert aligned.ranks == (3, 7)
    assert aligned.transfer_ns.tolist() == [100, 100, 300]
    assert aligned.waiting_ns.tolist() == [[0, 400], [0, 20], [0, 600]]
    assert aligned.clock_ns.tolist() == [0, 10**9]
    assert aligned.stragglers == (3,)


def test_numbers_align_what_one_rank_has_not_recorded_from_its_start() -> None:
    aligned = align_ranks([build_rank(3, [100, 200], numbers=[7, 8]), build_rank(7, [300], numbers=[8])])
    assert aligned.waiting_ns.tolist() == [[0, 100]]


def test_files_that_cannot_be_aligned_are_refused() -> None:
    with pytest.raises(InputError, match="two ranks or more"):
        align_ranks([build_rank(3, [1])])
    with pytest.raises(InputError, match="one file of each rank"):
        align_ranks([build_rank(3, [1]), build_rank(3, [1])])
    with pytest.raises(InputError, match="no collective is common"):
        align_ranks([build_rank(3, [1], numbers=[1]), build_rank(7, [1], numbers=[2])])
