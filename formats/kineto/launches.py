"""Joins kernels to ops in files without launches: newer profilers write at each kernel the number of its op, too."""

import numpy as np

from ..recording.rows import LAUNCH_NAME, CallRows, KernelRows, OpRows, join_rows, make_rows
from ..recording.settle import Recording, finish
from ..trace.column import MISSING
from .collect import Collector


def settle(collector: Collector) -> Recording:
    """Return the recording of what was collected, with launches of no length where the file holds no call at all."""
    if not collector.length(CallRows) and collector.length(OpRows) and collector.length(KernelRows):
        collector.add(_launches(collector))
    return finish(collector)


def _launches(collector: Collector) -> CallRows:
    """Return a launch for each kernel that names its op, made as that op begins: when in it, nothing tells.

    Older profilers write a kernel's correlation in the place of its op's number.
    """
    ops, kernels = join_rows(collector.parts(OpRows)), join_rows(collector.parts(KernelRows))
    numbers, first = np.unique(ops.external_id, return_index=True)
    wanted = np.concatenate(collector.kernel_ops)
    place = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
    op = first[place]
    is_told = (numbers[place] == wanted) & (wanted > 0) & (kernels.correlation != MISSING)
    is_told &= kernels.start_ns >= ops.start_ns[op]
    told = np.flatnonzero(is_told & (not np.array_equal(wanted, kernels.correlation)))
    op = op[told]
    return make_rows(
        CallRows,
        len(told),
        name=collector.names.number([LAUNCH_NAME] * len(told)),
        thread=ops.thread[op],
        start_ns=ops.start_ns[op],
        duration_ns=0,
        correlation=kernels.correlation[told],
    )
