"""`wavecast.shard` and the `shard` command: how a recommender's embedding tables are shared among GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ....records import dataclass, field
from ...asking.answer import Drawn, Report, trace_name
from ...asking.choice import GPU_NAME
from ...asking.command import report_command
from ...asking.declared import COUNT, FILE, HelpPart, asks, declare, option
from ...asking.inputs import AskedLookups, AskedRecording, AskedSource, trace_argument
from ...asking.keywords import read_bytes
from ...asking.machines import GlobalBatch, Machines, MemoryLimit
from ...asking.prices import Power

if TYPE_CHECKING:
    from ....formats.trace.tables import Trace
    from .report import ShardReport


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ShardingReport(Report):
    """Hold plans of embedding tables: `report` has the figures. Its tables: `plans`, `ranks` and `tables`."""

    name: str
    """Of the trace, where its workload has none."""
    report: ShardReport

    def _drawn(self) -> Drawn:
        from ...page.encoding import table_of
        from .page import describe_sharding, draw_sharding_json, placement_table, plans_table
        from .report import ShardLoad

        return Drawn(
            page=lambda: describe_sharding(self.report, name=self.name),
            json=lambda: draw_sharding_json(self.report),
            tables={
                "plans": lambda: plans_table(self.report),
                "ranks": lambda: table_of(self.report.plans[0].ranks, ShardLoad),
                "tables": lambda: placement_table(self.report),
            },
        )

    def _headline(self) -> str:
        from ...page.quantity import format_time

        best = self.report.plans[0]
        where = f"{len(self.report.tables)} tables on {self.report.gpu_count} × {self.report.gpu}"
        return f"{self.report.trace.name or self.name}, {where}: {format_time(best.iteration_ns)}"


@dataclass(frozen=True, kw_only=True)
class ShardOptions(GlobalBatch, MemoryLimit, Machines, Power, AskedRecording, AskedSource, AskedLookups):
    """Hold what may be asked about shared embedding tables."""

    to: str | None = option(HelpPart.GPUS, "The type of the GPUs. Default: the one that was measured.", **GPU_NAME)
    gpus: int = field(
        metadata=declare(
            HelpPart.MANY,
            "How many GPUs share the tables, 2 to 1,024.",
            type=click.IntRange(min=2, max=1024),
            metavar="N",
        )
    )
    plan: str | Path | None = option(
        HelpPart.MANY, "A plan of yours, held against the proposed one: JSON, TOML, or TorchRec's.", **FILE
    )
    from_batch: int | None = option(
        HelpPart.INPUT, "The batch size of the recording, where the trace does not say it.", **COUNT
    )


@asks(ShardOptions)
def shard(trace: str | Path | Trace, asked: ShardOptions) -> ShardingReport:
    """Propose how the embedding tables of a recording of one GPU are shared among `gpus` GPUs.

    `to` is their type, by default the one that was measured; `plan` is a file with a plan of yours, JSON, TOML or
    TorchRec's, which is held against the proposed one. `max_memory` is what a rank may use ("70GiB"), `indices` says
    how lookups are spread over rows ("zipf:1.05"). The other keywords mean what those of `scale` do.
    Raises InputError for what cannot be read or asked, UnknownGpuError for a GPU that is not catalogued.

    >>> report = shard("samples/dlrm-training-fp32-b2048-shapes.json.gz", to="H100 SXM", gpus=8)
    >>> [row["name"] for row in report.to_records()][:2], len(report.to_records("tables"))
    (['proposed', 'greedy'], 26)
    """
    from ....specs.match import find_gpu
    from .shard import shard_trace

    memory = read_bytes("max_memory", asked.max_memory)
    named = asked.named()
    target = None if asked.to is None else find_gpu(named.catalog, asked.to)
    recording = asked.read(trace)
    read = recording.trace
    target = target or named.expect_measured(read, "to", "on which GPUs", "h100")
    report = shard_trace(
        read,
        named.catalog,
        target=target,
        gpu_count=asked.gpus,
        global_batch=asked.global_batch,
        recorded_batch=asked.from_batch,
        max_memory_bytes=memory,
        plan=None if asked.plan is None else Path(asked.plan),
        library=asked.spread(),
        source=named.source,
        iteration=recording.iteration,
        cluster=asked.cluster(named.catalog, [target.name]),
        electricity=asked.power(),
    )
    return ShardingReport(name=trace_name(trace), report=report)


@report_command("shard", ShardOptions)
@trace_argument
def shard_command(trace: Path, **asked: Any) -> ShardingReport:
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
    return shard(trace, **asked)
