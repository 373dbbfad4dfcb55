"""The `compare` command: what changed between two traces, and a gate for CI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ....progress import progress_on_stderr
from ...asking.command import FAILED_EXIT_CODE, WavecastCommand, output_options, write_answer
from ...asking.declared import options_of
from ...asking.inputs import TracePath
from ...page.formats import REPORT_FORMATS
from .api import CompareOptions


@click.command("compare", cls=WavecastCommand)
@click.argument("old", type=TracePath(), metavar="OLD")
@click.argument("new", type=TracePath(), metavar="NEW")
@output_options(*REPORT_FORMATS)
@options_of(CompareOptions)
@click.pass_context
def compare(
    context: click.Context, /, old: Path, new: Path, form: str | None, output: Path | None, **asked: Any
) -> None:
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
    from .api import compare as compare_traces

    with progress_on_stderr("Reading the traces"):
        report = compare_traces(old, new, **asked)
    write_answer(report, form, output)
    for text in report.complaints:
        click.echo(f"Error: {text}", err=True)
    context.exit(FAILED_EXIT_CODE if report.complaints else 0)
