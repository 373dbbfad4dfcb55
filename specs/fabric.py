"""Links between GPUs as columns: within a machine, to the next, and what was measured of them."""

import re
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

import numpy as np

from ..arrays import Codes, Floats, Mask
from ..records import dataclass, fields, replace
from .catalog import load_catalog
from .gpu import Gpu, SourceNote, chip_of, is_hbm, listed_name
from .nodes import Node, load_nodes


class LinkKind(IntEnum):
    """Name what joins the GPUs of a machine."""

    NONE = 0
    PCIE = 1
    NVLINK = 2
    XGMI = 3


class NicKind(IntEnum):
    """Name what joins machines."""

    NONE = 0
    INFINIBAND = 1
    ROCE = 2
    EFA = 3
    ETHERNET = 4
    SLINGSHOT = 5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fabric:
    """Hold the links of m GPUs, each in its node, one array element each."""

    node_gpu_count: Floats
    """GPUs of a machine."""
    domain_gpu_count: Floats
    """GPUs that reach each other at link speed, other machines of the rack included; 1 where none do."""
    link_kind: Codes
    link_generation: Codes
    """Of NVLink, 1 to 5; 0 for other links."""
    has_switch: Mask
    """Whether every GPU reaches every other of the domain at its full rate, through switches."""
    link_bytes_per_s: Floats
    """One direction of one GPU, to all others of its domain together; 0: no link but the host's."""
    pair_bytes_per_s: Floats
    """One direction between two GPUs; below the link's rate where that goes to several, and over PCIe."""
    socket_bytes_per_s: Floats
    """One direction between the processors' sockets, all GPUs together; infinite where not known."""
    host_bytes_per_s: Floats
    """One direction of one GPU's way to the host, PCIe or C2C."""
    has_host_switch: Mask
    """Whether GPUs reach each other through PCIe switches, past the processor."""
    nic_kind: Codes
    nic_bytes_per_s: Floats
    """One direction, the share of one GPU; 0: alone."""
    nic_count: Floats
    """NICs of a machine: a rank that shares one with others has it alone where these send nothing. As many as GPUs
    where a node does not say."""
    link_latency_ratio: Floats
    """What nccl-tests found within a machine over what the model takes it to be; 1: nothing was measured."""
    link_bandwidth_ratio: Floats
    nic_latency_ratio: Floats
    """The same between machines."""
    nic_bandwidth_ratio: Floats


def take_fabric(fabric: Fabric, columns: Codes) -> Fabric:
    """Return the links of some of the GPUs, picked and repeated by index."""
    return Fabric(**{item.name: getattr(fabric, item.name)[columns] for item in fields(fabric)})


SUMMING_GENERATION: Final = 4
"""Of NVLink: NVLS of NVSwitch 3 (NVIDIA, NVLink and NVSwitch, 2022)."""


def switches_add(fabric: Fabric) -> Mask:
    """Say whether the switches between GPUs add up what passes through them; NCCL uses it for more than two ranks.

    >>> switches_add(build_fabric([h100, a100]))
    array([ True, False])
    """
    return np.asarray(fabric.has_switch & (fabric.link_generation >= SUMMING_GENERATION))


def link_separations(fabric: Fabric, other: Fabric) -> Floats:
    """Return how unlike links are to those at the same place of others, or to their only ones: 0 where equal.

    Each rate that differs adds the logarithm of its ratio, each kind of link that does adds 1.
    """
    found = np.zeros(len(fabric.link_kind))
    for rates in ("link_bytes_per_s", "pair_bytes_per_s", "host_bytes_per_s", "nic_bytes_per_s"):
        here, there = (np.maximum(getattr(item, rates), 1.0) for item in (fabric, other))
        found = found + np.abs(np.log(here / there))
    for kinds in ("link_kind", "link_generation", "has_switch", "nic_kind", "node_gpu_count", "domain_gpu_count"):
        found = found + (getattr(fabric, kinds) != getattr(other, kinds))
    return np.asarray(found)


def usual_node(gpu: Gpu) -> Node:
    """Return the machine that a GPU usually stands in: a listed system, else one of eight on its own links.

    >>> usual_node(h100).name
    'DGX/HGX H100'
    """
    return _systems().get(listed_name(gpu)) or _alike(gpu) or _assumed(gpu)


@lru_cache(maxsize=1)
def _systems() -> dict[str, Node]:
    found: dict[str, Node] = {}
    for kind in ("system", "generic"):
        for node in load_nodes():
            if node.kind == kind:
                found.setdefault(node.gpu, node)
    return found


