"""The script's own Python between ops, as a recording of shapes timed it: what of it counts, and how sure it is.

The usual time before an op holds a usual script's Python, a model's code and the calls of its modules included. What a
recording measures there is small beside what it disturbs: caches are cold, and a busy machine stretches single gaps
tenfold. So a gap counts where it is long enough to be what this script alone does (tokenizing, sampling, searching,
logging): from `_TELLING_NS` on, in whole from twice that on. Recordings that walked through the iteration once or twice
hold gaps of 7 ms that the same script does not have a minute later: of them only longer ones count, and what is between
makes the interval wider.
"""

from __future__ import annotations

from math import exp, log1p
from typing import Final

import numpy as np

from ...arrays import Floats
from ...errors import InputError
from ...formats.trace.column import MAX_INTEGER
from ...formats.trace.meta import HostTimes
from ...formats.trace.tables import Trace
from ...records import dataclass
from .costs import HostCosts
from .named import load_anchor, usual_mix

_TELLING_NS: Final = 1e6
"""On the reference host, 50 rounds of the plain Python of `measure --host`: plain training loops, recorded beside up to
eight busy processes on two cores, hold no longer gap in the least of several walks."""
_TELLING_ONCE_NS: Final = 1e7
"""The same where gaps were timed once: eight such recordings of one plain loop hold gaps of up to 7 ms."""
_FEWEST_WALKS: Final = 3
_MOST_SPREAD: Final = 1.0
_SPEEDS: Final = (0.01, 100.0)
"""Beyond them a measurement of a host is none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AddedScriptTime:
    """Hold the script's own time on the host of a table of costs, beyond the usual time before each of n ops."""

    added_ns: Floats
    """What counts, [n]."""
    doubt_ns: float
    """How much longer it may be in all: what the measurements differ by, and what was measured too rarely to count."""

    def log_width(self, host_ns: float) -> float:
        """Return how far that moves a host's time that holds it, natural log."""
        return log1p(self.doubt_ns / host_ns) if host_ns > 0 else 0.0


def script_time(trace: Trace, usual_ns: Floats, costs: HostCosts) -> AddedScriptTime:
    """Return what the script's own Python adds to the usual time before each op of a recording of shapes.

    Raises InputError where the recorded times add up to more than a time can be.

    >>> from wavecast.analyzer.host.costs import load_host_costs
    >>> script_time(trace, np.zeros(len(trace.ops.name)), load_host_costs()).doubt_ns  # a step, no script
    0.0
    """
    speed = script_speed_of(trace.meta.host) * costs.speed_ratio
    recorded: Floats = np.where(trace.ops.parent < 0, np.maximum(trace.ops.lead_ns, 0), 0) / speed
    if float(recorded.sum()) > MAX_INTEGER:
        raise InputError("$.ops.lead_ns: the times add up to more than 104 days: record the script again")
    is_sure = (trace.meta.script_walks or 0) >= _FEWEST_WALKS
    beyond = np.maximum(recorded - usual_ns, 0.0)
    told, added = (
        beyond * np.clip(recorded * costs.speed_ratio / least_ns - 1.0, 0.0, 1.0)
        for least_ns in (_TELLING_NS, _TELLING_NS if is_sure else _TELLING_ONCE_NS)
    )
    spread = exp(min(trace.meta.script_spread or 0.0, _MOST_SPREAD)) - 1.0
    return AddedScriptTime(added_ns=added, doubt_ns=float((told - added).sum() + spread * added.sum()))


def script_speed_of(host: HostTimes) -> float:
    """Return how fast Python is on the reference host relative to the one that recorded; 1 where that does not say.

    By the one machine of which both are known: how fast its ops are in recordings, and what Python takes there.

    >>> script_speed_of(HostTimes())
    1.0
    """
    anchor = load_anchor()
    if host.python_ns is None or anchor.times.python_ns is None:
        return 1.0
    reference_ns = anchor.times.python_ns * usual_mix(anchor.ops_ratio)["python"]
    return float(np.clip(host.python_ns / reference_ns, *_SPEEDS))
