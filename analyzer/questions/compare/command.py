"""The `compare` command: what changed between two traces, and a gate for CI."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...asking.amounts import parse_percent
from ...asking.command import (
    FAILED_EXIT_CODE,
    TracePath,
    WavecastCommand,
    complete_gpu_names,
    gpu_file_option,
    iteration_option,
    output_options,
    recover_option,
    source_option,
)
from ...asking.energy_options import energy_options, take_electricity
from ...asking.output import choose_format, screen_for, write_result
from ...asking.progress import progress_on_stderr
from ...page.formats import REPORT_FORMATS
from .api import SHOWN_CHANGES

if TYPE_CHECKING:
    from ...iteration.decision.electricity import Electricity
    from .api import ComparisonReport


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    """Hold what the command line asked for, as parsed."""

    old: Path
    new: Path
    targets: tuple[str, ...]
    max_slowdown: str | None
    max_memory_growth: str | None
    strict: bool
    source: str | None
    gpu_file: Path | None
    iteration: int | str | None
    top: int
    electricity: Electricity | None
    form: str | None
    output: Path | None
    recover: bool


def _check_percent(_context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    """Return the text of a percentage, with or without its sign."""
    if text is not None and parse_percent(text) is None:
        raise click.BadParameter(f"{text!r}: expected a percentage, 0 or more, such as 3%", param=parameter)
    return text


@click.command("compare", cls=WavecastCommand)
@click.argument("old", type=TracePath(), metavar="OLD")
@click.argument("new", type=TracePath(), metavar="NEW")
@click.option(
    "--on",
    "targets",
    metavar="GPU",
    multiple=True,
    shell_complete=complete_gpu_names,
    help="Compare on this GPU; repeat for several. Default: the GPUs that were measured.",
)
@click.option(
    "--max-slowdown",
    callback=_check_percent,
    metavar="PERCENT",
    help="Exit with status 1 where NEW is slower than OLD by more than this, beyond the interval.",
)
@click.option(
    "--max-memory-growth",
    callback=_check_percent,
    metavar="PERCENT",
    help="Exit with status 1 where the peak memory grows by more than this.",
)
@click.option("--strict", is_flag=True, help="Gate on the predicted slowdown itself, not on the end of its interval.")
@source_option("The GPU that was measured, where the traces do not say it or say it wrongly.")
@gpu_file_option
@iteration_option(
    "Which iteration of either trace: its number as in 'wavecast show', median (default), longest, or all as one."
)
@click.option(
    "--top",
    type=click.IntRange(min=0),
    default=SHOWN_CHANGES,
    show_default=True,
    metavar="N",
    help="Changes listed in the table; 0: none.",
)
@energy_options
@output_options(*REPORT_FORMATS)
@recover_option
@click.pass_context
def compare(context: click.Context, /, **options: Any) -> None:
    """Compare two traces of changed code: what changed, and what it does to time and memory.

    OLD and NEW are traces, measured or of shapes alone, of the same or other GPUs. Ops are aligned
    module by module; the likely causes come first. The exit status is 1 where NEW is slower than
    --max-slowdown allows, outside the interval, or no longer fits the memory of an --on GPU.

    \b
    Examples:
      wavecast compare main.json.gz branch.json.gz --on h100
      wavecast compare main.json.gz branch.json.gz --on h100 --max-slowdown 3%
      wavecast compare before.json.gz after.json.gz --max-memory-growth 5%
    """
    electricity = take_electricity(options)
    request = CompareRequest(**options, electricity=electricity)
    report = _compare(request)
    write_result(report.draw(choose_format(request.form, request.output), screen_for(request.output)), request.output)
    for text in report.complaints:
        click.echo(f"Error: {text}", err=True)
    context.exit(FAILED_EXIT_CODE if report.complaints else 0)


def _compare(request: CompareRequest) -> ComparisonReport:
    from .api import compare as compare_traces

    with progress_on_stderr("Reading the traces") as progress:
        return compare_traces(
            request.old,
            request.new,
            on=request.targets,
            max_slowdown=request.max_slowdown,
            max_memory_growth=request.max_memory_growth,
            strict=request.strict,
            source=request.source,
            gpu_file=request.gpu_file,
            iteration=request.iteration,
            top=request.top,
            electricity=request.electricity,
            recover=request.recover,
            progress=progress,
        )
