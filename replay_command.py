"""The `replay` command: a recording against its own replay, or, with `--run`, its ops re-run on the local device.

It stands above the tracer, which runs ops, and the analyzer, which predicts and compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from .analyzer.commands.command import (
    FAILED_EXIT_CODE,
    WavecastCommand,
    complete_gpu_names,
    gpu_file_option,
    output_options,
    recover_option,
    trace_argument,
)
from .analyzer.commands.output import choose_format, screen_for, write_result
from .analyzer.commands.progress import progress_on_stderr
from .analyzer.commands.replay import Request, replay_recording
from .errors import CaptureError, InputError

if TYPE_CHECKING:
    from .analyzer.accuracy.rerun.report import Measured, RerunReport
    from .analyzer.accuracy.rerun.worklist import Worklist
    from .formats.trace import Device, Trace
    from .specs.gpu import Catalog, Gpu
    from .tracer.rerun.record import LocalDevice, Rerun

SECONDS: Final = 60.0
SHORT_OP_COUNT: Final = 10
_RUN_ONLY: Final = {"device": "--device", "seconds": "--seconds", "top": "--top"}
_NO_TORCH: Final = "--run needs torch: pip install 'wavecast[tracer]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """Hold what the command line asked of a re-run."""

    device: str | None
    seconds: float
    top: int

    def __post_init__(self) -> None:
        if not (isfinite(self.seconds) and self.seconds > 0):
            raise InputError(f"--seconds {self.seconds:g}: expected a time above zero")


@click.command("replay", cls=WavecastCommand, short_help="Replay a recording and compare; --run: re-run its ops here.")
@trace_argument
@click.option(
    "--from",
    "source",
    metavar="GPU",
    shell_complete=complete_gpu_names,
    help="The GPU that was measured, where the trace does not say it or says it wrongly.",
)
@gpu_file_option
@click.option(
    "--max-error",
    "max_error_percent",
    type=click.FloatRange(min=0),
    metavar="PERCENT",
    help="Exit with status 1 if the replay of an iteration (with --run: the prediction) is further off than this.",
)
@click.option(
    "--figure",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw the recorded iteration above its replay, as SVG.",
)
@click.option(
    "--to",
    "target",
    metavar="GPU",
    shell_complete=complete_gpu_names,
    help="The GPU whose replay --figure draws. Default: the one that was measured. "
    "With --run: the catalogue's name of the local GPU, where it is not found by what the GPU calls itself.",
)
@click.option(
    "--stretch",
    type=(click.FloatRange(min=0), click.FloatRange(min=0)),
    metavar="FROM TO",
    help="Draw this stretch of the iteration only, in ms.",
)
@click.option(
    "--run",
    "is_run",
    is_flag=True,
    help="Re-run the trace's ops on the local GPU (or CPU) and compare with recording and prediction.",
)
@click.option(
    "--device", metavar="DEVICE", help="Where --run runs: cuda, cuda:N or cpu. Default: the GPU, if there is one."
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help=f"Time for --run; where it does not suffice, the heaviest ops are run. Default: {SECONDS:g}.",
)
@click.option(
    "--top",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Ops that --run lists in its table; 0: none. Default: {SHORT_OP_COUNT}.",
)
@output_options("table", "json")
@recover_option
@click.pass_context
def replay(context: click.Context, /, **options: Any) -> None:
    """Replay the iterations of TRACE with their own measured times and compare.

    Kernels start when the rules of the op graph let them: after their launch, the kernel before
    them, and what they wait for. How near that comes to the recording says how far to trust the
    replay of the same graph with another GPU's times. TRACE is a wavecast trace or a PyTorch
    profiler file with GPU kernels; '-' reads standard input.

    With --run, PyTorch's own ops among those of TRACE, which may be of shapes alone, are run again
    on the local GPU, on made-up tensors: what they take here stands beside what was recorded and
    what 'analyze' predicts for this GPU.

    \b
    Examples:
      wavecast replay trace.json.gz
      wavecast replay trace.json.gz --format json --max-error 2
      wavecast replay trace.json.gz --to L40S --figure timeline.svg --stretch 1 3
      wavecast replay shapes.json.gz --run
    """
    is_run = options.pop("is_run")
    asked = {name: options.pop(name) for name in _RUN_ONLY}
    request = Request(**options)
    if not is_run:
        extra = next((_RUN_ONLY[name] for name, value in asked.items() if value is not None), None)
        if extra is not None:
            raise InputError(f"{extra} says how --run runs: add --run")
        context.exit(replay_recording(request))
    run = RunRequest(
        device=asked["device"],
        seconds=SECONDS if asked["seconds"] is None else asked["seconds"],
        top=SHORT_OP_COUNT if asked["top"] is None else asked["top"],
    )
    context.exit(_rerun(request, run))


def _rerun(request: Request, run: RunRequest) -> int:
    """Re-run a trace's ops, write what comes of it, and return the exit status."""
    from .formats.files import load_trace

    request.check_limit()
    if request.figure is not None or request.stretch is not None:
        raise InputError("--figure and --stretch draw a replay, and --run replays nothing: leave out one or the other")
    local = _find_device(run.device)
    with progress_on_stderr("Reading the trace") as progress:
        trace = load_trace(request.trace, recover=request.recover, progress=progress)
    report = _compare(trace, request, run, local)
    if choose_format(request.form, request.output) == "json":
        from .analyzer.rendering.rerun.json import draw_rerun_json

        write_result(draw_rerun_json(report), request.output)
    else:
        from .analyzer.rendering.rerun.text import draw_rerun

        screen = screen_for(request.output)
        write_result(draw_rerun(report, screen, name=request.name, op_limit=run.top), request.output)
    return _check_error(report, request.max_error_percent)


