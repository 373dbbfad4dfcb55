"""The `graph` command: the op graph in numbers, or as a file for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from .command import WavecastCommand, recover_option, trace_argument
from .output import OutputPath, screen_for, write_result
from .progress import progress_on_stderr

if TYPE_CHECKING:
    from ...formats.trace import Trace
    from ..graph.critical import CriticalPath
    from ..graph.graph import Graph

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
    from ...formats.files import load_trace

    chosen = _choose_format(form, output)
    with progress_on_stderr("Reading the trace") as progress:
        loaded = load_trace(trace, recover=recover, progress=progress)
    _refuse_empty(loaded)
    if chosen == "table":
        text = _draw_table(loaded, iteration, output)
    else:
        text = _draw_file(loaded, iteration, chosen, marks_path=marks_path)
    write_result(text, output)


def _choose_format(form: str | None, output: Path | None) -> str:
    """Return the format asked for, or the one that the output's ending names."""
    from ...errors import InputError

    if form is not None or output is None or str(output) == "-":
        return form or "table"
    known = FORMAT_OF_SUFFIX.get(output.suffix.lower())
    if known is None:
        raise InputError(f"{output.name}: expected a name that ends in .json, .graphml or .dot; or give --format")
    return known


def _refuse_empty(trace: Trace) -> None:
    from ...errors import InputError
    from ...formats.column import row_count

    if not row_count(trace.ops) and not row_count(trace.kernels):
        raise InputError("the trace holds neither ops nor GPU activities: there is no graph; record a step that works")


def _draw_table(trace: Trace, iteration: int | None, output: Path | None) -> str:
    from ..graph.export.op_graph import join_op_graph
    from ..graph.export.summary import summarize_graph
    from ..rendering.graph.text import describe_graph
    from ..rendering.page.terminal import draw_terminal

    built = _build(trace)
    joined = join_op_graph(trace, built, iteration=iteration)
    path, of_iteration = _critical_path(trace, built, iteration)
    summary = summarize_graph(trace, built, joined, path, iteration=iteration, path_iteration=of_iteration)
    return draw_terminal(describe_graph(summary), screen_for(output))


def _draw_file(trace: Trace, iteration: int | None, form: str, *, marks_path: bool) -> str:
    from ..graph.export.export import mark_critical_path, to_networkx
    from ..rendering.graph.files import GRAPH_WRITERS

    built = _build(trace)
    network = to_networkx(trace, built, iteration=iteration)
    if marks_path:
        mark_critical_path(network, trace, built, _critical_path(trace, built, iteration)[0])
    return GRAPH_WRITERS[form](network)


def _build(trace: Trace) -> Graph:
    from ..graph.build import build_graph

    return build_graph(trace, architecture=_architecture(trace))


def _architecture(trace: Trace) -> str | None:
    """Return that of the first device that the catalogue knows: its latencies stand in where the trace shows few."""
    from ...specs.catalog import load_catalog
    from ..recorded.devices import first_known_gpu

    gpu = first_known_gpu(load_catalog(), trace)
    return None if gpu is None else gpu.architecture


def _critical_path(trace: Trace, built: Graph, iteration: int | None) -> tuple[CriticalPath, int | None]:
    """Return the measured critical path of an iteration, by default that which `analyze` predicts, and its row."""
    from ..recorded.window import select_window
    from ..replay.paths import measured_path

    row = select_window(trace).index if iteration is None else iteration
    return measured_path(trace, built, row), row
