"""How fast the host of a recording was: told by what its CPU ops took, never by how long its iteration was."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...arrays import Floats, Rows
from ...formats.trace.tables import Trace
from ...records import dataclass
from ..recorded.window import select_window, timed_iterations
from .costs import HostCosts, known_host_half_width, load_host_costs, profiler_shares, spellings

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
    return topmost_rows(trace, [spellings(name)[-1] in names for name in trace.strings])


def topmost_rows(trace: Trace, is_known: Sequence[bool]) -> Rows:
    """Return the ops of the known names (per string) that stand in no other such op."""
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
    """Return per runtime call its kind (`kind_of_call`) and the time in it that is waiting.

    >>> kinds, waits_ns = classify_calls(trace)
    >>> len(kinds), waits_ns.sum()  # shapes alone
    (0, np.float64(0.0))
    """
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


LEAST_OPS: Final = 20
"""Fewer known ops tell nothing of a host."""
SAME_OPS_HALF_WIDTH: Final = 0.45
"""Natural log: how far the ratio of two hosts may be off that ran the same ops: nine of ten of our moves between an
H100 and an H200 machine lie within 0.40 of the plain loop, and within 0.12 of the iterations of that recording
(benchmarks/check/own_hosts.py)."""
OTHER_NETWORK_EXPONENT: Final = 0.5
"""Of the ratio that two networks tell: recordings made on one of our machines differ by 0.25 (natural log, a deviation)
by this measure, so two of them by 0.35. 0.7 would be right for hosts as unlike as those of `host_list`, 0.35 was best
for our two machines, which are alike."""
_LEAST_ALIKE: Final = 0.9
"""Of the calls of two recordings' ops: from here on they run the same."""
_WAITING: Final = 0.85
"""Of an iteration that kernels take at most where the host decides how long it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSpeed:
    """Say how fast the host of a recording was relative to another: 2 is twice as fast."""

    ratio: float
    half_width: float
    """How far that may be off in 90 % of the cases, natural log."""
    op_count: int
    """Ops that tell it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindOfOp:
    """Hold what the calls of one op took on a host, without the profiler."""

    call_count: int
    own_ns: float
    """Mean per call."""
    launch_count: float
    """Mean per call."""


def host_speed_of(trace: Trace) -> RecordedSpeed | None:
    """Return how fast the host of a measured trace was relative to the reference host; None where nothing tells.

    >>> host_speed_of(trace) is None  # shapes alone
    True
    """
    costs = load_host_costs()
    ratio = speed_by_ops(trace, costs) if trace.is_measured else None
    if ratio is None:
        return None
    count = len(outermost_rows(trace, costs.op_ns))
    return RecordedSpeed(ratio=ratio, half_width=known_host_half_width(), op_count=count)


def speed_by_ops(trace: Trace, costs: HostCosts) -> float | None:
    """Return how fast the host of a measured trace was relative to that of `costs`.

    Compared is the time in CPU ops as a dispatcher sees them, with the launches they make and without what they wait
    for: what the ops of the trace cost in the table over what they took. The profiler's share is taken out of them as
    `profiler_shares` has it. None where too few ops were recorded that the table knows.
    """
    kinds, launch_ns = kinds_of_ops(trace, costs.op_ns)
    if sum(kind.call_count for kind in kinds.values()) < LEAST_OPS:
        return None
    took = sum(kind.call_count * (kind.own_ns + kind.launch_count * launch_ns) for kind in kinds.values())
    listed = sum(
        kind.call_count * (costs.op_ns[name] + kind.launch_count * costs.launch_ns) for name, kind in kinds.items()
    )
    return float(listed / took)


def relative_host_speed(first: Trace, second: Trace) -> RecordedSpeed | None:
    """Return how fast the host of a second measured trace was relative to that of the first; None where nothing tells.

    Where they run the same ops, these are compared with each other, else each with the table of costs, whose ratio is
    carried in part (`OTHER_NETWORK_EXPONENT`).

    >>> relative_host_speed(trace, trace) is None  # shapes alone
    True
    """
    if not (first.is_measured and second.is_measured):
        return None
    names = load_host_costs().op_ns
    (before, launch_before), (after, launch_after) = (kinds_of_ops(trace, names) for trace in (first, second))
    counts = [Counter({name: kind.call_count for name, kind in kinds.items()}) for kinds in (before, after)]
    shared = counts[0] & counts[1]
    if shared.total() >= max(LEAST_OPS, _LEAST_ALIKE * (counts[0] | counts[1]).total()):
        took_before, took_after = (
            sum(count * (kinds[name].own_ns + kinds[name].launch_count * launch) for name, count in shared.items())
            for kinds, launch in ((before, launch_before), (after, launch_after))
        )
        return RecordedSpeed(ratio=took_before / took_after, half_width=SAME_OPS_HALF_WIDTH, op_count=shared.total())
    speeds = host_speed_of(first), host_speed_of(second)
    if speeds[0] is None or speeds[1] is None:
        return None
    return RecordedSpeed(
        ratio=(speeds[1].ratio / speeds[0].ratio) ** OTHER_NETWORK_EXPONENT,
        half_width=float(np.hypot(speeds[0].half_width, speeds[1].half_width)),
        op_count=min(speeds[0].op_count, speeds[1].op_count),
    )


def kinds_of_ops(trace: Trace, names: Collection[str]) -> tuple[Mapping[str, KindOfOp], float]:
    """Return the ops of some names that a trace holds, without the profiler, and what a launch usually takes, ns.

    The profiler's share is the usual one, or where iterations without it wait for their host as theirs says.
    """
    kinds, waits = classify_calls(trace)
    rows = outermost_rows(trace, names)
    times = times_of_rows(trace, rows, kinds, waits)
    usual = trace.calls.duration_ns[kinds == "launch"]
    shares = profiler_shares(trace)
    slower = _profiled_ratio(trace) * shares.mean or 1.0
    known = np.flatnonzero(~np.isnan(times.own_ns))
    words = np.array([spellings(text)[-1] for text in trace.strings] or [""])
    spelled, group = np.unique(words[trace.ops.name[rows[known]]], return_inverse=True)
    parts = np.split(known[np.argsort(group, kind="stable")], np.cumsum(np.bincount(group))[:-1])
    found = {
        name: KindOfOp(
            call_count=len(part),
            own_ns=max(winsorised(times.own_ns[part]) * shares.own / slower, 1.0),
            launch_count=float(times.launch_count[part].mean()),
        )
        for name, part in zip(spelled.tolist(), parts, strict=False)  # one empty part where there are no names
    }
    return found, float(np.median(usual)) / slower if len(usual) else 0.0


def _profiled_ratio(trace: Trace) -> float:
    """Return the length of an iteration over that without the profiler; 0 where kernels decide it, or nothing tells."""
    window = select_window(trace)
    if window.index is None or not window.duration_ns or not len(timed_iterations(trace)):
        return 0.0
    waits = trace.kernels.duration_ns[window.kernel_rows].sum() < _WAITING * window.duration_ns
    length_ns = trace.iterations.end_ns[window.index] - trace.iterations.start_ns[window.index]
    return float(length_ns / window.duration_ns) if waits else 0.0
