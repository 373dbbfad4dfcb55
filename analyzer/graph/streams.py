"""The GPU's side of the graph: kernels, copies and fills, stream after stream."""

from typing import Final

import numpy as np
import numpy.typing as npt

from ...arrays import Floats, Mask, Rows
from ...formats.trace.column import MISSING
from ...formats.trace.tables import KernelKind, KernelTable
from ...records import dataclass
from .graph import NEVER_NS, NodeKind
from .latencies import Term

UNEXPLAINED_NS: Final = 20_000.0
"""A delay beyond this that no rule explains is a fact of the recording, not noise."""
_KIND_OF: Final = {
    KernelKind.KERNEL: NodeKind.KERNEL,
    KernelKind.MEMCPY: NodeKind.MEMCPY,
    KernelKind.MEMSET: NodeKind.MEMSET,
    KernelKind.COLLECTIVE: NodeKind.COLLECTIVE,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamNodes:
    """Hold the GPU's nodes, k of them, stream after stream in order of time."""

    kind: npt.NDArray[np.int8]
    row: Rows
    lane: Rows
    start_ns: Floats
    end_ns: Floats
    release_ns: Floats
    is_first: Mask
    """Whether nothing ran on the stream before."""
    copies: Mask
    """Whether this node or the one before it is a copy or a fill."""
    streams: tuple[tuple[int, int], ...]
    """Device and stream of each lane."""

    def gap_terms(self) -> npt.NDArray[np.int8]:
        """Return which latency is between each node and the one before, [k]; Term.NONE for a stream's first."""
        gap = np.where(self.copies, np.int8(Term.COPY_GAP), np.int8(Term.GAP))
        return np.where(self.is_first, np.int8(Term.NONE), gap)


def stream_nodes(kernels: KernelTable) -> StreamNodes:
    """Return every GPU activity; one without a launch call is released when it started, unless its stream was busy."""
    order = np.lexsort((kernels.start_ns, kernels.stream, kernels.device))
    device, stream = kernels.device[order].astype(np.int64), kernels.stream[order]
    is_first = np.append(True, (device[1:] != device[:-1]) | (stream[1:] != stream[:-1]))[: len(order)]
    start = kernels.start_ns[order].astype(np.float64)
    end = start + kernels.duration_ns[order]
    idle = start - np.append(NEVER_NS, end)[: len(order)]
    unlaunched = (kernels.call[order] == MISSING) & (is_first | (idle > UNEXPLAINED_NS))
    kind_of = np.array([_KIND_OF[kind] for kind in KernelKind], dtype=np.int8)
    kind = kind_of[kernels.kind[order]]
    is_copy = (kind == NodeKind.MEMCPY) | (kind == NodeKind.MEMSET)
    return StreamNodes(
        kind=kind,
        row=order.astype(np.int64),
        lane=np.cumsum(is_first) - 1,
        start_ns=start,
        end_ns=end,
        release_ns=np.where(unlaunched, start, NEVER_NS),
        is_first=is_first,
        copies=is_copy | np.append(False, is_copy)[: len(order)],
        streams=tuple(zip(device[is_first].tolist(), stream[is_first].tolist(), strict=True)),
    )
