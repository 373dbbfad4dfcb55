"""Calibrates the links of machines with what nccl-tests printed on them: by what they differ from the model's.

    log t(measured) = log t(model with latency * x, bandwidth * y)

Two unknowns, so that two points suffice: a small message tells x, a large one y. The logarithms of both are found by
Gauss-Newton with a robust loss and a weak prior at 1, so that a ratio of which no point tells stays there.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from ...arrays import Floats
from ...errors import InputError, parameter
from ...specs.cluster import Cluster
from ...specs.fleet import Fleet, build_fleet, take_gpus
from ...specs.gpu import Catalog, Gpu
from ...specs.match import find_gpu, match_device
from ...specs.nodes import Node
from ..models.collective.problems import CollectiveProblems, neighbours, problems_of_dims
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


NAME: Final = "collective"
NOISE: Final = 0.05
"""Of a measurement, natural log."""
LATENCY_SPREAD: Final = 1.0
BANDWIDTH_SPREAD: Final = 0.7
"""Of the priors, natural log: what fabrics are found to be off by."""
ROUNDS: Final = 12
STEP: Final = 1e-3
LARGEST_STEP: Final = 1.0


def calibrate_fabric(
    problems: CollectiveProblems, measured_ns: Floats, fleet_column: Fleet, library: Library
) -> tuple[float, float]:
    """Return the ratios of latency and bandwidth under which the model gives the measured times, (1, 1) without any.

    `fleet_column` is a fleet of the one GPU in its machine. The ratios are those between machines where the problems
    span several, else those within one; problems are all of one or the other.
    """
    log_ratio = np.zeros(2)
    if len(measured_ns) == 0:
        return 1.0, 1.0
    # Which problems need a NIC on the one GPU of a fleet, in its machine.
    fabric = fleet_column.fabric
    island = np.maximum(np.maximum(fabric.domain_gpu_count, 1.0), fabric.node_gpu_count)[0]
    between = bool(np.asarray(neighbours(problems, island) < problems.ranks).any())
    spread = np.array([LATENCY_SPREAD, BANDWIDTH_SPREAD])

    def residual(logs: Floats) -> Floats:
        fleet = with_ratios(fleet_column, float(np.exp(logs[0])), float(np.exp(logs[1])), between=between)
        paired = take_gpus(fleet, np.zeros(len(measured_ns), dtype=np.int64))
        return np.asarray(np.log(library.predict(NAME, problems, paired).time_ns / measured_ns) / NOISE)

    for _ in range(ROUNDS):
        here = residual(log_ratio)
        slopes = np.stack([(residual(log_ratio + STEP * unit) - here) / STEP for unit in np.eye(2)], axis=1)
        weight = 1.0 / np.sqrt(1.0 + here**2)
        normal = slopes.T @ (weight[:, None] * slopes) + np.diag(spread**-2.0)
        step = np.linalg.solve(normal, slopes.T @ (weight * here) + log_ratio / spread**2)
        log_ratio = log_ratio - np.clip(step, -LARGEST_STEP, LARGEST_STEP)
        if np.abs(step).max() < STEP:
            break
    return float(np.exp(log_ratio[0])), float(np.exp(log_ratio[1]))


def with_ratios(fleet: Fleet, latency_ratio: float, bandwidth_ratio: float, *, between: bool) -> Fleet:
    """Return the fleet with links, or NICs, as they were calibrated."""
    side = "nic" if between else "link"
    known = {f"{side}_latency_ratio": latency_ratio, f"{side}_bandwidth_ratio": bandwidth_ratio}
    full = {name: np.full(len(fleet.gpus), value) for name, value in known.items()}
    return replace(fleet, fabric=replace(fleet.fabric, **full))
