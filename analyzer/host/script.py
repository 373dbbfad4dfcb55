"""The script's own Python in a recording of shapes: what passed between its ops where it was recorded, moved here."""

from __future__ import annotations

import numpy as np

from ...arrays import Floats
from ...errors import InputError
from ...formats.limits import MAX_INTEGER
from ...formats.trace import Trace


def with_script_time(trace: Trace, lead_ns: Floats, script_speed: float) -> Floats:
    """Return the host time before each op: the usual one, or the script's own where that is longer.

    `script_speed` says how fast the target's Python is relative to that of the host that recorded. The usual lead holds
    a usual script's Python as well, so the two are not added; ops without a recorded time keep theirs.
    Raises InputError where the recorded times add up to more than a time can be.
    """
    if float(trace.ops.lead_ns.sum(dtype=np.float64)) / script_speed > MAX_INTEGER:
        raise InputError("$.ops.lead_ns: the times add up to more than 104 days: record the script again")
    return np.where(trace.ops.parent < 0, np.maximum(lead_ns, trace.ops.lead_ns / script_speed), lead_ns)
