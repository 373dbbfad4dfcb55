"""Calibrates the links of machines with what nccl-tests printed on them: by what they differ from the model's.

    log t(measured) = log t(model with latency * x, bandwidth * y)

Two unknowns, so that two points suffice: a small message tells x, a large one y. The logarithms of both are found by
Gauss-Newton with a robust loss and a weak prior at 1, so that a ratio of which no point tells stays there.

Reads what nccl-tests and rccl-tests print: which collective, among how many ranks of how many hosts, and its times.

A line begins with size (B), count, type, and, of most versions, reduction and root; then time (us), algorithm and bus
bandwidth (GB/s) and errors, out of place and in place. Comment lines (`#`) name the program and the ranks' devices.
Names of hosts are counted and not kept.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from ...arrays import Floats
from ...errors import InputError, parameter
from ...records import dataclass
from ...specs.cluster import Cluster
from ...specs.fleet import Fleet, build_fleet, take_gpus
from ...specs.gpu import Catalog, Gpu
from ...specs.match import find_gpu, match_device
from ...specs.nodes import Node
from ..models.collective.problems import CollectiveProblems, neighbours, problems_of_dims
from ..models.library import Library, load_library
from ..work.communication import CollectiveDims, CollectiveKind
from .collective import KINDS

_MOST_BYTES: Final = 16 << 20
_PROGRAM: Final = re.compile(r"\b(\w+?)_perf\b")
_RANK: Final = re.compile(r"#\s+Rank\s+(\d+)\b.*?\bon\s+(\S+)\s+device\s+\S+\s+\[[^\]]*\]\s+(.+?)\s*$")
_ROW: Final = re.compile(r"\s*\d+\s+\d+\s+[a-z]\w*\s")
_KINDS: Final = {**KINDS, "sendrecv": CollectiveKind.SEND_RECEIVE}
_ELEMENT_BYTES: Final = {
    **dict.fromkeys(("int8", "uint8", "f8e4m3", "f8e5m2"), 1.0),
    **dict.fromkeys(("half", "bfloat16"), 2.0),
    **dict.fromkeys(("int32", "uint32", "float"), 4.0),
    **dict.fromkeys(("int64", "uint64", "double"), 8.0),
}
_COLUMNS_OF_A_HALF: Final = 4
"""Time, two bandwidths, errors."""
_FEWEST_POINTS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveTimes:
    """Hold n times of one collective."""

    kind: CollectiveKind
    ranks: int
    hosts: int
    device: str | None
    """The GPU as its driver names it; None where the output does not say."""
    element_bytes: float
    message_bytes: Floats
    time_ns: Floats
    """Out of place."""

    @property
    def ranks_per_host(self) -> int:
        """Return how many ranks each host has, rounded up."""
        return -(-self.ranks // self.hosts)


def read_nccl_tests(path: Path) -> CollectiveTimes:
    """Read the output of one program of nccl-tests.

    Raises InputError, naming the file, for text without times, of fewer than two sizes, or of unknown ranks.

    >>> text = "# nGpus 8\\n#  Rank  0 Group  0 Pid  1 on  a device  0 [0x1b] NVIDIA H100 80GB HBM3\\n"
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"{path.name}: expected the text that nccl-tests prints, found more than 16 MiB")
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{path.name}: cannot be read: {error.strerror}") from error
    rows = [line.split() for line in text.splitlines() if _ROW.match(line)]
    times = {int(row[0]): found for row in rows if int(row[0]) > 0 and (found := _time_us(row)) is not None}
    if len(times) < _FEWEST_POINTS:
        raise InputError(
            f"{path.name}: expected lines of nccl-tests (size, count, type, …, time) of two sizes or more, found "
            f"{len(times)}; give it what e.g. `all_reduce_perf -b 1K -e 1G -f 4 -g 8` prints"
        )
    if rows[0][2] not in _ELEMENT_BYTES:
        raise InputError(f"{path.name}: type {rows[0][2][:40]!r} is none of {', '.join(_ELEMENT_BYTES)}")
    found = _kind_of(text, path.name, rows)
    devices = [match.groups() for line in text.splitlines() if (match := _RANK.match(line))]
    ranks = len({rank for rank, _, _ in devices}) or _ranks_from_bandwidth(found, rows)
    if ranks is None:
        raise InputError(
            f"{path.name}: how many ranks took part stands nowhere; keep the lines that begin with '#  Rank'"
        )
    names = Counter(name for _, _, name in devices)
    sizes = np.array(sorted(times), dtype=np.float64)
    return CollectiveTimes(
        kind=found,
        ranks=ranks,
        hosts=max(1, len({host for _, host, _ in devices})),
        device=names.most_common(1)[0][0] if names else None,
        element_bytes=_ELEMENT_BYTES[rows[0][2]],
        message_bytes=sizes,
        time_ns=np.array([times[int(size)] * 1e3 for size in sizes]),
    )


def _time_us(row: list[str]) -> float | None:
    """Return the out-of-place time of a line; None where it has none."""
    for back in (2 * _COLUMNS_OF_A_HALF, _COLUMNS_OF_A_HALF):
        if len(row) >= 3 + back:
            try:
                time = float(row[-back])
            except ValueError:
                continue
            return time if 0 < time < 1e12 else None
    return None


def _kind_of(text: str, name: str, rows: list[list[str]]) -> CollectiveKind:
    """Return which collective it was: by the program's name, else by the file's, else by what a line reduces."""
    for words in (text, name):
        for match in _PROGRAM.finditer(words):
            if match[1] in _KINDS:
                return _KINDS[match[1]]
    plain = name.replace("-", "_").lower()
    for word in sorted(_KINDS, key=len, reverse=True):
        if word in plain or word.replace("_", "") in plain.replace("_", ""):
            return _KINDS[word]
    if rows[0][3] == "none":
        return CollectiveKind.ALL_GATHER
    ratio = _bandwidth_ratio(rows)
    return CollectiveKind.ALL_REDUCE if ratio is None or ratio >= 1 else CollectiveKind.REDUCE_SCATTER


def _bandwidth_ratio(rows: list[list[str]]) -> float | None:
    """Return bus over algorithm bandwidth of the largest message."""
    row = max(rows, key=lambda item: int(item[0]))
    back = 2 * _COLUMNS_OF_A_HALF if len(row) >= 3 + 2 * _COLUMNS_OF_A_HALF else _COLUMNS_OF_A_HALF
    try:
        algorithm, bus = float(row[1 - back]), float(row[2 - back])
    except (ValueError, IndexError):
        return None
    return bus / algorithm if algorithm > 0 else None


def _ranks_from_bandwidth(kind: CollectiveKind, rows: list[list[str]]) -> int | None:
    """Return n from bus over algorithm bandwidth, by nccl-tests' definition: 2 (n - 1) / n of an all-reduce, ..."""
    ratio = _bandwidth_ratio(rows)
    if ratio is None:
        return None
    share = ratio / 2 if kind is CollectiveKind.ALL_REDUCE else ratio
    return round(1 / (1 - share)) if 0.4 < share < 1 else None


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
