"""The `rerun` command: a trace's ops run again on the local device, beside recording and prediction."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from ....errors import CaptureError, InputError
from ....progress import progress_on_stderr
from ...asking import command
from ...asking.choice import complete_gpu_names
from ...asking.declared import options_of
from ...asking.inputs import AskedSource, Recover, trace_argument
from ...asking.output import choose_format, screen_for, write_result
from ...asking.question import find_one
from ...page.formats import PAGE_FORMATS

if TYPE_CHECKING:
    from ....arrays import Floats, Rows
    from ....formats.measured.rerun import LocalDevice, Rerun
    from ....formats.trace.tables import Trace
    from ....specs.gpu import Catalog, Gpu
    from ...page.terminal import Screen
    from .report import RerunReport

SECONDS: Final = 60.0
SHORT_OP_COUNT: Final = 10
_NO_TORCH: Final = "rerun needs torch: pip install 'wavecast[tracer]'"


class Runner(Protocol):
    """Run ops on this machine; the package's entry hands one in, since what analyzes a trace does not need torch."""

    def find_device(self, name: str | None) -> LocalDevice:
        """Return the device that a name means; without one, the GPU if there is one. Raises InputError."""
        ...

    def rerun_ops(self, trace: Trace, leaves: Rows, weights: Floats, local: LocalDevice, *, seconds: float) -> Rerun:
        """Return how long each of `leaves`, ops of the trace, takes there; the heaviest first."""
        ...


LoadRunner = Callable[[], Runner]
"""Raises ImportError without torch."""


@click.command("rerun", cls=command.WavecastCommand)
@trace_argument
@click.option(
    "--device", metavar="DEVICE", help="Where to run: cuda, cuda:N or cpu. Default: the GPU, if there is one."
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=SECONDS,
    show_default=True,
    metavar="S",
    help="Time for everything; where it does not suffice, the heaviest ops are run.",
)
@click.option(
    "--top",
    type=click.IntRange(min=0),
    default=SHORT_OP_COUNT,
    show_default=True,
    metavar="N",
    help="Ops to list in the table; 0: none.",
)
@click.option(
    "--to",
    "target",
    metavar="GPU",
    shell_complete=complete_gpu_names,
    help="The catalogue's name of the local GPU, where it is not found by what the GPU calls itself.",
)
@options_of(AskedSource, Recover)
@command.max_error_option("Exit with status 1 if the predicted time of the ops that were run is further off than this.")
@command.output_options("table", "json", *(item.name for item in PAGE_FORMATS[1:]))
@click.pass_context
def rerun(
    context: click.Context,
    /,
    trace: Path,
    device: str | None,
    seconds: float,
    max_error_percent: float | None,
    form: str | None,
    output: Path | None,
    **options: Any,
) -> None:
    """Run the ops of TRACE again on the local GPU and compare.

    PyTorch's own ops among those of TRACE, which may be of shapes alone, are run on made-up tensors:
    what they take here stands beside what was recorded and what 'analyze' predicts for this GPU.
    Needs torch. TRACE is a wavecast trace or a PyTorch profiler file; '-' reads standard input.

    \b
    Examples:
      wavecast rerun shapes.json.gz
      wavecast rerun trace.json.gz --seconds 20 --top 30
      wavecast rerun trace.json.gz --format json --max-error 25
      wavecast rerun trace.json.gz --device cpu
    """
    from ....formats.files.open import load_trace
    from ....specs.catalog import load_catalog
    from .comparison import compare_rerun, list_work

    if not (isfinite(seconds) and seconds > 0):
        raise InputError(f"--seconds {seconds:g}: expected a time above zero")
    command.check_max_error(max_error_percent)
    runner = _load(context.obj)
    local = runner.find_device(device)
    with progress_on_stderr("Reading the trace"):
        read = load_trace(trace, recover=options["recover"])
    catalog = load_catalog(options["gpu_file"])
    gpu = _local_gpu(catalog, local, options["target"])
    work = list_work(read, catalog, gpu, source=find_one(catalog, options["source"]))
    with progress_on_stderr("Running ops"):
        times = runner.rerun_ops(work.trace, work.leaf, work.weights, local, seconds=seconds)
    report = compare_rerun(work, times)
    text = _draw(report, choose_format(form, output), screen_for(output), command.name_of_trace(trace), options["top"])
    write_result(text, output)
    context.exit(_check_error(report, max_error_percent))


def _draw(report: RerunReport, form: str, screen: Screen, name: str, op_limit: int) -> str:
    from .page import describe_rerun, draw_rerun_json

    if form == "json":
        return draw_rerun_json(report)
    chosen = next(item for item in PAGE_FORMATS if item.name == form)
    return chosen.draw(describe_rerun(report, name=name, op_limit=op_limit), screen)


def _load(load_runner: LoadRunner) -> Runner:
    try:
        return load_runner()
    except ImportError as error:
        if error.name != "torch":
            raise
        raise CaptureError(_NO_TORCH) from None


def _local_gpu(catalog: Catalog, local: LocalDevice, name: str | None) -> Gpu | None:
    """Return the catalogue's entry of the local GPU; None for a CPU, and where it has none."""
    from ....specs.match import find_gpu
    from ...recorded.devices import gpu_of_device

    if not local.is_gpu:
        if name is not None:
            raise InputError("--to: there are no predictions for CPUs, on which the ops run here")
        return None
    return find_gpu(catalog, name) if name is not None else gpu_of_device(catalog, local.device)


def _check_error(report: RerunReport, limit_percent: float | None) -> int:
    """Return the exit status: 1 where the predicted sum is further off than the limit, or there is none to compare."""
    if limit_percent is None:
        return 0
    total = report.total
    if total.predicted_ns is None or total.rerun_ns <= 0:
        click.echo("Error: --max-error: nothing was predicted for the ops that were re-run", err=True)
        return command.FAILED_EXIT_CODE
    error_percent = abs(total.predicted_ns / total.rerun_ns - 1) * 100
    if error_percent <= limit_percent:
        return 0
    click.echo(f"Error: the prediction is off by {error_percent:.2f} %, more than {limit_percent:g} %", err=True)
    return command.FAILED_EXIT_CODE
