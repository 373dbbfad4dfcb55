"""Joins the recording of a graph's launch with that of its capture: the captured ops explain the kernels that ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...arrays import Rows
from ...errors import InputError
from ...formats.recording.assemble import add_ops
from ...formats.trace.column import MISSING, Column, build_table, row_count, take_rows
from ...formats.trace.signature import Signature
from ...formats.trace.tables import OpTable, Trace
from ...records import dataclass, replace
from ..recorded.graphs import find_captures, graph_kernels
from .graph_capture import CapturedGraph, GraphMatch, captured_graphs, choose_match, match_graph
from .warmup_join import join_warm_up


@dataclass(slots=True, kw_only=True)
class _Joined:
    """Collect the ops that are added, launch by launch."""

    strings: list[str]
    string_numbers: dict[str, int]
    signatures: list[Signature]
    tables: list[OpTable]
    known: dict[tuple[bytes, int], _Explanation | None]
    """By the kernels that a launch ran, and the number of graphs that it may have launched."""
    count: int
    op: Rows
    """Of every kernel of the trace, [kernels]: rows from the trace's number of ops on are added ones."""
    grid: Column
    block: Column


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Explanation:
    """Hold what explains the n kernels of a graph at each launch of it."""

    ops: OpTable
    """Numbered from 0, named and signed as in the joined trace."""
    op: Rows
    """Of each kernel, [n]; -1: not known."""
    grid: Column
    block: Column
    """As captured, [n, 3]; zeros where not told."""


def join_captures(trace: Trace, captures: Mapping[str, Trace]) -> Trace:
    """Return the trace with the ops of captured graphs, which its graph launches run; `captures` maps files to traces.

    Each launch of a graph gets the ops that launched its kernels when it was captured, with their shapes, modules and
    phases: they take no time on the host, at the instant of the launch. Without `captures`, those that the trace itself
    records before it launches the graphs explain what they can, and what they do not the iterations in it that ran the
    same kernels without a graph. Raises InputError where captures are given, and the
    trace launches no graph, none of its graphs was captured in the files, or several of them fit equally well.

    >>> join_captures(measured, {}) is measured
    True
    """
    if not captures:
        return join_warm_up(_join_own(trace))
    from_graph = np.flatnonzero(graph_kernels(trace))
    if not len(from_graph):
        raise InputError(_explain_no_launch(trace))
    graphs = [graph for file, captured in captures.items() for graph in _graphs_of(file, captured)]
    joined, ratios = _begin(trace), [0.0]
    for kernels in _launches_of(trace, from_graph):
        _add(joined, trace, kernels, _find_explanation(joined, trace, kernels, graphs, ratios))
    if not joined.tables:
        raise InputError(_explain_no_match(trace, graphs, from_graph, max(ratios)))
    return _assemble(trace, joined)


def _join_own(trace: Trace) -> Trace:
    """Return the trace with what captures in it tell of the launches after them; what is in doubt stays unexplained."""
    from_graph = np.flatnonzero(graph_kernels(trace))
    if not len(from_graph) or not find_captures(trace):
        return trace
    graphs = captured_graphs("the trace", trace)
    captured_ns = [int(trace.calls.start_ns[graph.calls].max()) for graph in graphs]
    joined = _begin(trace)
    for kernels in _launches_of(trace, from_graph):
        launch_ns = int(trace.calls.start_ns[trace.kernels.call[kernels[0]]])
        earlier = [graph for graph, end_ns in zip(graphs, captured_ns, strict=True) if end_ns < launch_ns]
        _add(joined, trace, kernels, _find_explanation(joined, trace, kernels, earlier))
    return _assemble(trace, joined) if joined.tables else trace


def _begin(trace: Trace) -> _Joined:
    return _Joined(
        strings=list(trace.strings),
        string_numbers={text: number for number, text in reversed(list(enumerate(trace.strings)))},
        signatures=list(trace.signatures),
        tables=[],
        known={},
        count=row_count(trace.ops),
        op=trace.kernels.op.astype(np.int64),
        grid=trace.kernels.grid.copy(),
        block=trace.kernels.block.copy(),
    )


