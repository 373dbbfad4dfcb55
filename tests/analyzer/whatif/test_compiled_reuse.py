"""What compiled code finds in the cache: bytes between two uses of a buffer, in the order of its own kernels."""

from __future__ import annotations

import pytest
from wavecast.analyzer.whatif.fusion.kernels import Pass, moved_since


def kernel(place: int, reads: dict[int, int], writes: int, moved_bytes: float = 10.0) -> Pass:
    return Pass(place=place, reads=reads, writes=frozenset({writes}), moved_bytes=moved_bytes)


def test_what_the_kernel_before_wrote_is_there() -> None:
    assert moved_since([kernel(0, {0: 8}, 1), kernel(1, {1: 8}, 2)]) == [None, 0.0]


def test_of_large_operands_the_longest_ago_counts() -> None:
    residual = [kernel(0, {0: 8}, 1), kernel(1, {1: 8}, 2), kernel(2, {2: 8}, 3), kernel(3, {3: 8, 1: 8}, 4)]
    assert moved_since(residual) == [None, 0.0, 0.0, 10.0]
    small = [*residual[:3], kernel(3, {3: 8, 1: 3}, 4)]
    assert moved_since(small) == [None, 0.0, 0.0, 0.0]


def test_what_was_not_touched_before_is_not_known() -> None:
    assert moved_since([kernel(0, {0: 8}, 1), kernel(1, {1: 8, 7: 8}, 2), kernel(2, {7: 8}, 3)]) == [None, None, 0.0]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_kernels_run_behind_the_last_of_their_loops(order: tuple[int, ...]) -> None:
    kernels = [kernel(0, {0: 8}, 1), kernel(1, {1: 8}, 2, 30.0), kernel(5, {1: 8, 2: 8}, 3)]
    found = dict(zip(order, moved_since([kernels[at] for at in order]), strict=True))
    assert found == {0: None, 1: 0.0, 2: 0.0}
