"""The `convert` command: any readable trace to wavecast's own format."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ...asking.command import TracePath, WavecastCommand, execution_trace_option, iteration_option, recover_option
from ...asking.output import OutputPath, write_result
from ...asking.part_options import window_option
from ...asking.progress import progress_on_stderr

if TYPE_CHECKING:
    from ....formats.trace.tables import Trace

_CHAKRA_ENDINGS: Final = (".et", ".et.gz")


@click.command("convert", cls=WavecastCommand, short_help="Convert a profiler file to a wavecast trace.")
@click.argument("source", type=TracePath(), metavar="IN")
@click.argument("target", type=OutputPath(path_type=Path), metavar="OUT")
@execution_trace_option
@iteration_option(
    "Keep only this iteration: its number as in 'wavecast show', median or longest; all keeps everything."
)
@window_option("Keep only what the host began in this time since the recording's start: 2s..3s, 350ms.. or ..1.5s.")
@recover_option
def convert(
    source: Path,
    target: Path,
    execution_trace: Path | None,
    iteration: int | str | None,
    window_ns: tuple[int | None, int | None] | None,
    recover: bool,
) -> None:
    """Convert the trace IN to wavecast's format and write it to OUT, whole or not at all.

    IN is a PyTorch profiler file or a wavecast trace, recognised by its content ('-' reads standard
    input). OUT ends in .json or .json.gz; .et and .et.gz write a Chakra execution trace for
    simulators instead. Only what predictions need is kept: no environment,
    host or user names, command lines.
    """
    from ....errors import OutputError
    from ....formats.files.open import load_trace, save_trace
    from ...asking.question import read_trace

    if not target.name.endswith((".json", ".json.gz", *_CHAKRA_ENDINGS)):
        raise OutputError(f"{target.name}: expected a name that ends in .json or .json.gz (.et, .et.gz: Chakra)")
    is_part = iteration is not None or window_ns is not None
    if is_part and (execution_trace is not None or (iteration is not None and window_ns is not None)):
        raise click.UsageError("--iteration, --window and --execution-trace exclude each other")
    with progress_on_stderr("Reading the trace") as progress:
        if is_part:
            trace = load_trace(source, recover=recover, iteration=iteration, window_ns=window_ns, progress=progress)
        else:
            trace = read_trace(source, execution_trace=execution_trace, joins=False, recover=recover, progress=progress)
    if target.name.endswith(_CHAKRA_ENDINGS):
        _save_chakra(trace, target)
    else:
        save_trace(trace, target)
    write_result(f"{_describe(trace, source, target)}\n", None)


def _save_chakra(trace: Trace, target: Path) -> None:
    from ....formats.files.open import pack_gzip, write_atomic
    from ...graph.build import build_graph
    from ...graph.export.chakra import draw_chakra

    data = draw_chakra(trace, build_graph(trace))
    write_atomic(target, pack_gzip(data) if target.name.endswith(".gz") else data)


def _describe(trace: Trace, source: Path, target: Path) -> str:
    from ....formats.trace.column import row_count
    from ....formats.trace.printable import clean_text
    from ...page.quantity import format_count
    from ..show.page import describe_gaps

    rows = ((trace.iterations, "iteration"), (trace.ops, "op"), (trace.kernels, "kernel"))
    counts = ", ".join(format_count(row_count(table), noun) for table, noun in rows)
    gaps = ", ".join(describe_gaps(asdict(trace.quality))) or "nothing dropped"
    return f"{clean_text(str(target))}: {_sizes(source, target)}; {counts}; {gaps}"


def _sizes(source: Path, target: Path) -> str:
    from ...page.quantity import format_bytes

    written = format_bytes(target.stat().st_size)
    return f"{written} from {format_bytes(source.stat().st_size)}" if source.is_file() else written
