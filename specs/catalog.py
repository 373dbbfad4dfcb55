"""Loads the GPU catalogue, and a user's own file of additions and overrides. See docs/reference/gpus.md."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from ..errors import InputError, UnknownGpuError
from ..records import dataclass, replace
from .documents import Entry, check_keys, in_line, name_entries, read_table, read_toml
from .gpu import Catalog, Gpu
from .layout import CAPABILITY_TABLE, GROUPS, OWN_ENTRY, build_gpu
from .match import NameIndex, find_gpu, match_device, plain_name
from .shipped import read_shipped
from .variants import GpuSetting, apply_variant

__all__ = ["Catalog", "find_gpu", "imagine_gpus", "load_catalog", "match_device"]

_CATALOG_FILE = Path(__file__).with_name("gpus.toml")
_FILE_KEYS = ("gpu", "compute_capability", "sources")
_OWN_KEYS = ("aliases", "release_date", "note", "price_usd_per_hour")
"""What a new GPU does not take over from the one it is based on: it would be untrue of the new one."""


def load_catalog(extra: Path | None = None) -> Catalog:
    """Return the built-in catalogue, with the entries of the TOML file `extra` added or replacing their namesakes.

    The built-in file is read once per process. Raises InputError, naming file, entry and key, for a file that
    cannot be used.

    >>> "H100 SXM5 80GB" in {gpu.name for gpu in load_catalog().gpus}
    True
    """
    return _builtin_catalog() if extra is None else Catalog(gpus=tuple(_extended_contents(extra).gpus.values()))


def imagine_gpus(base: str, changes: Mapping[str, Mapping[str, Entry]], extra: Path | None = None) -> tuple[Gpu, ...]:
    """Return GPUs as an entry `based_on` another describes them: by new name, the keys by group that differ.

    `extra` is the user's file, whose entries may be the base. Raises InputError for a value that no entry may have.

    >>> twice, *_ = imagine_gpus("H100 SXM5 80GB", {"H100 twice": {"clocks": {"sm_count": 264}}})
    >>> twice.sm_count, round(twice.peak_flops_per_s["matrix_bf16"] / 1e12)
    (264, 1979)
    """
    known = _builtin_contents() if extra is None else _extended_contents(extra)
    found = []
    for name, groups in changes.items():
        entry: Entry = {"name": name, "source": "imagined", **groups}
        read_table(entry, OWN_ENTRY, f"imagined: {name}")
        complete = _complete_entry(entry, known.entries[base], "imagined")
        found.append(_as_run(build_gpu(complete, known.capabilities, f"imagined: {name}"), base, "imagined"))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Contents:
    """Hold a catalogue as its files have it."""

    gpus: dict[str, Gpu]
    entries: dict[str, Entry]
    capabilities: Mapping[str, Entry]


@lru_cache(maxsize=1)
def _builtin_document() -> Entry:
    return read_shipped(_CATALOG_FILE)


@lru_cache(maxsize=1)
def _builtin_catalog() -> Catalog:
    document = _builtin_document()
    capabilities = document["compute_capability"]
    file = _CATALOG_FILE.name
    return Catalog(gpus=tuple(build_gpu(e, capabilities, f"{file}: {e['name']}") for e in document["gpu"]))


def _builtin_contents() -> _Contents:
    document = _builtin_document()
    return _Contents(
        gpus={gpu.name: gpu for gpu in _builtin_catalog().gpus},
        entries={entry["name"]: entry for entry in document["gpu"]},
        capabilities=document["compute_capability"],
    )


def _extended_contents(path: Path) -> _Contents:
    document = read_toml(path)
    check_keys(document, _FILE_KEYS, path.name)
    capabilities = _merged_capabilities(document, path.name)
    builtin = _builtin_contents()
    known = _Contents(gpus=dict(builtin.gpus), entries=dict(builtin.entries), capabilities=capabilities)
    index = NameIndex(known.gpus.values())
    spellings = {plain_name(name): name for name in known.gpus}
    divided: dict[str, str] = {}  # whose slices an entry has
    for where, entry in name_entries(document, "gpu", path.name):
        read_table(entry, OWN_ENTRY, where)
        name = entry["name"]
        if name in divided:
            raise InputError(f"{path.name}: {name} stands there twice; expected one [[gpu]] table of that name")
        spelt = spellings.setdefault(plain_name(name), name)
        if spelt != name:
            raise InputError(f"{path.name}: {name} differs from {spelt} in spelling only; write {spelt} to replace it")
        base = _find_base(entry["based_on"], known, index, where) if "based_on" in entry else None
        known.entries[name] = _complete_entry(entry, known.entries[base] if base else None, path.name)
        whole = build_gpu(known.entries[name], capabilities, where)
        divided[name] = divided.get(base, base) if base is not None else name
        known.gpus[name] = _as_run(whole, divided[name], path.name)
        index.add(known.gpus[name])
    return known


def _find_base(name: str, known: _Contents, index: NameIndex, where: str) -> str:
    """Return the entry that a name means."""
    try:
        try:
            found = find_gpu(index.narrow(name), name).name
        except UnknownGpuError:  # a machine, or none: said with all GPUs in sight
            found = find_gpu(Catalog(gpus=tuple(known.gpus.values())), name).name
    except UnknownGpuError as error:
        raise UnknownGpuError(f"{where}: based_on: {error}") from None
    if found not in known.entries:
        raise InputError(f"{where}: based_on: {name}: name the GPU alone; cap, lock and slice are keys of the entry")
    return found


def _as_run(gpu: Gpu, slices_of: str, file: str) -> Gpu:
    """Return an entry under the cap, at the clock, or as the slice that it names."""
    variant = GpuSetting(slice_name=gpu.slice_name, cap_w=gpu.power_cap_w, lock_hz=gpu.clock_lock_hz)
    whole = replace(gpu, slice_name=None, power_cap_w=None, clock_lock_hz=None)
    try:
        return apply_variant(whole, variant, name=gpu.name, slices_of=slices_of)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None


def _merged_capabilities(document: Entry, file: str) -> dict[str, Entry]:
    merged: dict[str, Entry] = dict(_builtin_document()["compute_capability"])
    where = f"{file}: compute_capability"
    for name, table in read_table(document.get("compute_capability", {}), Entry, where).items():
        read_table(table, CAPABILITY_TABLE, f"{where} {in_line(name)}")
        merged[name] = {**merged.get(name, {}), "source": file, "verified": False, **table}
    return merged


def _complete_entry(entry: Entry, base: Entry | None, file: str) -> Entry:
    """Return the entry with what it leaves out taken from its base, if any."""
    entry = {"source": file, **entry}
    entry.pop("based_on", None)
    if base is None:
        return entry
    is_new = base["name"] != entry["name"]
    merged = {key: value for key, value in base.items() if not (is_new and key in _OWN_KEYS)} | entry
    for group in GROUPS.keys() & base.keys():
        if group not in entry:
            merged[group] = {"source": base.get("source", ""), **base[group]}
            continue
        note = {"source": f"{entry['source']}; rest as {base['name']}", "verified": False}
        merged[group] = {**base[group], **note, **entry[group]}
    _scale_reported(merged.get("memory", {}), entry.get("memory", {}), base["memory"])
    return _scale_rates(merged, entry, base)


def _scale_reported(memory: Entry, own: Entry, base: Entry) -> None:
    """Scale what frameworks report as memory by its size, where the entry changes this and not what is reported."""
    if "size_gib" in own and "reported_bytes" in base and "reported_bytes" not in own:
        memory["reported_bytes"] = int(base["reported_bytes"] * own["size_gib"] / base["size_gib"])


def _scale_rates(merged: Entry, own: Entry, base: Entry) -> Entry:
    """Scale the inherited peak rates by SM count times clock, where the entry changes these and not the rate.

    Peak rates are SMs × FLOP per clock × clock: an H100 with twice the SMs would be wrong with the H100's rates.
    """
    for group, clock in (("vector", "boost_mhz"), ("matrix", "matrix_mhz")):
        ratio = _speed(merged["clocks"], clock) / _speed(base["clocks"], clock)
        if group not in merged or ratio == 1:
            continue
        given, table = own.get(group, {}), merged[group]
        scaled = {
            key: value * ratio for key, value in table.items() if key.endswith(("tflops", "tops")) and key not in given
        }
        note = f"{table['source']}; scaled by SM count x clock from {base['name']}"
        merged[group] = {**table, **scaled, "source": given.get("source", note), "verified": False}
    return merged


def _speed(clocks: Entry, clock: str) -> float:
    """Return SM count × clock, which every complete entry has."""
    speed: float = clocks["sm_count"] * clocks.get(clock, clocks["boost_mhz"])
    return speed
