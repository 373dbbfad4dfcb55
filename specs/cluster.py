"""Which machine each GPU stands in: the usual one, one by name, or one of a user's file. See docs/nodes.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from ..errors import InputError, UnknownGpuError, parameter
from .documents import read_toml
from .fabric import usual_node
from .gpu import Catalog, Gpu, listed_name
from .instances import find_machines
from .layout import Entry, Key, check_keys, check_table, convert_value
from .match import find_gpu
from .nodes import Node, load_nodes, node_of_entry

_KEYS: Final[Mapping[str, Key]] = {
    "name": Key("name", str, required=True),
    "gpu": Key("gpu", str, required=True),
    "gpu_count": Key("gpu_count", int, required=True),
    "link": Key("link", str),
    "link_gb_per_s": Key("link_gb_per_s"),
    "domain_gpu_count": Key("domain_gpu_count", int),
    "pair_gb_per_s": Key("pair_gb_per_s"),
    "socket_gb_per_s": Key("socket_gb_per_s"),
    "host_link": Key("host_link", str),
    "host_gb_per_s": Key("host_gb_per_s"),
    "nic": Key("nic", str),
    "nic_gbit_per_s": Key("nic_gbit_per_s"),
    "usd_per_hour": Key("usd_per_hour"),
    "note": Key("note", str),
    "link_latency_ratio": Key("link_latency_ratio"),
    "link_bandwidth_ratio": Key("link_bandwidth_ratio"),
    "nic_latency_ratio": Key("nic_latency_ratio"),
    "nic_bandwidth_ratio": Key("nic_bandwidth_ratio"),
}
_OWN_KEYS: Final = ("note", "usd_per_hour", "price_source", "source", "verified", "kind")
"""What a node does not take over from the one it is based on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Hold the machines that GPUs stand in, by the GPU's catalogue name; all others stand in their usual one."""

    nodes: Mapping[str, Node] = field(default_factory=dict)

    def node_of(self, gpu: Gpu) -> Node:
        """Return the machine of a GPU.

        >>> Cluster().node_of(h100).name
        'DGX/HGX H100'
        """
        return self.nodes.get(listed_name(gpu)) or usual_node(gpu)

    def nodes_of(self, gpus: Sequence[Gpu]) -> list[Node]:
        """Return the machine of each GPU."""
        return [self.node_of(gpu) for gpu in gpus]

    def placed(self, node: Node) -> Cluster:
        """Return the cluster with a machine for its GPU."""
        return replace(self, nodes={**self.nodes, node.gpu: node})


USUAL: Final = Cluster()
"""Every GPU in its usual machine."""


def load_cluster(path: Path, catalog: Catalog) -> Cluster:
    """Return the machines of a TOML file's `[[node]]` tables; `based_on = "NAME"` takes over what an entry leaves out.

    Raises InputError, naming file, node and key, for a file that cannot be used.
    """
    document = read_toml(path)
    check_keys(document, ("node",), path.name)
    entries = document.get("node")
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{path.name}: expected at least one [[node]] table, found none")
    nodes: dict[str, Node] = {}
    for number, entry in enumerate(entries):
        node = _user_node(check_table(entry, f"{path.name}: node[{number}]"), number, path.name, catalog)
        if node.gpu in nodes:
            raise InputError(f"{path.name}: {node.name}: {node.gpu} stands in {nodes[node.gpu].name} already; keep one")
        nodes[node.gpu] = node
    return Cluster(nodes=nodes)


def find_node(name: str, catalog: Catalog) -> Node:
    """Return the machine that a name means: one of the table, a cloud instance, or the usual one of a GPU.

    Raises InputError where it means none, or several.

    >>> find_node("p4d.24xlarge", catalog).gpu
    'A100 SXM4 40GB'
    """
    exact = [node for node in load_nodes() if node.name.casefold() == name.casefold()]
    if exact:
        return exact[0]
    found = [node for machine in find_machines(name) if (node := machine.node) is not None]
    if len(found) == 1:
        return found[0]
    words = name.casefold().split()
    holding = found or [node for node in load_nodes() if all(word in node.name.casefold() for word in words)]
    if len(holding) == 1:
        return holding[0]
    if holding:
        listed = ", ".join(node.name for node in holding[:6]) + (", …" if len(holding) > 6 else "")
        raise InputError(f"{name!r} may mean several nodes: {listed}; write one of them in full")
    try:
        return usual_node(find_gpu(catalog, name))
    except UnknownGpuError:
        near = get_close_matches(name, [node.name for node in load_nodes()], n=2)
        hint = f"did you mean {' or '.join(near)}?" if near else "`wavecast catalog nodes` lists them."
        raise InputError(
            f"no node is called {name!r}; {hint} A file given with {parameter('cluster_file')} may add one"
        ) from None