def _launches_of(trace: Trace, from_graph: Rows) -> list[Rows]:
    """Return the kernels of each launch of a graph, in order of start."""
    order = from_graph[np.argsort(trace.kernels.call[from_graph], kind="stable")]
    return np.split(order, np.flatnonzero(np.diff(trace.kernels.call[order])) + 1)


def join_either(traces: tuple[Trace, Trace], captures: Mapping[str, Trace]) -> tuple[Trace, Trace]:
    """Join two traces with captures that may belong to either. Raises InputError where they belong to none.

    >>> join_either((measured, measured), {}) == (measured, measured)
    True
    """
    joined: list[Trace] = []
    errors: list[tuple[bool, InputError]] = []
    for trace in traces:
        try:
            joined.append(join_captures(trace, captures))
        except InputError as error:
            joined.append(trace)
            errors.append((bool(graph_kernels(trace).any()), error))
    if len(errors) == len(traces):
        raise next((error for launches_graphs, error in errors if launches_graphs), errors[0][1])
    return joined[0], joined[1]


def _graphs_of(file: str, captured: Trace) -> list[CapturedGraph]:
    graphs = captured_graphs(file, captured)
    if not graphs:
        raise InputError(
            f"{file} holds no capture of a CUDA graph: every launch in it ran a kernel of its own; record the first "
            "call, which captures the graph, with torch.profiler"
        )
    return graphs


def _explain_no_launch(trace: Trace) -> str:
    if find_captures(trace):
        return "the trace is itself the capture of a CUDA graph: give the one that launches the graph first"
    return "the trace launches no CUDA graph whose kernels were recorded, so a capture explains nothing in it"


def _explain_no_match(trace: Trace, graphs: list[CapturedGraph], from_graph: Rows, ratio: float) -> str:
    counts = np.unique(trace.kernels.call[from_graph], return_counts=True)[1]
    captured = ", ".join(f"{len(graph.calls):,}" for graph in graphs[:5]) + (" …" if len(graphs) > 5 else "")
    return (
        f"the capture is not that of the graph that the trace launches: {captured} captured launches beside "
        f"{counts.max():,} kernels, {ratio:.0%} of them alike; give the capture of the same model and batch"
    )


def _find_explanation(
    joined: _Joined, trace: Trace, kernels: Rows, graphs: Sequence[CapturedGraph], ratios: list[float] | None = None
) -> _Explanation | None:
    """Return what explains the kernels of a launch by the one graph that it ran; None where none fits.

    Several that fit equally well are an error where `ratios` is given, which notes how well each fits; else they
    explain nothing.
    """
    key = np.stack((trace.kernels.name[kernels], trace.kernels.kind[kernels])).tobytes(), len(graphs)
    if key not in joined.known:
        matches = [match_graph(graph, trace, kernels) for graph in graphs]
        best = choose_match(matches, trace, kernels)
        if ratios is not None:
            ratios.extend(match.ratio for match in matches)
            if len(best) > 1:
                raise InputError(_explain_doubt(best, len(kernels)))
        joined.known[key] = _explain(joined, best[0]) if len(best) == 1 else None
    return joined.known[key]


def _explain_doubt(matches: list[GraphMatch], kernel_count: int) -> str:
    files = ", ".join(dict.fromkeys(match.graph.file for match in matches))
    return (
        f"{len(matches)} captured graphs in {files} launch the same {kernel_count:,} kernels on other shapes, and "
        "nothing tells which of them ran: give the capture of that one alone"
    )


