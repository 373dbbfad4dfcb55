"""Finds the GPU that a person or a framework means by a name."""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Final

from ..errors import InputError, UnknownGpuError
from .gpu import Catalog, Gpu
from .instances import Server, find_machines
from .names import agrees_with_vendor, can_mean, near_gpus, parts_of, telling_words, words_of
from .variants import GpuSetting, apply_variant, split_variant

_VENDOR_WORDS: Final = frozenset({"nvidia", "amd", "intel", "geforce", "tesla", "graphics"})
_BRAND_WORDS: Final = _VENDOR_WORDS | {"rtx", "gtx", "rx", "instinct", "radeon", "arc", "generation"}
_GENERIC_NAMES: Final = frozenset({
    "", "unknown", "unknowndevice", "unknowngpu", "device", "gpu", "cudadevice", "hipdevice", "radeon", "radeontm",
    "instinct",
})  # fmt: skip
"""Plain names that tell no product, e.g. of `NVIDIA Graphics Device` and `AMD Radeon Graphics`."""
_GFX_NAME: Final = re.compile(r"gfx\d+[0-9a-f]{2}(?::\S*)?")
"""AMD's names of architectures, which some drivers report as the device's."""
_GFX_VERSION: Final = re.compile(r"gfx(\d+)([0-9a-f])[0-9a-f]")
"""Of them: major, minor, stepping."""
_MIG: Final = re.compile(r"(?P<gpu>.{1,200}?)[ -]+MIG[ -]+(?P<profile>\d+g\.\d+gb(?:[+-]\w+)*)", re.IGNORECASE)
"""How drivers call a slice of a GPU."""
_LINES: Final = frozenset({"titan", "quadro"})
"""Lines of products that are known by a name alone."""
_MEMORY_RATIO_RANGE: Final = (0.85, 1.10)
"""Reported over nominal memory: ECC on GDDR6 takes 6.25 % and drivers reserve up to about 3 % more."""


class NameIndex:
    """Tell which few of many GPUs a name may mean, so that the rules of `find_gpus` are tried on these alone."""

    def __init__(self, gpus: Iterable[Gpu] = ()) -> None:
        self._gpus: dict[str, tuple[int, Gpu]] = {}
        self._named: dict[str, dict[str, None]] = {}
        for gpu in gpus:
            self.add(gpu)

    def add(self, gpu: Gpu) -> None:
        """Add a GPU at the end, or in the place of its namesake."""
        self._gpus[gpu.name] = (self._gpus.get(gpu.name, (len(self._gpus),))[0], gpu)
        for name in (gpu.name, *gpu.aliases):
            for key in (plain_name(name), _short(name), *(_LINES & set(words_of(name)))):
                self._named.setdefault(key, {})[gpu.name] = None
        for word in telling_words(gpu):
            self._named.setdefault(word, {})[gpu.name] = None

    def narrow(self, name: str) -> Catalog:
        """Return the GPUs, in order, that share with a name what each rule needs."""
        keys = {plain_name(name), _short(name), *words_of(name), *parts_of(name)}
        found = {own: self._gpus[own] for key in keys & self._named.keys() for own in self._named[key]}
        return Catalog(gpus=tuple(gpu for _, gpu in sorted(found.values(), key=lambda placed: placed[0])))


@lru_cache(maxsize=4)
def _index_of(catalog: Catalog) -> NameIndex:
    return NameIndex(catalog.gpus)


def find_gpu(catalog: Catalog, name: str) -> Gpu:
    """Return the GPU that `name` means; case, spaces, punctuation and vendor words do not matter.

    Raises UnknownGpuError where `find_gpus` finds several, or none.

    >>> find_gpu(catalog, "h100 pcie").name
    'H100 PCIe 80GB'
    """
    found = find_gpus(catalog, name)
    if len(found) > 1:
        raise UnknownGpuError(
            f"{name!r} means {len(found)} GPUs: {'; '.join(gpu.name for gpu in found)}; name one of them"
        )
    return found[0]


def find_gpus(catalog: Catalog, name: str, *, suggest: bool = True) -> list[Gpu]:
    """Return every GPU that `name` may mean: all H100 variants for `h100`, one of its GPUs for a server or an instance.

    In this order: the whole name, an alias, either without brand words (`4090`), the entry's words (`h100sxm`,
    `a100 pcie 80`; see `can_mean`), a line of products (`titan`), a machine (`p4d.24xlarge`; see `find_machines`); the
    first that matches at all decides. Raises UnknownGpuError where none does, with the nearest names where it is to
    `suggest` them, which takes long for many names. What follows an `@` or a `/` says how the GPU is run (see
    `apply_variant`): of several GPUs those are meant that can be run so.

    >>> [gpu.name for gpu in find_gpus(catalog, "a100")]
    ['A100 SXM4 40GB', 'A100 SXM4 80GB', 'A100 PCIe 40GB', 'A100 PCIe 80GB']
    >>> [gpu.name for gpu in find_gpus(catalog, "a100/3g.20gb")]
    ['A100 SXM4 40GB, 3g.20gb', 'A100 PCIe 40GB, 3g.20gb']
    """
    base, variant = split_variant(name)
    found = _find_base(catalog, base, suggest=suggest)
    return found if variant == GpuSetting() else _run_as(found, variant, base)


