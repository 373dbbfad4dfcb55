"""What GPUs cost, as a user says it: prices given by name, a list that somebody keeps, of which kind and cloud."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import InputError

if TYPE_CHECKING:
    from ...specs.gpu import Catalog
    from ...specs.prices.book import PriceBook


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Say which prices count; what is nearer to the user goes before the list, and that before the shipped table."""

    given: tuple[str, ...] = ()
    """As `H100=1.99`, `p5.48xlarge=55.04` or `L40S=0.79 spot`."""
    file: Path | None = None
    """A price list; docs/prices.md says which are read."""
    kind: str | None = None
    """`on-demand`, `spot`, `reserved` or `own`: no other prices count."""
    cloud: str | None = None
    """The only cloud whose prices count."""

    def book(self, catalog: Catalog) -> PriceBook:
        """Return the price book asked for. Raises InputError, UnknownGpuError for what cannot be read or found.

        >>> Prices(given=("H100=1.99",)).book(catalog).price("H100 PCIe 80GB").usd_per_hour
        1.99
        """
        from ...specs.prices.book import prices_of
        from ...specs.prices.files import read_price_file
        from ...specs.prices.given import read_given
        from ...specs.prices.listing import PriceKind, PriceOrigin

        if self.kind is not None and self.kind not in tuple(PriceKind):
            raise InputError(f"kind of price {self.kind!r}: expected {', '.join(PriceKind)}")
        book = prices_of(catalog)
        if self.file is not None:
            listings, notes = read_price_file(Path(self.file), catalog)
            book = book.with_listings(PriceOrigin.FILE, listings, notes)
        if self.given:
            book = book.with_listings(PriceOrigin.GIVEN, read_given(self.given, catalog))
        return book.restricted(PriceKind(self.kind) if self.kind is not None else None, self.cloud)


def read_prices(prices: Prices | Mapping[str, float] | str | Path | None, catalog: Catalog) -> PriceBook | None:
    """Return the price book of a record, of $ per hour by GPU name, or of a price list; None for the shipped one."""
    if prices is None:
        return None
    if isinstance(prices, Prices):
        return prices.book(catalog)
    if isinstance(prices, Mapping):
        return Prices(given=tuple(f"{name}={value}" for name, value in prices.items())).book(catalog)
    return Prices(file=Path(prices)).book(catalog)
