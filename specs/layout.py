"""The layout of a catalogue entry: which key of the file becomes which field of a `Gpu`, and how units convert."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..errors import InputError
from .gpu import Gpu, Rate, SourceNote, is_hbm

Entry = dict[str, Any]
"""A table as tomllib returns it."""

MEGA: Final = 1e6
GIGA: Final = 1e9
TERA: Final = 1e12
KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3

_PCIE_BYTES_PER_S_PER_LANE: Final = {
    1: 2.5e9 * 8 / 10 / 8,
    2: 5e9 * 8 / 10 / 8,
    3: 8e9 * 128 / 130 / 8,
    4: 16e9 * 128 / 130 / 8,
    5: 32e9 * 128 / 130 / 8,
    6: 64e9 * 242 / 256 / 8,
}
"""PCI Express base specification: transfer rate times line coding (8b/10b, 128b/130b, FLITs of 242 in 256 bytes)."""
_COMPUTE_CAPABILITY: Final = re.compile(r"\d+\.\d+|gfx[0-9a-f]+|xe\d*-[a-z]+|gaudi\d+")


SMALLEST_VALUE: Final = 1e-6
LARGEST_VALUE: Final = 1e13
"""In the file's units, of which a reported memory in bytes is the largest number."""


@dataclass(frozen=True, slots=True)
class Key:
    """Describe one key of the file: the field it fills, its type, and the factor to base units."""

    field: str
    kind: type = float
    scale: float = 1
    required: bool = False


def _rates(prefix: str, names: Mapping[str, Rate]) -> dict[str, Key]:
    return {f"{name}_{'tops' if name == 'int8' else 'tflops'}": Key(f"{prefix}{rate}") for name, rate in names.items()}


RATE_PREFIX: Final = "rate:"
GROUPS: Final[dict[str, dict[str, Key]]] = {
    "clocks": {
        "sm_count": Key("sm_count", int, required=True),
        "fp32_lanes_per_sm": Key("fp32_lanes_per_sm", int),
        "base_mhz": Key("base_clock_hz", scale=MEGA),
        "boost_mhz": Key("boost_clock_hz", scale=MEGA, required=True),
        "matrix_mhz": Key("matrix_clock_hz", scale=MEGA),
        "lock_mhz": Key("clock_lock_hz", scale=MEGA),
    },
    "memory": {
        "size_gib": Key("memory_bytes", scale=GIB, required=True),
        "reported_bytes": Key("reported_memory_bytes", int),
        "type": Key("memory_type", str, required=True),
        "ecc": Key("has_ecc", bool),
        "shared_with_host": Key("has_shared_memory", bool),
        "bus_bits": Key("memory_bus_bits", int),
        "pin_gbit_per_s": Key("memory_pin_rate_bits_per_s", scale=GIGA),
        "bandwidth_gb_per_s": Key("memory_bandwidth_bytes_per_s", scale=GIGA, required=True),
    },
    "l2": {"size_mib": Key("l2_cache_bytes", scale=MIB, required=True)},
    "vector": {
        "fp64_tflops": Key(RATE_PREFIX + Rate.FP64),
        "fp32_tflops": Key(RATE_PREFIX + Rate.FP32, required=True),
        "fp16_tflops": Key(RATE_PREFIX + Rate.FP16),
    },
    "matrix": {
        "fp16_flop_per_clock_per_sm": Key("matrix_flops_per_clock_per_sm", int),
        **_rates(
            RATE_PREFIX,
            {
                "fp64": Rate.MATRIX_FP64,
                "fp32": Rate.MATRIX_FP32,
                "tf32": Rate.MATRIX_TF32,
                "fp16": Rate.MATRIX_FP16,
                "fp16_accumulate_fp16": Rate.MATRIX_FP16_ACCUMULATE_FP16,
                "bf16": Rate.MATRIX_BF16,
                "fp8": Rate.MATRIX_FP8,
                "fp8_accumulate_fp16": Rate.MATRIX_FP8_ACCUMULATE_FP16,
                "fp4": Rate.MATRIX_FP4,
                "int8": Rate.MATRIX_INT8,
            },
        ),
    },
    "occupancy": {
        "warp_size": Key("warp_size", int, required=True),
        "threads_per_sm": Key("max_threads_per_sm", int, required=True),
        "blocks_per_sm": Key("max_blocks_per_sm", int, required=True),
        "registers_per_sm": Key("registers_per_sm", int, required=True),
        "shared_memory_per_sm_kib": Key("shared_memory_per_sm_bytes", int, KIB, required=True),
        "shared_memory_per_block_kib": Key("max_shared_memory_per_block_bytes", int, KIB, required=True),
    },
    "links": {
        "name": Key("link_name", str),
        "bandwidth_gb_per_s": Key("link_bandwidth_bytes_per_s", scale=GIGA),
        "pcie_generation": Key("pcie_generation", int, required=True),
        "pcie_lanes": Key("pcie_lanes", int, required=True),
    },
    "power": {"tdp_w": Key("tdp_w", required=True), "cap_w": Key("power_cap_w")},
}
OPTIONAL_GROUPS: Final = frozenset({"matrix"})
PLAIN_KEYS: Final[dict[str, Key]] = {
    "name": Key("name", str, required=True),
    "aliases": Key("aliases", list),
    "vendor": Key("vendor", str, required=True),
    "architecture": Key("architecture", str, required=True),
    "chip": Key("chip", str),
    "compute_capability": Key("compute_capability", str, required=True),
    "is_package": Key("is_package", bool),
    "slice": Key("slice_name", str),
    "release_date": Key("release_date", str),
    "note": Key("note", str),
    "price_usd_per_hour": Key("price_usd_per_hour"),
}
ENTRY_KEYS: Final = frozenset({*PLAIN_KEYS, *GROUPS, "source", "verified", "based_on"})
CAPABILITY_KEYS: Final = frozenset(
    {"vendor", "architecture", "fp32_lanes_per_sm", "source", "verified", *GROUPS["occupancy"]}
)
_GROUP_EXTRAS: Final = frozenset({"source", "verified"})


