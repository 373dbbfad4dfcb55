"""The `convert` command: any readable trace to wavecast's own format."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .command import TracePath, WavecastCommand, recover_option
from .output import OutputPath, write_result
from .progress import progress_on_stderr

if TYPE_CHECKING:
    from ...formats.trace import Trace


@click.command("convert", cls=WavecastCommand, short_help="Convert a profiler file to a wavecast trace.")
@click.argument("source", type=TracePath(), metavar="IN")
@click.argument("target", type=OutputPath(path_type=Path), metavar="OUT")
@recover_option
def convert(source: Path, target: Path, recover: bool) -> None:
    """Convert the trace IN to wavecast's format and write it to OUT, whole or not at all.

    IN is a PyTorch profiler file or a wavecast trace, recognised by its content ('-' reads standard
    input). OUT ends in .json or .json.gz. Only what predictions need is kept: no environment,
    host or user names, command lines.
    """
    from ...errors import OutputError
    from ...formats.files import load_trace, save_trace

    if not target.name.endswith((".json", ".json.gz")):
        raise OutputError(f"{target.name}: expected a name that ends in .json or .json.gz")
    with progress_on_stderr("Reading the trace") as progress:
        trace = load_trace(source, recover=recover, progress=progress)
    save_trace(trace, target)
    write_result(f"{_describe(trace, source, target)}\n", None)


def _describe(trace: Trace, source: Path, target: Path) -> str:
    from ...formats.column import row_count
    from ...formats.printable import clean_text
    from ..rendering.overview import describe_gaps
    from ..rendering.page.quantity import format_count

    rows = ((trace.iterations, "iteration"), (trace.ops, "op"), (trace.kernels, "kernel"))
    counts = ", ".join(format_count(row_count(table), noun) for table, noun in rows)
    gaps = ", ".join(describe_gaps(asdict(trace.quality))) or "nothing dropped"
    return f"{clean_text(str(target))}: {_sizes(source, target)}; {counts}; {gaps}"


def _sizes(source: Path, target: Path) -> str:
    from ..rendering.page.quantity import format_bytes

    written = format_bytes(target.stat().st_size)
    return f"{written} from {format_bytes(source.stat().st_size)}" if source.is_file() else written
