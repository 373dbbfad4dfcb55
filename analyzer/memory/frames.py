"""Module calls of the forward pass, from the module paths of its ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ...arrays import Rows
from ...formats.trace.tables import Phase, Trace

DEEPEST_MODULE: Final = 100
"""As deep as module paths are imported: each level takes a pass over all ops."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frames:
    """Hold, per depth of nesting (outermost first), the first and last op of the module call around each op.

    Ops outside any module of that depth are their own call. Calls of one module with no op between are one.
    """

    start: tuple[Rows, ...]
    end: tuple[Rows, ...]


def find_frames(trace: Trace, window_ops: Rows) -> Frames:
    """Return the module calls around the forward ops of a window, in positions of its ops."""
    module = trace.ops.module[window_ops].astype(np.int64)
    is_forward = (trace.ops.phase[window_ops] == Phase.FORWARD) & (module >= 0)
    used, place = np.unique(np.where(is_forward, module, -1), return_inverse=True)
    paths = [tuple(trace.strings[item].split(".")) if item >= 0 else () for item in used.tolist()]
    starts, ends = [], []
    for depth in range(1, min(max(map(len, paths), default=0), DEEPEST_MODULE) + 1):
        start, end = _runs(_prefix_numbers(paths, depth)[place])
        starts.append(start)
        ends.append(end)
    return Frames(start=tuple(starts), end=tuple(ends))


def _prefix_numbers(paths: list[tuple[str, ...]], depth: int) -> Rows:
    """Number the distinct beginnings of `depth` parts; -1 for shorter paths."""
    numbers: dict[tuple[str, ...], int] = {}
    found = [numbers.setdefault(path[:depth], len(numbers)) if len(path) >= depth else -1 for path in paths]
    return np.array(found, dtype=np.int64)


def _runs(keys: Rows) -> tuple[Rows, Rows]:
    """Return the first and last position of the run of equal keys around each; every -1 is a run of its own."""
    begins = np.ones(len(keys), dtype=bool)
    begins[1:] = (keys[1:] != keys[:-1]) | (keys[1:] < 0)
    starts = np.flatnonzero(begins)
    run = np.cumsum(begins) - 1
    ends = np.append(starts[1:], len(keys)) - 1
    return starts[run], ends[run]
