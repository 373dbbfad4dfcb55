"""Loads servers and cloud instances: how GPUs are linked inside one and to the next."""

from functools import lru_cache
from pathlib import Path
from typing import Final

from ..records import dataclass
from .documents import Entry
from .gpu import SourceNote
from .layout import GIGA, Count, Key, Text, values_of
from .shipped import read_shipped

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
    link: str | None = None
    """How the GPUs of the machine are linked; None where there is one GPU."""
    link_bandwidth_bytes_per_s: float = 0.0
    """Both directions together; 0 where there is no link."""
    domain_gpu_count: int
    """GPUs that reach each other at link speed, other machines of the rack included; 1 where none do."""
    host_link: str | None = None
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


NODE_KEYS: Final = {
    "name": Key("name", Text, required=True),
    "kind": Key("kind", Text),
    "gpu": Key("gpu", Text, required=True),
    "gpu_count": Key("gpu_count", Count, required=True),
    "link": Key("link", Text),
    "link_gb_per_s": Key("link_bandwidth_bytes_per_s", scale=GIGA),
    "domain_gpu_count": Key("domain_gpu_count", Count),
    "pair_gb_per_s": Key("pair_bandwidth_bytes_per_s", scale=GIGA),
    "socket_gb_per_s": Key("socket_bandwidth_bytes_per_s", scale=GIGA),
    "host_link": Key("host_link", Text),
    "host_gb_per_s": Key("host_bandwidth_bytes_per_s", scale=GIGA),
    "nic": Key("nic", Text),
    "nic_gbit_per_s": Key("nic_bandwidth_bytes_per_s", scale=GIGA / 8),
    "usd_per_hour": Key("usd_per_hour"),
    "price_source": Key("price_source", Text),
    "link_latency_ratio": Key("link_latency_ratio"),
    "link_bandwidth_ratio": Key("link_bandwidth_ratio"),
    "nic_latency_ratio": Key("nic_latency_ratio"),
    "nic_bandwidth_ratio": Key("nic_bandwidth_ratio"),
    "note": Key("note", Text),
}
"""Key of a `[[node]]` table → what of a node it says."""


@lru_cache(maxsize=1)
def load_nodes() -> tuple[Node, ...]:
    """Return every node, in the order of the file."""
    return tuple(node_of_entry(entry) for entry in read_shipped(_NODES_FILE)["node"])


def node_of_entry(entry: Entry) -> Node:
    """Return the node that a table of a TOML file describes; its keys and values are taken as they are."""
    note = SourceNote(source=entry["source"], verified=entry.get("verified", False))
    return Node(**values_of(entry, NODE_KEYS), source=note)


def entry_of_node(node: Node) -> Entry:
    """Return a node as a table of a TOML file has it."""
    found: Entry = {}
    for name, key in NODE_KEYS.items():
        value = getattr(node, key.field)
        if value is not None and name not in ("note", "price_source"):
            found[name] = value / key.scale if key.scale != 1 else value
    return {**found, "source": node.source.source, "note": node.note}
