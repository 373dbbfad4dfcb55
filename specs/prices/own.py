"""A user's own prices in TOML: on demand, spot, reserved, and what a GPU of one's own costs."""

from collections.abc import Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from ...errors import InputError, UnknownGpuError
from ..documents import Entry, check_keys, in_line, read_table, read_toml
from ..gpu import Catalog
from ..layout import Text
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
_EXAMPLE: Final = "docs/reference/decide.md has a complete example"
_Usd = Annotated[float, Meta(ge=0, le=HIGHEST_USD_PER_HOUR, description=f"0 to {HIGHEST_USD_PER_HOUR:,.0f} $ per hour")]


class _Terms(Struct, kw_only=True, forbid_unknown_fields=True):
    cloud: Text | None = None
    term: Text | None = None
    listed_on: date | None = None


class _Price(_Terms, kw_only=True, forbid_unknown_fields=True):
    usd_per_hour: _Usd


class _Purchase(_Terms, kw_only=True, forbid_unknown_fields=True):
    purchase_usd: Annotated[float, Meta(ge=0.0, le=1e7)]
    years: Annotated[float, Meta(ge=0.01, le=30)]
    utilisation: Annotated[float, Meta(ge=0.001, le=1)] = 1.0
    watts: Annotated[float, Meta(ge=0.0, le=1e5)] | None = None
    pue: Annotated[float, Meta(ge=1.0, le=10)] = 1.0
    usd_per_kwh: Annotated[float, Meta(ge=0.0, le=100)]


def read_own_toml(path: Path, catalog: Catalog) -> tuple[Listing, ...]:
    """Return the prices of a user's TOML file. Raises InputError for what is no price, UnknownGpuError for no GPU."""
    document, file = _dated(read_toml(path)), path.name
    check_keys(document, (*_TABLES, "listed_on", "usd_per_kwh"), file)
    usual: Entry = {key: document[key] for key in ("listed_on", "usd_per_kwh") if key in document}
    if "listed_on" in usual:
        read_table(usual["listed_on"], date, f"{file}: listed_on")
    listings = [
        _listing(f"{file}: {table}, {in_line(name)}", name, value, kind, catalog, usual, file)
        for table, kind in _TABLES.items()
        for name, value in read_table(document.get(table, {}), Entry, f"{file}: {table}").items()
    ]
    if not listings:
        raise InputError(f"{file}: expected a table [usd_per_hour], [spot], [reserved] or [own] of prices")
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


def _listing(where: str, name: str, value: Any, kind: PriceKind, catalog: Catalog, usual: Entry, file: str) -> Listing:
    """Return what a file says of a name; `usual` is what it says of all."""
    try:
        gpus, count = resolve_given(catalog, name)
    except UnknownGpuError as error:
        raise UnknownGpuError(f"{where}: {error}") from None
    if not isinstance(value, dict):
        value = {"usd_per_hour": read_table(value, _Usd, where)}
    terms: _Price | _Purchase
    listed = {"listed_on": usual["listed_on"]} if "listed_on" in usual else {}
    if kind is PriceKind.OWN and "usd_per_hour" not in value:
        terms = read_table({**usual, **_dated(value)}, _Purchase, where, example=_EXAMPLE)
        price = own_usd_per_hour(
            purchase_usd=terms.purchase_usd,
            years=terms.years,
            utilisation=terms.utilisation,
            watts=find_gpus(catalog, name)[0].tdp_w if terms.watts is None else terms.watts,
            pue=terms.pue,
            usd_per_kwh=terms.usd_per_kwh,
        )
        if not is_usable_price(price):
            raise InputError(
                f"{where}: this comes to {price:,.0f} $ per hour; expected at most {HIGHEST_USD_PER_HOUR:,.0f}"
            )
    else:
        terms = read_table({**listed, **_dated(value)}, _Price, where, example=_EXAMPLE)
        price = terms.usd_per_hour / count
    return Listing(
        gpus=gpus, usd_per_hour=price, kind=kind, listed_as=name, cloud=terms.cloud, term=terms.term, source=file,
        listed_on=None if terms.listed_on is None else terms.listed_on.isoformat(),
    )  # fmt: skip


def _dated(table: Entry) -> Entry:
    """Return a table with days where it has times of day."""
    return {key: value.date() if isinstance(value, datetime) else value for key, value in table.items()}
