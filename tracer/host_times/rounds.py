"""Times pieces of work in many short rounds, one piece after the other in each, so that noise meets all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from statistics import quantiles
from typing import Final

from ...formats.files.garbage import collection_paused
from .pieces import HostPiece, Run

_BATCH_NS: Final = 400_000
"""One batch: long enough for the clock, and for caches to forget the piece before."""
_FEWEST_ROUNDS: Final = 8
_WARM_RUNS: Final = 3
_PARTS: Final = 10
_LEAST_NS: Final = 1.0
"""What remains of a piece at least when another's time is taken from it."""
_FINE_S: Final = 1e-6
"""Resolution that a clock needs to time a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceTime:
    """Hold what one unit of a piece took."""

    kind: str
    time_ns: float
    """Lower decile over the rounds: whatever else runs on the machine only ever adds."""
    spread: float
    """Half the width of the middle 80 % of the rounds, natural log."""


@dataclass(slots=True)
class _Batch:
    """A piece with how often it is run at a time, and what its batches took per turn."""

    run: Run
    after: Callable[[], None] | None
    count: int
    times_ns: list[float]


def time_pieces(pieces: Sequence[HostPiece], seconds: float) -> tuple[PieceTime, ...]:
    """Return the time of one unit of each piece, given how long all of it may take.

    Raises whatever a piece raises. Garbage is not collected meanwhile.
    """
    end = time.monotonic() + seconds
    with collection_paused():
        batches = [_batch(run, piece.after) for piece in pieces for run in _runs(piece)]
        rounds = 0
        while rounds < _FEWEST_ROUNDS or time.monotonic() < end:
            for batch in batches:
                batch.times_ns.append(_time(batch))
            rounds += 1
    left = iter(batches)
    return tuple(_summarise(piece, [next(left).times_ns for _ in _runs(piece)]) for piece in pieces)


def _runs(piece: HostPiece) -> tuple[Run, ...]:
    return (piece.run,) if piece.without is None else (piece.run, piece.without)


def _summarise(piece: HostPiece, times_ns: Sequence[Sequence[float]]) -> PieceTime:
    """Return one piece's time, without that of what is subtracted."""
    whole, *less = (quantiles(item, n=_PARTS) for item in times_ns)
    return PieceTime(
        kind=piece.kind,
        time_ns=round(max(whole[0] - sum(item[0] for item in less), _LEAST_NS) / piece.unit_count, 1),
        spread=round(log(whole[-1] / whole[0]) / 2, 4) if whole[0] > 0 else 0.0,
    )


def _batch(run: Run, after: Callable[[], None] | None) -> _Batch:
    """Warm a piece up, and find how often it fits into a batch."""
    batch = _Batch(run=run, after=after, count=1, times_ns=[])
    for _ in range(_WARM_RUNS):
        _time(batch)
    while (taken_ns := _time(batch) * batch.count) < _BATCH_NS / 2:
        batch.count = max(2 * batch.count, int(batch.count * _BATCH_NS / max(taken_ns, 1.0) / 2))
    batch.count = max(1, round(batch.count * _BATCH_NS / taken_ns))
    return batch


def _time(batch: _Batch) -> float:
    start_ns = _clock_ns()
    batch.run(batch.count)
    taken_ns = _clock_ns() - start_ns
    if batch.after is not None:
        batch.after()
    return taken_ns / batch.count


def _choose_clock() -> Callable[[], int]:
    """Return the clock of this thread's own time, where it is fine enough: others' work does not count there."""
    try:
        is_fine = time.get_clock_info("thread_time").resolution <= _FINE_S
    except (ValueError, AttributeError):
        is_fine = False
    return time.thread_time_ns if is_fine else time.perf_counter_ns


_clock_ns: Final = _choose_clock()