def build_gpu(entry: Entry, capabilities: Mapping[str, Entry], where: str) -> Gpu:
    """Turn a complete entry into a `Gpu`, filling in what its compute capability implies.

    `where` names the file and the entry in errors. Raises InputError for unknown, missing or impossible values.
    """
    check_keys(entry, ENTRY_KEYS, where)
    if "source" in entry or "verified" in entry:
        _source_note(entry, entry, where)
    complete = _with_capability(entry, capabilities, where)
    values = _convert(complete, PLAIN_KEYS, where)
    values["aliases"] = tuple(values.get("aliases", ()))
    rates: dict[Rate, float] = {}
    sources: dict[str, SourceNote] = {}
    for name, keys in GROUPS.items():
        group = complete.get(name)
        if group is None:
            if name not in OPTIONAL_GROUPS:
                raise InputError(f"{where}: the group {name} is missing; expected {', '.join(keys)}")
            continue
        for field, value in _convert_group(group, keys, f"{where}, {name}").items():
            if field.startswith(RATE_PREFIX):
                rates[Rate(field.removeprefix(RATE_PREFIX))] = value * TERA
            else:
                values[field] = value
        sources[name] = _source_note(group, complete, f"{where}, {name}")
    values.setdefault("has_ecc", is_hbm(values["memory_type"]))
    values["pcie_bandwidth_bytes_per_s"] = _pcie_bytes_per_s(values, where)
    if values.get("has_shared_memory"):
        values["pcie_bandwidth_bytes_per_s"] = values["memory_bandwidth_bytes_per_s"] / 2
    return Gpu(**values, peak_flops_per_s=rates, sources=sources)


def check_keys(table: Entry, known: Iterable[str], where: str) -> None:
    """Raise InputError for the first key of `table` that is not known, with the nearest known one."""
    unknown = table.keys() - set(known)
    if unknown:
        import difflib

        key = min(unknown)
        near = difflib.get_close_matches(key, list(known), n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(sorted(known))}"
        raise InputError(f"{where}: unknown key {key}; {hint}")


def check_table(value: Any, where: str) -> Entry:
    """Return `value` if it is a table, else raise InputError."""
    if not isinstance(value, dict):
        raise InputError(f"{where}: expected a table, found {value!r}")
    return value


