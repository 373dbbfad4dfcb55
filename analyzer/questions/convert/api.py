"""`wavecast.graph`: what waits for what, as a networkx graph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ....errors import InputError
from ...asking.keywords import check_count, checks_kinds
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
