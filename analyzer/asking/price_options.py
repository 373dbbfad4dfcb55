"""The options that say what GPUs cost, for every command that shows or sums money."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .command import FunctionT, complete_gpu_equals
from .prices import Prices


def price_options(function: FunctionT) -> FunctionT:
    """Add `--price`, `--prices`, `--price-kind` and `--cloud`; `take_prices` takes their values."""
    given = click.option(
        "--price",
        "given_prices",
        metavar="GPU=USD",
        multiple=True,
        shell_complete=complete_gpu_equals,
        help="What a GPU costs per hour ('H100=1.99', 'p5.48xlarge=55.04', 'L40S=0.79 spot'); repeat for several.",
    )
    file = click.option(
        "--prices",
        "price_file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="A price list: CSV of gpu and usd_per_hour, TOML, gpuhunt's or SkyPilot's catalogue, Parquet "
        "(docs/prices.md). Default: the shipped one.",
    )
    kind = click.option(
        "--price-kind",
        type=click.Choice(("on-demand", "spot", "reserved", "own")),
        help="Count these prices only. Default: your own GPUs' cost, else on demand, reserved, spot.",
    )
    cloud = click.option(
        "--cloud", metavar="NAME", shell_complete=_complete_clouds, help="Count this cloud's prices only."
    )
    return given(file(kind(cloud(function))))


def take_prices(options: dict[str, Any]) -> Prices | None:
    """Take the values of these options out of a command's options; None where none was given."""
    found = Prices(
        given=options.pop("given_prices"),
        file=options.pop("price_file"),
        kind=options.pop("price_kind"),
        cloud=options.pop("cloud"),
    )
    return None if found == Prices() else found


def _complete_clouds(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the clouds of the shipped prices that begin as was typed, for the shell's completion."""
    from ...specs.prices.book import shipped_prices

    return [name for name in shipped_prices().clouds() if name.casefold().startswith(incomplete.casefold())]
