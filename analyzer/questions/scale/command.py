"""`wavecast.scale` and the `scale` command: a recording of one GPU, predicted on many under parallel plans."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ....errors import InputError, parameter
from ....records import dataclass
from ...asking.answer import Drawn, PicturedReport, as_names, trace_name
from ...asking.choice import GPU_NAMES
from ...asking.command import report_command
from ...asking.declared import LIST_LENGTH, HelpPart, as_counts, asks, option
from ...asking.inputs import AskedCalibration, AskedLookups, AskedRecording, AskedSource, trace_argument
from ...asking.keywords import read_bytes, read_duration_ns
from ...asking.machines import GlobalBatch, Machines, MemoryLimit
from ...asking.output import OutputPath
from ...asking.prices import Power, Prices
from ...asking.what_ifs import WhatIfs
from ...whatif.parallel.grammar import FRAMEWORKS

if TYPE_CHECKING:
    from ....formats.trace.tables import Trace
    from ...page.page import Chart, Page
    from .report import ScaleReport

SHOWN_PLANS: Final = 10
"""Where nobody says how many."""
MOST_GPUS: Final = 99_999_999


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PlansReport(PicturedReport):
    """Hold plans on many GPUs, ranked: `report` has the figures. Its table is `plans`: a row per plan, GPU, count."""

    name: str
    """Of the trace, where its workload has none."""
    report: ScaleReport
    shown_count: int = SHOWN_PLANS
    """Plans in its page."""

    def _drawn(self) -> Drawn:
        from .page import describe_scale, draw_scale_json, plan_table

        return Drawn(
            page=lambda: describe_scale(self.report, name=self.name, top=self.shown_count),
            json=lambda: draw_scale_json(self.report),
            tables={"plans": lambda: plan_table(self.report)},
        )

    def illustrated_page(self) -> Page:
        """Return it with charts."""
        from .charts import illustrate_scale

        return illustrate_scale(self.page(), self.report)

    def chart(self) -> Chart:
        """Return the scaling curve."""
        from .charts import chart_scaling

        return chart_scaling(self.report, name=self.name)

    def _headline(self) -> str:
        from ...page.quantity import format_count, format_time

        rows = self.report.predictions
        best = f": best {rows[0].plan} on {rows[0].gpu_count} × {rows[0].gpu}, {format_time(rows[0].iteration_ns)}"
        return f"{self.report.trace.name or self.name}, {format_count(len(rows), 'plan')}{best if rows else ''}"


@dataclass(frozen=True, kw_only=True)
class ScaleOptions(
    GlobalBatch,
    MemoryLimit,
    Machines,
    WhatIfs,
    Prices,
    Power,
    AskedRecording,
    AskedSource,
    AskedCalibration,
    AskedLookups,
):
    """Hold what may be asked about many GPUs."""

    to: str | Sequence[str] = option(
        HelpPart.GPUS,
        "GPU types, names as for 'analyze --to', with commas or repeated. Default: the one that was measured.",
        **GPU_NAMES,
    )
    sort: str | None = option(
        HelpPart.GPUS,
        "What plans are listed by: samples per second (default), cost, memory or energy per sample. A search looks "
        "for the fastest.",
        type=click.Choice(("time", "cost", "memory", "energy")),
    )
    gpus: int | Sequence[int] = option(
        HelpPart.MANY,
        "How many GPUs: 64, or several as in 8,64,512.",
        metavar="N,…",
        multiple=True,
        callback=as_counts("a number of GPUs"),
    )
    plan: str | Path | Sequence[str | Path] = option(
        HelpPart.MANY,
        "A plan, such as fsdp=8,tp=2, or a TOML file; an axis left open (tp=2; fsdp=*) takes the rest of --gpus. "
        "Repeat for several. Default: the best ones are looked for.",
        metavar="PLAN|FILE",
        multiple=True,
    )
    framework: str | None = option(
        HelpPart.MANY,
        "Whose rules plans follow that name none (megatron, nemo, torchtitan, hf, fsdp, …): how gradients are put "
        "together, whether keys and values travel beside attention (cp). Default: torch's, which records.",
        type=click.Choice(tuple(FRAMEWORKS)),
        metavar="NAME",
    )
    search: bool = option(HelpPart.MANY, "Look for the best plans as well where --plan is given.", default=False)
    measured_step: str | None = option(
        HelpPart.INPUT,
        "What the recorded iteration takes on the one GPU of --from, as 350ms: scales all plans, for recordings "
        "without times.",
        metavar="TIME",
    )
    top: int = option(HelpPart.OUTPUT, "Plans listed.", default=SHOWN_PLANS, **LIST_LENGTH)
    timeline: str | Path | None = option(
        HelpPart.OUTPUT,
        "Write the timeline of the first plan, a track per stage and stream, for ui.perfetto.dev.",
        type=OutputPath(path_type=Path),
        metavar="FILE",
    )


@asks(ScaleOptions)
def scale(trace: str | Path | Trace, asked: ScaleOptions) -> PlansReport:
    """Predict a recording of one GPU on many, under the best parallel plans, or those that `plan` names.

    `gpus` says how many: one number or several. `max_memory` is what a rank may use ("70GiB") and `measured_step` what
    the recorded iteration takes on `source` ("350ms"). `timeline` is a file for the first plan's timeline. The keywords
    mean what the options of `scale` of the same names do.
    Raises InputError for what cannot be read or asked, UnknownGpuError for a GPU that is not catalogued, and TraceError
    for a file that is no trace.

    >>> sample = "samples/gpt2_small-training-bf16-b4-shapes.json.gz"
    >>> report = scale(sample, to="H100 SXM", gpus=8, plan=["dp=8", "fsdp=8"])
    >>> [(row["plan"], row["gpu_count"], row["fits"]) for row in report.to_records()]
    [('fsdp=8', 8, True), ('dp=8', 8, True)]
    """
    from .scale import scale_trace

    counts = tuple(dict.fromkeys(_gpu_counts(asked.gpus)))
    named = asked.named(asked.to)
    step_ns = read_duration_ns("measured_step", asked.measured_step)
    if step_ns is not None and named.source is None:
        raise InputError(
            f"{parameter('measured_step')} says how long one GPU takes: say which with {parameter('from', 'GPU')}"
        )
    recording = asked.read(trace)
    read = recording.trace
    sharpened = asked.sharpened(read, named)
    report = scale_trace(
        read,
        named.catalog,
        targets=named.targets or [named.expect_measured(read, "to", "on which GPUs", "h100")],
        gpu_counts=counts,
        plans=as_names(asked.plan, "plan"),
        search=asked.search,
        framework=asked.framework,
        global_batch=asked.global_batch,
        max_memory_bytes=read_bytes("max_memory", asked.max_memory),
        measured_step_ns=step_ns,
        source=named.source,
        library=asked.spread(None if sharpened is None else sharpened.library),
        scenario=asked.scenario(read, asks_for_batches=True),
        iteration=recording.iteration,
        cluster=asked.cluster(named.catalog, as_names(asked.to)),
        prices=asked.book(named.catalog),
        timeline=None if asked.timeline is None else Path(asked.timeline),
        electricity=asked.power(),
        sort=asked.sort,
    )
    return PlansReport(name=trace_name(trace), report=report, shown_count=asked.top)


def _gpu_counts(gpus: int | Sequence[int]) -> list[int]:
    counts = gpus if isinstance(gpus, Sequence) else [gpus]
    if not all(isinstance(count, int) and 0 < count <= MOST_GPUS for count in counts):
        raise InputError(f"gpus={gpus!r}: expected a number of GPUs, or several as in [8, 64, 512]")
    return list(counts)


@report_command("scale", ScaleOptions, formats=PlansReport.formats)
@trace_argument
def scale_command(trace: Path, **asked: Any) -> PlansReport:
    """Predict the iteration recorded in TRACE on many GPUs, under the best parallel plans or given ones.

    TRACE is a recording of one GPU, measured or of shapes. What each rank runs under a plan is derived
    from it. Plans are ranked by samples per second; time, cost, memory and what limits each are told.
    A file that ends in .svg gets the scaling curve.

    \b
    Examples:
      scale trace.json.gz --to h100 --gpus 64
      scale trace.json.gz --to h100,b200 --gpus 8,64,512 -o curve.svg
      scale trace.json.gz --to h100 --gpus 64 --plan fsdp=64 --plan fsdp=*,tp=2
      scale trace.json.gz --to h100 --plan plan.toml --timeline timeline.json.gz
      scale trace.json.gz --to h100 --gpus 64 --sort energy --electricity 0.12

    \b
    A plan has words with numbers (ranks = dp x fsdp x tp x cp x pp):
      dp=N       replicas              zero=1|2  shard optimizer, gradients
      fsdp=N     sharded parameters    tp=N      tensor parallel
      sp=off     whole sequences between the tensor parallel parts
      cp=N       context parallel      ep=N      experts, among dp x fsdp x cp
                                                 (x tp with sp)
      pp=N       pipeline stages       vp=N      pieces per stage (interleaved)
      mb=N       samples of a micro batch        ga=N  micro batches
      schedule=1f1b|interleaved|gpipe            recompute=none|selective
                                                 |ops|early|full
      overlap=off  gradients after the backward  overlap_tensor=on
      buckets=torch|megatron    how gradients are put together
      overlap_context=on      prefetch=N layers (fsdp)
      dispatch=alltoall|deepep|hybridep          tokens to experts
      overlap_experts=on        beside another micro batch
      framework=megatron|torch  as --framework, of this plan alone
    """
    return scale(trace, **asked)
