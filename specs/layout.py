"""The layout of a catalogue entry: which key of the file becomes which field of a `Gpu`, and how units convert."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct

from ..errors import InputError
from ..records import dataclass
from .documents import Entry, read_table
from .gpu import Gpu, Rate, SourceNote, is_hbm, is_matrix_rate

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
EXAMPLE: Final = "docs/reference/gpus.md has a complete example"
Amount = Annotated[
    float, Meta(ge=1e-6, le=1e13, description="a number from 1e-06 to 1e+13 in the unit that its key names")
]
"""In the file's units, of which a reported memory in bytes is the largest number."""
Count = Annotated[int, Meta(ge=1, le=10**13, description="a whole number from 1")]
Text = Annotated[str, Meta(pattern=r"\S", description="text in quotes")]
_Names = Annotated[tuple[Text, ...], Meta(description="a list of names in quotes")]
_Capability = Annotated[
    str, Meta(pattern=r"^(\d+\.\d+|gfx[0-9a-f]+|xe\d*-[a-z]+|gaudi\d+)$", description="text like '9.0' or 'gfx942'")
]


@dataclass(frozen=True, slots=True)
class Key:
    """Describe one key of the file: the field it fills, its type, and the factor to base units."""

    field: str
    kind: Any = Amount
    scale: float = 1
    required: bool = False


RATE_PREFIX: Final = "rate:"


def _rates(*, are_matrix: bool) -> dict[str, Key]:
    return {
        f"{rate.removeprefix('matrix_')}_{'tops' if rate is Rate.MATRIX_INT8 else 'tflops'}": Key(
            RATE_PREFIX + rate, required=rate is Rate.FP32
        )
        for rate in Rate
        if is_matrix_rate(rate) is are_matrix
    }


GROUPS: Final[dict[str, dict[str, Key]]] = {
    "clocks": {
        "sm_count": Key("sm_count", Count, required=True),
        "fp32_lanes_per_sm": Key("fp32_lanes_per_sm", Count, required=True),
        "base_mhz": Key("base_clock_hz", scale=MEGA),
        "boost_mhz": Key("boost_clock_hz", scale=MEGA, required=True),
        "matrix_mhz": Key("matrix_clock_hz", scale=MEGA),
        "lock_mhz": Key("clock_lock_hz", scale=MEGA),
    },
    "memory": {
        "size_gib": Key("memory_bytes", scale=GIB, required=True),
        "reported_bytes": Key("reported_memory_bytes", Count),
        "type": Key("memory_type", Text, required=True),
        "ecc": Key("has_ecc", bool),
        "shared_with_host": Key("has_shared_memory", bool),
        "bus_bits": Key("memory_bus_bits", Count),
        "pin_gbit_per_s": Key("memory_pin_rate_bits_per_s", scale=GIGA),
        "bandwidth_gb_per_s": Key("memory_bandwidth_bytes_per_s", scale=GIGA, required=True),
    },
    "l2": {"size_mib": Key("l2_cache_bytes", scale=MIB, required=True)},
    "vector": _rates(are_matrix=False),
    "matrix": {"fp16_flop_per_clock_per_sm": Key("matrix_flops_per_clock_per_sm", Count), **_rates(are_matrix=True)},
    "occupancy": {
        "warp_size": Key("warp_size", Count, required=True),
        "threads_per_sm": Key("max_threads_per_sm", Count, required=True),
        "blocks_per_sm": Key("max_blocks_per_sm", Count, required=True),
        "registers_per_sm": Key("registers_per_sm", Count, required=True),
        "shared_memory_per_sm_kib": Key("shared_memory_per_sm_bytes", Count, KIB, required=True),
        "shared_memory_per_block_kib": Key("max_shared_memory_per_block_bytes", Count, KIB, required=True),
    },
    "links": {
        "name": Key("link_name", Text),
        "bandwidth_gb_per_s": Key("link_bandwidth_bytes_per_s", scale=GIGA),
        "pcie_generation": Key("pcie_generation", Count, required=True),
        "pcie_lanes": Key("pcie_lanes", Count, required=True),
    },
    "power": {"tdp_w": Key("tdp_w", required=True), "cap_w": Key("power_cap_w")},
}
PLAIN_KEYS: Final[dict[str, Key]] = {
    "name": Key("name", Text, required=True),
    "aliases": Key("aliases", _Names),
    "vendor": Key("vendor", Text, required=True),
    "architecture": Key("architecture", Text, required=True),
    "chip": Key("chip", Text),
    "compute_capability": Key("compute_capability", _Capability, required=True),
    "is_package": Key("is_package", bool),
    "slice": Key("slice_name", Text),
    "release_date": Key("release_date", Text),
    "note": Key("note", Text),
    "price_usd_per_hour": Key("price_usd_per_hour"),
}
NOTE_KEYS: Final = {"source": Key("source", Text), "verified": Key("verified", bool)}


