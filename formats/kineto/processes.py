"""Chooses one process of a file that merges several ranks': correlation ids are unique within a process alone."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from ...errors import TraceError
from ...records import dataclass
from ..recording.rows import CallRows, KernelRows, empty_rows, join_rows
from ..trace.privacy import hide_private
from .events import Event
from .values import Integers

Owner = int | str | float | None
_RANK: Final = re.compile(r"(?!(?:[\W_]|(?i:rank|worker|process|local|gpu))*\d+\s*\Z)(.{0,200}?\S)\s*\d{1,20}\s*")
"""`[TP00] 4711` of the host, `[TP00] 0` of its device: merging tools put the rank before the number. Not `rank 0`."""
_DEVICE: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "cuda_sync", "xpu_sync"})
_MOST_NAMED: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenProcess:
    """Hold the process that is read, and what the others are called."""

    keeps: Callable[[Event], bool]
    left_out: str


def owner_of(pid: Owner) -> Owner:
    """Return whose an event is: what stands before the number of a process or device, else the number itself."""
    if not isinstance(pid, str):
        return pid
    match = _RANK.fullmatch(pid)
    return int(pid) if pid.isdecimal() and len(pid) < 20 else pid if match is None else match[1]


def choose_process(
    hosts: Sequence[Owner],
    spent_us: Mapping[Owner, float],
    threads: Sequence[object],
    calls: list[CallRows],
    kernels: list[KernelRows],
) -> ChosenProcess | None:
    """Return the process whose work on the GPU takes longest, None for a file of one process.

    `hosts` are the owners of ops and calls, in order; `spent_us` is the GPU time of those that a device's name tells;
    `threads` gives process and thread by the number in `calls`. Raises TraceError where nothing tells whose kernels are
    whose.
    """
    if len(hosts) < 2:
        return None
    of_owner: dict[Owner, Integers] = {}
    spent = dict(spent_us)
    if not spent:
        of_owner, spent = _by_launch(hosts, threads, calls, kernels)
    chosen = max(hosts, key=lambda owner: spent.get(owner, 0.0))
    others = [str(owner) if isinstance(owner, str) else f"process {owner}" for owner in hosts if owner != chosen]
    named = ", ".join(hide_private(name)[:60] for name in others[:_MOST_NAMED])
    more = f" and {len(others) - _MOST_NAMED:,} more" if len(others) > _MOST_NAMED else ""
    launched = frozenset(map(str, of_owner[chosen].tolist())) if of_owner else None

    def keeps(event: Event) -> bool:
        if launched is None or event.cat not in _DEVICE:
            return owner_of(event.pid) == chosen
        return event.args is not None and str(event.args.correlation) in launched

    return ChosenProcess(keeps=keeps, left_out=named + more)


def _by_launch(
    hosts: Sequence[Owner], threads: Sequence[object], calls: list[CallRows], kernels: list[KernelRows]
) -> tuple[dict[Owner, Integers], dict[Owner, float]]:
    """Return the correlations of each process, and the GPU time that they tell."""
    launches, run = join_rows([*calls, empty_rows(CallRows)]), join_rows([*kernels, empty_rows(KernelRows)])
    owner = [owner_of(thread[0]) if isinstance(thread, tuple) else None for thread in threads]
    used = np.unique(run.correlation[run.correlation > 0])
    found: dict[Owner, Integers] = {}
    for host in hosts:
        numbers = [number for number, name in enumerate(owner) if name == host]
        found[host] = np.intersect1d(launches.correlation[np.isin(launches.thread, numbers)], used)
    if sum(map(len, found.values())) > len(np.unique(np.concatenate(list(found.values())))):
        names = ", ".join(map(str, hosts[:_MOST_NAMED])) + (" …" if len(hosts) > _MOST_NAMED else "")
        raise TraceError(
            f"$.traceEvents: found a merged file of {len(hosts)} processes ({names}) whose launches have the same "
            "correlation ids: nothing tells whose kernels are whose; give the file of one rank, or those of all to "
            "`wavecast ranks`"
        )
    spent = {host: float(run.duration_ns[np.isin(run.correlation, ids)].sum()) for host, ids in found.items()}
    return found, spent
