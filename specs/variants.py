"""GPUs as they are run: under a power cap, at a locked clock, or a slice of one.

Short names of targets (`H100 SXM5@500W`, `A100@1200MHz`, `H100/1g.10gb`, `MI300X/CPX`) and the keys of a `--gpu-file`
(`power.cap_w`, `clocks.lock_mhz`, `slice`) both come here. docs/reference/gpus.md says what each changes.
"""

import math
import re
from functools import lru_cache
from pathlib import Path
from typing import Final

from ..errors import InputError
from ..records import dataclass, replace
from .gpu import Catalog, Gpu, clock_headroom, is_matrix_rate
from .layout import GIB, MEGA
from .shipped import read_shipped

_SLICES_FILE: Final = Path(__file__).with_name("slices.toml")
LEAST_CAP_RATIO: Final = 0.25
"""Of the power, below which no card that was looked up lets itself be capped: A100 100 of 400 W, H100 200 of 700."""
LEAST_CLOCK_HZ: Final = 210e6
"""The lowest clock that NVIDIA's data-centre cards list."""
_LIMIT: Final = re.compile(r"([+-]?[\d.,_]*\d[\d.]*(?:e[+-]?\d+)?|[+-]?nan|[+-]?inf)\s*(w|mhz|ghz)", re.IGNORECASE)
_MARKS: Final = re.compile(r"[@/]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Describe a part into which a GPU can be divided."""

    name: str
    sm_count: int
    memory_share: float
    """Of memory and bandwidth."""
    l2_share: float
    reported_bytes: int | None
    """What the vendor's tool says of its memory; None where nobody showed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSetting:
    """Say how a GPU is run; None: as it is delivered."""

    slice_name: str | None = None
    cap_w: float | None = None
    lock_hz: float | None = None


def split_variant(name: str) -> tuple[str, GpuSetting]:
    """Return what stands before the first `@` or `/` of a typed name, and what stands after it.

    Raises InputError for what is no limit.

    >>> split_variant("A100/3g.20gb@1200MHz")
    ('A100', GpuSetting(slice_name='3g.20gb', cap_w=None, lock_hz=1200000000.0))
    """
    found = _MARKS.search(name)
    if found is None:
        return name, GpuSetting()
    base, rest = name[: found.start()].strip(), name[found.start() :]
    values: dict[str, float | str] = {}
    for mark, text in re.findall(r"([@/])([^@/]*)", rest):
        field, value = ("slice_name", _slice_text(text, name)) if mark == "/" else _read_limit(text, name)
        if field in values:
            raise InputError(f"{name!r} says the same thing twice; write it as in 'A100/3g.20gb@1200MHz'")
        values[field] = value
    return base, GpuSetting(**values)  # type: ignore[arg-type]


def apply_variant(gpu: Gpu, variant: GpuSetting, *, name: str | None = None, slices_of: str | None = None) -> Gpu:
    """Return a GPU as it is run, named after what it is unless it has a `name` of its own.

    `slices_of` names the GPU of the catalogue whose slices it has; default: its own.

    Raises InputError for a slice that the GPU has not, and for limits beyond what it allows.

    >>> apply_variant(h100, GpuSetting(cap_w=500)).name
    'H100 SXM5 80GB, 500 W'
    """
    if variant == GpuSetting():
        return gpu
    found, words = gpu, [gpu.name]
    if variant.slice_name is not None:
        part = find_slice(gpu, variant.slice_name, slices_of=slices_of)
        words.append(part.name)
    if variant.cap_w is not None:
        found = _capped(found, variant.cap_w)
        words.append(f"{variant.cap_w:g} W")
    if variant.lock_hz is not None:
        found = _locked(found, variant.lock_hz)
        words.append(f"{variant.lock_hz / MEGA:g} MHz")
    if variant.slice_name is not None:
        found = _sliced(found, part)
    if name is not None:
        return replace(found, name=name)
    return replace(found, name=", ".join(words), aliases=(), base_name=gpu.base_name or gpu.name)


def find_slice(gpu: Gpu, name: str, *, slices_of: str | None = None) -> Slice:
    """Return a slice of a GPU by its profile's name, whatever its case; raise InputError with those that it has.

    >>> find_slice(h100, "1G.10GB").sm_count
    16
    """
    known = _slices().get(slices_of or gpu.name, {})
    if not known:
        raise InputError(f"{gpu.name} has no slices that are known; docs/reference/gpus.md lists the GPUs that have")
    bare = name.strip().casefold().removeprefix("mig ").removesuffix("+me").removesuffix("-me").removesuffix("+gfx")
    if bare not in known:
        raise InputError(f"{gpu.name} has no slice {name!r}; it has {', '.join(item.name for item in known.values())}")
    return known[bare]


def slice_names(catalog: Catalog, typed: str) -> list[str]:
    """Return the names of the slices of the GPUs whose names hold what was typed, each once.

    >>> slice_names(catalog, "mi300x")
    ['DPX', 'QPX', 'CPX']
    """
    held = (gpu.name for gpu in catalog.gpus if typed.strip().casefold() in gpu.name.casefold())
    return list({item.name: item for name in held for item in _slices().get(name, {}).values()})


@lru_cache(maxsize=1)
def _slices() -> dict[str, dict[str, Slice]]:
    found: dict[str, dict[str, Slice]] = {}
    for family in read_shipped(_SLICES_FILE)["family"]:
        parts = family["memory_parts"]
        profiles = {
            item["name"].casefold(): Slice(
                name=item["name"],
                sm_count=item["sm_count"],
                memory_share=item["memory"] / parts,
                l2_share=item.get("l2", item["memory"]) / parts,
                reported_bytes=int(item["reported_gib"] * GIB) if "reported_gib" in item else None,
            )
            for item in family["profiles"]
        }
        found.update(dict.fromkeys(family["gpus"], profiles))
    return found


def _slice_text(text: str, name: str) -> str:
    if not text.strip():
        raise InputError(f"{name!r}: expected the name of a slice after '/', such as 1g.10gb or CPX")
    return text.strip()


def _read_limit(text: str, name: str) -> tuple[str, float]:
    """Return the field that a limit fills, and its value in base units."""
    found = _LIMIT.fullmatch(text.strip())
    value = math.nan
    if found is not None:
        try:
            value = float(found[1])
        except ValueError:
            value = math.nan
    if found is None or not 0 < value < math.inf:
        raise InputError(f"{name!r}: expected a power or a clock above 0 after '@', such as 500W or 1200MHz")
    unit = found[2].casefold()
    return ("cap_w", value) if unit == "w" else ("lock_hz", value * MEGA * (1000 if unit == "ghz" else 1))


def _capped(gpu: Gpu, cap_w: float) -> Gpu:
    least = LEAST_CAP_RATIO * gpu.tdp_w
    if not least <= cap_w <= gpu.tdp_w:
        raise InputError(f"{gpu.name}: a power cap of {cap_w:g} W: expected {least:g} to {gpu.tdp_w:g} W, its power")
    return replace(gpu, power_cap_w=cap_w)


def _locked(gpu: Gpu, lock_hz: float) -> Gpu:
    most = gpu.boost_clock_hz * clock_headroom(gpu)
    if not LEAST_CLOCK_HZ <= lock_hz <= most * (1 + 1e-9):
        expected = f"{LEAST_CLOCK_HZ / MEGA:g} to {most / MEGA:g} MHz"
        raise InputError(f"{gpu.name}: a clock of {lock_hz / MEGA:g} MHz: expected {expected}")
    vector_ratio = lock_hz / gpu.boost_clock_hz
    matrix_hz = None if gpu.matrix_clock_hz is None else min(gpu.matrix_clock_hz, lock_hz)
    matrix_ratio = vector_ratio if gpu.matrix_clock_hz is None else (matrix_hz or 0.0) / gpu.matrix_clock_hz
    rates = {
        rate: value * (matrix_ratio if is_matrix_rate(rate) else vector_ratio)
        for rate, value in gpu.peak_flops_per_s.items()
    }
    return replace(
        gpu,
        clock_lock_hz=lock_hz,
        boost_clock_hz=lock_hz,
        base_clock_hz=None if gpu.base_clock_hz is None else min(gpu.base_clock_hz, lock_hz),
        matrix_clock_hz=matrix_hz,
        peak_flops_per_s=rates,
    )


def _sliced(gpu: Gpu, part: Slice) -> Gpu:
    """Return a slice: its multiprocessors with their rates and power, its share of memory and cache, no links."""
    share = part.sm_count / gpu.sm_count
    return replace(
        gpu,
        sm_count=part.sm_count,
        memory_bytes=gpu.memory_bytes * part.memory_share,
        reported_memory_bytes=part.reported_bytes,
        memory_bus_bits=None,
        memory_pin_rate_bits_per_s=None,
        memory_bandwidth_bytes_per_s=gpu.memory_bandwidth_bytes_per_s * part.memory_share,
        l2_cache_bytes=gpu.l2_cache_bytes * part.l2_share,
        peak_flops_per_s={rate: value * share for rate, value in gpu.peak_flops_per_s.items()},
        link_name=None,
        link_bandwidth_bytes_per_s=0.0,
        tdp_w=gpu.tdp_w * share,
        power_cap_w=None if gpu.power_cap_w is None else gpu.power_cap_w * share,
        slice_name=part.name,
    )
