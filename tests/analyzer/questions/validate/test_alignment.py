"""Which calls are paired: equal ones in order, everything at most once, the stricter rule first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, strategies as st
from wavecast.analyzer.questions.validate.calls import Alignment, MatchRule, OpCalls, align

MakeCalls = Callable[..., OpCalls]
KEYS = st.lists(st.integers(0, 4), max_size=30)


def met(alignment: Alignment) -> list[tuple[list[int], list[int], MatchRule]]:
    """Each pair: calls of the first, calls of the second, by which rule."""
    return [
        (
            np.flatnonzero(alignment.first == pair).tolist(),
            np.flatnonzero(alignment.second == pair).tolist(),
            MatchRule(rule),
        )
        for pair, rule in enumerate(alignment.rule.tolist())
    ]


def test_equal_calls_meet_in_order(make_calls: MakeCalls) -> None:
    alignment = align(make_calls([7, 3, 7, 7]), make_calls([3, 7, 9, 7]))
    assert sorted(met(alignment)) == [
        ([0], [1], MatchRule.CALL_IN_PHASE), ([1], [0], MatchRule.CALL_IN_PHASE), ([2], [3], MatchRule.CALL_IN_PHASE),
    ]  # fmt: skip


def test_the_phase_comes_first(make_calls: MakeCalls) -> None:
    alignment = align(make_calls([7, 7], phases=[0, 1]), make_calls([7, 7], phases=[1, 3]))
    assert sorted(met(alignment)) == [([0], [1], MatchRule.CALL), ([1], [0], MatchRule.CALL_IN_PHASE)]


def test_what_is_divided_differently_meets_in_the_op_around_it(make_calls: MakeCalls) -> None:
    first = make_calls([1, 2, 3, 1], around=[50, 50, 50, 60], around_key=[9, 9, 9, 9])
    second = make_calls([4, 5, 4], around=[20, 20, 30], around_key=[9, 9, 9])
    assert met(align(first, second)) == [
        ([0, 1, 2], [0, 1], MatchRule.ENCLOSING_OP), ([3], [2], MatchRule.ENCLOSING_OP),
    ]  # fmt: skip


def test_equal_work_is_the_last_resort(make_calls: MakeCalls) -> None:
    first = make_calls([1, 2], work=[5, 6], around=[8, -1], around_key=[3, -1])
    second = make_calls([7, 9], work=[6, 5], around=[-1, 4], around_key=[-1, 3])
    assert met(align(first, second)) == [([0], [1], MatchRule.ENCLOSING_OP), ([1], [0], MatchRule.WORK)]


@pytest.mark.parametrize(("left", "right"), [([], []), ([], [1]), ([2], [])])
def test_nothing_meets_nothing(left: list[int], right: list[int], make_calls: MakeCalls) -> None:
    alignment = align(make_calls(left), make_calls(right))
    assert met(alignment) == []
    assert alignment.first.tolist() == [-1] * len(left)
    assert alignment.second.tolist() == [-1] * len(right)


@given(left=KEYS, right=KEYS)
def test_as_many_meet_as_both_have(left: list[int], right: list[int], make_calls: MakeCalls) -> None:
    pairs = met(align(make_calls(left), make_calls(right)))
    assert Counter(left[mine[0]] for mine, _, _ in pairs) == Counter(left) & Counter(right)
    assert all(left[mine[0]] == right[theirs[0]] for mine, theirs, _ in pairs)
    for key in set(left):
        order = [theirs[0] for mine, theirs, _ in sorted(pairs) if left[mine[0]] == key]
        assert order == sorted(order)
