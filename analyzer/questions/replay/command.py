"""The `replay` command: how well the replay with its own times explains a recording."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ....errors import InputError
from ....progress import progress_on_stderr
from ...asking import command
from ...asking.choice import complete_gpu_names
from ...asking.declared import options_of
from ...asking.inputs import trace_argument
from ...asking.output import OutputPath
from ...page.formats import REPORT_FORMATS
from .api import ReplayOptions, check_stretch


@click.command("replay", cls=command.WavecastCommand)
@trace_argument
@options_of(
    ReplayOptions,
    iteration="Compare this iteration alone: its number, median, longest, or all as one. Default: each one.",
)
@command.max_error_option("Exit with status 1 if the replay of an iteration is further off than this.")
@click.option(
    "--figure",
    type=OutputPath(path_type=Path),
    metavar="FILE",
    help="Draw the recorded iteration above its replay, as SVG.",
)
@click.option(
    "--to",
    "target",
    metavar="GPU",
    shell_complete=complete_gpu_names,
    help="The GPU whose replay --figure draws. Default: the one that was measured.",
)
@click.option(
    "--stretch",
    type=(click.FloatRange(min=0), click.FloatRange(min=0)),
    metavar="FROM TO",
    help="Draw this stretch of the iteration only, in ms.",
)
@command.output_options(*REPORT_FORMATS)
@click.pass_context
def replay(
    context: click.Context,
    /,
    trace: Path,
    max_error_percent: float | None,
    figure: Path | None,
    form: str | None,
    output: Path | None,
    **asked: Any,
) -> None:
    """Replay the iterations of TRACE with their own measured times and compare.

    Kernels start when the rules of the op graph let them: after their launch, the kernel before
    them, and what they wait for. How near that comes to the recording says how far to trust the
    replay of the same graph with another GPU's times. TRACE is a wavecast trace or a PyTorch
    profiler file with GPU kernels; '-' reads standard input.

    \b
    Examples:
      wavecast replay trace.json.gz
      wavecast replay trace.json.gz --format json --max-error 2
      wavecast replay trace.json.gz --iteration longest
      wavecast replay trace.json.gz --to L40S --figure timeline.svg --stretch 1 3
    """
    from .api import replay as replay_trace

    command.check_max_error(max_error_percent)
    target, stretch_ms = asked.pop("target"), asked.pop("stretch")
    if figure is None and (stretch_ms is not None or target is not None):
        raise InputError("--to and --stretch say what --figure draws: add --figure FILE")
    if stretch_ms is not None:
        check_stretch(stretch_ms)
    with progress_on_stderr("Reading the trace"):
        report = replay_trace(trace, **asked)
    if figure is not None:
        report.save_figure(figure, to=target, stretch_ms=stretch_ms)
    command.write_answer(report, form, output)
    worst_percent = 100 * report.worst_error_ratio
    if max_error_percent is not None and worst_percent > max_error_percent:
        click.echo(f"Error: the replay is off by {worst_percent:.2f} %, more than {max_error_percent:g} %", err=True)
        context.exit(command.FAILED_EXIT_CODE)
