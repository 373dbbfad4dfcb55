"""Why a rank comes late: it began late, loads data, computes longer, or its GPU stands still."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

import numpy as np

from ....formats.trace import Trace
from ...recorded.window import Window
from ..result import Analysis
from .report import RankRow

_LEAST_SHARE: Final = 0.1
"""Of the time that others wait for a rank, what a cause must explain to be named."""
_LOADING: Final = "DataLoader"
"""Is in the names of the spans that torch's profiler writes while a script waits for its next batch."""


def explain_straggler(result: Analysis, row: RankRow, others: Sequence[RankRow]) -> tuple[str, ...]:
    """Say by what a rank differs from the others, the most telling first; what explains little is left out."""
    found = [
        (row.start_ns - _middle(others, "start_ns"), "begins its iteration {} ms after the others"),
        (row.compute_ns - _middle(others, "compute_ns"), f"computes {{}} ms longer ({_kernels(row, others)})"),
        (row.idle_ns - _middle(others, "idle_ns"), f"its GPU stands still {{}} ms longer{_loading(result)}"),
    ]
    least = max(_LEAST_SHARE * row.caused_ns, 1.0)
    named = sorted(((length, text) for length, text in found if length >= least), reverse=True)
    return tuple(text.format(f"{length / 1e6:.3g}") for length, text in named)


def _middle(rows: Sequence[RankRow], name: str) -> float:
    return float(median(getattr(row, name) for row in rows))


def _kernels(row: RankRow, others: Sequence[RankRow]) -> str:
    """Say whether it runs more kernels, or the same ones longer."""
    usual = _middle(others, "kernel_count")
    if row.kernel_count > usual * (1.0 + _LEAST_SHARE):
        return f"{row.kernel_count:,} kernels, the others {usual:,.0f}: more work"
    return "about as many kernels: larger ones, or a slower GPU"


def _loading(result: Analysis) -> str:
    """Say how much of the iteration its host spends in waiting for data."""
    waited = _loading_ns(result.recorded_trace, result.window)
    return f"; its host waits {waited / 1e6:.3g} ms for data" if waited > 0 else ": its host launches late"


def _loading_ns(trace: Trace, window: Window) -> float:
    ops = trace.ops
    loads = np.array([_LOADING in name for name in trace.strings], dtype=bool)
    rows = window.op_rows[loads[ops.name[window.op_rows]]]
    outer = rows[~np.isin(ops.parent[rows], rows)]
    return float(np.maximum(ops.duration_ns[outer], 0).sum())
