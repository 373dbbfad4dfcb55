"""Loads the GPU catalogue, and a user's own file of additions and overrides. See docs/gpus.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import InputError, UnknownGpuError
from .documents import read_toml
from .gpu import Catalog, Gpu
from .layout import CAPABILITY_KEYS, GROUPS, Entry, build_gpu, check_keys, check_table
from .match import find_gpu, match_device, plain_name
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
    return _builtin_catalog() if extra is None else _extended_catalog(extra)


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
        entry: Entry = {"name": name, "based_on": base, "source": "imagined", **groups}
        complete = _complete_entry(entry, known.gpus, known.entries, "imagined")
        found.append(_as_run(build_gpu(complete, known.capabilities, f"imagined: {name}"), base, "imagined"))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Contents:
    """Hold a catalogue as its files have it."""

    gpus: Mapping[str, Gpu]
    entries: Mapping[str, Entry]
    capabilities: Mapping[str, Entry]


@lru_cache(maxsize=1)
def _builtin_document() -> Entry:
    return read_toml(_CATALOG_FILE)


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


def _extended_catalog(path: Path) -> Catalog:
    return Catalog(gpus=tuple(_extended_contents(path).gpus.values()))


def _extended_contents(path: Path) -> _Contents:
    document = read_toml(path)
    check_keys(document, _FILE_KEYS, path.name)
    capabilities = _merged_capabilities(document, path.name)
    builtin = _builtin_contents()
    gpus, entries = dict(builtin.gpus), dict(builtin.entries)
    spellings = {plain_name(name): name for name in gpus}
    seen: set[str] = set()
    divided: dict[str, str] = {}  # whose slices an entry has
    for entry in _user_entries(document, path.name):
        name = entry["name"]
        if name in seen:
            raise InputError(f"{path.name}: {name} stands there twice; expected one [[gpu]] table of that name")
        seen.add(name)
        known = spellings.setdefault(plain_name(name), name)
        if known != name:
            raise InputError(f"{path.name}: {name} differs from {known} in spelling only; write {known} to replace it")
        name_of_base = entry.get("based_on")
        entries[name] = _complete_entry(entry, gpus, entries, path.name)
        if isinstance(name_of_base, str):
            found = find_gpu(Catalog(gpus=tuple(gpus.values())), name_of_base).name
            divided[name] = divided.get(found, found)
        whole = build_gpu(entries[name], capabilities, f"{path.name}: {name}")
        gpus[name] = _as_run(whole, divided.setdefault(whole.name, whole.name), path.name)
    return _Contents(gpus=gpus, entries=entries, capabilities=capabilities)


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
    for name, value in check_table(document.get("compute_capability", {}), where).items():
        table = check_table(value, f"{where} {name}")
        check_keys(table, CAPABILITY_KEYS, f"{where} {name}")
        merged[name] = {**merged.get(name, {}), "source": file, "verified": False, **table}
    return merged


def _user_entries(document: Entry, file: str) -> list[Entry]:
    entries = document.get("gpu")
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{file}: expected at least one [[gpu]] table, found none")
    for number, entry in enumerate(entries):
        where = f"{file}: gpu[{number}]"
        name = check_table(entry, where).get("name")
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"{where}: name: expected text in quotes, found {name!r}")
    return entries


def _complete_entry(entry: Entry, gpus: Mapping[str, Gpu], entries: Mapping[str, Entry], file: str) -> Entry:
    """Return the entry with what it leaves out taken from the one it is `based_on`, if any."""
    entry = {"source": file, **entry}
    base_name = entry.pop("based_on", None)
    if base_name is None:
        return entry
    where = f"{file}: {entry['name']}"
    if not isinstance(base_name, str):
        raise InputError(f"{where}: based_on: expected the name of a GPU in quotes, found {base_name!r}")
    try:
        known = find_gpu(Catalog(gpus=tuple(gpus.values())), base_name)
    except UnknownGpuError as error:
        raise UnknownGpuError(f"{where}: based_on: {error}") from None
    if known.name not in entries:
        raise InputError(
            f"{where}: based_on: {base_name}: name the GPU alone; cap, lock and slice are keys of the entry"
        )
    base = entries[known.name]
    is_new = base["name"] != entry["name"]
    inherited = {key: value for key, value in base.items() if not (is_new and key in _OWN_KEYS)}
    merged = {**inherited, **entry}
    for group in GROUPS:
        if group in entry and group in base:
            own = check_table(entry[group], f"{where}, {group}")
            merged[group] = {**base[group], "source": f"{entry['source']}; rest as {base['name']}"} | own
            merged[group]["verified"] = own.get("verified", False)
            if group == "memory":
                _scale_reported(merged[group], own, base[group])
        elif group in base:
            merged[group] = {"source": base.get("source", ""), **base[group]}
    return _scale_rates(merged, entry, base)


def _scale_reported(memory: Entry, own: Entry, base: Entry) -> None:
    """Scale what frameworks report as memory by its size, where the entry changes this and not what is reported."""
    sizes = (memory.get("size_gib"), base.get("size_gib"))
    if "reported_bytes" in own or "reported_bytes" not in memory or sizes[0] == sizes[1]:
        return
    if all(isinstance(size, int | float) and size > 0 for size in sizes):
        memory["reported_bytes"] = int(memory["reported_bytes"] * sizes[0] / sizes[1])


def _scale_rates(merged: Entry, own: Entry, base: Entry) -> Entry:
    """Scale the inherited peak rates by SM count times clock, where the entry changes these and not the rate.

    Peak rates are SMs × FLOP per clock × clock: an H100 with twice the SMs would be wrong with the H100's rates.
    """
    for group, clock in (("vector", "boost_mhz"), ("matrix", "matrix_mhz")):
        ratio = _speed(merged["clocks"], clock) / _speed(base["clocks"], clock)
        if group not in merged or ratio == 1:
            continue
        given = own.get(group, {})
        table: dict[str, Any] = merged[group]
        scaled = {
            key: value * ratio
            for key, value in table.items()
            if key.endswith(("tflops", "tops")) and key not in given and isinstance(value, int | float)
        }
        note = f"{table['source']}; scaled by SM count x clock from {base['name']}"
        merged[group] = {**table, **scaled, "source": given.get("source", note), "verified": False}
    return merged


def _speed(clocks: Entry, clock: str) -> float:
    """Return SM count × clock; 1 where they are no positive numbers, which `build_gpu` then reports."""
    factors = (clocks.get("sm_count"), clocks.get(clock, clocks.get("boost_mhz")))
    speed = 1.0
    for factor in factors:
        if not isinstance(factor, int | float) or not factor > 0:
            return 1.0
        speed *= factor
    return speed
