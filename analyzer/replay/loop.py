"""What an iteration takes in a loop that runs ahead, from one that was recorded by itself.

Our recorder waits for the GPU after each iteration. A loop without that wait starts the next one while the GPU is still
at work: its iterations follow one another as fast as the slowest of three things that the recording shows.

    loop = max(host, GPU, (host held by GPU + GPU held by host) / 2)

host: from the iteration's start to the last call before the closing wait. GPU: from the first kernel's start to the
last one's end, with a host that takes no time. The third is the cycle through both, where the host waits for the GPU
within the iteration: the largest mean of a cycle in max-plus algebra (Baccelli, Cohen, Olsder, Quadrat,
"Synchronization and Linearity", 1992, theorem 3.23).
"""

from dataclasses import replace

import numpy as np

from ...arrays import Floats
from ..graph.graph import Graph, Runs
from .engine import Timing, replay
from .iterations import IterationNodes


def loop_lengths(
    iterations: IterationNodes, graph: Graph, timing: Timing, end_ns: Floats, length_ns: Floats, runs: Runs
) -> Floats:
    """Return what an iteration takes in a loop on each GPU, ns, [m]; NaN where the recording did not wait at its end.

    `end_ns`: the ends of nodes in the replay [n, m]; `length_ns`: how long the iteration takes there by itself, [m].
    """
    if iterations.closing < 0:
        return np.full(len(length_ns), np.nan)
    last = iterations.closing - 1
    host = end_ns[last] - end_ns[iterations.host_start[0]]
    kept = np.where(graph.nodes.is_gpu, timing.residual_ns, 0.0)
    alone = replace(timing, host_ratio=np.zeros_like(timing.host_ratio), residual_ns=kept)
    ends = replay(graph, alone, runs=runs)
    launched = iterations.launched
    begun = (ends[launched] - alone.node_ns(launched)).min(axis=0)
    gpu, held = ends[launched].max(axis=0) - begun, ends[last] - begun
    return np.minimum(np.maximum.reduce((host, gpu, 0.5 * (held + length_ns))), length_ns)
