"""The `show` command: what is in a trace."""

from __future__ import annotations

from pathlib import Path

import click

from ....progress import progress_on_stderr
from ...asking.command import WavecastCommand, output_options, write_answer
from ...asking.declared import options_of
from ...asking.inputs import AskedWindow, Recover, trace_argument
from ...page.formats import REPORT_FORMATS


@click.command("show", cls=WavecastCommand)
@trace_argument
@click.option("--top", type=click.IntRange(min=0), default=10, show_default=True, metavar="N", help="Ops and kernels.")
@options_of(AskedWindow, Recover)
@output_options(*REPORT_FORMATS)
def show(
    trace: Path,
    top: int,
    window_ns: tuple[int | None, int | None] | None,
    form: str | None,
    output: Path | None,
    recover: bool,
) -> None:
    """Show what TRACE holds: devices, iterations, phases, top ops and kernels, gaps.

    TRACE is a wavecast trace or a PyTorch profiler file, recognised by its content; '-' reads
    standard input.
    """
    from .api import overview

    with progress_on_stderr("Reading the trace"):
        found = overview(trace, top=top, window_ns=window_ns, recover=recover)
    write_answer(found, form, output)
