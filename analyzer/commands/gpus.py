"""The `gpus` command: the catalogue, or one entry of it with its sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .command import WavecastCommand, complete_gpu_names, gpu_file_option, output_options
from .output import choose_format, screen_for, write_result
from .price_options import price_options, take_prices


@click.command("gpus", cls=WavecastCommand, short_help="List the GPU catalogue, or all facts of one GPU.")
@click.argument("name", required=False, metavar="[NAME]", shell_complete=complete_gpu_names)
@output_options("table", "json", "csv")
@gpu_file_option
@price_options
def gpus(name: str | None, form: str | None, output: Path | None, gpu_file: Path | None, **options: Any) -> None:
    """List the GPU catalogue; with NAME, all facts of that GPU and where each comes from.

    NAME may be short ('h100sxm', '4090'), what a framework prints, or a cloud instance
    ('p4d.24xlarge'); of several that it may mean ('h100') the table is shown. A file given with
    --gpu-file has [[gpu]] tables like those of the built-in catalogue; `based_on = "NAME"` takes
    over what an entry leaves out:

    \b
      [[gpu]]
      name = "H100 with twice the bandwidth"
      based_on = "H100 SXM5 80GB"
      memory = { bandwidth_gb_per_s = 6704 }
    """
    from ...specs.catalog import load_catalog
    from ...specs.match import describe_machines, find_gpus
    from ...specs.prices.book import prices_of
    from ..api.prices import read_prices
    from ..rendering.gpus import describe_gpu, describe_gpus, draw_gpus_csv, draw_gpus_json
    from ..rendering.page.terminal import draw_terminal

    catalog = load_catalog(gpu_file)
    prices = read_prices(take_prices(options), catalog) or prices_of(catalog)
    chosen = catalog.gpus if name is None else find_gpus(catalog, name)
    machines = () if name is None else describe_machines(catalog, [name])
    kind = choose_format(form, output)
    if kind == "json":
        text = draw_gpus_json(chosen, prices)
    elif kind == "csv":
        text = draw_gpus_csv(chosen, prices)
    else:
        page = (
            describe_gpu(chosen[0], prices, machines) if len(chosen) == 1 else describe_gpus(chosen, prices, machines)
        )
        text = draw_terminal(page, screen_for(output))
    write_result(text, output)
