"""Loads dated cloud prices. They are facts of the past, not offers: whoever shows one shows its date."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median

from .documents import read_toml
from .layout import Entry

_PRICES_FILE = Path(__file__).with_name("prices.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Hold what one cloud asked for one GPU and hour."""

    gpus: tuple[str, ...]
    """Catalogue names; several where the listing does not tell them apart."""
    usd_per_hour: float
    listed_on: str | None
    """ISO date on which the source last changed the listing; None where it does not say."""
    cloud: str
    listed_as: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Summarise the newest listing of each cloud for one GPU."""

    usd_per_hour: float
    """Median over clouds."""
    cloud_count: int
    date: str | None
    """ISO date of the newest listing; None where no listing is dated."""
    oldest_date: str | None
    is_shared: bool
    """Whether some listing does not tell this GPU from a sibling (SXM from PCIe)."""


@lru_cache(maxsize=1)
def load_prices() -> tuple[Listing, ...]:
    """Return every listing, in the order of the file."""
    return tuple(_listing(entry) for entry in read_toml(_PRICES_FILE)["listing"])


def price_usd_per_hour(gpu_name: str) -> Price | None:
    """Return the price of a GPU by its catalogue name, or None where no cloud lists it.

    Dated listings go before undated ones: these count only where no dated one exists.

    >>> price_usd_per_hour("Tesla T4").usd_per_hour < 2
    True
    >>> price_usd_per_hour("TITAN V")  # no cloud lists it: None
    """
    listings = [listing for listing in load_prices() if gpu_name in listing.gpus]
    dated = [listing for listing in listings if listing.listed_on is not None]
    newest = _newest_per_cloud(dated or listings)
    if not newest:
        return None
    dates = [listing.listed_on for listing in newest if listing.listed_on is not None]
    return Price(
        usd_per_hour=median(listing.usd_per_hour for listing in newest),
        cloud_count=len(newest),
        date=max(dates, default=None),
        oldest_date=min(dates, default=None),
        is_shared=any(len(listing.gpus) > 1 for listing in newest),
    )


def _listing(entry: Entry) -> Listing:
    listed_on = entry.get("listed_on")
    text = listed_on.isoformat() if listed_on is not None else None
    return Listing(**{**entry, "gpus": tuple(entry["gpus"]), "listed_on": text})


def _newest_per_cloud(listings: Iterable[Listing]) -> list[Listing]:
    """Keep one listing per cloud: the newest, among equals the one that names fewer products."""
    ordered = sorted(listings, key=lambda item: (item.listed_on or "", -len(item.gpus)))
    return list({listing.cloud: listing for listing in ordered}.values())
