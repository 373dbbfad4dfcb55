"""The `compare` command: what changed between two traces, and a gate for CI."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ...errors import InputError
from .command import (
    FAILED_EXIT_CODE,
    TracePath,
    WavecastCommand,
    complete_gpu_names,
    gpu_file_option,
    iteration_option,
    name_of_trace,
    output_options,
    recover_option,
    source_option,
)
from .output import choose_format, screen_for, write_result
from .progress import progress_on_stderr

if TYPE_CHECKING:
    from ..analysis.compare.report import Comparison

_SHOWN_GROUPS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    """Hold what the command line asked for, as parsed."""

    old: Path
    new: Path
    targets: tuple[str, ...]
    max_slowdown: float | None
    max_memory_growth: float | None
    strict: bool
    source: str | None
    gpu_file: Path | None
    iteration: int | str | None
    top: int
    form: str | None
    output: Path | None
    recover: bool


def _read_percent(_context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """Return a percentage, with or without its sign, as a ratio."""
    if text is None:
        return None
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = float("nan")
    if not isfinite(value) or value < 0:
        raise click.BadParameter(f"{text!r}: expected a percentage, 0 or more, such as 3%", param=parameter)
    return value / 100


@click.command("compare", cls=WavecastCommand, short_help="Say what changed between two traces; a gate for CI.")
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
    callback=_read_percent,
    metavar="PERCENT",
    help="Exit with status 1 where NEW is slower than OLD by more than this, beyond the interval.",
)
@click.option(
    "--max-memory-growth",
    callback=_read_percent,
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
    default=_SHOWN_GROUPS,
    show_default=True,
    metavar="N",
    help="Changes listed in the table; 0: none.",
)
@output_options("table", "markdown", "json")
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
      wavecast compare main.json.gz branch.json.gz --on "h100 sxm" --max-slowdown 3% --format markdown
      wavecast compare before.json.gz after.json.gz --max-memory-growth 5%
    """
    request = CompareRequest(**options)
    comparison = _compare(request)
    status, complaints = _judge(comparison, request)
    write_result(_render(comparison, request, status), request.output)
    for text in complaints:
        click.echo(f"Error: {text}", err=True)
    context.exit(status)


def _compare(request: CompareRequest) -> Comparison:
    from ...formats.files import load_trace
    from ...specs.catalog import load_catalog
    from ...specs.match import find_gpu, find_gpus
    from ..analysis.compare.compare import compare_traces

    if str(request.old) == str(request.new) == "-":
        raise InputError("standard input holds one trace: give a file for the other")
    catalog = load_catalog(request.gpu_file)
    targets = list({gpu.name: gpu for name in request.targets for gpu in find_gpus(catalog, name)}.values())
    source = find_gpu(catalog, request.source) if request.source is not None else None
    with progress_on_stderr("Reading the traces") as progress:
        old, new = (load_trace(path, recover=request.recover, progress=progress) for path in (request.old, request.new))
    asked = tuple(
        None if isinstance(request.iteration, int) and int(trace.iterations.profiled.sum()) < 2 else request.iteration
        for trace in (old, new)
    )
    return compare_traces(old, new, catalog, targets=targets, sources=(source, source), iterations=(asked[0], asked[1]))


def _percent(ratio: float) -> str:
    return f"{100.0 * ratio:.3g} %"


def _judge(comparison: Comparison, request: CompareRequest) -> tuple[int, list[str]]:
    """Return the exit status, and why it is not 0."""
    from ..analysis.compare.report import Verdict

    complaints = list[str]()
    for gpu in comparison.gpus:
        if request.max_slowdown is not None:
            verdict = gpu.verdict(request.max_slowdown)
            if verdict is Verdict.FAILED or (request.strict and verdict is Verdict.UNCERTAIN):
                complaints.append(
                    f"{_percent(gpu.change)} slower on {gpu.gpu}, more than {_percent(request.max_slowdown)}"
                )
        if gpu.no_longer_fits and (request.strict or not gpu.is_tight):
            complaints.append(f"the iteration no longer fits the memory of {gpu.gpu}")
    growth = comparison.memory_growth
    if request.max_memory_growth is not None and growth is not None and growth > request.max_memory_growth:
        complaints.append(f"peak memory grows by {_percent(growth)}, more than {_percent(request.max_memory_growth)}")
    return (FAILED_EXIT_CODE if complaints else 0), complaints


def _render(comparison: Comparison, request: CompareRequest, status: int) -> str:
    from ..rendering.compare.json import draw_comparison_json
    from ..rendering.compare.text import describe_comparison
    from ..rendering.formats import PAGE_FORMATS

    form = choose_format(request.form, request.output)
    if form == "json":
        return draw_comparison_json(comparison, max_slowdown=request.max_slowdown, exit_status=status)
    page = describe_comparison(
        comparison,
        old_name=name_of_trace(request.old),
        new_name=name_of_trace(request.new),
        max_slowdown=request.max_slowdown,
        exit_status=status,
        top=request.top,
    )
    chosen = next((item for item in PAGE_FORMATS if item.name == form), PAGE_FORMATS[0])
    return chosen.draw(page, screen_for(request.output))