def _explain(joined: _Joined, match: GraphMatch) -> _Explanation:
    """Return the captured ops that put the kernels of a graph there, with all around them."""
    captured, matched = match.graph.trace, match.launch >= 0
    calls = match.graph.calls[match.launch[matched]]
    rows = _with_parents(captured, captured.calls.op[calls])
    number = np.full(row_count(captured.ops) + 1, MISSING, dtype=np.int64)
    number[rows] = np.arange(len(rows))
    ops = take_rows(captured.ops, rows)
    op = np.full(len(matched), MISSING, dtype=np.int64)
    op[matched] = number[captured.calls.op[calls]]
    grid, block = (np.zeros((len(matched), 3), dtype=np.int32) for _ in range(2))
    grid[matched], block[matched] = captured.calls.grid[calls], captured.calls.block[calls]
    table = build_table(
        OpTable,
        len(rows),
        name=[_string(joined, captured, name) for name in ops.name.tolist()],
        signature=_signatures(joined, captured, ops.signature),
        start_ns=np.zeros(len(rows)),
        duration_ns=np.zeros(len(rows)),
        parent=number[ops.parent],
        phase=ops.phase,
        forward=number[ops.forward],
        module=[_string(joined, captured, name) for name in ops.module.tolist()],
    )
    return _Explanation(ops=table, op=op, grid=grid, block=block)


def _add(joined: _Joined, trace: Trace, kernels: Rows, explanation: _Explanation | None) -> None:
    """Add the ops that explain the kernels of one launch of a graph, at that launch; None: nothing explains them."""
    if explanation is None:
        return
    call, first, ops = int(trace.kernels.call[kernels[0]]), joined.count, explanation.ops
    count = row_count(ops)
    moved = replace(
        ops,
        thread=np.full(count, trace.calls.thread[call], dtype=ops.thread.dtype),
        start_ns=np.full(count, trace.calls.start_ns[call], dtype=ops.start_ns.dtype),
        parent=np.where(ops.parent == MISSING, trace.calls.op[call], ops.parent + first),
        forward=np.where(ops.forward == MISSING, MISSING, ops.forward + first),
    )
    joined.tables.append(moved)
    joined.count += count
    joined.op[kernels] = np.where(explanation.op == MISSING, joined.op[kernels], explanation.op + first)
    for column, told in ((joined.grid, explanation.grid), (joined.block, explanation.block)):
        unknown = ~column[kernels].any(axis=1)
        column[kernels[unknown]] = told[unknown]


def _with_parents(trace: Trace, ops: Rows) -> Rows:
    """Return ops and all around them, in order."""
    found = np.zeros(row_count(trace.ops) + 1, dtype=bool)
    at = np.unique(ops)
    while len(at := at[at != MISSING]):
        found[at] = True
        at = np.unique(trace.ops.parent[at])
        at = at[~found[at]]
    return np.flatnonzero(found[:-1])


def _string(joined: _Joined, captured: Trace, number: int) -> int:
    """Return the number of a capture's string in the joined trace, which it is added to."""
    if number == MISSING:
        return MISSING
    text = captured.strings[number]
    if text not in joined.string_numbers:
        joined.string_numbers[text] = len(joined.strings)
        joined.strings.append(text)
    return joined.string_numbers[text]


def _signatures(joined: _Joined, captured: Trace, numbers: Column) -> Rows:
    """Return the numbers of a capture's signatures in the joined trace, which they are added to."""
    used, position = np.unique(numbers, return_inverse=True)
    new = np.full(len(used), MISSING, dtype=np.int64)
    for place, number in enumerate(used.tolist()):
        if number != MISSING:
            new[place] = len(joined.signatures)
            joined.signatures.append(captured.signatures[number])
    return new[position]


def _assemble(trace: Trace, joined: _Joined) -> Trace:
    """Return the trace with the added ops, and what they tell of its kernels."""
    kernels = replace(trace.kernels, grid=joined.grid, block=joined.block)
    known = replace(trace, kernels=kernels, strings=tuple(joined.strings), signatures=tuple(joined.signatures))
    return add_ops(known, joined.tables, joined.op)
