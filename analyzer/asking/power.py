"""What electricity costs, as a user says it, and what is counted of it beside the board."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .declared import HelpPart, option

if TYPE_CHECKING:
    from ..iteration.decision.electricity import Electricity


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
        HelpPart.MONEY,
        "What a kWh emits in CO2: of a run (--for), or a day of many GPUs.",
        type=float,
        metavar="GRAMS",
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
