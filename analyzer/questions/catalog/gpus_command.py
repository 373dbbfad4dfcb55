"""The `gpus` command: the catalogue, or one entry of it with its sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...asking.command import WavecastCommand, complete_gpu_names, gpu_file_option, output_options
from ...asking.output import choose_format, screen_for, write_result
from ...asking.price_options import price_options, take_prices
from ...page.formats import REPORT_FORMATS


@click.command("gpus", cls=WavecastCommand, short_help="List the GPU catalogue, or all facts of one GPU.")
@click.argument("name", required=False, metavar="[NAME]", shell_complete=complete_gpu_names)
@output_options(*REPORT_FORMATS)
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
    from .api import gpus as find

    found = find(name, gpu_file=gpu_file, prices=take_prices(options))
    write_result(found.draw(choose_format(form, output), screen_for(output)), output)
