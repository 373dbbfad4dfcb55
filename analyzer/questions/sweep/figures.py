"""What of a GPU's datasheet can be varied: under which names, in which units, and what goes with it.

A figure is a key of the GPU catalogue (docs/reference/gpus.md) and has the same name, `memory.bandwidth_gb_per_s`, or
a shorter one, `memory.bandwidth`. Imagined GPUs are built as a `--gpu-file` entry `based_on` another is: peak rates
follow SM count x clock. Beyond what such an entry does, the clocks go together, and the memory's bandwidth with its
pins.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from ....records import dataclass, replace
from ....specs.documents import Entry
from ....specs.gpu import Gpu, Rate, is_matrix_rate
from ....specs.layout import GROUPS, RATE_PREFIX, TERA, Amount, Count, Key

Groups = dict[str, Entry]
"""Keys of a catalogue entry by group, in the file's units."""
_NOT_VARIED: Final = (
    "reported_bytes",
    "ecc",
    "type",
    "name",
    "shared_with_host",
    "cap_w",
    "lock_mhz",
    "warp_size",
    "pcie_generation",
    "pcie_lanes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureUnit:
    """Hold the units in which a kind of quantity is written, each as a factor to base units."""

    scales: Mapping[str, float]
    """By name in lower case."""
    usual: str
    """The one that a bare number has: the catalogue's own."""
    shown: str
    """Base unit with which rates are written; empty where it is no rate."""


BANDWIDTH: Final = FigureUnit(
    scales={"gb/s": 1e9, "tb/s": 1e12, "mb/s": 1e6, "gib/s": 2.0**30, "tib/s": 2.0**40, "gbps": 1e9, "tbps": 1e12},
    usual="gb/s",
    shown="B/s",
)
SIZE: Final = FigureUnit(
    scales={"gib": 2.0**30, "gb": 1e9, "mib": 2.0**20, "mb": 1e6, "tib": 2.0**40, "tb": 1e12, "kib": 2.0**10},
    usual="gib",
    shown="B",
)
CACHE: Final = replace(SIZE, usual="mib")
SHARED: Final = replace(SIZE, usual="kib")
FREQUENCY: Final = FigureUnit(scales={"mhz": 1e6, "ghz": 1e9, "khz": 1e3, "hz": 1.0}, usual="mhz", shown="Hz")
PINS: Final = FigureUnit(scales={"gbit/s": 1e9, "gbps": 1e9, "mbit/s": 1e6, "mt/s": 1e6}, usual="gbit/s", shown="bit/s")
_RATES: Final = {f"{prefix}{name}": scale for prefix, scale in (("g", 1e9), ("t", 1e12), ("p", 1e15)) for name in (
    "flops", "flop/s", "ops", "op/s")}  # fmt: skip
ARITHMETIC: Final = FigureUnit(scales=_RATES, usual="tflops", shown="FLOP/s")
POWER: Final = FigureUnit(scales={"w": 1.0, "kw": 1e3}, usual="w", shown="W")
COUNT: Final = FigureUnit(scales={"": 1.0}, usual="", shown="")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasheetFigure:
    """Describe one figure of a datasheet that can be varied."""

    name: str
    words: str
    """What it is, in a sentence."""
    unit: FigureUnit
    read: Callable[[Gpu], float | None]
    """Its value on a GPU, in base units; None where the GPU has none."""
    change: Callable[[Gpu, float], Groups]
    """The keys that differ on a GPU with another value."""
    step: float = 0.0
    """It is a whole number of these, in base units; 0: any number."""
    adjust: Callable[[Gpu, float], Gpu] | None = None
    """What no key says, done to the finished GPU."""
    aliases: tuple[str, ...] = ()


def _of_key(group: str, name: str, words: str, unit: FigureUnit, *aliases: str, short: str = "") -> DatasheetFigure:
    """Return the figure that one key holds."""
    key = GROUPS[group][name]
    return DatasheetFigure(
        name=short or f"{group}.{name}",
        words=words,
        unit=unit,
        read=lambda gpu: _value(gpu, key),
        change=lambda _, value: {group: {name: _in_file(value, key)}},
        step=key.scale if key.kind is Count else 0.0,
        aliases=(f"{group}.{name}", *aliases),
    )


def _value(gpu: Gpu, key: Key) -> float | None:
    if key.field.startswith(RATE_PREFIX):
        return gpu.peak_flops_per_s.get(Rate(key.field.removeprefix(RATE_PREFIX)))
    value = getattr(gpu, key.field)
    return float(value) if value else None


def _in_file(value: float, key: Key) -> float | int:
    scale = TERA if key.field.startswith(RATE_PREFIX) else key.scale
    return round(value / scale) if key.kind is Count else value / scale


def _clocks(gpu: Gpu, value: float) -> Groups:
    """Change all clocks by as much as the boost clock."""
    ratio, keys = value / gpu.boost_clock_hz, GROUPS["clocks"]
    found: Entry = {}
    for name in ("base_mhz", "boost_mhz", "matrix_mhz"):
        clock_hz = getattr(gpu, keys[name].field)
        if clock_hz is not None:
            found[name] = clock_hz * ratio / keys[name].scale
    return {"clocks": found}


def _pins(gpu: Gpu, value: float) -> Groups:
    ratio = value / (gpu.memory_pin_rate_bits_per_s or value)
    return {"memory": {"pin_gbit_per_s": value / 1e9, **_bandwidth(gpu, ratio)}}


def _bus(gpu: Gpu, value: float) -> Groups:
    return {"memory": {"bus_bits": round(value), **_bandwidth(gpu, value / (gpu.memory_bus_bits or value))}}


def _bandwidth(gpu: Gpu, ratio: float) -> Entry:
    return {"bandwidth_gb_per_s": gpu.memory_bandwidth_bytes_per_s * ratio / 1e9}


def _rate_group(group: str, *, is_matrix: bool) -> Callable[[Gpu, float], Groups]:
    """Return how all rates of a kind of unit change together."""

    def change(gpu: Gpu, value: float) -> Groups:
        reference = (_matrix_rate if is_matrix else _vector_rate)(gpu)
        ratio = value / reference if reference else 1.0
        found = {name: _value(gpu, key) for name, key in GROUPS[group].items() if key.field.startswith(RATE_PREFIX)}
        return {group: {name: rate * ratio / TERA for name, rate in found.items() if rate is not None}}

    return change


def _matrix_rate(gpu: Gpu) -> float | None:
    """Return the rate by which matrix units are known: 16-bit, else the first there is."""
    usual = (Rate.MATRIX_BF16, Rate.MATRIX_FP16)
    others = (rate for rate in gpu.peak_flops_per_s if is_matrix_rate(rate))
    return next((gpu.peak_flops_per_s[rate] for rate in (*usual, *others) if rate in gpu.peak_flops_per_s), None)


def _vector_rate(gpu: Gpu) -> float | None:
    return gpu.peak_flops_per_s.get(Rate.FP32)


_NAMED: Final = (
    _of_key("memory", "bandwidth_gb_per_s", "memory bandwidth", BANDWIDTH,
            "bandwidth", "bw", "dram", short="memory.bandwidth"),
    _of_key("memory", "size_gib", "memory size", SIZE, "memory", "memory.capacity", "vram", short="memory.size"),
    DatasheetFigure(name="memory.pin_rate", words="data rate of a memory pin, and the bandwidth with it", unit=PINS,
           read=lambda gpu: gpu.memory_pin_rate_bits_per_s, change=_pins, aliases=("memory.pin_gbit_per_s", "pins")),
    DatasheetFigure(name="memory.bus", words="width of the memory bus in bits, and the bandwidth with it", unit=COUNT,
           read=lambda gpu: gpu.memory_bus_bits, change=_bus, step=1.0, aliases=("memory.bus_bits", "bus")),
    _of_key("clocks", "sm_count", "multiprocessors (compute units), and the peak rates with them", COUNT,
            "sm", "clocks.sms", "cus", "multiprocessors", short="sms"),
    DatasheetFigure(name="clock", words="boost clock, the other clocks and the peak rates with it", unit=FREQUENCY,
           read=lambda gpu: gpu.boost_clock_hz, change=_clocks, aliases=("clocks", "boost", "frequency", "clock_mhz")),
    _of_key("l2", "size_mib", "size of the second-level cache", CACHE, "l2", "cache", "l2.capacity", short="l2.size"),
    DatasheetFigure(name="matrix", words="all rates of the matrix (tensor) units, by the 16-bit one", unit=ARITHMETIC,
           read=_matrix_rate, change=_rate_group("matrix", is_matrix=True), aliases=("tensor", "flops", "matrix.rate")),
    DatasheetFigure(name="vector", words="all rates of the vector units, by the fp32 one", unit=ARITHMETIC,
           read=_vector_rate, change=_rate_group("vector", is_matrix=False), aliases=("cuda", "vector.rate", "fp32")),
    _of_key("occupancy", "shared_memory_per_sm_kib", "shared memory of a multiprocessor", SHARED,
            "shared_memory", "smem", "lds"),
    _of_key("links", "bandwidth_gb_per_s", "bandwidth to other GPUs, both directions together", BANDWIDTH,
            "link", "links", "nvlink", "xgmi", short="link.bandwidth"),
    DatasheetFigure(name="pcie.bandwidth", words="bandwidth to the host, one direction", unit=BANDWIDTH,
           read=lambda gpu: gpu.pcie_bandwidth_bytes_per_s, change=lambda _, __: {}, aliases=("pcie", "host.bandwidth"),
           adjust=lambda gpu, value: replace(gpu, pcie_bandwidth_bytes_per_s=value)),
    DatasheetFigure(name="tdp", words="power limit: below the board's own, a cap", unit=POWER,
           read=lambda gpu: gpu.power_cap_w or gpu.tdp_w, aliases=("power.tdp_w", "power", "watts"),
           change=lambda gpu, value: {"power": {"tdp_w": max(value, gpu.tdp_w), "cap_w": value}}),
)  # fmt: skip
"""Those that people ask for."""


def _other_keys() -> list[DatasheetFigure]:
    """Return the figures of the keys that have no shorter name."""
    named = {alias for figure in _NAMED for alias in figure.aliases}
    found = []
    for group, keys in GROUPS.items():
        for name, key in keys.items():
            if f"{group}.{name}" in named or name in _NOT_VARIED or key.kind not in (Count, Amount):
                continue
            short = f"{group}.{name.removesuffix('_tflops').removesuffix('_tops').removesuffix('_mhz')}"
            found.append(_of_key(group, name, f"{name} of the group {group}", _unit_of(name), short))
    return found


def _unit_of(name: str) -> FigureUnit:
    ends: tuple[tuple[tuple[str, ...], FigureUnit], ...] = (
        (("_tflops", "_tops"), ARITHMETIC),
        (("_mhz",), FREQUENCY),
        (("_kib",), SHARED),
    )
    return next((unit for endings, unit in ends if name.endswith(endings)), COUNT)


FIGURES: Final[tuple[DatasheetFigure, ...]] = (*_NAMED, *_other_keys())
SENSITIVE: Final = ("memory.bandwidth", "matrix", "vector", "sms", "clock", "l2.size", "tdp", "link.bandwidth",
                    "pcie.bandwidth")  # fmt: skip
"""The figures whose use is asked for where nobody says which."""


def find_figure(name: str) -> DatasheetFigure | None:
    """Return the figure that a name means; None where it means none.

    >>> find_figure("Bandwidth").name
    'memory.bandwidth'
    """
    wanted = plain(name)
    return next((item for item in FIGURES if wanted in map(plain, (item.name, *item.aliases))), None)


def plain(name: str) -> str:
    """Return what counts of a name."""
    return re.sub(r"[-_. ]+", ".", name.strip().casefold())


def merge_groups(parts: list[Groups]) -> Groups:
    """Return the keys of several changes as those of one."""
    merged: dict[str, dict[str, Any]] = {}
    for groups in parts:
        for group, keys in groups.items():
            merged.setdefault(group, {}).update(keys)
    return merged
