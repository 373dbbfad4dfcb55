"""What the CPU ops of a recording took on its host, without what they waited for."""

import re
from collections.abc import Collection
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...arrays import Floats, Rows
from ...formats.trace.tables import Trace
from ...records import dataclass
from .costs import spellings

_LAUNCH: Final = re.compile(r"LaunchKernel|LaunchCooperative|ModuleLaunch")
_COPY: Final = re.compile(r"Memcpy\w*Async")
_WAIT: Final = re.compile(r"Synchronize|Malloc|Free|HostAlloc|HostRegister|ModuleLoad|LibraryLoad|Memcpy(?!\w*Async)")
LONGEST_NS: Final = 1e6
"""A longer op, or gap between ops, is data loading, start-up or a wait, not the cost of an op."""
_BLOCKED: Final = 4
"""A call that takes so many times its usual waited for room in a queue."""
_SHORT_CALL_NS: Final = 3_000.0
_UPPER_QUARTILE: Final = 75
_INTERRUPTED: Final = 5.0
"""Of the upper quartile: what takes longer was a first call, or interrupted."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpTimes:
    """Hold what n ops took on the host: their own time, and the launches in it."""

    own_ns: Floats
    """Without waiting and without runtime calls; NaN where it is no op's cost."""
    launch_count: Rows


def times_of_rows(trace: Trace, rows: Rows, kinds: npt.NDArray[np.str_], waits: Floats) -> OpTimes:
    """Return what some ops took, given `classify_calls` of their trace."""
    order = np.argsort(trace.calls.start_ns, kind="stable")
    kinds, waits = kinds[order], waits[order]
    start = trace.ops.start_ns[rows].astype(np.float64)
    end = start + trace.ops.duration_ns[rows]
    at, call_ns = trace.calls.start_ns[order], trace.calls.duration_ns[order].astype(np.float64)
    is_launch = np.isin(kinds, ["launch", "copy"])
    waited = sum_between(at, waits, start, end)
    launched = sum_between(at, np.where(is_launch, call_ns - waits, 0.0), start, end)
    own = np.maximum(end - start - waited - launched, 0.0)
    own[own > LONGEST_NS] = np.nan
    count = sum_between(at, is_launch.astype(np.float64), start, end).astype(np.int64)
    return OpTimes(own_ns=own, launch_count=count)


def sum_between(instants: npt.NDArray[Any], values: Floats, low: Floats, high: Floats) -> Floats:
    """Sum the values whose instant lies in [low, high)."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    result: Floats = total[np.searchsorted(instants, high)] - total[np.searchsorted(instants, low)]
    return result


def outermost_rows(trace: Trace, names: Collection[str]) -> Rows:
    """Return the ops of some names that stand in no other such op, names spelled as a table of costs has them."""
    is_known = [spellings(name)[-1] in names for name in trace.strings]
    name_of, parents = trace.ops.name.tolist(), trace.ops.parent.tolist()
    inside, rows = [False] * len(name_of), []
    for row, (name, parent) in enumerate(zip(name_of, parents, strict=True)):
        if 0 <= parent < row and inside[parent]:
            inside[row] = True
        elif is_known[name]:
            inside[row] = True
            rows.append(row)
    return np.array(rows, dtype=np.int64)


def classify_calls(trace: Trace) -> tuple[npt.NDArray[np.str_], Floats]:
    """Return per runtime call its kind (`kind_of_call`) and the time in it that is waiting."""
    duration = trace.calls.duration_ns.astype(np.float64)
    names = np.array([kind_of_call(name) for name in trace.strings] or [""])
    kinds = names[trace.calls.name] if len(duration) else np.zeros(0, dtype=np.str_)
    waits = np.zeros(len(duration))
    for kind in ("launch", "copy", "graph", "other"):
        chosen = kinds == kind
        if chosen.any():
            usual = np.median(duration[chosen])
            is_blocked = duration[chosen] > _BLOCKED * max(usual, _SHORT_CALL_NS)
            waits[chosen] = np.maximum(duration[chosen] - usual, 0.0) * is_blocked
    waiting = np.isin(kinds, ["sync", "memory"])
    waits[waiting] = duration[waiting]
    return kinds, waits


def kind_of_call(name: str) -> str:
    """Return the kind of a runtime call: graph, launch, copy, sync, memory or other."""
    patterns = (("graph", re.compile("GraphLaunch")), ("launch", _LAUNCH), ("copy", _COPY))
    for kind, pattern in patterns:
        if pattern.search(name):
            return kind
    return "sync" if "Synchronize" in name else "memory" if _WAIT.search(name) else "other"


def winsorised(values: Floats) -> float:
    """Return the mean of values cut at five times their upper quartile, which tames first calls and interruptions.

    >>> winsorised(np.array([1.0, 1.0, 1.0, 1.0, 101.0]))
    1.8
    """
    usual = float(np.percentile(values, _UPPER_QUARTILE))
    return float(np.minimum(values, _INTERRUPTED * usual).mean()) if usual else float(values.mean())