def _run_as(gpus: list[Gpu], variant: GpuSetting, name: str) -> list[Gpu]:
    """Return those GPUs that can be run so; raise InputError with why not, where none can."""
    found, reasons = [], []
    for gpu in gpus:
        try:
            found.append(apply_variant(gpu, variant))
        except InputError as error:
            reasons.append(str(error))
    if not found:
        several = f"none of the {len(gpus)} GPUs that {name!r} means can be run so: " if len(gpus) > 1 else ""
        raise InputError(several + "; ".join(dict.fromkeys(reasons)))
    return found


def _find_base(catalog: Catalog, name: str, *, suggest: bool = True) -> list[Gpu]:
    if not words_of(name):
        raise UnknownGpuError(f"{name!r} names no GPU; see `wavecast catalog` for all of them")
    near = [gpu for gpu in _index_of(catalog).narrow(name).gpus if agrees_with_vendor(gpu, name)]
    for rule in _rules(name):
        found = list(filter(rule, near))
        if found:
            return found
    found = _of_machines(catalog, find_machines(name))
    if found:
        return found
    raise UnknownGpuError(_unknown_message(catalog, name) if suggest else f"no GPU is called {name!r}")


def describe_machines(catalog: Catalog, names: Iterable[str]) -> tuple[str, ...]:
    """Return what those names that mean a server or a cloud instance are, one sentence each.

    >>> describe_machines(catalog, ["h100", "g5.xlarge"])
    ('AWS g5.xlarge has one A10G',)
    """
    known = {gpu.name for gpu in catalog.gpus}
    return tuple(
        machine.description
        for name in dict.fromkeys(split_variant(name)[0] for name in names)
        if not is_gpu_name(catalog, name)
        for machine in find_machines(name)
        if machine.gpu in known
    )


def match_device(
    catalog: Catalog,
    name: str,
    *,
    sm_count: int | None,
    memory_bytes: int | None,
    compute_capability: str | None = None,
) -> Gpu | None:
    """Return the GPU of a device as a framework reports it, or None where none, or more than one, fits.

    The name must be an entry's name or alias; SM count and memory, where known, must agree with the entry: so a
    slice of a GPU (MIG) or a laptop part that shares a name is not taken for the whole. A name that says nothing
    (`is_generic_name`), unless an entry has it, leaves the one that SM count, memory and compute capability fit.

    >>> match_device(catalog, "NVIDIA A100-SXM4-80GB", sm_count=108, memory_bytes=None).name
    'A100 SXM4 80GB'
    >>> match_device(catalog, "NVIDIA A100-SXM4-80GB", sm_count=42, memory_bytes=None)  # a slice of one: None
    >>> match_device(catalog, "NVIDIA A100-SXM4-80GB MIG 3g.40gb", sm_count=42, memory_bytes=None).name
    'A100 SXM4 80GB, 3g.40gb'
    """
    if part := _MIG.fullmatch(name):
        return _match_slice(catalog, part["gpu"], part["profile"], sm_count)
    is_named, is_alias, *_ = _rules(name)
    named = [gpu for gpu in _index_of(catalog).narrow(name).gpus if is_named(gpu) or is_alias(gpu)]
    fitting = [gpu for gpu in named if _agrees(gpu, sm_count, memory_bytes)]
    if not named and is_generic_name(name):
        fitting = find_fitting(
            catalog, sm_count=sm_count, memory_bytes=memory_bytes, compute_capability=compute_capability
        )
    return fitting[0] if len(fitting) == 1 else None


def _match_slice(catalog: Catalog, name: str, profile: str, sm_count: int | None) -> Gpu | None:
    """Return the slice of that profile of the one GPU of a name that has it, with as many SMs as were reported."""
    is_named, is_alias, *_ = _rules(name)
    found = []
    for gpu in _index_of(catalog).narrow(name).gpus:
        with suppress(InputError):
            if is_named(gpu) or is_alias(gpu):
                found.append(apply_variant(gpu, GpuSetting(slice_name=profile)))
    fitting = [gpu for gpu in found if gpu.sm_count == sm_count] or found
    return fitting[0] if len(fitting) == 1 else None


