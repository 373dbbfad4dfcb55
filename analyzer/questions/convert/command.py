"""`wavecast.graph` and the `convert` command: a trace as another file, or as the graph of what waits for what."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ....errors import InputError, OutputError
from ....progress import progress_on_stderr
from ...asking.command import WavecastCommand
from ...asking.declared import options_of
from ...asking.inputs import AskedIteration, AskedWindow, ExecutionTrace, Recover, TracePath
from ...asking.keywords import check_count, checks_kinds
from ...asking.output import OutputPath, write_result
from ...asking.question import read_trace

if TYPE_CHECKING:
    import networkx as nx

    from ....formats.trace.tables import Trace
    from ...graph.critical import CriticalPath
    from ...graph.graph import Graph


@checks_kinds
def graph(
    trace: str | Path | Trace, *, iteration: int | None = None, critical_path: bool = False, recover: bool = False
) -> nx.DiGraph[str]:
    """Return what waits for what in a trace, of one iteration or all, as an acyclic networkx DiGraph.

    Nodes are named by table and row (`op:12`, `kernel:3`) and have what is known as attributes; docs/evidence/replay.md
    lists these. With `critical_path` nodes and edges say whether they are on it: on that of `iteration`, else of the
    iteration that `analyze` predicts.
    Raises InputError for what cannot be read or has no graph, and TraceError for a file that is no trace.

    >>> found = graph("samples/bert_small-inference-bf16-b1-h100.json.gz", critical_path=True)
    >>> found.nodes["kernel:0"]["kind"], any(on for _, on in found.nodes(data="on_critical_path"))
    ('kernel', True)
    """
    from ...graph.export.export import mark_critical_path, to_networkx

    row = check_count("iteration", iteration, least=0)
    read = read_trace(trace, joins=False, recover=recover)
    built = _build(read)
    network = to_networkx(read, built, iteration=row)
    if critical_path:
        mark_critical_path(network, read, built, _critical_path(read, built, row)[0])
    return network


def _build(trace: Trace) -> Graph:
    """Return a trace's graph; the first known device's latencies stand in where it shows few."""
    from ....formats.trace.column import row_count
    from ....specs.catalog import load_catalog
    from ...graph.build import build_graph
    from ...recorded.devices import first_known_gpu

    if not row_count(trace.ops) and not row_count(trace.kernels):
        raise InputError("the trace holds neither ops nor GPU activities: there is no graph; record a step that works")
    gpu = first_known_gpu(load_catalog(), trace)
    return build_graph(trace, architecture=None if gpu is None else gpu.architecture)


def _critical_path(trace: Trace, built: Graph, iteration: int | None) -> tuple[CriticalPath, int | None]:
    """Return the measured critical path of an iteration, by default that which `analyze` predicts, and its row."""
    from ...recorded.window import median_iteration
    from ...replay.paths import measured_path

    row = median_iteration(trace) if iteration is None else iteration
    return measured_path(trace, built, row), row


TRACE: Final = "trace"
CHAKRA: Final = "chakra"
ENDINGS: Final = {
    TRACE: (".json", ".json.gz"),
    CHAKRA: (".et", ".et.gz"),
    "graphml": (".graphml",),
    "dot": (".dot", ".gv"),
    "graph-json": (),
}
"""What OUT ends in, by what it then holds; the first two cannot be printed."""


@click.command("convert", cls=WavecastCommand)
@click.argument("source", type=TracePath(), metavar="IN")
@click.argument("output", type=OutputPath(path_type=Path, allow_dash=True), metavar="[OUT]", required=False)
@click.option(
    "--to", "form", type=click.Choice(tuple(ENDINGS)), help="What to write. Default: what the ending of OUT says."
)
@options_of(
    AskedIteration,
    AskedWindow,
    ExecutionTrace,
    Recover,
    iteration="Keep only this iteration: its number as in 'wavecast show', median or longest; all keeps everything.",
)
@click.option(
    "--critical-path", "marks_path", is_flag=True, help="Mark the critical path's nodes and edges in a graph."
)
def convert_command(
    source: Path, output: Path | None, form: str | None, marks_path: bool, recover: bool, **asked: Any
) -> None:
    """Convert the trace IN and write it to OUT, whole or not at all.

    IN is a PyTorch profiler file or a wavecast trace, recognised by its content ('-' reads standard
    input). OUT is a wavecast trace (.json, .json.gz), which keeps only what predictions need: no
    environment, host or user names, command lines; or a Chakra execution trace for simulators (.et,
    .et.gz).

    \b
    Or the graph of ops, calls, kernels and copies, without OUT printed:
      graphml     for Gephi, yEd and networkx (.graphml)
      dot         for Graphviz (.dot, .gv)
      graph-json  for programs; networkx reads it as node-link data

    \b
    Examples:
      wavecast convert profile.json trace.json.gz --iteration median
      wavecast convert trace.json.gz graph.graphml --iteration 2 --critical-path
      wavecast convert trace.json.gz --to dot | dot -Tsvg > graph.svg
    """
    from ....formats.files.open import load_trace, save_trace
    from ...asking.question import read_trace

    form = form or _form_of(output)
    is_graph = form not in (TRACE, CHAKRA)
    if not is_graph and (output is None or str(output) == "-" or not output.name.endswith(ENDINGS[form])):
        raise OutputError(f"{output or 'OUT'}: expected a name that ends in {' or '.join(ENDINGS[form])}")
    if marks_path and not is_graph:
        raise click.UsageError("--critical-path marks a graph: add --to graphml, dot or graph-json")
    iteration, execution_trace = asked["iteration"], asked.pop("execution_trace")
    is_part = asked["window_ns"] is not None or (iteration is not None and not is_graph)
    if [iteration, asked["window_ns"], execution_trace].count(None) < 2:
        raise click.UsageError("--iteration, --window and --execution-trace exclude each other")
    with progress_on_stderr("Reading the trace"):
        if is_part:
            trace = load_trace(source, recover=recover, **asked)
        else:
            trace = read_trace(source, execution_trace=execution_trace, joins=False, recover=recover)
        text = _draw_graph(trace, form, iteration, marks_path=marks_path) if is_graph else ""
    if is_graph or output is None:
        write_result(text, output)
        return
    if form == CHAKRA:
        _save_chakra(trace, output)
    else:
        save_trace(trace, output)
    write_result(f"{_describe(trace, source, output)}\n", None)


def _form_of(output: Path | None) -> str:
    """Return what the ending of OUT says; where none is known, OUT was meant to be a trace."""
    if output is None or str(output) == "-":
        raise InputError("name OUT, or say with --to which graph is to be printed")
    found = [form for form, endings in ENDINGS.items() if output.name.lower().endswith(endings)]
    if not found:
        endings = ", ".join(ending for endings in ENDINGS.values() for ending in endings)
        raise OutputError(f"{output.name}: expected a name that ends in {endings}; --to says what another one holds")
    return found[0]


def _draw_graph(trace: Trace, form: str, iteration: int | str | None, *, marks_path: bool) -> str:
    from ...recorded.choice import ALL, choose_iteration
    from .page import GRAPH_WRITERS

    row = iteration if isinstance(iteration, int) else None
    if isinstance(iteration, str) and iteration != ALL:
        row = choose_iteration(trace, iteration)[1].index
    return GRAPH_WRITERS[form](graph(trace, iteration=row, critical_path=marks_path))


def _save_chakra(trace: Trace, target: Path) -> None:
    from ....formats.files.open import pack_gzip, write_atomic
    from ...graph.build import build_graph
    from ...graph.export.chakra import draw_chakra

    data = draw_chakra(trace, build_graph(trace))
    write_atomic(target, pack_gzip(data) if target.name.endswith(".gz") else data)


def _describe(trace: Trace, source: Path, target: Path) -> str:
    from ....formats.trace.column import row_count
    from ....formats.trace.printable import clean_text
    from ...page.quantity import format_bytes, format_count
    from ..show.page import describe_gaps

    rows = ((trace.iterations, "iteration"), (trace.ops, "op"), (trace.kernels, "kernel"))
    counts = ", ".join(format_count(row_count(table), noun) for table, noun in rows)
    gaps = ", ".join(describe_gaps(asdict(trace.quality))) or "nothing dropped"
    read = f" from {format_bytes(source.stat().st_size)}" if source.is_file() else ""
    return f"{clean_text(str(target))}: {format_bytes(target.stat().st_size)}{read}; {counts}; {gaps}"
