"""From a trace to its graph."""

from typing import Final

import numpy as np

from ...arrays import Floats
from ...formats.trace.column import MISSING
from ...formats.trace.iterations import NEVER_NS as NEVER_LAUNCHED_NS, host_steps, locate_iterations
from ...formats.trace.tables import Trace
from .graph import NEVER_NS, EdgeKind, Edges, Graph, GraphQuality, Lane, NodeKind, Nodes
from .hosts import HostNodes, host_nodes
from .latencies import QUEUE_DEPTH, SYNC_COST_NS, Term, generation_latencies
from .place import Links, Places, no_links, place_nodes
from .rules import first_edges, fit_latencies, hold_nodes, lane_firsts
from .schedule import schedule_runs
from .streams import StreamNodes, stream_nodes
from .waits import WaitLinks, missed_waits, sync_links, wait_links

_CLOCK_SKEW_NS: Final = 1_000.0
"""A kernel that starts this long before its launch does tells of clocks that disagree."""
_KIND_OF_TERM: Final = {
    Term.LAUNCH: EdgeKind.LAUNCH,
    Term.EVENT: EdgeKind.EVENT,
    Term.QUEUE: EdgeKind.QUEUE,
    Term.STREAM_RETURN: EdgeKind.SYNC,
    Term.EVENT_RETURN: EdgeKind.SYNC,
    Term.DEVICE_RETURN: EdgeKind.SYNC,
    Term.COPY_RETURN: EdgeKind.SYNC,
}

Parts = list[tuple[Links, Term]]


def build_graph(trace: Trace, *, architecture: str | None = None) -> Graph:
    """Return the graph of everything in a trace that has times.

    `architecture` is that of the GPU that was measured; it chooses the latencies where the trace holds too few
    observations of its own.

    >>> graph = build_graph(measured)
    >>> len(graph.nodes.row), len(graph.edges.source), len(graph.lanes)
    (6, 2, 2)
    """
    latency = generation_latencies(architecture)
    host = host_nodes(trace, float(latency[Term.LAUNCH]))
    places = place_nodes(trace, host, stream_nodes(trace.kernels))
    waits = wait_links(trace, places)
    syncs = sync_links(trace, places)
    parts = [
        (launch_links(places), Term.LAUNCH),
        (waits.links, Term.EVENT),
        (syncs.device, Term.DEVICE_RETURN),
        (syncs.stream, Term.STREAM_RETURN),
        (syncs.event, Term.EVENT_RETURN),
        (syncs.copy, Term.COPY_RETURN),
        (queue_links(trace, places), Term.QUEUE),
    ]
    cost = _own_cost(trace, places, parts, float(latency[Term.QUEUE]))
    nodes = _join_nodes(trace, places, cost)
    edges = _join_edges(nodes, parts)
    is_first = lane_firsts(nodes)
    latency = fit_latencies(nodes, edges, is_first, latency)
    missed = missed_waits(trace, places, hold_nodes(nodes, edges, is_first, latency).residual_ns[places.host_count :])
    if len(missed.source):
        edges = _join_edges(nodes, [*parts, (missed, Term.EVENT)])
        latency = fit_latencies(nodes, edges, is_first, latency)
    return finish_graph(
        nodes,
        edges,
        latency,
        lanes=_lanes(host, places.gpu, nodes),
        quality=_quality(places, waits, len(missed.source)),
    )


def finish_graph(
    nodes: Nodes, edges: Edges, latency_ns: Floats, *, lanes: tuple[Lane, ...], quality: GraphQuality
) -> Graph:
    """Order the nodes for replay and compare the measured times with the rules."""
    is_first = lane_firsts(nodes)
    begins = np.append(np.flatnonzero(is_first), len(nodes.row))
    runs, cut = schedule_runs(begins, edges.source, edges.target)
    if cut.any():
        edges = Edges(**{name: getattr(edges, name)[~cut] for name in ("source", "target", "kind", "term")})
    held = hold_nodes(nodes, edges, is_first, latency_ns)
    return Graph(
        lanes=lanes,
        nodes=nodes,
        edges=edges,
        first_edge=first_edges(edges, len(nodes.row)),
        latency_ns=latency_ns,
        runs=runs,
        residual_ns=held.residual_ns,
        lane_slack_ns=held.lane_slack_ns,
        binding=held.binding,
        quality=GraphQuality(
            **{**{name: getattr(quality, name) for name in quality.__slots__}, "edges_cut": int(cut.sum())}
        ),
    )


