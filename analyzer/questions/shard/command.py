"""The `shard` command: how a recommender's embedding tables are shared among GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ...asking.cluster_options import cluster_options, take_cluster
from ...asking.command import (
    WavecastCommand,
    complete_gpu_names,
    gpu_file_option,
    iteration_option,
    name_of_trace,
    output_options,
    recover_option,
    source_option,
    trace_argument,
)
from ...asking.energy_options import energy_options, take_electricity
from ...asking.indices_options import indices_option
from ...asking.output import choose_format, screen_for, write_result
from ...asking.plan_options import check_size
from ...asking.progress import progress_on_stderr
from ...page.formats import REPORT_FORMATS


@click.command("shard", cls=WavecastCommand)
@trace_argument
@click.option(
    "--to",
    metavar="GPU",
    shell_complete=complete_gpu_names,
    help="The type of the GPUs. Default: the one that was measured.",
)
@click.option(
    "--gpus",
    "gpus",
    type=click.IntRange(min=2, max=1024),
    required=True,
    metavar="N",
    help="How many GPUs share the tables, 2 to 1,024.",
)
@click.option("--memory", "max_memory", metavar="SIZE", callback=check_size, help="What a GPU may use, as 70GiB.")
@click.option(
    "--plan",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A plan of yours, held against the proposed one: JSON, TOML, or TorchRec's.",
)
@click.option("--torchrec", is_flag=True, help="Hold the plan of TorchRec's planner against it, where installed.")
@click.option(
    "--global-batch",
    type=click.IntRange(min=1),
    metavar="N",
    help="Samples of an iteration on all GPUs. Default: a recorded batch for every GPU.",
)
@click.option(
    "--from-batch",
    type=click.IntRange(min=1),
    metavar="N",
    help="The batch size of the recording, where the trace does not say it.",
)
@source_option()
@gpu_file_option
@cluster_options
@energy_options
@indices_option
@iteration_option()
@output_options(*REPORT_FORMATS)
@recover_option
def shard(**options: Any) -> None:
    """Propose how the embedding tables of the recommender recorded in TRACE are shared among GPUs.

    TRACE is a recording of one GPU, measured or of shapes. Each table is held by one rank, parted by
    rows or columns, or copied to all; the fastest mix that fits is looked for. Each GPU's lookups,
    what it sends, its memory, and the iteration's time are told, beside those of simpler plans.

    \b
    Examples:
      shard trace.json.gz --to h100sxm --gpus 8
      shard trace.json.gz --to a100sxm40 --gpus 16 --global-batch 65536
      shard trace.json.gz --to h100sxm --gpus 8 --plan mine.json
      shard trace.json.gz --to h100sxm --gpus 8 --torchrec
      shard trace.json.gz --to h100sxm --gpus 8 -o plan.json

    \b
    A plan is JSON, as TorchRec writes it or (what -o plan.json writes is one):
      {"tables": {"NAME": {"sharding": KIND, "ranks": [0, …]}, …}}
    Kinds:
      table_wise     one rank holds the table
      column_wise    each rank holds all rows, and an equal part of the columns
      row_wise       each rank holds an equal part of the rows (no ranks: all)
      data_parallel  every rank holds a copy
    """
    from .api import shard as predict

    cluster, electricity = take_cluster(options), take_electricity(options)
    output = options.pop("output")
    form = choose_format(options.pop("form"), output)
    with progress_on_stderr("Reading the trace") as progress:
        found = predict(**options, machines=cluster, electricity=electricity, progress=progress)
    found = replace(found, name=name_of_trace(options["trace"]))
    write_result(found.draw(form, screen_for(output)), output)
