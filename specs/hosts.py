"""Hosts of usual nodes and cloud instances: which processor they have, and how fast it should be by clock and kind."""

from functools import lru_cache
from pathlib import Path
from typing import Final

from ..records import dataclass
from .gpu import SourceNote
from .instances import load_families, plain_instance
from .shipped import read_shipped

_HOSTS_FILE: Final = Path(__file__).with_name("hosts.toml")
_SIZE: Final = "{size}"
LIKENED: Final = "xeon-8480c"
"""The processor that the reference host is taken to have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """Describe the processor of a host, of which nobody has measured how fast it launches kernels."""

    name: str
    model: str
    generation: str
    clock_hz: float
    """The highest of one core."""
    speed_ratio: float
    """One thread's by clock and generation, over that of the reference host's likely processor."""
    machines: tuple[str, ...]
    """Servers, and families of instances, that have it."""
    source: SourceNote
    note: str | None


@lru_cache(maxsize=1)
def load_processors() -> tuple[Processor, ...]:
    """Return every processor of the table, in the order of the file.

    >>> [item.name for item in load_processors()][:2]
    ['xeon-8480c', 'xeon-8570']
    """
    table = read_shipped(_HOSTS_FILE)
    entries, per_clock = table["host"], table["work_per_clock"]
    work = {entry["name"]: entry["clock_ghz"] * per_clock[entry["generation"]] for entry in entries}
    return tuple(
        Processor(
            name=entry["name"],
            model=entry["processor"],
            generation=entry["generation"],
            clock_hz=entry["clock_ghz"] * 1e9,
            speed_ratio=work[entry["name"]] / work[LIKENED],
            machines=tuple(entry.get("machines", ())),
            source=SourceNote(source=table["sources"][entry["source"]], verified=entry.get("verified", False)),
            note=entry.get("note"),
        )
        for entry in entries
    )


def find_processor(name: str) -> Processor | None:
    """Return the processor that a name means: its own, a server's, or a cloud instance's; None where it means none.

    >>> find_processor("p4d.24xlarge").model
    'Intel Xeon Platinum 8275CL'
    """
    wanted = plain_instance(name)
    for item in load_processors():
        if wanted in (plain_instance(item.name), plain_instance(item.model)):
            return item
        if any(_means(machine, wanted) for machine in item.machines):
            return item
    return None


def _means(machine: str, wanted: str) -> bool:
    """Say whether a plain name is that of a server, of a family of instances, or of one of its sizes."""
    if _SIZE not in machine:
        return plain_instance(machine) == wanted
    sizes = next((family.gpu_counts for family in load_families() if family.name == machine), {})
    return wanted in {plain_instance(machine.replace(_SIZE, size)) for size in ("", *sizes)}
