"""Loads the dated prices that wavecast ships. Facts of the past, no offers: show their dates with them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from ..documents import Entry, read_toml
from .listing import Listing, PriceKind

_PRICES_FILE = Path(__file__).parent.with_name("prices.toml")


@lru_cache(maxsize=1)
def load_listings() -> tuple[Listing, ...]:
    """Return every listing, in the order of the file."""
    return tuple(_listing(entry) for entry in read_toml(_PRICES_FILE)["listing"])


def _listing(entry: Entry) -> Listing:
    listed_on = entry.get("listed_on")
    return Listing(
        gpus=tuple(entry["gpus"]),
        usd_per_hour=entry["usd_per_hour"] / entry.get("gpu_count", 1),
        kind=PriceKind(entry.get("kind", PriceKind.ON_DEMAND)),
        cloud=entry["cloud"],
        instance=entry.get("instance"),
        term=entry.get("term"),
        listed_on=listed_on.isoformat() if listed_on is not None else None,
        listed_as=entry["listed_as"],
        source=entry["source"],
    )
