"""Measures this machine's host: thoroughly for `wavecast measure --host`, briefly and once for a recording."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from math import log
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Final

import torch

from ...formats.files.importers import collection_paused
from ...formats.trace.meta import HostTimes
from ...formats.trace.privacy import hide_private
from ...records import dataclass, replace
from .pieces import HostPiece, Run, pieces_here

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
    beside_script_ns = trace.meta.host.python_ns  # measured beside the script's own Python, it is what that goes by
    if host is not None and beside_script_ns is not None:
        host = replace(host, python_ns=round(beside_script_ns, 1))
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
            times = time_pieces(pieces, seconds)
            found.append(
                HostTimes(
                    python_version=".".join(platform.python_version_tuple()[:2]),
                    processor=processor_name(),
                    spread=round(sum(item.spread for item in times) / len(times), 4),
                    **{item.kind: item.time_ns for item in times},
                )
            )
        except Exception as error:  # noqa: BLE001 - raised again by the caller
            failed.append(error)

    thread = threading.Thread(target=work, name="wavecast-host-times", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


_LINUX: Final = Path("/proc/cpuinfo")
_KEYS: Final = ("model name", "Model", "cpu model", "cpu", "Hardware")
"""Lines of Linux that name the processor: x86, then ARM boards, MIPS, POWER."""
_ARM_MAKERS: Final = {"0x41": "Arm", "0xc0": "Ampere", "0x4e": "NVIDIA", "0x61": "Apple", "0x51": "Qualcomm"}
"""Implementers, as Arm numbers them: servers of that kind have no model's name in the file."""
_ARM_PARTS: Final = {
    ("0x41", "0xd0c"): "Arm Neoverse-N1",
    ("0x41", "0xd40"): "Arm Neoverse-V1",
    ("0x41", "0xd49"): "Arm Neoverse-N2",
    ("0x41", "0xd4f"): "Arm Neoverse-V2",
}
"""Processors of servers with GPUs (Graviton 2 to 4, Grace), as util-linux's `lscpu-arm.c` lists their part numbers."""
_LONGEST: Final = 80
_WINDOWS_KEY: Final = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"


def processor_name() -> str | None:
    """Return e.g. `AMD EPYC 7763 64-Core Processor`; None where the system does not say."""
    try:
        text = _READERS.get(sys.platform, platform.processor)()
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return clean_name(text)


def clean_name(text: str) -> str | None:
    """Return a processor's name on one line, without trade marks, speed, and what may tell of a machine."""
    plain = re.sub(r"\((?:R|TM|tm|r)\)|®|™|\bCPU\b|@\s*[0-9.]+\s*[GM]Hz", " ", text[: 4 * _LONGEST])
    kept = " ".join("".join(sign if sign.isprintable() else " " for sign in plain).split())[:_LONGEST].strip()
    return hide_private(kept) or None


def read_cpuinfo(text: str) -> str:
    """Return the processor's name that `/proc/cpuinfo` holds, empty where there is none."""
    lines = (line.partition(":") for line in text.splitlines())
    found: dict[str, str] = {}
    for key, colon, value in lines:
        if colon and key.strip() not in found:
            found[key.strip()] = value.strip()
    for key in _KEYS:
        if found.get(key) and not found[key].isdecimal():
            return found[key]
    maker, part = found.get("CPU implementer", ""), found.get("CPU part", "")
    return _ARM_PARTS.get((maker, part)) or " ".join(filter(None, (_ARM_MAKERS.get(maker, ""), part)))


def _read_linux() -> str:
    return read_cpuinfo(_LINUX.read_text(encoding="utf-8", errors="replace")) or platform.machine()


def _read_mac() -> str:
    command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
    return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout  # noqa: S603


def _read_windows() -> str:
    import winreg

    with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, _WINDOWS_KEY) as key:  # type: ignore[attr-defined]
        return str(winreg.QueryValueEx(key, "ProcessorNameString")[0])  # type: ignore[attr-defined]


_READERS: Final = {"linux": _read_linux, "darwin": _read_mac, "win32": _read_windows}


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
    """Return the time of one unit of each piece, in many short rounds of all, so that noise meets all alike.

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
