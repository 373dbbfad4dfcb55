"""Loads servers and cloud instances: how GPUs are linked inside one and to the next."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from .documents import Entry, read_toml
from .gpu import SourceNote
from .layout import GIGA

_NODES_FILE = Path(__file__).with_name("nodes.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Describe one machine with several GPUs. Bandwidths are nominal, per GPU."""

    name: str
    kind: str
    """`system`, `cloud` or `generic`."""
    gpu: str
    """Catalogue name."""
    gpu_count: int
    link: str | None
    """How the GPUs of the machine are linked; None where there is one GPU."""
    link_bandwidth_bytes_per_s: float
    """Both directions together; 0 where there is no link."""
    domain_gpu_count: int
    """GPUs that reach each other at link speed, other machines of the rack included; 1 where none do."""
    host_link: str | None
    nic: str
    nic_bandwidth_bytes_per_s: float
    """One direction."""
    source: SourceNote
    note: str = ""
    pair_bandwidth_bytes_per_s: float | None = None
    """One direction between two GPUs, where only some are linked, or over PCIe; None: as the link says."""
    socket_bandwidth_bytes_per_s: float | None = None
    """One direction between the processors' sockets, all GPUs together; None: not known."""
    host_bandwidth_bytes_per_s: float | None = None
    """One direction of one GPU's way to the host; None: the GPU's own PCIe rate."""
    usd_per_hour: float | None = None
    """Listed price of the whole machine; None: that of its GPUs."""
    price_source: str = ""
    link_latency_ratio: float = 1.0
    """What nccl-tests found within the machine over what the model takes it to be; 1: not measured."""
    link_bandwidth_ratio: float = 1.0
    nic_latency_ratio: float = 1.0
    """The same between machines."""
    nic_bandwidth_ratio: float = 1.0


@lru_cache(maxsize=1)
def load_nodes() -> tuple[Node, ...]:
    """Return every node, in the order of the file."""
    return tuple(node_of_entry(entry) for entry in read_toml(_NODES_FILE)["node"])


def node_of_entry(entry: Entry) -> Node:
    """Return the node that a table of a TOML file describes; its keys and values are taken as they are."""
    optional = {
        name: entry[key] * GIGA
        for name, key in (
            ("pair_bandwidth_bytes_per_s", "pair_gb_per_s"),
            ("socket_bandwidth_bytes_per_s", "socket_gb_per_s"),
            ("host_bandwidth_bytes_per_s", "host_gb_per_s"),
        )
        if key in entry
    }
    ratios = ("link_latency_ratio", "link_bandwidth_ratio", "nic_latency_ratio", "nic_bandwidth_ratio")
    return Node(
        name=entry["name"],
        kind=entry["kind"],
        gpu=entry["gpu"],
        gpu_count=entry["gpu_count"],
        link=entry.get("link"),
        link_bandwidth_bytes_per_s=entry.get("link_gb_per_s", 0) * GIGA,
        domain_gpu_count=entry["domain_gpu_count"],
        host_link=entry.get("host_link"),
        nic=entry["nic"],
        nic_bandwidth_bytes_per_s=entry["nic_gbit_per_s"] * GIGA / 8,
        source=SourceNote(source=entry["source"], verified=entry.get("verified", False)),
        note=entry.get("note", ""),
        usd_per_hour=entry.get("usd_per_hour"),
        price_source=entry.get("price_source", ""),
        **optional,
        **{name: float(entry[name]) for name in ratios if name in entry},
    )
