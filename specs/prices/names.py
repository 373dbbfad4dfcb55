"""Which GPU a price list means: by its name there, the memory it states, and the instance that has it."""

import re
from typing import Final

from ...errors import UnknownGpuError
from ..gpu import Catalog, Gpu
from ..instances import Server, find_machines
from ..match import find_gpus, is_gpu_name

LONGEST_NAME: Final = 80
MOST_NAMES: Final = 500
"""Different names that are looked up in one list; further ones are taken to be no GPU."""
_GIB: Final = 2**30
_MEMORY_TOLERANCE: Final = 0.08
"""80 GB are written as 80, 80 GiB, 79.6 and 81,920 MiB."""
_NO_NAME: Final = re.compile(r"(?<![a-z])(baremetal|bare|metal|mega|nvlink|dgx|ac|se|we|edition|highmem)(?![a-z])")
"""Words in lists that tell no product of the catalogue apart; `SE` and `WE` are put back by their aliases."""
_FORM_FACTOR: Final = re.compile(r"(?<![a-z])(pcie|sxm\d?)(?![a-z0-9])")
"""Left out last: some lists say it of cards that come in one form."""
_SPELLINGS: Final = (
    (re.compile(r"pro\W*6000\W*(blackwell)?\W*(se|s|server)\b|pro\W*6000s\b|rtxpro6000bse"),
     "rtx pro 6000 blackwell server"),
    (re.compile(r"pro\W*6000\W*(blackwell)?\W*(we|ws|workstation)\b"), "rtx pro 6000 blackwell workstation"),
    (re.compile(r"^q\W*rtx\W*"), "quadro rtx "),
    (re.compile(r"^rtx\W*(6000|8000)$"), r"quadro rtx \1"),
    (re.compile(r"^a(4000|4500|5000|5500|6000)$"), r"rtx a\1"),
    (re.compile(r"^h200$"), "h200 sxm"),
    (re.compile(r"\b(\d+)s\W+ti\b"), r"\1 ti super"),
    (re.compile(r"\b(40\d0|50\d0)s\b"), r"\1 super"),
)  # fmt: skip
"""How SkyPilot, gpuhunt, Vast.ai and Akash write names that people write otherwise."""


class ListedNames:
    """Look up the GPUs of a price list, each name once."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._found: dict[tuple[str, int | None], tuple[Gpu, ...]] = {}
        self._machines: dict[str, Server | None] = {}

    def find(self, name: str, memory_gib: float | None = None, instance: str | None = None) -> tuple[Gpu, ...]:
        """Return the catalogue's GPUs that a row may be about; none where it is about another accelerator.

        An instance that is known (`p5.48xlarge`) says it best, where its GPU is one of those that the name may mean.
        """
        named = self._by_name(name, None if memory_gib is None else round(memory_gib))
        machine = self.machine(instance) if instance else None
        exact = [gpu for gpu in named if machine is not None and gpu.name == machine.gpu]
        return tuple(exact) or named

    def machine(self, instance: str) -> Server | None:
        """Return the machine that an instance's name means; None where it is not known, or a slice of a GPU."""
        if instance not in self._machines:
            if len(self._machines) >= MOST_NAMES or len(instance) > LONGEST_NAME:
                return None
            try:
                found = find_machines(instance)
            except UnknownGpuError:
                found = ()
            self._machines[instance] = found[0] if len(found) == 1 else None
        return self._machines[instance]

    def _by_name(self, name: str, memory_gib: int | None) -> tuple[Gpu, ...]:
        key = (name, memory_gib)
        if key not in self._found:
            if len(self._found) >= MOST_NAMES or not 0 < len(name.strip()) <= LONGEST_NAME:
                return ()
            self._found[key] = _fitting(_look_up(self._catalog, name), memory_gib)
        return self._found[key]


def resolve_given(catalog: Catalog, name: str) -> tuple[tuple[str, ...], float]:
    """Return the GPUs that a user's name means, and over how many of them a price is to be shared.

    An instance's price is that of all its GPUs. Raises UnknownGpuError for a name that nothing has.

    >>> resolve_given(catalog, "p5.48xlarge")
    (('H100 SXM5 80GB',), 8)
    """
    gpus = find_gpus(catalog, name)
    machines = () if is_gpu_name(catalog, name) else find_machines(name)
    count = machines[0].gpu_count if machines else 1
    return tuple(gpu.name for gpu in gpus), count


def _look_up(catalog: Catalog, name: str) -> tuple[Gpu, ...]:
    plain = " ".join(name.casefold().replace("_", " ").replace("/", " ").split())
    for pattern, spelt in _SPELLINGS:
        plain = pattern.sub(spelt, plain)
    without = _NO_NAME.sub(" ", plain)
    for tried in dict.fromkeys((plain, without, _FORM_FACTOR.sub(" ", without))):
        try:
            found = find_gpus(catalog, tried, suggest=False)
        except UnknownGpuError:
            continue
        return tuple(gpu for gpu in found if not gpu.is_package)
    return ()


def _fitting(gpus: tuple[Gpu, ...], memory_gib: int | None) -> tuple[Gpu, ...]:
    """Return those of the stated memory, where any is."""
    if memory_gib is None or len(gpus) < 2:
        return gpus
    near = tuple(
        gpu for gpu in gpus if abs(gpu.memory_bytes / _GIB - memory_gib) <= _MEMORY_TOLERANCE * gpu.memory_bytes / _GIB
    )
    return near or gpus
