"""The `graph` command: the op graph in numbers, or as a file for other programs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from ...asking.command import WavecastCommand, recover_option, trace_argument
from ...asking.output import OutputPath, screen_for, write_result
from ...asking.progress import progress_on_stderr

FORMAT_OF_SUFFIX: Final = {".json": "json", ".graphml": "graphml", ".dot": "dot", ".gv": "dot", ".txt": "table"}


@click.command("graph", cls=WavecastCommand, short_help="Write the op graph, or say what it holds.")
@trace_argument
@click.option("--iteration", type=click.IntRange(min=0), metavar="N", help="Only this iteration, numbered from 0.")
@click.option("--critical-path", "marks_path", is_flag=True, help="Mark the critical path's nodes and edges.")
@click.option(
    "--format",
    "form",
    type=click.Choice(("table", "json", "graphml", "dot")),
    help="How to write it. Default: what the ending of -o says (.json, .graphml, .dot), else table.",
)
@click.option(
    "-o",
    "--output",
    type=OutputPath(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="Write to FILE instead of standard output: whole or not at all.",
)
@recover_option
def graph(
    trace: Path, iteration: int | None, marks_path: bool, form: str | None, output: Path | None, recover: bool
) -> None:
    """Write what waits for what in TRACE: ops, calls, kernels, copies, and the edges between them.

    TRACE is a wavecast trace or a PyTorch profiler file, recognised by its content; '-' reads
    standard input. Without -o it prints nodes and edges by kind, gaps, and what the time of the
    critical path goes to: that of --iteration, else of the iteration that analyze predicts.

    \b
    Examples:
      wavecast graph trace.json.gz
      wavecast graph trace.json.gz -o graph.graphml --iteration 2 --critical-path
    """
    chosen = _choose_format(form, output)
    with progress_on_stderr("Reading the trace") as progress:
        draw = _draw_table if chosen == "table" else partial(_draw_file, form=chosen, marks_path=marks_path)
        text = draw(trace, output, iteration=iteration, recover=recover, progress=progress)
    write_result(text, output)


def _choose_format(form: str | None, output: Path | None) -> str:
    """Return the format asked for, or the one that the output's ending names."""
    from ....errors import InputError

    if form is not None or output is None or str(output) == "-":
        return form or "table"
    known = FORMAT_OF_SUFFIX.get(output.suffix.lower())
    if known is None:
        raise InputError(f"{output.name}: expected a name that ends in .json, .graphml or .dot; or give --format")
    return known


def _draw_table(trace: Path, output: Path | None, **asked: Any) -> str:
    from ...page.terminal import draw_terminal
    from .api import summarize

    return draw_terminal(summarize(trace, **asked), screen_for(output))


def _draw_file(trace: Path, _output: Path | None, *, form: str, marks_path: bool, **asked: Any) -> str:
    from .api import graph as build
    from .files import GRAPH_WRITERS

    return GRAPH_WRITERS[form](build(trace, critical_path=marks_path, **asked))
