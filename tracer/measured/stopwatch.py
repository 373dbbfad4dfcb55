"""Times iterations without disturbing them: on a GPU by events in its stream, on the CPU by the host's clock."""

from __future__ import annotations

import time
from collections import deque
from typing import Final

import torch

_NS_PER_MS: Final = 1e6
_MOST_LAPS: Final = 100
"""Only the last ones are kept: a long run needs no more to know its median."""

Instant = tuple[int, torch.cuda.Event | None]


class Stopwatch:
    """Own the instants at which iterations began and ended; nothing waits for the GPU before the times are read."""

    def __init__(self) -> None:
        self._begin: Instant | None = None
        self._laps: deque[tuple[Instant, Instant]] = deque(maxlen=_MOST_LAPS)

    @property
    def lap_count(self) -> int:
        """Return how many iterations were timed."""
        return len(self._laps)

    def begin(self) -> None:
        """Start timing an iteration here, and drop the one that runs."""
        self._begin = _look()

    def lap(self) -> None:
        """End the iteration that runs, and start the next one at the same instant."""
        now = _look()
        if self._begin is not None:
            self._laps.append((self._begin, now))
        self._begin = now

    def clear(self) -> None:
        """Forget all laps."""
        self._laps.clear()
        self._begin = None

    def durations_ns(self) -> list[int]:
        """Return how long each iteration took; waits for the GPU."""
        return [_between_ns(begin, end) for begin, end in self._laps]


def _look() -> Instant:
    event = None
    if torch.cuda.is_initialized():
        event = torch.cuda.Event(enable_timing=True)
        event.record()
    return time.perf_counter_ns(), event


def _between_ns(begin: Instant, end: Instant) -> int:
    (begin_ns, begin_event), (end_ns, end_event) = begin, end
    if begin_event is None or end_event is None or begin_event.device != end_event.device:
        return end_ns - begin_ns
    end_event.synchronize()
    elapsed_ms: float = begin_event.elapsed_time(end_event)
    return round(elapsed_ms * _NS_PER_MS)
