"""What a recording tells nothing of: dtypes, times, dependencies, and what kernels without a launch wait for."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from ...formats.trace.column import MISSING
from ...formats.trace.printable import clean_text
from ...formats.trace.signature import DTYPE_BYTES, flatten_tensors
from ...formats.trace.tables import Trace
from .window import Window

_MOST_EMPTY: Final = 0.25
"""Of an iteration's kernels: where times are cut to whole us, a public Chakra file has 13 % of 0 us."""
_MOST_CUT: Final = 0.03
"""Of the kernels' time, which steps of the file's clock may have cut off; half of it on average."""
_PAUSE_NS: Final = 20_000
"""Between two kernels: longer than latencies, so that the graph keeps it (`graph/streams.py`)."""
_UNTOLD_SHARE: Final = 0.05
"""Of the time from the first kernel to the last."""


def describe_types(trace: Trace, window: Window) -> Iterator[str]:
    """Yield a sentence for each dtype of the window's tensors that is none of torch's.

    >>> list(describe_types(trace, window))
    []
    """
    numbers, found = trace.ops.signature[window.op_rows], Counter[str]()
    for number, calls in Counter(numbers[numbers != MISSING].tolist()).items():
        tensors = (*trace.signatures[number].tensors(), *flatten_tensors(trace.signatures[number].results))
        found.update(dict.fromkeys({item.dtype for item in tensors} - DTYPE_BYTES.keys(), calls))
    for dtype, calls in sorted(found.items()):
        what = f"{calls:,} ops have tensors of dtype {clean_text(dtype)[:40]!r}, which is not known"
        yield f"{what}: its elements count 4 bytes, and the ops have no formula"


def describe_unlaunched(trace: Trace, window: Window) -> Iterator[str]:
    """Yield a sentence where launches were not recorded, and one where the GPU waits for their kernels: what for?

    >>> list(describe_unlaunched(trace, window))
    []
    """
    launches = trace.kernels.call[window.kernel_rows]
    launches = launches[launches != MISSING]
    if len(launches) and not np.any(trace.calls.duration_ns[launches]):
        yield "launches were not recorded, only which op each kernel is of: each counts as made while its op ran"
    rows = window.kernel_rows[np.argsort(trace.kernels.start_ns[window.kernel_rows], kind="stable")]
    start = trace.kernels.start_ns[rows]
    done = np.maximum.accumulate(start + trace.kernels.duration_ns[rows])
    idle_ns = np.append(0, start[1:] - done[:-1])[: len(rows)]
    waits = (trace.kernels.call[rows] == MISSING) & (idle_ns > _PAUSE_NS)
    waited_ns = float(idle_ns[waits].sum())
    if len(rows) and waited_ns > _UNTOLD_SHARE * float(done[-1] - start[0]):
        yield (
            f"the GPU waits {waited_ns / 1e6:.3g} ms before {int(waits.sum()):,} kernels whose launches are not "
            "recorded: on every GPU they begin when they did here; intervals hold these waits kept, and gone"
        )


def describe_nodes(trace: Trace, window: Window) -> Iterator[str]:
    """Yield a sentence each for nodes that were not read, dependencies that are lost, and kernels' times left open.

    >>> list(describe_nodes(trace, window))
    []
    """
    quality, kernels = trace.quality, window.kernel_rows
    if quality.nodes_unread:
        yield f"{quality.nodes_unread:,} nodes are of kinds that are not read, and left out: times may be short"
    if quality.dependencies_lost:
        yield (
            f"{quality.dependencies_lost:,} dependencies are lost, on nodes that are not there or in a circle: what "
            "they hold may begin too early, or count twice"
        )
    empty_count = int((trace.kernels.duration_ns[kernels] == 0).sum())
    if empty_count > _MOST_EMPTY * len(kernels):
        yield f"{empty_count:,} of {len(kernels):,} kernels take 0 ns: their times are missing in the file"
    step_ns, total_ns = trace.meta.clock_resolution_ns, float(trace.kernels.duration_ns[kernels].sum())
    if step_ns > 1 and 0 < _MOST_CUT * total_ns < (cut_ns := step_ns * len(kernels)):
        yield f"kernels' times are cut to whole microseconds: together they may take {cut_ns / total_ns:.0%} more"
