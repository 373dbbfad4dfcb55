"""Why a rank comes late: it began late, waits for data, computes longer, or its GPU stands still."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from .report import RankRow

_LEAST_SHARE: Final = 0.1
"""Of the time that others wait for a rank, what a cause must explain to be named."""


def explain_straggler(row: RankRow, others: Sequence[RankRow], *, is_on_host: bool = False) -> tuple[str, ...]:
    """Say by what a rank differs from the others, the most telling first; what explains little is left out."""
    least = max(_LEAST_SHARE * row.caused_ns, 1.0)
    found = _differences(row, others, is_on_host)
    named = sorted(((length, text) for length, text in found if length >= least), reverse=True)
    return tuple(text.format(f"{length / 1e6:.3g}") for length, text in named)


def _differences(row: RankRow, others: Sequence[RankRow], is_on_host: bool) -> Iterator[tuple[float, str]]:
    """Yield by how much longer a rank does something than the others' middle one, and what."""
    yield row.start_ns - _middle(others, "start_ns"), "begins its iteration {} ms after the others"
    yield row.compute_ns - _middle(others, "compute_ns"), f"computes {{}} ms longer ({_work(row, others, is_on_host)})"
    still_ns = row.idle_ns - _middle(others, "idle_ns")
    loading_ns = 0.0
    if row.loading_ns is not None:
        loading_ns = min(max(row.loading_ns - _middle(others, "loading_ns"), 0.0), max(still_ns, 0.0))
        yield loading_ns, f"waits {{}} ms longer for data ({row.loading_ns / 1e6:.3g} ms in its DataLoader)"
    if is_on_host:
        yield still_ns - loading_ns, "runs no op for {} ms longer: its script does other things, or sleeps"
    else:
        yield still_ns - loading_ns, "its GPU stands still {} ms longer: its host launches late"


def _middle(rows: Sequence[RankRow], name: str) -> float:
    return float(median(getattr(row, name) or 0.0 for row in rows))


def _work(row: RankRow, others: Sequence[RankRow], is_on_host: bool) -> str:
    """Say whether it runs more kernels, or the same ones longer, and on what."""
    usual, what = _middle(others, "kernel_count"), "ops" if is_on_host else "kernels"
    usual_gpu = Counter(other.gpu for other in others).most_common(1)[0][0]
    where = "" if row.gpu == usual_gpu else f", on {row.gpu} where most others have {usual_gpu}"
    if row.kernel_count > usual * (1.0 + _LEAST_SHARE):
        return f"{row.kernel_count:,} {what}, the others {usual:,.0f}: more work{where}"
    if where:
        return f"about as many {what}{where}"
    return f"about as many {what}: larger ones, or a slower {'CPU' if is_on_host else 'GPU'}"