def is_generic_name(name: str) -> bool:
    """Say whether a reported name tells no product: drivers report such for parts that they do not know.

    >>> is_generic_name("AMD Radeon Graphics"), is_generic_name("AMD Radeon Pro W7900")
    (True, False)
    """
    return plain_name(name) in _GENERIC_NAMES or _GFX_NAME.fullmatch(name.strip()) is not None


def is_reported_as(compute_capability: str, reported: str) -> bool:
    """Say whether frameworks may report a compute capability so: of AMD's `gfx942` they say `9.4`, or features, too.

    >>> is_reported_as("gfx942", "9.4"), is_reported_as("gfx90a", "gfx90a:xnack-"), is_reported_as("8.0", "8.6")
    (True, True, False)
    """
    name = reported.partition(":")[0]
    known = _GFX_VERSION.fullmatch(compute_capability)
    return name == compute_capability or (known is not None and name == f"{known[1]}.{int(known[2], 16)}")


def find_fitting(
    catalog: Catalog, *, sm_count: int | None, memory_bytes: int | None, compute_capability: str | None
) -> list[Gpu]:
    """Return the GPUs that a device of unknown name may be: none where SM count or memory is not known.

    >>> [gpu.name for gpu in find_fitting(catalog, sm_count=304, memory_bytes=192 * 2**30, compute_capability="9.4")]
    ['Instinct MI300X']
    """
    if sm_count is None or memory_bytes is None:
        return []
    return [
        gpu
        for gpu in catalog.gpus
        if not gpu.is_package
        and _agrees(gpu, sm_count, memory_bytes)
        and (compute_capability is None or is_reported_as(gpu.compute_capability, compute_capability))
    ]


def _agrees(gpu: Gpu, sm_count: int | None, memory_bytes: int | None) -> bool:
    if sm_count is not None and sm_count != gpu.sm_count:
        return False
    low, high = _MEMORY_RATIO_RANGE
    return memory_bytes is None or low * gpu.memory_bytes <= memory_bytes <= high * gpu.memory_bytes


def _rules(name: str) -> tuple[Callable[[Gpu], bool], ...]:
    """Return what a GPU must satisfy for a name to mean it, in the order in which it is tried."""
    plain, short, words = plain_name(name), _short(name), words_of(name)
    has_digit, wanted = any(map(str.isdigit, plain)), [word for word in words if word not in _VENDOR_WORDS]
    return (
        lambda gpu: plain != "" and plain_name(gpu.name) == plain,
        # `AMD Radeon Graphics` names no product: of that, `radeon` is not enough.
        lambda gpu: (
            plain != "" and plain in map(plain_name, gpu.aliases) and (has_digit or words in map(words_of, gpu.aliases))
        ),
        lambda gpu: short != "" and _short(gpu.name) == short,
        lambda gpu: short != "" and has_digit and short in map(_short, gpu.aliases),
        lambda gpu: can_mean(gpu, name),
        lambda gpu: len(wanted) == 1 and wanted[0] in _LINES & set(words_of(gpu.name)),
    )


def is_gpu_name(catalog: Catalog, name: str) -> bool:
    """Say whether a name means a GPU itself, and not a machine that has some.

    >>> is_gpu_name(catalog, "h100"), is_gpu_name(catalog, "p4d.24xlarge")
    (True, False)
    """
    return any(rule(gpu) for rule in _rules(name) for gpu in _index_of(catalog).narrow(name).gpus)


def _of_machines(catalog: Catalog, machines: Iterable[Server]) -> list[Gpu]:
    """Return the GPUs of machines; raise UnknownGpuError where the catalogue holds none of them."""
    machines = tuple(machines)
    wanted = {machine.gpu for machine in machines}
    found = [gpu for gpu in catalog.gpus if gpu.name in wanted]
    if machines and not found:
        raise UnknownGpuError(f"{machines[0].name} has {machines[0].gpu}, which the catalogue does not hold")
    return found


def _unknown_message(catalog: Catalog, name: str) -> str:
    near = [gpu.name for gpu in near_gpus(catalog, name)]
    hint = f"did you mean {' or '.join(near)}?" if near else "see `wavecast catalog` for all of them"
    return f"no GPU of the catalogue is called {name!r}; {hint}"


@lru_cache(maxsize=8192)
def plain_name(name: str) -> str:
    """Return what counts of a name: its letters and digits in lower case, without vendor words."""
    return _without(name, _VENDOR_WORDS)


@lru_cache(maxsize=8192)
def _short(name: str) -> str:
    """Drop the brand words too, unless nothing that tells products apart is left (TITAN RTX)."""
    short = _without(name, _BRAND_WORDS)
    return short if any(character.isdigit() for character in short) else plain_name(name)


def _without(name: str, dropped: frozenset[str]) -> str:
    """Join the words of a name, in order, without the dropped ones."""
    return "".join(word for word in re.findall(r"[a-z0-9]+", name.casefold()) if word not in dropped)