def _alike(gpu: Gpu) -> Node | None:
    """Return the listed system of a GPU of the same die and kind of link, with this one's rate; None without any.

    A bridge that the system leaves out stays left out.
    """
    if gpu.link_name is None:
        return None
    for other in load_catalog().gpus:
        node = _systems().get(other.name)
        if node is not None and (chip_of(other), other.link_name) == (chip_of(gpu), gpu.link_name):
            is_own = node.link_bandwidth_bytes_per_s == other.link_bandwidth_bytes_per_s
            rate = gpu.link_bandwidth_bytes_per_s if is_own else node.link_bandwidth_bytes_per_s
            return replace(node, name=f"{node.name} with {gpu.name}", gpu=gpu.name, link_bandwidth_bytes_per_s=rate)
    return None


def _assumed(gpu: Gpu) -> Node:
    """Return eight GPUs with the links of the catalogue, bridges between pairs, and a NIC of 100 Gbit/s.

    Each GPU with HBM has such a NIC, eight others share one.
    """
    linked = gpu.link_bandwidth_bytes_per_s > 0
    return Node(
        name=f"8 x {gpu.name}",
        kind="generic",
        gpu=gpu.name,
        gpu_count=8,
        link=gpu.link_name if linked else "PCIe",
        link_bandwidth_bytes_per_s=gpu.link_bandwidth_bytes_per_s or 2 * gpu.pcie_bandwidth_bytes_per_s,
        domain_gpu_count=1 if not linked else 2 if "bridge" in (gpu.link_name or "") else 8,
        host_link="PCIe",
        nic="100 Gbit/s per GPU, assumed" if is_hbm(gpu.memory_type) else "100 Gbit/s for eight GPUs, assumed",
        nic_bandwidth_bytes_per_s=12.5e9 if is_hbm(gpu.memory_type) else 12.5e9 / 8,
        source=SourceNote(source="assumed", verified=False),
    )


def build_fabric(gpus: Sequence[Gpu], nodes: Sequence[Node] | None = None) -> Fabric:
    """Turn the nodes of GPUs (default: their usual ones) into columns.

    >>> build_fabric([h100]).link_bytes_per_s / 1e9
    array([450.])
    """
    nodes = [usual_node(gpu) for gpu in gpus] if nodes is None else nodes
    rows = [_row(gpu, node) for gpu, node in zip(gpus, nodes, strict=True)]
    return Fabric(**{item.name: np.array([row[item.name] for row in rows]) for item in fields(Fabric)})


def _row(gpu: Gpu, node: Node) -> dict[str, Any]:
    link = node.link or ""
    kind = _link_kind(link)
    generation = re.search(r"NVLink ?(\d)", link)
    link_bytes = node.link_bandwidth_bytes_per_s / 2
    host_bytes = node.host_bandwidth_bytes_per_s or gpu.pcie_bandwidth_bytes_per_s
    return {
        "node_gpu_count": float(node.gpu_count),
        "domain_gpu_count": float(node.domain_gpu_count),
        "link_kind": int(kind),
        "link_generation": int(generation[1]) if generation else 0,
        "has_switch": "NVSwitch" in link,
        "link_bytes_per_s": link_bytes,
        "pair_bytes_per_s": node.pair_bandwidth_bytes_per_s or link_bytes or host_bytes,
        "socket_bytes_per_s": node.socket_bandwidth_bytes_per_s or np.inf,
        "host_bytes_per_s": host_bytes,
        "has_host_switch": "switch" in (node.host_link or "").lower(),
        "nic_kind": int(_nic_kind(node.nic)),
        "nic_bytes_per_s": node.nic_bandwidth_bytes_per_s,
        "link_latency_ratio": node.link_latency_ratio,
        "link_bandwidth_ratio": node.link_bandwidth_ratio,
        "nic_latency_ratio": node.nic_latency_ratio,
        "nic_bandwidth_ratio": node.nic_bandwidth_ratio,
        "nic_count": float(_nic_count(node)),
    }


def _nic_count(node: Node) -> int:
    """Return the number before the name of the NICs, as in `4x EDR IB 100`, if it is no more than there are GPUs."""
    found = re.match(r"(\d+) ?x", node.nic)
    return min(int(found[1]), node.gpu_count) if found and int(found[1]) > 0 else node.gpu_count


def _link_kind(link: str) -> LinkKind:
    if "NVLink" in link:
        return LinkKind.NVLINK
    if "Infinity" in link or "xGMI" in link:
        return LinkKind.XGMI
    return LinkKind.PCIE if link else LinkKind.NONE


def _nic_kind(nic: str) -> NicKind:
    named = {"EFA": NicKind.EFA, "IB": NicKind.INFINIBAND, "Infini": NicKind.INFINIBAND, "RoCE": NicKind.ROCE}
    named["Slingshot"] = NicKind.SLINGSHOT
    return next((kind for word, kind in named.items() if word in nic), NicKind.ETHERNET if nic else NicKind.NONE)