def _check_error(report: RerunReport, limit_percent: float | None) -> int:
    """Return the exit status: 1 where the predicted sum is further off than the limit, or there is none to compare."""
    if limit_percent is None:
        return 0
    total = report.total
    if total.predicted_ns is None or total.rerun_ns <= 0:
        click.echo("Error: --max-error: nothing was predicted for the ops that were re-run", err=True)
        return FAILED_EXIT_CODE
    error_percent = abs(total.predicted_ns / total.rerun_ns - 1) * 100
    if error_percent <= limit_percent:
        return 0
    click.echo(f"Error: the prediction is off by {error_percent:.2f} %, more than {limit_percent:g} %", err=True)
    return FAILED_EXIT_CODE


def _find_device(name: str | None) -> LocalDevice:
    """Return the device to run on. Raises CaptureError without torch."""
    try:
        from .tracer.rerun.local import find_device
    except ImportError as error:
        if error.name != "torch":
            raise
        raise CaptureError(_NO_TORCH) from None
    return find_device(name)


def _compare(trace: Trace, request: Request, run: RunRequest, local: LocalDevice) -> RerunReport:
    from .analyzer.accuracy.rerun.comparison import compare_rerun
    from .analyzer.accuracy.rerun.worklist import list_work
    from .specs.catalog import load_catalog
    from .specs.match import find_gpu
    from .tracer.rerun.execute import rerun_ops

    catalog = load_catalog(request.gpu_file)
    gpu = _local_gpu(catalog, local, request.target)
    source = find_gpu(catalog, request.source) if request.source is not None else None
    work: Worklist = list_work(trace, catalog, gpu, source=source)
    with progress_on_stderr("Running ops") as progress:
        rerun = rerun_ops(work.trace, work.leaf, work.weights, local, seconds=run.seconds, progress=progress)
    return compare_rerun(work, _as_measured(rerun))


def _local_gpu(catalog: Catalog, local: LocalDevice, name: str | None) -> Gpu | None:
    """Return the catalogue's entry of the local GPU; None for a CPU, and where it has none."""
    from .analyzer.recorded.devices import gpu_of_device
    from .specs.match import find_gpu

    if not local.is_gpu:
        if name is not None:
            raise InputError("--to: there are no predictions for CPUs, on which --run runs here")
        return None
    device: Device = local.device
    return find_gpu(catalog, name) if name is not None else gpu_of_device(catalog, device)


def _as_measured(rerun: Rerun) -> Measured:
    """Hand the tracer's result to the analyzer, which does not know the tracer."""
    from .analyzer.accuracy.rerun.report import Measured, WholePass

    whole = rerun.whole
    return Measured(
        device=rerun.device.name,
        is_gpu=rerun.is_gpu,
        framework=rerun.framework,
        call_of_leaf=rerun.call_of_leaf,
        op_of_call=rerun.op_of_call,
        problem_of_call=rerun.problem_of_call,
        op=rerun.op,
        time_ns=rerun.time_ns,
        timing=rerun.timing,
        reason=rerun.reason,
        whole=None
        if whole is None
        else WholePass(
            call_count=whole.call_count,
            parts_ns=whole.parts_ns,
            elapsed_ns=whole.elapsed_ns,
            device_ns=whole.device_ns,
            graph_ns=whole.graph_ns,
        ),
    )
