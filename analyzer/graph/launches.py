"""Edges between host and streams: launches, and the launch queue that fills up."""

from __future__ import annotations

from typing import Final

import numpy as np

from ...arrays import Floats
from ...formats.trace.column import MISSING
from ...formats.trace.tables import Trace
from .graph import NodeKind
from .latencies import QUEUE_DEPTH
from .place import Links, Places, no_links

_BLOCKED_RATIO: Final = 2.0
"""A launch that lasts longer than this times the median of its kind may have been held up."""
_QUARTER: Final = 0.25
_QUEUE_TOLERANCE_NS: Final = 8_000.0
"""Held-up launches return within this of the rule; 99 % on the V100 convnet trace within 11,000 of the start."""


def launch_links(places: Places) -> Links:
    """Return an edge from each launch to each GPU activity that it started."""
    targets = np.flatnonzero(places.launch_node != MISSING)
    return Links(source=places.launch_node[targets], target=targets + places.host_count)


def queue_links(trace: Trace, places: Places) -> Links:
    """Return an edge from the activity `QUEUE_DEPTH` launches earlier on its device to each launch on a CUDA device."""
    if trace.meta.hip_version is not None or any(name.startswith("hipLaunch") for name in trace.strings):
        return no_links()
    links = launch_links(places)
    launches, first = np.unique(links.source, return_index=True)
    order = np.argsort(places.host.start_ns[launches], kind="stable")
    launches, kernels = launches[order], links.target[first][order]
    devices = np.array([device for device, _ in places.gpu.streams], dtype=np.int64)
    device = devices[places.gpu.lane[kernels - places.host_count]]
    by_device = np.argsort(device, kind="stable")
    device, launches, kernels = device[by_device], launches[by_device], kernels[by_device]
    same = device[QUEUE_DEPTH:] == device[:-QUEUE_DEPTH]
    return Links(source=kernels[:-QUEUE_DEPTH][same], target=launches[QUEUE_DEPTH:][same])


def queue_blocked(trace: Trace, places: Places, links: Links, queue_ns: float) -> Floats:
    """Return what each host node costs by itself, [h]: the usual cost for launches that the full queue held up."""
    host = places.host
    cost = host.cost_ns.copy()
    usual = _usual_cost(trace, places)
    begun = np.concatenate((host.start_ns, places.gpu.start_ns))[links.source]
    returned = host.end_ns[links.target]
    late = np.abs(returned - begun - queue_ns) <= _QUEUE_TOLERANCE_NS
    held = late & (cost[links.target] > _BLOCKED_RATIO * usual[links.target])
    blocked = links.target[held]
    cost[blocked] = usual[blocked]
    return cost


def _usual_cost(trace: Trace, places: Places) -> Floats:
    """Return for each host node the lower quartile of the cost of launches by calls of the same name."""
    host = places.host
    usual = host.cost_ns.copy()
    launches = np.flatnonzero(host.kind == NodeKind.LAUNCH)
    name, cost = trace.calls.name[host.row[launches]], host.cost_ns[launches]
    order = np.lexsort((cost, name))
    _, begin, group, count = np.unique(name[order], return_index=True, return_inverse=True, return_counts=True)
    place = _QUARTER * (count - 1)
    low = begin + place.astype(np.int64)
    below, above = cost[order][low], cost[order][np.minimum(low + 1, begin + count - 1)]
    usual[launches[order]] = (below + (above - below) * (place % 1.0))[group]
    return usual