def _own_cost(trace: Trace, places: Places, parts: Parts, queue_ns: float) -> Floats:
    """Return what each host node costs by itself, without the time that it was held up, [h]."""
    host = places.host
    cost = host.cost_ns
    end = np.concatenate((host.end_ns, places.gpu.end_ns))
    for links, term in parts:
        if term == Term.QUEUE:
            cost = np.minimum(cost, queue_blocked(trace, places, links, queue_ns))
        elif _KIND_OF_TERM[term] == EdgeKind.SYNC:
            waited = links.target[end[links.source] > host.start_ns[links.target]]
            cost = cost.copy()
            cost[waited] = np.minimum(cost[waited], SYNC_COST_NS)
    return cost


def _join_nodes(trace: Trace, places: Places, cost_ns: Floats) -> Nodes:
    host, gpu = places.host, places.gpu
    start = np.concatenate((host.start_ns, gpu.start_ns))
    end = np.concatenate((host.end_ns, gpu.end_ns))
    lane = np.concatenate((host.lane, gpu.lane + len(host.threads))).astype(np.int32)
    launched = np.where(places.launch_node == MISSING, NEVER_LAUNCHED_NS, places.launched_ns)
    member = locate_iterations(host_steps(trace.iterations), np.concatenate((host.start_ns, launched)).astype(np.int64))
    # The host's own time before each node; a lane's first counts from the start of capture.
    before = np.append(0.0, host.end_ns[:-1])[: len(host.row)]
    is_first = np.append(True, host.lane[1:] != host.lane[:-1])[: len(host.row)]
    return Nodes(
        kind=np.concatenate((host.kind, gpu.kind)),
        row=np.concatenate((host.row, gpu.row)),
        lane=lane,
        start_ns=start,
        end_ns=end,
        lag_ns=np.concatenate((host.start_ns - np.where(is_first, 0.0, before), np.zeros(len(gpu.row)))),
        cost_ns=np.concatenate((cost_ns, gpu.end_ns - gpu.start_ns)),
        gap_term=np.concatenate((np.zeros(len(host.row), dtype=np.int8), gpu.gap_terms())),
        release_ns=np.concatenate((np.full(len(host.row), NEVER_NS), gpu.release_ns)),
        iteration=member,
    )


def _join_edges(nodes: Nodes, parts: Parts) -> Edges:
    source = np.concatenate([links.source for links, _ in parts])
    target = np.concatenate([links.target for links, _ in parts])
    term = np.repeat(np.array([term for _, term in parts], dtype=np.int8), [len(links.source) for links, _ in parts])
    kind_of = np.array([_KIND_OF_TERM.get(term, EdgeKind.EVENT) for term in Term], dtype=np.int8)
    kind = kind_of[term]
    collective = (nodes.kind[source] == NodeKind.COLLECTIVE) | (nodes.kind[target] == NodeKind.COLLECTIVE)
    kind[collective & (kind == EdgeKind.EVENT)] = EdgeKind.COLLECTIVE
    order = np.lexsort((source, target))
    return Edges(source=source[order], target=target[order], kind=kind[order], term=term[order])


def _lanes(host: HostNodes, gpu: StreamNodes, nodes: Nodes) -> tuple[Lane, ...]:
    begins = np.append(np.flatnonzero(lane_firsts(nodes)), len(nodes.row)).tolist()
    numbers = nodes.lane[begins[:-1]].tolist()
    lanes = []
    for number, begin, end in zip(numbers, begins[:-1], begins[1:], strict=True):
        if number < len(host.threads):
            lanes.append(Lane(is_host=True, begin=begin, end=end, threads=host.threads[number]))
        else:
            device, stream = gpu.streams[number - len(host.threads)]
            lanes.append(Lane(is_host=False, begin=begin, end=end, device=device, stream=stream))
    return tuple(lanes)


def _quality(places: Places, waits: WaitLinks, missed_count: int) -> GraphQuality:
    launched = places.launch_node != MISSING
    early = places.gpu.start_ns[launched] < places.launched_ns[launched] - _CLOCK_SKEW_NS
    return GraphQuality(
        kernels_without_launch=int(np.sum(~launched)),
        waits_named=waits.named_count,
        waits_inferred=waits.inferred_count + missed_count,
        waits_rejected=waits.rejected_count,
        kernels_before_launch=int(np.sum(early)),
    )


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
