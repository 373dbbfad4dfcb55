"""Calibrates the links of machines with what nccl-tests printed on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...errors import InputError, parameter
from ...specs.cluster import Cluster
from ...specs.fleet import build_fleet
from ...specs.gpu import Catalog, Gpu
from ...specs.match import find_gpu, match_device
from ...specs.nodes import Node
from ..models.collective.calibrate import calibrate_fabric
from ..models.collective.problems import problems_of_dims
from ..models.library import Library, load_library
from ..work.communication import CollectiveDims
from .nccl_tests import CollectiveTimes, read_nccl_tests


def calibrate_cluster(
    cluster: Cluster,
    paths: Sequence[Path],
    catalog: Catalog,
    targets: Sequence[str] = (),
    library: Library | None = None,
) -> Cluster:
    """Return the cluster with the latencies and bandwidths that output of nccl-tests shows, of one or more runs.

    A run on one host calibrates the links within its node, one on several those between nodes. Which GPU it is says
    the output, else the only machine named or the only target. Raises InputError where nothing says it.
    """
    library = library or load_library()
    runs: dict[tuple[str, bool], list[CollectiveTimes]] = {}
    gpus: dict[str, Gpu] = {}
    for path in paths:
        found = read_nccl_tests(path)
        gpu = _gpu_of(found, path, cluster, catalog, targets)
        gpus[gpu.name] = gpu
        runs.setdefault((gpu.name, found.hosts > 1), []).append(found)
    for (name, is_between), times in sorted(runs.items()):
        gpu = gpus[name]
        node = cluster.node_of(gpu)
        cluster = cluster.placed(_calibrated(node, gpu, times, library, is_between=is_between))
    return cluster


def _calibrated(node: Node, gpu: Gpu, times: Sequence[CollectiveTimes], library: Library, *, is_between: bool) -> Node:
    """Return the node with the ratios of its links, or of those between nodes."""
    dims = [item for found in times for item in _dims(found, node)]
    measured_ns = np.concatenate([found.time_ns for found in times])
    fleet = build_fleet([gpu], [node])
    latency, bandwidth = calibrate_fabric(problems_of_dims(dims), measured_ns, fleet, library)
    if is_between:
        return replace(node, nic_latency_ratio=latency, nic_bandwidth_ratio=bandwidth)
    return replace(node, link_latency_ratio=latency, link_bandwidth_ratio=bandwidth)


def _dims(found: CollectiveTimes, node: Node) -> list[CollectiveDims]:
    per_host = found.ranks_per_host
    # Hosts that are filled are one run of ranks.
    run, stride = (found.ranks, 1) if found.hosts == 1 or per_host >= node.gpu_count else (per_host, node.gpu_count)
    return [
        CollectiveDims(
            kind=found.kind,
            message_bytes=size,
            ranks=found.ranks,
            run=run,
            stride=stride,
            element_bytes=found.element_bytes,
        )
        for size in found.message_bytes.tolist()
    ]


def _gpu_of(found: CollectiveTimes, path: Path, cluster: Cluster, catalog: Catalog, targets: Sequence[str]) -> Gpu:
    if found.device is not None:
        known = match_device(catalog, found.device, sm_count=None, memory_bytes=None)
        if known is not None:
            return known
    named = set(cluster.nodes) or {find_gpu(catalog, name).name for name in targets}
    if len(named) == 1:
        return find_gpu(catalog, named.pop())
    said = f"says {found.device!r}, which is not catalogued" if found.device is not None else "does not say it"
    raise InputError(f"{path.name}: which GPU it ran on: the output {said}; name its machine with {parameter('node')}")
