"""The options that say what electricity costs, and what is counted of it beside the board."""

from __future__ import annotations

from typing import Any

import click

from .command import FunctionT
from .decision import Electricity


def energy_options(function: FunctionT) -> FunctionT:
    """Add `--electricity`, `--pue`, `--host-watts` and `--carbon`; `take_electricity` takes their values."""
    price = click.option(
        "--electricity",
        "usd_per_kwh",
        type=float,
        metavar="USD",
        help="What a kWh costs (0.12): adds energy, its cost and watts to the table.",
    )
    site = click.option(
        "--pue",
        type=float,
        metavar="RATIO",
        help="Count what the site takes for cooling and supply: its power over its computers' (1.2). Default: 1.",
    )
    host = click.option(
        "--host-watts",
        "host_w",
        type=float,
        metavar="W",
        help="Count the rest of the machine: its watts for each GPU. Default: the board alone.",
    )
    carbon = click.option(
        "--carbon",
        "co2_g_per_kwh",
        type=float,
        metavar="GRAMS",
        help="What a kWh emits in CO2: of a run (--for), or a day of many GPUs.",
    )
    return price(site(host(carbon(function))))


def take_electricity(options: dict[str, Any]) -> Electricity | None:
    """Take the values of these options out of a command's options; None where none was given.

    Raises InputError for what cannot be meant.
    """
    names = ("usd_per_kwh", "pue", "host_w", "co2_g_per_kwh")
    given = {name: value for name in names if (value := options.pop(name)) is not None}
    return Electricity(**given) if given else None
