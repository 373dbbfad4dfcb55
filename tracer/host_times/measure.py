"""Measures this machine's host: thoroughly for `wavecast measure --host`, briefly and once for a recording."""

from __future__ import annotations

import platform
import sys
import threading
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Final

import torch

from ...formats.trace.meta import HostTimes
from .pieces import pieces_here
from .processor import processor_name
from .rounds import PieceTime, time_pieces

if TYPE_CHECKING:
    from ...formats.trace.tables import Trace

THOROUGH_S: Final = 4.0
BRIEF_S: Final = 0.25
"""Beside it comes a tenth of a second for warming up."""


def measure_host(seconds: float = THOROUGH_S) -> HostTimes:
    """Return how long this host takes over pieces of eager work, all kinds of it.

    Optimizers make torch load its compiler once, which takes a second; a GPU, where there is one, is initialised.
    """
    gpu = torch.cuda.current_device() if torch.cuda.is_available() else None
    return _in_own_thread(seconds, has_optimizer=True, gpu=gpu)


def add_host_times(trace: Trace) -> Trace:
    """Return a trace that says how fast this host is, as measured briefly, once per process.

    Of the kinds of work those that the process does anyway: optimizers where torch has loaded what they need, launches
    where it has used a GPU. Where measuring fails the trace stays as it is.
    """
    gpu = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    host = _brief(has_optimizer="torch._dynamo" in sys.modules, gpu=gpu)
    return trace if host is None else replace(trace, meta=replace(trace.meta, host=host))


@cache
def _brief(*, has_optimizer: bool, gpu: int | None) -> HostTimes | None:
    try:
        return _in_own_thread(BRIEF_S, has_optimizer=has_optimizer, gpu=gpu)
    except Exception:  # noqa: BLE001 - a recording without these times is a recording all the same
        return None


def _in_own_thread(seconds: float, *, has_optimizer: bool, gpu: int | None) -> HostTimes:
    """Measure in a thread of its own: gradients, autocast, modes and profilers of the caller's do not reach it."""
    found: list[HostTimes] = []
    failed: list[Exception] = []

    def work() -> None:
        try:
            pieces = pieces_here(has_optimizer=has_optimizer, gpu=gpu)
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
        spread=round(sum(item.spread for item in times) / len(times), 4),
        **{item.kind: item.time_ns for item in times},
    )
