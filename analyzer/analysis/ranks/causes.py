"""Why a rank comes late: it began late, loads data, computes longer, or its GPU stands still."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

import numpy as np

from ....formats.trace import Trace
from ...recorded.window import Window
from .report import RankRow

_LEAST_SHARE: Final = 0.1
"""Of the time that others wait for a rank, what a cause must explain to be named."""
_LOADING: Final = "DataLoader"
"""Is in the names of the spans that torch's profiler writes while a script waits for its next batch."""


def explain_straggler(
    trace: Trace, window: Window, row: RankRow, others: Sequence[RankRow], *, is_on_host: bool = False
) -> tuple[str, ...]:
    """Say by what a rank differs from the others, the most telling first; what explains little is left out."""
    loading_ns = _loading_ns(trace, window)
    told = f"; its host waits {loading_ns / 1e6:.3g} ms for data" if loading_ns > 0 else ""
    if is_on_host:
        still = f"runs no op for {{}} ms longer{told or ': its script does other things, or sleeps'}"
    else:
        still = f"its GPU stands still {{}} ms longer{told or ': its host launches late'}"
    found = [
        (row.start_ns - _middle(others, "start_ns"), "begins its iteration {} ms after the others"),
        (row.compute_ns - _middle(others, "compute_ns"), f"computes {{}} ms longer ({_work(row, others, is_on_host)})"),
        (row.idle_ns - _middle(others, "idle_ns"), still),
    ]
    least = max(_LEAST_SHARE * row.caused_ns, 1.0)
    named = sorted(((length, text) for length, text in found if length >= least), reverse=True)
    return tuple(text.format(f"{length / 1e6:.3g}") for length, text in named)


def _middle(rows: Sequence[RankRow], name: str) -> float:
    return float(median(getattr(row, name) for row in rows))


def _work(row: RankRow, others: Sequence[RankRow], is_on_host: bool) -> str:
    """Say whether it runs more kernels, or the same ones longer."""
    usual, what = _middle(others, "kernel_count"), "ops" if is_on_host else "kernels"
    if row.kernel_count > usual * (1.0 + _LEAST_SHARE):
        return f"{row.kernel_count:,} {what}, the others {usual:,.0f}: more work"
    return f"about as many {what}: larger ones, or a slower {'CPU' if is_on_host else 'GPU'}"


def _loading_ns(trace: Trace, window: Window) -> float:
    ops = trace.ops
    loads = np.array([_LOADING in name for name in trace.strings], dtype=bool)
    rows = window.op_rows[loads[ops.name[window.op_rows]]]
    outer = rows[~np.isin(ops.parent[rows], rows)]
    return float(np.maximum(ops.duration_ns[outer], 0).sum())
