"""Calls by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from wavecast.analyzer.questions.validate.calls import NO_KEY, OpCalls

MakeCalls = Callable[..., OpCalls]


def _make_calls(
    keys: Sequence[int],
    *,
    phases: Sequence[int] | None = None,
    work: Sequence[int] | None = None,
    around: Sequence[int] | None = None,
    around_key: Sequence[int] | None = None,
) -> OpCalls:
    """One kernel per call; by default in one phase, of unknown work, inside nothing."""
    count = len(keys)
    nothing = [NO_KEY] * count
    rows = np.arange(count)
    return OpCalls(
        op=rows,
        kernel=rows,
        phase=np.array(phases or [0] * count, dtype=np.int8),
        key=np.array(keys, dtype=np.int64),
        work_key=np.array(work or nothing, dtype=np.int64),
        enclosing=np.array(around or nothing, dtype=np.int64),
        enclosing_key=np.array(around_key or nothing, dtype=np.int64),
        part_call=rows,
        part_row=rows,
        part_item=rows,
    )


@pytest.fixture(scope="session")
def make_calls() -> MakeCalls:
    """A builder of calls: `make_calls([3, 3, 5])`."""
    return _make_calls
