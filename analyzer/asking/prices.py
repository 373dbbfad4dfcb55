"""What GPUs and electricity cost, as a user says it: by name, as a list that somebody keeps, by kind and cloud."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...records import dataclass
from .answer import as_names
from .choice import complete_gpu_equals
from .declared import HelpPart, option

if TYPE_CHECKING:
    from ...specs.gpu import Catalog
    from ...specs.prices.book import PriceBook
    from ..iteration.decision.electricity import Electricity


def _complete_clouds(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the clouds of the shipped prices that begin as was typed, for the shell's completion."""
    from ...specs.prices.book import shipped_prices

    return [name for name in shipped_prices().clouds() if name.casefold().startswith(incomplete.casefold())]


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Say which prices count; what is nearer to the user goes before the list, and that before the shipped table."""

    price: str | Sequence[str] = option(
        HelpPart.MONEY,
        "What a GPU costs per hour ('H100=1.99', 'p5.48xlarge=55.04', 'L40S=0.79 spot'); repeat for several.",
        metavar="GPU=USD",
        multiple=True,
        shell_complete=complete_gpu_equals,
    )
    prices: str | Path | Mapping[str, float] | None = option(
        HelpPart.MONEY,
        "A price list: CSV of gpu and usd_per_hour, TOML, gpuhunt's or SkyPilot's catalogue "
        "(docs/reference/decide.md). Default: the shipped one.",
        type=click.Path(path_type=Path),
        metavar="FILE",
    )
    price_kind: str | None = option(
        HelpPart.MONEY,
        "Count these prices only. Default: your own GPUs' cost, else on demand, reserved, spot.",
        type=click.Choice(("on-demand", "spot", "reserved", "own")),
    )
    cloud: str | None = option(
        HelpPart.MONEY, "Count this cloud's prices only.", metavar="NAME", shell_complete=_complete_clouds
    )

    def book(self, catalog: Catalog) -> PriceBook | None:
        """Return the price book asked for, None for the shipped one.

        Raises InputError, UnknownGpuError for what cannot be read or found.

        >>> Prices(price="H100=1.99").book(catalog).price("H100 PCIe 80GB").usd_per_hour
        1.99
        """
        given = as_names(self.price, "price")
        if not given and self.prices is self.price_kind is self.cloud is None:
            return None
        from ...specs.prices.book import prices_of
        from ...specs.prices.files import read_price_file
        from ...specs.prices.given import read_given
        from ...specs.prices.listing import PriceKind, PriceOrigin

        book = prices_of(catalog)
        if isinstance(self.prices, Mapping):
            given = (*given, *(f"{name}={value}" for name, value in self.prices.items()))
        elif self.prices is not None:
            listings, notes = read_price_file(Path(self.prices), catalog)
            book = book.with_listings(PriceOrigin.FILE, listings, notes)
        if given:
            book = book.with_listings(PriceOrigin.GIVEN, read_given(given, catalog))
        return book.restricted(PriceKind(self.price_kind) if self.price_kind is not None else None, self.cloud)


def read_prices(prices: Prices | Mapping[str, float] | str | Path | None, catalog: Catalog) -> PriceBook | None:
    """Return the price book of a record, of $ per hour by GPU name, or of a price list; None for the shipped one."""
    return (prices if isinstance(prices, Prices) else Prices(prices=prices)).book(catalog)


@dataclass(frozen=True, kw_only=True)
class Power:
    """Say what electricity costs, and what is counted of it beside the board."""

    electricity: float | None = option(
        HelpPart.MONEY,
        "What a kWh costs (0.12): adds energy, its cost and watts to the table.",
        type=float,
        metavar="USD",
    )
    pue: float | None = option(
        HelpPart.MONEY,
        "Count what the site takes for cooling and supply: its power over its computers' (1.2). Default: 1.",
        type=float,
        metavar="RATIO",
    )
    host_watts: float | None = option(
        HelpPart.MONEY,
        "Count the rest of the machine: its watts for each GPU. Default: the board alone.",
        type=float,
        metavar="W",
    )
    carbon: float | None = option(
        HelpPart.MONEY, "What a kWh emits in CO2: of a run (--for), or a day of many GPUs.", type=float, metavar="GRAMS"
    )

    def power(self) -> Electricity | None:
        """Return what energy is counted with; None where nobody asks for it. Raises InputError for what cannot be.

        >>> Power(electricity=0.12).power().usd_per_kwh
        0.12
        """
        from ..iteration.decision.electricity import Electricity

        names = {"usd_per_kwh": self.electricity, "pue": self.pue, "host_w": self.host_watts}
        given = {name: value for name, value in (names | {"co2_g_per_kwh": self.carbon}).items() if value is not None}
        return Electricity(**given) if given else None
