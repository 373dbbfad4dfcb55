"""The machines that measured iterations ran on, from what their tables say of links and networks."""

import re
from dataclasses import replace
from typing import Final

from .....errors import InputError
from .....specs.fabric import usual_node
from .....specs.gpu import Gpu
from .....specs.nodes import Node

GIGABIT: Final = 1e9 / 8
_FAST: Final = ("compute", "ib", "infiniband", "ndr", "hdr", "edr", "xdr", "roce", "connectx", "omni", "slingshot",
                "efa", "per gpu", "per node")  # fmt: skip
"""Words of a network that gradients go over, rather than of one for storage and management."""
_IDLE: Final = ("storage", "management")
NAMED_GBIT_PER_S: Final = {
    "xdr": 800.0, "ndr200": 200.0, "ndr": 400.0, "hdr100": 100.0, "hdr": 200.0, "edr": 100.0, "slingshot 11": 200.0,
    "slingshot-11": 200.0, "connectx-8": 800.0, "connectx-7": 400.0, "connectx-6": 200.0, "connectx-5": 100.0,
    "bluefield-3": 400.0, "omni-path": 100.0,
}  # fmt: skip
"""Rates of a port by what it is called: InfiniBand's four lanes per generation, the cards' datasheets, HPE's and
Cornelis' networks."""
_UNSAID: Final = ("", "n/a", "none", "unknown")


def described_node(gpu: Gpu, gpu_count: int, gpus: int, intra_link: str, inter_link: str) -> Node:
    """Return a GPU's usual machine with what a system's description says otherwise, for a job on `gpus` GPUs.

    A rack whose machines share one NVLink stays one domain, however few GPUs a machine of it has, and bridged pairs
    stay pairs. Links within are the usual ones but where the description says that there are none but PCIe. Raises
    InputError where the job leaves the domain over a network that is named and whose rate nothing tells.
    """
    usual = usual_node(gpu)
    count = max(1, gpu_count)
    found = read_network(inter_link, count)
    changes: dict[str, object] = {"gpu_count": count}
    if "pcie" in intra_link.lower() and "nvlink" not in intra_link.lower():
        changes |= {
            "link": "PCIe",
            "link_bandwidth_bytes_per_s": 2 * gpu.pcie_bandwidth_bytes_per_s,
            "domain_gpu_count": 1,
        }
    elif usual.domain_gpu_count == usual.gpu_count:
        changes["domain_gpu_count"] = count
    if found is not None:
        changes |= {"nic": found[1], "nic_bandwidth_bytes_per_s": found[0]}
    node = replace(usual, **changes)  # type: ignore[arg-type]
    if found is None and inter_link.strip().lower() not in _UNSAID and gpus > max(count, node.domain_gpu_count):
        raise InputError(f"the rate of the network {inter_link.strip()!r} between machines is not known")
    return node


def read_network(text: str, gpus_per_node: int) -> tuple[float, str] | None:
    """Return a GPU's share of the fastest network that a description names, bytes/s in one direction, and its name.

    None where it names no rate. One of storage or management counts for none, another kind than those that gradients
    go over where there is no such.

    >>> read_network("2x ConnectX-6 IB HDR 200Gb/Sec", 4)
    (12500000000.0, '2x ConnectX-6 IB HDR 200Gb/Sec')
    """
    parts = re.split(r"[,+;]", text.replace("Gb / Sec", "Gb/s").replace("ConnectX - ", "ConnectX-"))
    parts = [
        part.strip() for part in parts if "compute" in part.lower() or not any(word in part.lower() for word in _IDLE)
    ]
    fast = [part for part in parts if any(word in part.lower() for word in _FAST)]
    found = [item for part in fast or parts if (item := _read_part(part, gpus_per_node)) is not None]
    return max(found, default=None)


def _read_part(part: str, gpus_per_node: int) -> tuple[float, str] | None:
    words = part.lower()
    said = re.search(r"(\d+(?:\.\d+)?) ?gb(?:it)?(?:/s|/sec|s)?", words)
    rate = float(said[1]) if said else next((rate for name, rate in NAMED_GBIT_PER_S.items() if name in words), 0.0)
    if not rate:
        return None
    several = re.search(r"(\d+) ?x ", words)
    count = gpus_per_node if "per gpu" in words else int(several[1]) if several else 1
    return rate * count * GIGABIT / gpus_per_node, part[several.start() :] if several else part