def _user_node(entry: Entry, number: int, file: str, catalog: Catalog) -> Node:
    name = entry.get("name")
    if not isinstance(name, str) or not name.strip():
        raise InputError(f"{file}: node[{number}]: name: expected text in quotes, found {name!r}")
    where = f"{file}: {name}"
    check_keys(entry, (*_KEYS, "based_on", "source", "verified"), where)
    own = {key: convert_value(entry[key], _KEYS[key], key, where) for key in _KEYS if key in entry}
    merged: dict[str, Any] = {**_base(entry, where, catalog), **own}
    for key, spec in _KEYS.items():
        if spec.required and key not in merged:
            raise InputError(f"{where}: {key} is missing; give it, or name a node to take it from with based_on")
    merged["gpu"] = _gpu_name(merged["gpu"], where, catalog)
    _fill_in(merged, where)
    return node_of_entry({**merged, "kind": "user", "source": str(entry.get("source", file))})


def _base(entry: Entry, where: str, catalog: Catalog) -> dict[str, Any]:
    base = entry.get("based_on")
    if base is None:
        return {}
    if not isinstance(base, str):
        raise InputError(f"{where}: based_on: expected the name of a node in quotes, found {base!r}")
    try:
        node = find_node(base, catalog)
    except InputError as error:
        raise InputError(f"{where}: based_on: {error}") from None
    return {key: value for key, value in entry_of_node(node).items() if key not in _OWN_KEYS}


def entry_of_node(node: Node) -> Entry:
    """Return a node as a table of a TOML file has it."""
    found: dict[str, Any] = {
        "name": node.name,
        "kind": node.kind,
        "gpu": node.gpu,
        "gpu_count": node.gpu_count,
        "link": node.link,
        "link_gb_per_s": node.link_bandwidth_bytes_per_s / 1e9,
        "domain_gpu_count": node.domain_gpu_count,
        "pair_gb_per_s": _giga(node.pair_bandwidth_bytes_per_s),
        "socket_gb_per_s": _giga(node.socket_bandwidth_bytes_per_s),
        "host_link": node.host_link,
        "host_gb_per_s": _giga(node.host_bandwidth_bytes_per_s),
        "nic": node.nic,
        "nic_gbit_per_s": node.nic_bandwidth_bytes_per_s * 8 / 1e9,
        "usd_per_hour": node.usd_per_hour,
        "link_latency_ratio": node.link_latency_ratio,
        "link_bandwidth_ratio": node.link_bandwidth_ratio,
        "nic_latency_ratio": node.nic_latency_ratio,
        "nic_bandwidth_ratio": node.nic_bandwidth_ratio,
        "source": node.source.source,
        "note": node.note,
    }
    return {key: value for key, value in found.items() if value is not None}


def _giga(value: float | None) -> float | None:
    return None if value is None else value / 1e9


def _gpu_name(name: str, where: str, catalog: Catalog) -> str:
    try:
        return listed_name(find_gpu(catalog, name))
    except UnknownGpuError as error:
        raise UnknownGpuError(f"{where}: gpu: {error}") from None


def _fill_in(entry: dict[str, Any], where: str) -> None:
    """Give a node what follows from the rest, and refuse what cannot be."""
    entry.setdefault("domain_gpu_count", entry["gpu_count"] if entry.get("link_gb_per_s") else 1)
    entry.setdefault("nic", "not given")
    entry.setdefault("nic_gbit_per_s", 0.0)
    if entry["gpu_count"] > 1 and not (entry.get("link_gb_per_s") or entry.get("pair_gb_per_s")):
        raise InputError(
            f"{where}: link_gb_per_s is missing; of {entry['gpu_count']} GPUs expected the rate of their links, both "
            "directions of one GPU together, in GB/s, or pair_gb_per_s"
        )
