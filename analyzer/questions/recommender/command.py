"""The `recommender` command: how long a described recommender's training iteration takes on many GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...asking.cluster_options import cluster_options, take_cluster
from ...asking.command import WavecastCommand, complete_gpu_names, gpu_file_option, output_options, read_gpu_names
from ...asking.energy_options import energy_options, take_electricity
from ...asking.indices_options import indices_option
from ...asking.output import OutputPath, choose_format, screen_for, write_result
from ...page.formats import REPORT_FORMATS


@click.command("recommender", cls=WavecastCommand)
@click.argument("description", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--to",
    metavar="GPU,…",
    multiple=True,
    callback=read_gpu_names,
    required=True,
    shell_complete=complete_gpu_names,
    help="The type of the GPUs; several with commas, or repeat.",
)
@click.option("--gpus", type=click.IntRange(1, 1024), metavar="N", help="How many GPUs. Default: what FILE says.")
@click.option(
    "--global-batch",
    type=click.IntRange(min=1),
    metavar="N",
    help="Samples of an iteration on all GPUs. Default: what FILE says.",
)
@indices_option
@click.option(
    "--save-trace",
    type=OutputPath(path_type=Path),
    metavar="FILE",
    help="Write what the busiest GPU runs, as a trace of shapes, for the fastest type.",
)
@gpu_file_option
@cluster_options
@energy_options
@click.option(
    "--sort", type=click.Choice(("time", "energy")), help="What stands first: the fastest (default), the least energy."
)
@output_options(*REPORT_FORMATS)
def recommender(**options: Any) -> None:
    """Predict the training iteration of the recommender that FILE describes, on many GPUs.

    FILE is TOML: the sizes of tables and layers, the batch, how many GPUs, and which library shares
    the tables among them how. No recording is needed. What the iteration's time goes to is told,
    with its interval: lookups and updates, layers, what is sent, the host.

    \b
    Examples:
      recommender dlrm.toml --to h100sxm
      recommender dlrm.toml --to a100sxm80 --to h100sxm --gpus 64
      recommender dlrm.toml --to h100sxm --indices zipf:0.8
    """
    from .api import recommender as predict

    cluster = take_cluster(options)
    output, saved = options.pop("output"), options.pop("save_trace")
    form = choose_format(options.pop("form"), output)
    electricity = take_electricity(options)
    found = predict(**options, machines=cluster, electricity=electricity)
    if saved is not None:
        found.save_trace(saved)
    write_result(found.draw(form, screen_for(output)), output)
