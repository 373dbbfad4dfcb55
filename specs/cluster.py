"""Which machine each GPU stands in: the usual one, one by name, or a user's own. See docs/reference/host.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from ..errors import InputError, UnknownGpuError, parameter
from ..records import dataclass, field, replace
from .documents import Entry, check_keys, name_entries, read_table, read_toml
from .fabric import usual_node
from .gpu import Catalog, Gpu, listed_name
from .instances import find_machines
from .layout import NOTE_KEYS, Key, Text, table_type
from .match import find_gpu
from .nodes import NODE_KEYS, Node, entry_of_node, load_nodes, node_of_entry

_OWN_KEYS: Final = ("note", "usd_per_hour", "price_source", "source", "verified", "kind")
"""What a node does not take over from the one it is based on."""


_NODE_TABLE: Final = table_type(
    "Node",
    {
        **{name: key for name, key in NODE_KEYS.items() if name not in ("kind", "price_source")},
        **NOTE_KEYS,
        "based_on": Key("", Text),
    },
)


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

    >>> path = folder / "cluster.toml"
    >>> _ = path.write_text('[[node]]\\nname = "mine"\\nbased_on = "DGX/HGX H100"\\n', encoding="utf-8")
    >>> [node.name for node in load_cluster(path, catalog).nodes.values()]
    ['mine']
    """
    document, file = read_toml(path), path.name
    check_keys(document, ("node",), file)
    nodes: dict[str, Node] = {}
    for where, entry in name_entries(document, "node", file):
        node = _user_node(entry, where, file, catalog)
        if node.gpu in nodes:
            raise InputError(f"{file}: {node.name}: {node.gpu} stands in {nodes[node.gpu].name} already; keep one")
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


def _user_node(entry: Entry, where: str, file: str, catalog: Catalog) -> Node:
    base: Entry = {}
    if "based_on" in entry:
        name = read_table(entry["based_on"], Text, f"{where}: based_on")
        try:
            base = entry_of_node(find_node(name, catalog))
        except InputError as error:
            raise InputError(f"{where}: based_on: {error}") from None
    merged = {key: value for key, value in base.items() if value and key not in _OWN_KEYS} | entry
    read_table(merged, _NODE_TABLE, where, example="give it, or name a node to take it from with based_on")
    try:
        merged["gpu"] = listed_name(find_gpu(catalog, merged["gpu"]))
    except UnknownGpuError as error:
        raise UnknownGpuError(f"{where}: gpu: {error}") from None
    count = merged["gpu_count"]
    if count > 1 and not merged.keys() & {"link_gb_per_s", "pair_gb_per_s"}:
        raise InputError(
            f"{where}: link_gb_per_s is missing; of {count} GPUs expected the rate of their links, both "
            "directions of one GPU together, in GB/s, or pair_gb_per_s"
        )
    usual = {
        "domain_gpu_count": count if "link_gb_per_s" in merged else 1,
        "nic": "not given",
        "nic_gbit_per_s": 0.0,
        "source": file,
    }
    return node_of_entry({**usual, **merged, "kind": "user", "verified": False})
