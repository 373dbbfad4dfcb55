"""The `analyze` command: a trace in, a prediction for every catalogued GPU out."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ....errors import InputError
from ....version import __version__
from ...asking.cluster_options import cluster_options, take_cluster
from ...asking.command import (
    WavecastCommand,
    capture_option,
    complete_gpu_names,
    execution_trace_option,
    gpu_file_option,
    iteration_option,
    output_options,
    read_gpu_names,
    recover_option,
    run_program,
    source_option,
    trace_argument,
)
from ...asking.decision_options import decision_options, take_goal, take_selection
from ...asking.energy_options import energy_options, take_electricity
from ...asking.indices_options import indices_option
from ...asking.observed_options import observed_option, take_observed
from ...asking.output import OutputPath, choose_format, screen_for, write_result
from ...asking.part_options import window_option
from ...asking.plan_options import plan_options
from ...asking.price_options import price_options, take_prices
from ...asking.prices import Prices
from ...asking.progress import progress_on_stderr
from ...asking.question import Machines, WhatIfs
from ...asking.what_if_options import host_option, take_host
from ...page.formats import REPORT_FORMATS
from ..scale.api import SHOWN_PLANS
from ..scale.command import draw_plans
from .api import SHORT_OP_COUNT

if TYPE_CHECKING:
    from ...iteration.decision.electricity import Electricity
    from ...iteration.decision.goal import Goal
    from ...iteration.decision.selection import Selection
    from .api import IterationReport

PRECISIONS: Final = ("bf16", "fp16", "tf32", "fp8", "nvfp4", "int8-weights", "int4-weights")
ATTENTION: Final = ("flash2", "flash3", "cudnn", "efficient", "math", "triton", "ck")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzeRequest:
    """Hold what the command line asked for, as parsed."""

    trace: Path
    targets: tuple[str, ...]
    source: str | None
    gpu_file: Path | None
    with_ops: bool
    top: int | None
    form: str | None
    output: Path | None
    recover: bool
    iteration: int | str | None
    window_ns: tuple[int | None, int | None] | None
    captures: tuple[Path, ...]
    execution_trace: Path | None
    largest_batch: bool
    what_ifs: WhatIfs
    timeline: Path | None
    calibration: Path | None
    gpu_counts: tuple[int, ...]
    plans: tuple[str, ...]
    global_batch: int | None
    cluster: Machines
    prices: Prices | None
    electricity: Electricity | None
    selection: Selection
    goal: Goal | None
    observed: dict[str, str]
    indices: str | None

    @property
    def is_of_plans(self) -> bool:
        """Say whether it is about many GPUs. Raises InputError where only a part of that is said."""
        if self.gpu_counts and not self.plans:
            raise InputError("--gpus says how many, not how they share the work: add --plan, or use 'wavecast scale'")
        if self.global_batch is not None and not self.plans:
            raise InputError("--global-batch is for many GPUs: add --gpus and --plan (one GPU's is --batch)")
        return bool(self.plans)


class _AnalyzeCommand(WavecastCommand):
    """Say which command takes several files."""

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """Read the command line."""
        try:
            return super().make_context(*args, **options)
        except click.UsageError as error:
            is_flag = isinstance(error, click.NoSuchOption) and error.option_name == "--ranks"
            if not is_flag and "unexpected extra argument" not in error.message:
                raise
            message = "one trace at a time: 'wavecast ranks' takes the files of a job's ranks, 'wavecast batch' any"
            raise click.UsageError(message, error.ctx) from None


@click.command("analyze", cls=_AnalyzeCommand)
@trace_argument
@click.option(
    "--to",
    "targets",
    metavar="GPU,…",
    multiple=True,
    callback=read_gpu_names,
    shell_complete=complete_gpu_names,
    help="Predict for this GPU only ('h100': all its variants; 'p4d.24xlarge': one of the instance's); several "
    "with commas, or repeat. Default: every catalogued GPU.",
)
@source_option()
@gpu_file_option
@decision_options
@price_options
@energy_options
@cluster_options
@iteration_option()
@window_option("Predict only what the host began in this time since the recording's start, as in 2s..3s or 350ms...")
@capture_option()
@execution_trace_option
@plan_options()
@click.option("--ops", "with_ops", is_flag=True, help="List every op with its physical bound, method and reason.")
@click.option(
    "--top",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Rows of the op table; 0 leaves it out. Default: {SHORT_OP_COUNT}, with --ops all.",
)
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    metavar="DIR|FILE",
    help="Sharpen the models for the GPUs that these measurement tables (DIR/ops/*.parquet) hold.",
)
@observed_option
@indices_option
@host_option(
    "The target's host: its speed relative to the recorded one (1.2: 20 % faster), a name ('wavecast catalog hosts'), "
    "or a file of 'measure --host' or a measured trace."
)
@click.option("--precision", type=click.Choice(PRECISIONS), help="What if it ran in this precision?")
@click.option("--batch", type=click.IntRange(min=1), metavar="N", help="What if the batch were N?")
@click.option(
    "--from-batch",
    type=click.IntRange(min=1),
    metavar="N",
    help="The batch size of the recording, for --batch, where the trace does not say it.",
)
@click.option("--sequence-length", type=click.IntRange(min=1), metavar="N", help="What if each sample had N tokens?")
@click.option(
    "--from-sequence-length",
    type=click.IntRange(min=1),
    metavar="N",
    help="Tokens per sample of the recording, for --sequence-length, where its shapes do not tell.",
)
@click.option(
    "--cached-tokens",
    type=click.IntRange(min=1),
    metavar="N",
    help="What if the keys and values of N tokens per sample were in the cache?",
)
@click.option(
    "--largest-batch",
    is_flag=True,
    help="Also find, for each GPU, the largest batch that fits and the one of most samples per second; rank by that.",
)
@click.option("--cuda-graph", is_flag=True, help="What if CUDA graphs launched it?")
@click.option("--fuse-elementwise", is_flag=True, help="What if a compiler merged pointwise ops?")
@click.option(
    "--attention-kernel",
    type=click.Choice(ATTENTION),
    help="What if this attention ran, where it exists? Default: the GPU's own choice.",
)
@click.option(
    "--timeline",
    type=OutputPath(path_type=Path),
    metavar="FILE",
    help="Write the predicted timeline of the first --to GPU (default: the source) for ui.perfetto.dev.",
)
@output_options(*REPORT_FORMATS)
@recover_option
@click.version_option(__version__, prog_name="wavecast", message="%(prog)s %(version)s")
def analyze(**options: Any) -> None:
    """Predict the iteration recorded in TRACE on every catalogued GPU.

    TRACE is a wavecast trace or a PyTorch profiler file, gzipped or not, recognised by its content;
    '-' reads standard input. The answer comes first: the fastest GPU and the
    cheapest, or the one for your run; then the GPUs by predicted iteration time, the measured one
    marked.

    \b
    Examples:
      analyze trace.json.gz
      analyze trace.json.gz --to H100 --to L40S --ops
      analyze trace.json.gz --for "3 epochs of 1281167 samples" --deadline 24h
      analyze trace.json.gz --sort cost --fits --vendor nvidia --min-memory 40GB
      analyze trace.json.gz --format json -o prediction.json
      analyze trace.json.gz --to H100 --batch 64 --precision bf16 --cuda-graph
      analyze trace.json.gz --to L40S --timeline timeline.json.gz
      analyze trace.json.gz --to L40S --calibration measured/
      analyze trace.json.gz --iteration longest
      analyze trace.json.gz --to H100 --gpus 64 --plan fsdp=8,tp=8
      analyze execution.json.gz --capture capture.json.gz
    """
    cluster, prices, observed = take_cluster(options), take_prices(options), take_observed(options)
    take_host(options)
    what_ifs = WhatIfs(**{item.name: options.pop(item.name, None) for item in fields(WhatIfs)})
    selection, goal, electricity = take_selection(options), take_goal(options), take_electricity(options)
    request = AnalyzeRequest(
        **options,
        cluster=cluster,
        prices=prices,
        what_ifs=what_ifs,
        observed=observed,
        selection=selection,
        goal=goal,
        electricity=electricity,
    )
    if request.is_of_plans:
        write_result(_predict_plans(request), request.output)
        return
    report = _predict(request)
    write_result(report.draw(choose_format(request.form, request.output), screen_for(request.output)), request.output)


def main() -> None:
    """Run `analyze` as a console command."""
    run_program(analyze, "analyze")


def _predict(request: AnalyzeRequest) -> IterationReport:
    from .api import analyze as predict

    with progress_on_stderr("Reading the trace") as progress:
        found = predict(
            request.trace,
            to=request.targets,
            source=request.source,
            iteration=request.iteration,
            window_ns=request.window_ns,
            ops=request.with_ops,
            top=request.top,
            largest_batch=request.largest_batch,
            gpu_file=request.gpu_file,
            calibration=request.calibration,
            observed=request.observed,
            machines=request.cluster,
            indices=request.indices,
            prices=request.prices,
            electricity=request.electricity,
            selection=request.selection,
            goal=request.goal,
            captures=request.captures,
            execution_trace=request.execution_trace,
            recover=request.recover,
            progress=progress,
            **asdict(request.what_ifs),
        )
    if request.timeline is not None:
        found.save_timeline(request.timeline)
    return found


_ONE_GPU_OPTIONS: Final = {
    "with_ops": "--ops",
    "largest_batch": "--largest-batch",
    "cuda_graph": "--cuda-graph",
    "fuse_elementwise": "--fuse-elementwise",
    "observed": "--observed",
}
"""What nothing says of plans yet."""


def _predict_plans(request: AnalyzeRequest) -> str:
    """Predict plans on many GPUs, and write what `wavecast scale` would of them."""
    from ...iteration.decision.selection import THROUGHPUT, Selection
    from ..catalog.api import gpus
    from ..scale.api import scale

    asked = {"with_ops": request.with_ops, "largest_batch": request.largest_batch, **asdict(request.what_ifs)}
    asked |= {"observed": request.observed}
    for name, option in _ONE_GPU_OPTIONS.items():
        if asked[name]:
            verb, it = ("are", "them") if " and " in option else ("is", "it")
            raise InputError(f"{option} {verb} for one GPU: leave {it} out beside --plan")
    sort = request.selection.sort
    if request.goal is not None or replace(request.selection, sort=None) != Selection() or sort == THROUGHPUT:
        raise InputError(
            f"filters, --sort {THROUGHPUT}, --rows and --for are for one GPU: leave them out beside --plan"
        )
    with progress_on_stderr("Reading the trace") as progress:
        report = scale(
            request.trace,
            to=request.targets or [gpu.name for gpu in gpus(gpu_file=request.gpu_file)],
            gpus=request.gpu_counts,
            plan=request.plans,
            global_batch=request.global_batch,
            from_batch=request.what_ifs.from_batch,
            source=request.source,
            gpu_file=request.gpu_file,
            machines=request.cluster,
            indices=request.indices,
            prices=request.prices,
            iteration=request.iteration,
            window_ns=request.window_ns,
            captures=request.captures,
            execution_trace=request.execution_trace,
            calibration=request.calibration,
            what_ifs=request.what_ifs,
            top=SHOWN_PLANS if request.top is None else request.top,
            electricity=request.electricity,
            sort=sort,
            timeline=request.timeline,
            recover=request.recover,
            progress=progress,
        )
    return draw_plans(report, request.form, request.output)
