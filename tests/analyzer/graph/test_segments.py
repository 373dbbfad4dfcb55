"""Look-ups in many stretches at once give what one at a time gives."""

from __future__ import annotations

import itertools
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, strategies as st
from wavecast.analyzer.graph.segments import accumulate_segments, search_segments

LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=12)


@pytest.mark.parametrize("side", ["left", "right"])
@given(lengths=LENGTHS, seed=st.integers(0, 99))
def test_a_search_in_stretches_is_one_in_each(side: Literal["left", "right"], lengths: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    bounds = np.append(0, np.cumsum(lengths))
    values = np.concatenate([np.sort(rng.integers(0, 6, count)) for count in lengths]).astype(np.float64)
    asked = rng.integers(0, len(lengths), 20)
    wanted = rng.integers(-1, 7, 20).astype(np.float64)
    found = search_segments(values, bounds[asked], bounds[asked + 1], wanted, side)
    for at, lane in enumerate(asked.tolist()):
        stretch = values[bounds[lane] : bounds[lane + 1]]
        assert found[at] == bounds[lane] + np.searchsorted(stretch, wanted[at], side)


@given(lengths=LENGTHS, seed=st.integers(0, 99))
def test_a_running_maximum_begins_anew_with_each_stretch(lengths: list[int], seed: int) -> None:
    bounds = np.append(0, np.cumsum(lengths))
    values = np.random.default_rng(seed).random(bounds[-1])
    found = accumulate_segments(values, bounds)
    for begin, end in itertools.pairwise(bounds):
        assert found[begin:end].tolist() == np.maximum.accumulate(values[begin:end]).tolist()
