"""The `replay` command: how well the replay with its own times explains a recording."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from ....errors import InputError
from ...asking.command import (
    FAILED_EXIT_CODE,
    WavecastCommand,
    capture_option,
    check_max_error,
    complete_gpu_names,
    gpu_file_option,
    iteration_option,
    max_error_option,
    output_options,
    recover_option,
    source_option,
    trace_argument,
)
from ...asking.output import OutputPath, choose_format, screen_for, write_result
from ...asking.progress import progress_on_stderr
from ...page.formats import REPORT_FORMATS
from .api import check_stretch

_RERUN_OPTIONS: Final = {"device": "--device", "seconds": "--seconds", "top": "--top"}
_RENAMED: Final = "wavecast: 'replay --run' is 'wavecast rerun' now; the old name goes with the next version"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """Hold what the command line asked for, as parsed."""

    trace: Path
    source: str | None
    gpu_file: Path | None
    max_error_percent: float | None
    figure: Path | None
    target: str | None
    stretch: tuple[float, float] | None
    form: str | None
    output: Path | None
    recover: bool
    iteration: int | str | None
    captures: tuple[Path, ...]

    def __post_init__(self) -> None:
        check_max_error(self.max_error_percent)
        if self.figure is None and (self.stretch is not None or self.target is not None):
            raise InputError("--to and --stretch say what --figure draws: add --figure FILE")
        if self.stretch is not None:
            check_stretch(self.stretch)


@click.command("replay", cls=WavecastCommand, short_help="Replay a recording and compare.")
@trace_argument
@source_option()
@gpu_file_option
@iteration_option("Compare this iteration alone: its number, median, longest, or all as one. Default: each one.")
@capture_option()
@max_error_option("Exit with status 1 if the replay of an iteration is further off than this.")
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
@click.option("--run", "is_run", is_flag=True, hidden=True, help="Do what 'wavecast rerun' does.")
@click.option("--device", hidden=True, help="With --run: as for 'wavecast rerun'.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    hidden=True,
    help="With --run: as for 'wavecast rerun'.",
)
@click.option("--top", type=click.IntRange(min=0), hidden=True, help="With --run: as for 'wavecast rerun'.")
@output_options(*REPORT_FORMATS)
@recover_option
@click.pass_context
def replay(context: click.Context, /, **options: Any) -> None:
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
    is_run = options.pop("is_run")
    asked = {name: value for name in _RERUN_OPTIONS if (value := options.pop(name)) is not None}
    if is_run:
        context.exit(_rerun(context, options, asked))
    if asked:
        raise InputError(f"{_RERUN_OPTIONS[next(iter(asked))]} is an option of 'wavecast rerun'")
    context.exit(replay_recording(ReplayRequest(**options)))


def _rerun(context: click.Context, options: dict[str, Any], asked: dict[str, Any]) -> int:
    """Do what 'wavecast rerun' does, under the name that it had."""
    from ..rerun.command import SECONDS, SHORT_OP_COUNT, RerunRequest, rerun_trace

    if options.pop("figure") is not None or options.pop("stretch") is not None:
        raise InputError("--figure and --stretch draw a replay, and --run replays nothing: leave out one or the other")
    if options["form"] == "csv":
        raise InputError("--format csv is of a replay, and --run replays nothing: give table, json, markdown or html")
    if options.pop("iteration") is not None or options.pop("captures"):
        raise InputError(
            "--iteration and --capture are for a replay, and --run replays nothing: leave out one or the other"
        )
    click.echo(_RENAMED, err=True)
    defaults = {"device": None, "seconds": SECONDS, "top": SHORT_OP_COUNT}
    return rerun_trace(RerunRequest(**options, **(defaults | asked)), context.obj)


def replay_recording(request: ReplayRequest) -> int:
    """Replay a recording with its own times, write what comes of it, and return the exit status."""
    from .api import replay as replay_trace

    with progress_on_stderr("Reading the trace") as progress:
        report = replay_trace(
            request.trace,
            source=request.source,
            gpu_file=request.gpu_file,
            iteration=request.iteration,
            captures=request.captures,
            recover=request.recover,
            progress=progress,
        )
    if request.figure is not None:
        report.save_figure(request.figure, to=request.target, stretch_ms=request.stretch)
    write_result(report.draw(choose_format(request.form, request.output), screen_for(request.output)), request.output)
    limit, worst = request.max_error_percent, 100 * report.worst_error_ratio
    if limit is not None and worst > limit:
        click.echo(f"Error: the replay is off by {worst:.2f} %, more than {limit:g} %", err=True)
        return FAILED_EXIT_CODE
    return 0
