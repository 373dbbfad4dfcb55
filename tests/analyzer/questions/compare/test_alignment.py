"""Alignment of two sequences."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st
from wavecast.analyzer.questions.compare.pairing import align

SEQUENCES = st.lists(st.integers(0, 5), max_size=40).map(lambda items: np.array(items, dtype=np.int64))


@given(SEQUENCES, SEQUENCES)
def test_order_is_kept_and_only_equals_meet(old: np.ndarray, new: np.ndarray) -> None:
    olds, news = align(old, new)
    assert np.all(np.diff(olds) > 0)
    assert np.all(np.diff(news) > 0)
    assert np.array_equal(old[olds], new[news])


@given(SEQUENCES)
def test_the_same_aligns_whole(sequence: np.ndarray) -> None:
    assert [item.tolist() for item in align(sequence, sequence.copy())] == [list(range(len(sequence)))] * 2


@given(SEQUENCES, st.integers(0, 40))
def test_one_more_leaves_one_alone(sequence: np.ndarray, place: int) -> None:
    olds, _ = align(sequence, np.insert(sequence, min(place, len(sequence)), 9))
    assert len(olds) == len(sequence)
