"""Makes sure that a trace says when its iterations ran, on the host and on the GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...formats.trace.column import MISSING, build_table, row_count
from ...formats.trace.iterations import host_steps
from ...formats.trace.tables import IterationTable, Trace


def with_iterations(trace: Trace) -> Trace:
    """Return the trace with a profiled iteration: its own, else one from the first event to the last.

    An iteration whose host interval was not recorded is taken to have one that is as long as itself.

    >>> with_iterations(measured).iterations.end_ns
    array([578000])
    """
    table = trace.iterations
    if not np.any(table.profiled):
        return replace(trace, iterations=_add_whole(trace))
    if not np.any((table.cpu_end_ns == MISSING) & table.profiled.astype(bool)):
        return trace
    return replace(trace, iterations=host_steps(table))


def _add_whole(trace: Trace) -> IterationTable:
    """Return the iterations and one more that spans everything that has times."""
    timed = [
        (int(table.start_ns.min()), int((table.start_ns + np.maximum(table.duration_ns, 0)).max()))
        for table in (trace.ops, trace.calls, trace.kernels)
        if row_count(table) and table.duration_ns.max() >= 0
    ]
    table = trace.iterations
    if not timed:
        return table
    first, last = min(start for start, _ in timed), max(end for _, end in timed)
    added = {"start_ns": first, "end_ns": last, "profiled": 1, "cpu_start_ns": first, "cpu_end_ns": last}
    return build_table(
        IterationTable,
        row_count(table) + 1,
        **{name: [*getattr(table, name).tolist(), value] for name, value in added.items()},
    )
