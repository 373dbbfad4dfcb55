"""Loads servers and cloud instances: how GPUs are linked inside one and to the next."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from .documents import read_toml
from .gpu import SourceNote
from .layout import GIGA, Entry

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
    note: str


@lru_cache(maxsize=1)
def load_nodes() -> tuple[Node, ...]:
    """Return every node, in the order of the file."""
    return tuple(_node(entry) for entry in read_toml(_NODES_FILE)["node"])


def _node(entry: Entry) -> Node:
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
    )
