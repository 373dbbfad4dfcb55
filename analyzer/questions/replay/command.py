"""The `replay` command: how well the replay with its own times explains a recording."""

from pathlib import Path
from typing import Any

from ....records import replace
from ...asking.command import check_max_error, max_error_option, report_command
from ...asking.inputs import trace_argument
from .api import ReplayOptions, ReplayReport


@report_command(
    "replay",
    ReplayOptions,
    iteration="Compare this iteration alone: its number, median, longest, or all as one. Default: each one.",
)
@trace_argument
@max_error_option("Exit with status 1 if the replay of an iteration is further off than this.")
def replay(trace: Path, max_error_percent: float | None, **asked: Any) -> ReplayReport:
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
    """
    from .api import replay as replay_trace

    check_max_error(max_error_percent)
    return replace(replay_trace(trace, **asked), max_error_percent=max_error_percent)
