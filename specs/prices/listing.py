"""One price: what somebody asked for a GPU and hour, where, when, and on what terms."""

from enum import StrEnum
from math import isfinite
from typing import Final

from ...records import dataclass

HIGHEST_USD_PER_HOUR: Final = 1000.0
"""For one GPU: above, a price is of another unit."""


class PriceKind(StrEnum):
    """Name the terms of a price."""

    OWN = "own"
    """What a GPU of one's own costs per hour: its purchase written off, and its power."""
    ON_DEMAND = "on-demand"
    RESERVED = "reserved"
    """For whoever commits to a term."""
    SPOT = "spot"
    """May be taken away at any time."""


KINDS: Final = tuple(kind.value for kind in PriceKind)


class PriceOrigin(StrEnum):
    """Name who says a price; the first that says any goes before the others."""

    GIVEN = "given"
    """A user, about this GPU."""
    GPU_FILE = "GPU file"
    """The entry of the GPU in a user's file."""
    FILE = "price file"
    CATALOGUE = "catalogue"
    """The table that wavecast ships."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Hold what was asked for one GPU and hour."""

    gpus: tuple[str, ...]
    """Catalogue names; several where the listing does not tell them apart."""
    usd_per_hour: float
    """Of one GPU: the price of a machine over its GPUs."""
    kind: PriceKind = PriceKind.ON_DEMAND
    cloud: str | None = None
    instance: str | None = None
    """The machine whose price it is a part of, where that is said."""
    term: str | None = None
    """What is committed to, of a reserved price: `1 year`."""
    listed_on: str | None = None
    """ISO date on which the source read or changed the listing; None where it does not say."""
    listed_as: str = ""
    source: str = ""
    """Who says so: a key of the table's sources, or the name of a user's file."""


def is_usable_price(usd_per_hour: float) -> bool:
    """Say whether a number can be what one GPU costs per hour.

    >>> is_usable_price(1.99), is_usable_price(float("nan")), is_usable_price(-1.0)
    (True, False, False)
    """
    return isfinite(usd_per_hour) and 0 <= usd_per_hour <= HIGHEST_USD_PER_HOUR
