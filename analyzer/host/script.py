"""The script's own Python in a recording of shapes: what passed between its ops where it was recorded, moved here."""

from __future__ import annotations

from typing import Final

import numpy as np

from ...arrays import Floats
from ...errors import InputError
from ...formats.trace.limits import MAX_INTEGER
from ...formats.trace.meta import HostTimes
from ...formats.trace.tables import Trace
from .named import load_anchor, usual_mix

_SPEEDS: Final = (0.01, 100.0)
"""Beyond them a measurement of a host is none."""


def with_script_time(trace: Trace, lead_ns: Floats, script_speed: float) -> Floats:
    """Return the host time before each op: the usual one, or the script's own where that is longer.

    `script_speed` says how fast the target's Python is relative to that of the host that recorded. The usual lead holds
    a usual script's Python as well, so the two are not added; ops without a recorded time keep theirs.
    Raises InputError where the recorded times add up to more than a time can be.
    """
    if float(trace.ops.lead_ns.sum(dtype=np.float64)) / script_speed > MAX_INTEGER:
        raise InputError("$.ops.lead_ns: the times add up to more than 104 days: record the script again")
    return np.where(trace.ops.parent < 0, np.maximum(lead_ns, trace.ops.lead_ns / script_speed), lead_ns)


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
