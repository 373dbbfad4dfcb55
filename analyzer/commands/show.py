"""The `show` command: what is in a trace."""

from __future__ import annotations

from pathlib import Path

import click

from .command import WavecastCommand, output_options, recover_option, trace_argument
from .output import choose_format, screen_for, write_result
from .part_options import window_option
from .progress import progress_on_stderr


@click.command("show", cls=WavecastCommand, short_help="Show what a trace holds.")
@trace_argument
@click.option("--top", type=click.IntRange(min=0), default=10, show_default=True, metavar="N", help="Ops and kernels.")
@window_option("Show only what the host began in this time since the recording's start: 2s..3s, 350ms.. or ..1.5s.")
@output_options("table", "json")
@recover_option
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
    from ...formats.files import load_trace
    from ..prediction.capture_join import join_captures
    from ..recorded.overview import describe_trace
    from ..rendering.overview import describe_overview, draw_overview_json
    from ..rendering.page.terminal import draw_terminal

    with progress_on_stderr("Reading the trace") as progress:
        loaded = join_captures(load_trace(trace, recover=recover, window_ns=window_ns, progress=progress), {})
        overview = describe_trace(loaded, limit=top)
    if choose_format(form, output) == "json":
        write_result(draw_overview_json(overview), output)
    else:
        write_result(draw_terminal(describe_overview(overview), screen_for(output)), output)
