"""The price book: which price a GPU has, of all that were listed; how old the prices are, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Final

from ...errors import InputError, parameter
from ...records import dataclass, field, replace
from ..gpu import Catalog, Gpu, listed_name
from ..instances import plain_instance
from ..shipped import read_shipped
from .listing import Listing, PriceKind, PriceOrigin

STALE_DAYS: Final = 90
"""Prices older than this on the median are warned of."""
KEPT_DAYS: Final = 365
"""A listing that is so much older than the newest one of its GPU does not count."""
_CLOUD_NAMES: Final = {
    "google": "gcp", "googlecloud": "gcp", "amazon": "aws", "amazonwebservices": "aws", "ec2": "aws",
    "microsoft": "azure", "microsoftazure": "azure", "oracle": "oci", "oraclecloud": "oci", "lambdalabs": "lambda",
    "lambdacloud": "lambda", "datacrunch": "verda", "nexgencloud": "hyperstack", "vast": "vastai",
    "cudo": "cudocompute", "do": "digitalocean", "ovh": "ovhcloud", "latitudesh": "latitude",
}  # fmt: skip
"""Plain names that one cloud goes by in different lists."""


_PRICES_FILE: Final = Path(__file__).parent.with_name("prices.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Say what one GPU costs per hour, and on whose word."""

    usd_per_hour: float
    """Median over clouds of each one's cheapest, of its newest listings."""
    kind: PriceKind
    origin: PriceOrigin
    source: str
    """Who says it, in words: the clouds, the file, or the option."""
    cloud: str | None
    """Where one cloud alone says it."""
    instance: str | None
    cloud_count: int
    date: str | None
    """ISO date of the newest listing; None where no listing is dated."""
    middle_date: str | None
    """Of the middle one of the listings that count, by their dates: how old the price is."""
    oldest_date: str | None
    is_shared: bool
    """Whether some listing does not tell this GPU from a sibling (SXM from PCIe)."""

    @property
    def is_given(self) -> bool:
        """Say whether a user gave it, rather than the table that wavecast ships."""
        return self.origin is not PriceOrigin.CATALOGUE


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceBook:
    """Hold all listings, and which of them are asked for."""

    listings: Mapping[PriceOrigin, tuple[Listing, ...]] = field(default_factory=dict)
    kind: PriceKind | None = None
    """The only terms that count; None: what a GPU of one's own costs, else on demand, else reserved, else spot."""
    cloud: str | None = None
    """The only cloud that counts, by its plain name; None: all."""
    notes: tuple[str, ...] = ()
    """What is to be said of how they were read, a sentence each."""
    _of_gpu: dict[str, dict[PriceOrigin, list[Listing]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The listings of each GPU, filled when the first is asked for: reports ask for all."""

    def price_of(self, gpu: Gpu) -> Price | None:
        """Return the price of a GPU; one that runs under a cap or a locked clock costs what the card does."""
        card = listed_name(gpu)
        return self.price(gpu.name) or (self.price(card) if card != gpu.name else None)

    def price(self, gpu_name: str) -> Price | None:
        """Return the price of a GPU by its catalogue name, or None where nobody lists it.

        Who is nearer to the user goes first: what was given for this GPU, then the user's files, then the shipped
        table. There, dated listings go before undated ones: these count only where no dated one exists.
        """
        if not self._of_gpu:
            for origin, group in self.listings.items():
                for item in group:
                    for name in dict.fromkeys(item.gpus):
                        self._of_gpu.setdefault(name, {}).setdefault(origin, []).append(item)
        return self._first(self._of_gpu.get(gpu_name, {}))

    def price_of_instance(self, name: str) -> Price | None:
        """Return the price of one GPU in a cloud's instance (`p5.48xlarge`), or None where nobody lists it."""
        wanted = plain_instance(name)
        return self._first(
            {
                origin: [
                    item for item in group if item.instance is not None and plain_instance(item.instance) == wanted
                ]
                for origin, group in self.listings.items()
            }
        )

    def with_listings(self, origin: PriceOrigin, listings: Iterable[Listing], notes: Sequence[str] = ()) -> PriceBook:
        """Return the book with more listings, and what is to be said of them."""
        merged = {**self.listings, origin: (*self.listings.get(origin, ()), *listings)}
        return replace(self, listings=merged, notes=(*self.notes, *notes))

    def restricted(self, kind: PriceKind | None, cloud: str | None) -> PriceBook:
        """Return the book of one kind and one cloud only. Raises InputError for a cloud that no listing is of."""
        if cloud is None:
            return replace(self, kind=kind)
        wanted = plain_cloud(cloud)
        known = {plain_cloud(name): name for name in self.clouds()}
        if wanted not in known:
            raise InputError(
                f"{parameter('cloud')} {cloud!r}: no price is of it; expected one of "
                f"{', '.join(sorted(known.values()))}"
            )
        return replace(self, kind=kind, cloud=wanted)

    def clouds(self) -> tuple[str, ...]:
        """Return the names of all clouds that list a GPU, as they are spelt."""
        return tuple(
            dict.fromkeys(item.cloud for group in self.listings.values() for item in group if item.cloud is not None)
        )

    def _first(self, meant: Mapping[PriceOrigin, Sequence[Listing]]) -> Price | None:
        """Return what the listings that are meant say, of whoever is nearest to the user."""
        for origin in PriceOrigin:
            found = [item for item in meant.get(origin, ()) if self._counts(item)]
            listed = {item.kind for item in found}
            for kind in (kind for kind in PriceKind if kind in listed and self.kind in (None, kind)):
                price = _summary([item for item in found if item.kind is kind], origin)
                if price is not None:
                    return price
        return None

    def _counts(self, item: Listing) -> bool:
        """Say whether a listing is of the cloud asked for; what a user says without a cloud always counts."""
        if self.cloud is None:
            return True
        return plain_cloud(item.cloud) == self.cloud if item.cloud else item.source == PriceOrigin.GIVEN.value


@lru_cache(maxsize=1)
def load_listings() -> tuple[Listing, ...]:
    """Return every listing, in the order of the file."""
    return tuple(
        Listing(
            gpus=tuple(entry["gpus"]),
            usd_per_hour=entry["usd_per_hour"] / entry.get("gpu_count", 1),
            kind=PriceKind(entry.get("kind", PriceKind.ON_DEMAND)),
            cloud=entry["cloud"],
            instance=entry.get("instance"),
            term=entry.get("term"),
            listed_on=entry.get("listed_on"),
            listed_as=entry["listed_as"],
            source=entry["source"],
        )
        for entry in read_shipped(_PRICES_FILE)["listing"]
    )


@lru_cache(maxsize=1)
def shipped_prices() -> PriceBook:
    """Return the book of the listings that wavecast ships.

    >>> shipped_prices().price("Tesla T4").usd_per_hour < 2
    True
    >>> shipped_prices().price("no such GPU")  # nobody lists it: None
    """
    return PriceBook(listings={PriceOrigin.CATALOGUE: load_listings()})


def prices_of(catalog: Catalog) -> PriceBook:
    """Return the shipped book with the prices that entries of a user's GPU file state.

    >>> prices_of(catalog).price("H100 SXM5 80GB").kind.value
    'on-demand'
    """
    own = [
        Listing(
            gpus=(gpu.name,),
            usd_per_hour=gpu.price_usd_per_hour,
            kind=PriceKind.OWN,
            listed_as=gpu.name,
            source=PriceOrigin.GPU_FILE.value,
        )
        for gpu in catalog.gpus
        if gpu.price_usd_per_hour is not None
    ]
    return shipped_prices().with_listings(PriceOrigin.GPU_FILE, own) if own else shipped_prices()


def plain_cloud(name: str) -> str:
    """Return what counts of a cloud's name, however it is spelt.

    >>> plain_cloud("Google Cloud"), plain_cloud("Vast.ai"), plain_cloud("Latitude.sh")
    ('gcp', 'vastai', 'latitude')
    """
    plain = "".join(filter(str.isalnum, name.casefold()))
    return _CLOUD_NAMES.get(plain, plain)


def _summary(listings: Sequence[Listing], origin: PriceOrigin) -> Price | None:
    dated = [item for item in listings if item.listed_on is not None]
    chosen = _one_per_cloud(_recent(dated) or listings)
    if not chosen:
        return None
    dates = [item.listed_on for item in chosen if item.listed_on is not None]
    first = chosen[0]
    alone = len(chosen) == 1
    return Price(
        usd_per_hour=median(item.usd_per_hour for item in chosen),
        kind=first.kind,
        origin=origin,
        source=_source(chosen, origin),
        cloud=first.cloud if alone else None,
        instance=first.instance if alone else None,
        cloud_count=len(chosen),
        date=max(dates, default=None),
        middle_date=sorted(dates)[(len(dates) - 1) // 2] if dates else None,
        oldest_date=min(dates, default=None),
        is_shared=any(len(item.gpus) > 1 for item in chosen) and origin is not PriceOrigin.GIVEN,
    )


def _recent(dated: Sequence[Listing]) -> list[Listing]:
    """Return the listings that are not much older than the newest."""
    newest = max((item.listed_on or "" for item in dated), default="")
    if not newest:
        return []
    first = (date.fromisoformat(newest) - timedelta(days=KEPT_DAYS)).isoformat()
    return [item for item in dated if (item.listed_on or "") >= first]


def _one_per_cloud(listings: Iterable[Listing]) -> list[Listing]:
    """Keep one listing per cloud: of the newest those that name the fewest products, of these the cheapest."""
    ordered = sorted(listings, key=lambda item: (item.listed_on or "", -len(item.gpus), -item.usd_per_hour))
    return list({plain_cloud(item.cloud or item.source): item for item in ordered}.values())


def _source(chosen: Sequence[Listing], origin: PriceOrigin) -> str:
    clouds = sorted({item.cloud for item in chosen if item.cloud})
    said = f"{chosen[0].source}" if origin is not PriceOrigin.CATALOGUE else ""
    return ": ".join(part for part in (said, ", ".join(clouds)) if part)


def today() -> date:
    """Return the day on which prices are looked at."""
    return date.today()


def median_age_days(dates: Iterable[str | None]) -> int | None:
    """Return how many days old prices are on the median, by their ISO dates; None where none is dated.

    >>> median_age_days([None]) is None
    True
    """
    now = today()
    ages = [max((now - date.fromisoformat(item)).days, 0) for item in dates if item is not None]
    return round(median(ages)) if ages else None


def warn_of_age(dates: Sequence[str | None]) -> tuple[str, ...]:
    """Return a sentence where prices of these dates are so old that they mislead.

    >>> warn_of_age(["2020-01-01"])[0].endswith("on the median: give today's with price or prices")
    True
    """
    days = median_age_days(dates)
    if days is None or days <= STALE_DAYS:
        return ()
    given = " or ".join(dict.fromkeys((parameter("price"), parameter("prices"))))
    return (f"prices are {days:,} days old on the median: give today's with {given}",)


def describe_dates(dates: Sequence[str | None]) -> str:
    """Return when prices were listed and how old that is, for a note: `2026-08-26 to 2026-11-09, 44 days old …`."""
    known = sorted({item for item in dates if item is not None})
    parts = []
    if known:
        days = median_age_days(dates)
        parts.append(f"{' to '.join(dict.fromkeys((known[0], known[-1])))}, {days:,} days old on the median")
    if None in dates:
        parts.append("undated")
    return "; ".join(parts)
