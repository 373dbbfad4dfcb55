"""The `shard` command: how a recommender's embedding tables are shared among GPUs."""

from pathlib import Path
from typing import Any

from ...asking.command import report_command
from ...asking.inputs import trace_argument
from .api import ShardingReport, ShardOptions


@report_command("shard", ShardOptions)
@trace_argument
def shard(trace: Path, **asked: Any) -> ShardingReport:
    """Propose how the embedding tables of the recommender recorded in TRACE are shared among GPUs.

    TRACE is a recording of one GPU, measured or of shapes. Each table is held by one rank, parted by
    rows or columns, or copied to all; the fastest mix that fits is looked for. Each GPU's lookups,
    what it sends, its memory, and the iteration's time are told, beside those of simpler plans.

    \b
    Examples:
      shard trace.json.gz --to h100sxm --gpus 8
      shard trace.json.gz --to a100sxm40 --gpus 16 --global-batch 65536
      shard trace.json.gz --to h100sxm --gpus 8 --plan mine.json
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

    return predict(trace, **asked)
