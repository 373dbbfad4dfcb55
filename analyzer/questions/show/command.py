"""The `show` command: what is in a trace."""

from pathlib import Path
from typing import Any

import click

from ...asking.command import report_command
from ...asking.inputs import AskedWindow, Recover, trace_argument
from .api import OverviewReport


@report_command("show", AskedWindow, Recover)
@trace_argument
@click.option("--top", type=click.IntRange(min=0), default=10, show_default=True, metavar="N", help="Ops and kernels.")
def show(trace: Path, **asked: Any) -> OverviewReport:
    """Show what TRACE holds: devices, iterations, phases, top ops and kernels, gaps.

    TRACE is a wavecast trace or a PyTorch profiler file, recognised by its content; '-' reads
    standard input.
    """
    from .api import overview

    return overview(trace, **asked)