def table_type(name: str, keys: Mapping[str, Key], *, complete: bool = True) -> type[Struct]:
    """Return the type of a table; of one that is not `complete`, no key need be there."""
    fields = [
        (key, spec.kind) if complete and spec.required else (key, spec.kind | UnsetType, UNSET)
        for key, spec in keys.items()
    ]
    return defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def _entry(*, complete: bool) -> type[Struct]:
    groups = {
        name: Key("", table_type(name, {**keys, **NOTE_KEYS}, complete=complete), required=name != "matrix")
        for name, keys in GROUPS.items()
    }
    return table_type("Entry", {**PLAIN_KEYS, **groups, **NOTE_KEYS, "based_on": Key("", Text)}, complete=complete)


CAPABILITY_TABLE: Final = table_type(
    "Capability",
    {
        **{name: PLAIN_KEYS[name] for name in ("vendor", "architecture")},
        **{name: GROUPS["clocks"][name] for name in ("fp32_lanes_per_sm",)},
        **GROUPS["occupancy"],
        **NOTE_KEYS,
    },
    complete=False,
)
OWN_ENTRY: Final = _entry(complete=False)
"""What a user writes of a GPU: the rest may come from another, or from its compute capability."""
_COMPLETE_ENTRY: Final = _entry(complete=True)


def build_gpu(entry: Entry, capabilities: Mapping[str, Entry], where: str) -> Gpu:
    """Turn a complete entry into a `Gpu`, filling in what its compute capability implies.

    `where` names the file and the entry in errors. Raises InputError for unknown, missing or impossible values.
    """
    complete = _with_capability(entry, capabilities, where)
    read_table(complete, _COMPLETE_ENTRY, where, example=EXAMPLE)
    values = values_of(complete, PLAIN_KEYS)
    values["aliases"] = tuple(values.get("aliases", ()))
    rates: dict[Rate, float] = {}
    sources: dict[str, SourceNote] = {}
    for name, keys in GROUPS.items():
        if name not in complete:
            continue
        group = complete[name]
        for field, value in values_of(group, keys).items():
            if field.startswith(RATE_PREFIX):
                rates[Rate(field.removeprefix(RATE_PREFIX))] = value * TERA
            else:
                values[field] = value
        holder = (
            group if group.keys() & NOTE_KEYS else complete
        )  # `verified` holds for the source beside which it stands
        source = group.get("source", complete.get("source"))
        if source is None:
            raise InputError(f"{where}: source is missing; {EXAMPLE}")
        sources[name] = SourceNote(source=source, verified=holder.get("verified", False))
    values.setdefault("has_ecc", is_hbm(values["memory_type"]))
    generation, lanes = values.pop("pcie_generation"), values.pop("pcie_lanes")
    if generation not in _PCIE_BYTES_PER_S_PER_LANE:
        known = f"{min(_PCIE_BYTES_PER_S_PER_LANE)} to {max(_PCIE_BYTES_PER_S_PER_LANE)}"
        raise InputError(f"{where}: links.pcie_generation: expected {known}, found {generation}")
    values["pcie_bandwidth_bytes_per_s"] = _PCIE_BYTES_PER_S_PER_LANE[generation] * lanes
    if values.get("has_shared_memory"):
        values["pcie_bandwidth_bytes_per_s"] = values["memory_bandwidth_bytes_per_s"] / 2
    return Gpu(**values, peak_flops_per_s=rates, sources=sources)


def values_of(table: Entry, keys: Mapping[str, Key]) -> dict[str, Any]:
    """Return what a table says by the fields that its keys fill, in base units."""
    return {
        key.field: table[name] if key.scale == 1 else table[name] * key.scale
        for name, key in keys.items()
        if name in table
    }


def _with_capability(entry: Entry, capabilities: Mapping[str, Entry], where: str) -> Entry:
    """Return the entry with vendor, architecture, lanes and limits from its compute capability where it has none."""
    if "compute_capability" not in entry:
        return entry  # which is then refused
    capability = entry["compute_capability"]
    shared = capabilities.get(capability, {})
    own = entry.get("occupancy", {})
    occupancy = {key: shared[key] for key in (*GROUPS["occupancy"], *(() if own else NOTE_KEYS)) if key in shared} | own
    if not occupancy:
        raise InputError(
            f"{where}: compute_capability {capability} is not known (known: {', '.join(capabilities)}); "
            f"give the group occupancy or a table [compute_capability] with {', '.join(GROUPS['occupancy'])}"
        )
    clocks = {key: shared[key] for key in ("fp32_lanes_per_sm",) if key in shared} | entry.get("clocks", {})
    identity = {key: shared[key] for key in ("vendor", "architecture") if key in shared}
    return {**identity, **entry, "clocks": clocks, "occupancy": occupancy}
