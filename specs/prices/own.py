"""A user's own prices in TOML: on demand, spot, reserved, and what a GPU of one's own costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, Final

from ...errors import InputError, UnknownGpuError
from ..documents import read_toml
from ..gpu import Catalog, Gpu
from ..layout import Entry, check_keys, check_table
from ..match import find_gpus
from .listing import HIGHEST_USD_PER_HOUR, Listing, PriceKind, is_usable_price
from .names import resolve_given

HOURS_PER_YEAR: Final = 8766.0
_TABLES: Final[Mapping[str, PriceKind]] = {
    "usd_per_hour": PriceKind.ON_DEMAND,
    "on_demand": PriceKind.ON_DEMAND,
    "spot": PriceKind.SPOT,
    "reserved": PriceKind.RESERVED,
    "own": PriceKind.OWN,
}
_PRICE_KEYS: Final = ("usd_per_hour", "cloud", "term", "listed_on")
_OWN_KEYS: Final = (*_PRICE_KEYS, "purchase_usd", "years", "utilisation", "watts", "pue", "usd_per_kwh")


def read_own_toml(path: Path, catalog: Catalog) -> tuple[Listing, ...]:
    """Return the prices of a user's TOML file. Raises InputError for what is no price, UnknownGpuError for no GPU."""
    document = read_toml(path)
    check_keys(document, (*_TABLES, "listed_on", "usd_per_kwh"), path.name)
    listed_on = _day(document, path.name)
    listings: list[Listing] = []
    for table, kind in _TABLES.items():
        for name, value in check_table(document.get(table, {}), f"{path.name}: {table}").items():
            where = f"{path.name}: {table}, {name}"
            try:
                item = _listing(where, name, value, kind, catalog, document.get("usd_per_kwh"))
            except UnknownGpuError as error:
                raise UnknownGpuError(f"{where}: {error}") from None
            listings.append(replace(item, source=path.name, listed_on=item.listed_on or listed_on))
    if not listings:
        raise InputError(f"{path.name}: expected a table [usd_per_hour], [spot], [reserved] or [own] of prices")
    return tuple(listings)


def own_usd_per_hour(
    *, purchase_usd: float, years: float, utilisation: float, watts: float, pue: float, usd_per_kwh: float
) -> float:
    """Return what a GPU of one's own costs per hour in which it works: purchase written off, plus power.

    purchase / (years x 8,766 h x utilisation) + watts / 1000 x PUE x $ per kWh: the purchase is spread over the hours
    in which the GPU is used, power is paid in these hours, for the whole machine where `watts` and the purchase are
    its share. Idle power, room and staff are not in it.

    >>> own_usd_per_hour(purchase_usd=8766, years=1, utilisation=0.5, watts=1000, pue=1.5, usd_per_kwh=0.2)
    2.3
    """
    return purchase_usd / (years * HOURS_PER_YEAR * utilisation) + watts / 1000 * pue * usd_per_kwh


def _listing(where: str, name: str, value: Any, kind: PriceKind, catalog: Catalog, usd_per_kwh: Any) -> Listing:
    gpus, count = resolve_given(catalog, name)
    if not isinstance(value, dict):
        return Listing(gpus=gpus, usd_per_hour=_price(where, value) / count, kind=kind, listed_as=name)
    check_keys(value, _OWN_KEYS if kind is PriceKind.OWN else _PRICE_KEYS, where)
    if "usd_per_hour" in value:
        price = _price(where, value["usd_per_hour"]) / count
    elif kind is PriceKind.OWN:
        price = _own(where, {"usd_per_kwh": usd_per_kwh, **value}, find_gpus(catalog, name)[0])
    else:
        raise InputError(f"{where}: usd_per_hour is missing")
    return Listing(
        gpus=gpus, usd_per_hour=price, kind=kind, listed_as=name, cloud=_text(where, value, "cloud"),
        term=_text(where, value, "term"), listed_on=_day(value, where),
    )  # fmt: skip


def _own(where: str, entry: Entry, gpu: Gpu) -> float:
    price = own_usd_per_hour(
        purchase_usd=_number(where, entry, "purchase_usd", low=0, high=1e7),
        years=_number(where, entry, "years", low=0.01, high=30),
        utilisation=_number(where, entry, "utilisation", low=0.001, high=1, default=1.0),
        watts=_number(where, entry, "watts", low=0, high=1e5, default=gpu.tdp_w),
        pue=_number(where, entry, "pue", low=1, high=10, default=1.0),
        usd_per_kwh=_number(where, entry, "usd_per_kwh", low=0, high=100),
    )
    if not is_usable_price(price):
        raise InputError(
            f"{where}: this comes to {price:,.0f} $ per hour; expected at most {HIGHEST_USD_PER_HOUR:,.0f}"
        )
    return price


def _price(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not is_usable_price(float(value)):
        raise InputError(f"{where}: expected 0 to {HIGHEST_USD_PER_HOUR:,.0f} $ per hour, found {value!r}")
    return float(value)


def _number(where: str, entry: Entry, key: str, *, low: float, high: float, default: float | None = None) -> float:
    value = entry.get(key)
    if value is None and default is not None:
        return default
    if value is None:
        raise InputError(f"{where}: {key} is missing; docs/prices.md has a complete example")
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InputError(f"{where}: {key}: expected {low:g} to {high:g}, found {value!r}")
    return float(value)


def _text(where: str, entry: Entry, key: str) -> str | None:
    value = entry.get(key)
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise InputError(f"{where}: {key}: expected text in quotes, found {value!r}")
    return value


def _day(entry: Entry, where: str) -> str | None:
    value = entry.get("listed_on")
    if value is None:
        return None
    if not isinstance(value, date):
        raise InputError(f"{where}: listed_on: expected a date as 2026-11-23, found {value!r}")
    return value.isoformat()[:10]
