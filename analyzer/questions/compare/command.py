"""The `compare` command: what changed between two traces, and a gate for CI."""

from pathlib import Path
from typing import Any

import click

from ...asking.command import report_command
from ...asking.inputs import TracePath
from .api import CompareOptions, ComparisonReport


@report_command("compare", CompareOptions, label="Reading the traces")
@click.argument("old", type=TracePath(), metavar="OLD")
@click.argument("new", type=TracePath(), metavar="NEW")
def compare(old: Path, new: Path, **asked: Any) -> ComparisonReport:
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

    return compare_traces(old, new, **asked)