def _with_capability(entry: Entry, capabilities: Mapping[str, Entry], where: str) -> Entry:
    """Return the entry with vendor, architecture, lanes and limits from its compute capability where it has none."""
    capability = entry.get("compute_capability")
    if not isinstance(capability, str) or not _COMPUTE_CAPABILITY.fullmatch(capability):
        raise InputError(f"{where}: compute_capability: expected text like '9.0' or 'gfx942', found {capability!r}")
    shared = capabilities.get(capability, {})
    limits = {key: shared[key] for key in (*GROUPS["occupancy"], *_GROUP_EXTRAS) if key in shared}
    own = check_table(entry.get("occupancy", {}), f"{where}, occupancy")
    if own:
        limits = {key: value for key, value in limits.items() if key not in _GROUP_EXTRAS}
    occupancy = limits | own
    if not occupancy:
        raise InputError(
            f"{where}: compute_capability {capability} is not known (known: {', '.join(capabilities)}); "
            f"give the group occupancy or a table [compute_capability] with {', '.join(GROUPS['occupancy'])}"
        )
    clocks = check_table(entry.get("clocks", {}), f"{where}, clocks")
    if "fp32_lanes_per_sm" not in clocks:
        if "fp32_lanes_per_sm" not in shared:
            raise InputError(f"{where}, clocks: fp32_lanes_per_sm is missing")
        clocks = {**clocks, "fp32_lanes_per_sm": shared["fp32_lanes_per_sm"]}
    identity: Entry = {key: shared[key] for key in ("vendor", "architecture") if key in shared}
    return {**identity, **entry, "clocks": clocks, "occupancy": occupancy}


def _convert_group(group: Any, keys: Mapping[str, Key], where: str) -> dict[str, Any]:
    table = check_table(group, where)
    if not table.keys() <= keys.keys() | _GROUP_EXTRAS:
        check_keys(table, [*keys, *_GROUP_EXTRAS], where)
    return _convert(table, keys, where)


def _convert(table: Entry, keys: Mapping[str, Key], where: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, key in keys.items():
        if name in table:
            values[key.field] = convert_value(table[name], key, name, where)
        elif key.required:
            raise InputError(f"{where}: {name} is missing; docs/gpus.md has a complete example")
    return values


def convert_value(value: Any, key: Key, name: str, where: str) -> Any:
    """Return a value of a file in SI units; raise InputError where it is not of the key's kind, or no quantity."""
    if key.kind in (int, float):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise InputError(f"{where}: {name}: expected a number above 0, found {value!r}")
        if key.kind is int and value != int(value):
            raise InputError(f"{where}: {name}: expected a whole number, found {value!r}")
        if not SMALLEST_VALUE <= value <= LARGEST_VALUE:
            expected = f"{SMALLEST_VALUE:g} to {LARGEST_VALUE:g}"
            raise InputError(f"{where}: {name}: expected {expected}, found {value!r}: check its unit")
        return int(value * key.scale) if key.kind is int else value * key.scale
    if key.kind is list:
        if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
            raise InputError(f"{where}: {name}: expected a list of names in quotes, found {value!r}")
    elif not isinstance(value, key.kind):
        expected = "true or false" if key.kind is bool else "text in quotes"
        raise InputError(f"{where}: {name}: expected {expected}, found {value!r}")
    elif value == "":
        raise InputError(f"{where}: {name}: expected text, found nothing")
    return value


def _source_note(group: Entry, entry: Entry, where: str) -> SourceNote:
    """Return a group's own source, else its entry's. `verified` holds for the source beside which it stands."""
    holder = group if "source" in group or "verified" in group else entry
    source = group.get("source", entry.get("source"))
    verified = holder.get("verified", False)
    if not isinstance(source, str) or not source:
        raise InputError(f"{where}: source: expected text in quotes, found {source!r}")
    if not isinstance(verified, bool):
        raise InputError(f"{where}: verified: expected true or false, found {verified!r}")
    return SourceNote(source=source, verified=verified)


def _pcie_bytes_per_s(values: dict[str, Any], where: str) -> float:
    generation: int = values.pop("pcie_generation")
    lanes: int = values.pop("pcie_lanes")
    if generation not in _PCIE_BYTES_PER_S_PER_LANE:
        known = f"{min(_PCIE_BYTES_PER_S_PER_LANE)} to {max(_PCIE_BYTES_PER_S_PER_LANE)}"
        raise InputError(f"{where}, links: pcie_generation: expected {known}, found {generation}")
    return _PCIE_BYTES_PER_S_PER_LANE[generation] * lanes
