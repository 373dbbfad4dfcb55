"""The `scale` command: a recording of one GPU in, plans on many GPUs out, ranked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...asking.cluster_options import cluster_options, take_cluster
from ...asking.command import (
    WavecastCommand,
    capture_option,
    complete_gpu_names,
    gpu_file_option,
    iteration_option,
    output_options,
    read_gpu_names,
    recover_option,
    source_option,
    trace_argument,
)
from ...asking.energy_options import energy_options, take_electricity
from ...asking.indices_options import indices_option
from ...asking.output import OutputPath, choose_format, screen_for, write_result
from ...asking.plan_options import check_size, check_time, plan_options
from ...asking.price_options import price_options, take_prices
from ...asking.prices import Prices
from ...asking.progress import progress_on_stderr
from ...asking.question import Machines
from ...asking.what_if_options import host_option
from ...page.formats import REPORT_FORMATS
from .api import SHOWN_PLANS, SVG

if TYPE_CHECKING:
    from ...iteration.decision.electricity import Electricity
    from .api import PlansReport


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRequest:
    """Hold what the command line asked for, as parsed."""

    trace: Path
    targets: tuple[str, ...]
    gpu_counts: tuple[int, ...]
    plans: tuple[str, ...]
    search: bool
    global_batch: int | None
    from_batch: int | None
    max_memory: str | None
    measured_step: str | None
    source: str | None
    gpu_file: Path | None
    iteration: int | str | None
    captures: tuple[Path, ...]
    top: int
    timeline: Path | None
    form: str | None
    output: Path | None
    recover: bool
    cluster: Machines
    prices: Prices | None
    indices: str | None
    host: str | None
    electricity: Electricity | None
    sort: str | None


@click.command("scale", cls=WavecastCommand)
@trace_argument
@click.option(
    "--to",
    "targets",
    metavar="GPU,…",
    multiple=True,
    callback=read_gpu_names,
    shell_complete=complete_gpu_names,
    help="GPU types, names as for 'analyze --to', with commas or repeated. Default: the one that was measured.",
)
@plan_options(" Default: the best ones are looked for.")
@click.option("--search", is_flag=True, help="Look for the best plans as well where --plan is given.")
@click.option(
    "--from-batch",
    type=click.IntRange(min=1),
    metavar="N",
    help="The batch size of the recording, where the trace does not say it.",
)
@click.option("--max-memory", metavar="SIZE", callback=check_size, help="What a rank may use, as 70GiB.")
@click.option(
    "--measured-step",
    metavar="TIME",
    callback=check_time,
    help="What the recorded iteration takes on the one GPU of --from, as 350ms: scales all plans, for recordings "
    "without times.",
)
@source_option()
@gpu_file_option
@price_options
@cluster_options
@indices_option
@host_option(
    "The host of every GPU: its speed relative to the recorded one, a name ('wavecast catalog hosts'), or a file.",
    has_old_name=False,
)
@iteration_option()
@capture_option()
@click.option(
    "--top", type=click.IntRange(min=0), default=SHOWN_PLANS, show_default=True, metavar="N", help="Plans listed."
)
@energy_options
@click.option(
    "--sort",
    type=click.Choice(("time", "cost", "memory", "energy")),
    help="What plans are listed by: samples per second (default), cost, memory or energy per sample. A search looks "
    "for the fastest.",
)
@click.option(
    "--timeline",
    type=OutputPath(path_type=Path),
    metavar="FILE",
    help="Write the timeline of the first plan, a track per stage and stream, for ui.perfetto.dev.",
)
@output_options(*REPORT_FORMATS, SVG)
@recover_option
def scale(**options: Any) -> None:
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
      schedule=1f1b|interleaved|gpipe            recompute=none|selective|full
      overlap=off  gradients after the backward  overlap_tensor=on
      prefetch=N layers (fsdp)
      dispatch=alltoall|deepep  tokens to experts
      overlap_experts=on        beside another micro batch
    """
    cluster, prices = take_cluster(options), take_prices(options)
    electricity = take_electricity(options)
    request = ScaleRequest(**options, cluster=cluster, prices=prices, electricity=electricity)
    write_result(draw_plans(_predict(request), request.form, request.output), request.output)


def _predict(request: ScaleRequest) -> PlansReport:
    from .api import scale as predict

    with progress_on_stderr("Reading the trace") as progress:
        return predict(
            request.trace,
            to=request.targets,
            gpus=request.gpu_counts,
            plan=request.plans,
            search=request.search,
            global_batch=request.global_batch,
            from_batch=request.from_batch,
            max_memory=request.max_memory,
            measured_step=request.measured_step,
            source=request.source,
            gpu_file=request.gpu_file,
            machines=request.cluster,
            indices=request.indices,
            host=request.host,
            prices=request.prices,
            electricity=request.electricity,
            sort=request.sort,
            iteration=request.iteration,
            captures=request.captures,
            top=request.top,
            timeline=request.timeline,
            recover=request.recover,
            progress=progress,
        )


def draw_plans(report: PlansReport, form: str | None, output: Path | None) -> str:
    """Write a report of plans in the format asked for; a file's ending may ask for the figure."""
    wants_svg = form is None and output is not None and output.suffix.lower() == ".svg"
    return report.draw(SVG if wants_svg else choose_format(form, output), screen_for(output))
