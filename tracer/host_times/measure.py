"""Measures this machine's host: thoroughly for `wavecast measure --host`, briefly and once for a recording."""

from __future__ import annotations

import platform
import sys
import threading
from functools import cache
from typing import Final

import torch

from ...formats.meta import HostTimes
from .pieces import pieces_here
from .processor import processor_name
from .rounds import PieceTime, time_pieces

THOROUGH_S: Final = 4.0
BRIEF_S: Final = 0.25
"""Beside it comes a tenth of a second for warming up."""


def measure_host(seconds: float = THOROUGH_S) -> HostTimes:
    """Return how long this host takes over pieces of eager work, all kinds of it.

    Optimizers make torch load its compiler once, which takes a second; a GPU, where there is one, is initialised.
    """
    return _in_own_thread(seconds, has_optimizer=True, has_gpu=torch.cuda.is_available())


def brief_host_times() -> HostTimes:
    """Return the same within half a second, measured once per process; without times where that failed.

    Of a process only what it does anyway: optimizers where it has used one, launches where it has used a GPU.
    """
    return _brief(has_optimizer="torch._dynamo" in sys.modules, has_gpu=torch.cuda.is_initialized())


@cache
def _brief(*, has_optimizer: bool, has_gpu: bool) -> HostTimes:
    try:
        return _in_own_thread(BRIEF_S, has_optimizer=has_optimizer, has_gpu=has_gpu)
    except Exception:  # noqa: BLE001 - a recording without these times is a recording all the same
        return HostTimes()


def _in_own_thread(seconds: float, *, has_optimizer: bool, has_gpu: bool) -> HostTimes:
    """Measure in a thread of its own: gradients, autocast, modes and profilers of the caller's do not reach it."""
    found: list[HostTimes] = []
    failed: list[Exception] = []

    def work() -> None:
        try:
            pieces = pieces_here(has_optimizer=has_optimizer, has_gpu=has_gpu)
            found.append(_host_times(time_pieces(pieces, seconds)))
        except Exception as error:  # noqa: BLE001 - raised again by the caller
            failed.append(error)

    thread = threading.Thread(target=work, name="wavecast-host-times", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


def _host_times(times: tuple[PieceTime, ...]) -> HostTimes:
    return HostTimes(
        python_version=".".join(platform.python_version_tuple()[:2]),
        processor=processor_name(),
        spread=sum(item.spread for item in times) / len(times),
        **{item.kind: item.time_ns for item in times},
    )
