"""Cloud instances and servers by their names: which GPU one has, how many, and how they are linked."""

import re
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Final

from ..errors import UnknownGpuError
from ..records import dataclass
from .gpu import SourceNote
from .nodes import Node, load_nodes
from .shipped import read_shipped

_INSTANCES_FILE = Path(__file__).with_name("instances.toml")
_SIZE: Final = "{size}"
_PREFIXES: Final = frozenset({"standard", "ml", "aws", "amazon", "ec2", "gcp", "google", "azure", "oci", "lambda"})
"""Words before an instance's name that some listings have and others leave out."""
_SERVER_WORDS: Final = frozenset({"dgx", "hgx", "nvl72"})
"""Without one of these a name means a GPU, not a server of the node table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceFamily:
    """Describe the instances of one cloud that have the same GPU."""

    cloud: str
    name: str
    """With `{size}` where the size stands."""
    gpu: str
    """Catalogue name, or that of a GPU which the catalogue does not hold."""
    gpu_counts: dict[str, float]
    """By size; below 1 for a slice of one GPU."""
    source: SourceNote


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Hold what a name of a server or a cloud instance means."""

    name: str
    """With the cloud, where it is one's."""
    gpu: str
    gpu_count: float
    """Below 1 for a slice of one GPU."""
    node: Node | None
    """Its entry in the node table, where it has one."""

    @property
    def description(self) -> str:
        """Say what of the machine is predicted."""
        if self.gpu_count == 1:
            return f"{self.name} has one {self.gpu}"
        link = self.node.link if self.node is not None else None
        linked = f", linked by {link}" if link else ""
        return f"{self.name} has {self.gpu_count:g} {self.gpu}{linked}: what is shown is for one of them"


@lru_cache(maxsize=1)
def load_families() -> tuple[InstanceFamily, ...]:
    """Return every family of cloud instances, in the order of the file."""
    return tuple(
        InstanceFamily(
            cloud=entry["cloud"],
            name=entry["name"],
            gpu=entry["gpu"],
            gpu_counts=entry["sizes"],
            source=SourceNote(source=entry["source"], verified=entry.get("verified", False)),
        )
        for entry in read_shipped(_INSTANCES_FILE)["family"]
    )


def find_machines(name: str) -> tuple[Server, ...]:
    """Return the cloud instance, or the servers, that `name` means; none where it means no machine.

    Raises UnknownGpuError for a size that a known family does not come in, and for a slice of a GPU.

    >>> [(item.gpu, item.gpu_count) for item in find_machines("p4d.24xlarge")]
    [('A100 SXM4 40GB', 8)]
    """
    plain = plain_instance(name)
    found = _instances().get(plain)
    if found is None:
        servers = _servers(name)
        if not servers:
            _refuse_unknown_size(name, plain)
        return servers
    if found.gpu_count < 1:
        part = Fraction(found.gpu_count).limit_denominator(100)
        raise UnknownGpuError(f"{found.name} has {part} of one {found.gpu}, which is not predicted; name the whole GPU")
    return (found,)


@lru_cache(maxsize=1)
def _instances() -> dict[str, Server]:
    nodes = {plain_instance(node.name): node for node in load_nodes()}
    machines: dict[str, Server] = {}
    for family in load_families():
        for size, count in family.gpu_counts.items():
            name = family.name.replace(_SIZE, size)
            plain = plain_instance(name)
            node = nodes.get(plain)
            machines[plain] = Server(name=f"{family.cloud} {name}", gpu=family.gpu, gpu_count=count, node=node)
    return machines


def _servers(name: str) -> tuple[Server, ...]:
    """Return the servers of the node table that hold all words of a name, one of which says that it is a server."""
    wanted = set(_words(name)) - {"nvidia"}
    if not wanted & _SERVER_WORDS or not wanted - _SERVER_WORDS:
        return ()
    return tuple(
        Server(name=node.name, gpu=node.gpu, gpu_count=node.gpu_count, node=node)
        for node in load_nodes()
        if node.kind == "system" and wanted <= set(_words(node.name))
    )


def _refuse_unknown_size(name: str, plain: str) -> None:
    """Raise where a name reads like a size of a family that does not come in it."""
    for family in load_families() if re.search(r"\w[._-]\w", name) else ():
        before, after = ("".join(_words(part)) for part in family.name.split(_SIZE))
        size = plain.removeprefix(before).removesuffix(after)
        if plain == before + size + after and re.fullmatch(r"\d+[a-z]*|metal|x?large", size):
            known = ", ".join(family.gpu_counts)
            kind = f"{family.cloud} {family.name.replace(_SIZE, '*')}"
            raise UnknownGpuError(f"{name!r} is not a known size of {kind}; those are {known}")


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.casefold())


def plain_instance(name: str) -> str:
    """Return what counts of an instance's name, however it is written.

    >>> plain_instance("AWS p5.48xlarge") == plain_instance("ml.p5-48xlarge")
    True
    """
    words = _words(name)
    while words and words[0] in _PREFIXES:
        words = words[1:]
    return "".join(words)
