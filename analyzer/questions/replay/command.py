"""The `replay` command: how well the replay with its own times explains a recording."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ....errors import InputError
from ....records import replace
from ...asking.choice import complete_gpu_names
from ...asking.command import check_max_error, max_error_option, report_command
from ...asking.inputs import trace_argument
from ...asking.output import OutputPath
from .api import ReplayOptions, ReplayReport, check_stretch


@report_command(
    "replay",
    ReplayOptions,
    iteration="Compare this iteration alone: its number, median, longest, or all as one. Default: each one.",
)
@trace_argument
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
def replay(trace: Path, max_error_percent: float | None, figure: Path | None, **asked: Any) -> ReplayReport:
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

    check_max_error(max_error_percent)
    target, stretch_ms = asked.pop("target"), asked.pop("stretch")
    if figure is None and (stretch_ms is not None or target is not None):
        raise InputError("--to and --stretch say what --figure draws: add --figure FILE")
    if stretch_ms is not None:
        check_stretch(stretch_ms)
    report = replay_trace(trace, **asked)
    if figure is not None:
        report.save_figure(figure, to=target, stretch_ms=stretch_ms)
    return replace(report, max_error_percent=max_error_percent)
