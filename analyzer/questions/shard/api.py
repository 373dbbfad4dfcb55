"""`wavecast.shard`: how a recommender's embedding tables are shared among GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ....errors import InputError, parameter
from ...asking.amounts import read_bytes
from ...asking.answer import Report, trace_name
from ...asking.electricity import read_electricity
from ...asking.keywords import check_count, check_iteration, checks_kinds
from ...asking.lookups import with_spread
from ...asking.question import Machines, find_named, read_recording

if TYPE_CHECKING:
    from ....formats.files.importers import Progress
    from ....formats.trace.tables import Trace
    from ...asking.answer import Tables
    from ...iteration.decision.electricity import Electricity
    from ...page.page import Page
    from .report import ShardReport

MOST_SAMPLES = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ShardingReport(Report):
    """Hold plans of embedding tables: `report` has the figures. Its tables: `plans`, `ranks` and `tables`."""

    name: str
    """Of the trace, where its workload has none."""
    report: ShardReport

    def page(self) -> Page:
        """Return the report in words and sheets."""
        from .page import describe_sharding

        return describe_sharding(self.report, name=self.name)

    def illustrated_page(self) -> Page:
        """Return it with charts."""
        from .charts import illustrate_sharding

        return illustrate_sharding(self.report, name=self.name)

    def to_json(self) -> str:
        """Return the report as JSON, with all digits; docs/shard.md has its layout."""
        from .records import draw_sharding_json

        return draw_sharding_json(self.report)

    def _tables(self) -> Tables:
        from .records import placement_table, plans_table, rank_table

        return {
            "plans": lambda: plans_table(self.report),
            "ranks": lambda: rank_table(self.report),
            "tables": lambda: placement_table(self.report),
        }

    def _headline(self) -> str:
        from ...page.quantity import format_time

        best = self.report.plans[0]
        where = f"{len(self.report.tables)} tables on {self.report.gpu_count} × {self.report.gpu}"
        return f"{self.report.trace.name or self.name}, {where}: {format_time(best.iteration_ns)}"


@checks_kinds
def shard(  # noqa: PLR0913 (all that one may ask, by name)
    trace: str | Path | Trace,
    *,
    gpus: int,
    to: str | None = None,
    plan: str | Path | None = None,
    torchrec: bool = False,
    global_batch: int | None = None,
    from_batch: int | None = None,
    max_memory: str | None = None,
    source: str | None = None,
    gpu_file: str | Path | None = None,
    machines: Machines | None = None,
    indices: str | Path | None = None,
    iteration: int | str | None = None,
    electricity: Electricity | float | None = None,
    recover: bool = False,
    progress: Progress | None = None,
) -> ShardingReport:
    """Propose how the embedding tables of a recording of one GPU are shared among `gpus` GPUs.

    `to` is their type, by default the one that was measured; `plan` is a file with a plan of yours, JSON, TOML or
    TorchRec's, which is held against the proposed one, as is with `torchrec` that of TorchRec's planner, where TorchRec
    is installed. `max_memory` is what a rank may use ("70GiB"), `indices` says how lookups are spread over
    rows ("zipf:1.05"), `electricity` is $ per kWh, or an `Electricity`. The other keywords mean what those of `scale`
    do.
    Raises InputError for what cannot be read or asked, UnknownGpuError for a GPU that is not catalogued.

    >>> report = shard("samples/dlrm-training-fp32-b2048-shapes.json.gz", to="H100 SXM", gpus=8)
    >>> [row["name"] for row in report.to_records()][:2], len(report.to_records("tables"))
    (['proposed', 'greedy'], 26)
    """
    from ....specs.match import find_gpu
    from ...recorded.devices import first_known_gpu
    from .shard import shard_trace

    count = check_count("gpus", gpus, least=2)
    if count is None:
        raise InputError(f"{parameter('gpus')} says how many GPUs share the tables: expected a whole number")
    samples = check_count("global_batch", global_batch)
    if samples is not None and samples > MOST_SAMPLES:
        raise InputError(f"{parameter('global_batch', samples)}: expected {MOST_SAMPLES:,} samples at most")
    memory = read_bytes("max_memory", max_memory)
    named = find_named([], source, gpu_file)
    target = None if to is None else find_gpu(named.catalog, to)
    recording = read_recording(trace, iteration=check_iteration(iteration), recover=recover, progress=progress)
    read = recording.trace
    target = target or named.source or (first_known_gpu(named.catalog, read) if read.is_measured else None)
    if target is None:
        raise InputError(
            f"{parameter('to')} says on which GPUs: a recording of shapes has none of its own; add "
            f"{parameter('to', 'h100')}"
        )
    report = shard_trace(
        read,
        named.catalog,
        target=target,
        gpu_count=count,
        global_batch=samples,
        recorded_batch=check_count("from_batch", from_batch),
        max_memory_bytes=memory,
        plan=None if plan is None else Path(plan),
        torchrec=torchrec,
        library=with_spread(None, indices),
        source=named.source,
        iteration=recording.iteration,
        cluster=(machines or Machines()).cluster(named.catalog, [target.name]),
        electricity=read_electricity(electricity),
    )
    return ShardingReport(name=trace_name(trace), report=report)
