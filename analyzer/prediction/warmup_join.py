"""Finds what kernels of a graph compute in the iterations of the same file that ran the same kernels without a graph.

A profile of a captured model often has warm-up iterations, whose ops have shapes. A kernel of the graph is one of
theirs where name, grid and block are the same, and the kernels beside it on its stream are. Of equal layers it does
not matter which one is met; where equal neighbours belong to other ops or shapes, their order decides if they are as
many.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from ...arrays import Mask, Rows, at_rows, group_rows
from ...formats.recording.assemble import add_ops
from ...formats.trace.column import MISSING, build_table, row_count
from ...formats.trace.tables import KernelKind, OpTable, Trace
from ...records import dataclass
from ..recorded.graphs import graph_kernels, named_graph_kernels, unexplained_graph_kernels

LEAST_FOUND_RATIO: Final = 0.9
"""Of a graph's kernels: below this, the iterations beside it ran something else."""
_SIDES: Final = ((4, 4), (2, 2), (1, 1), (3, 0), (0, 3), (1, 0), (0, 1))
"""How many kernels before and after one have to be the same, the strictest first."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _WarmUp:
    """Hold the kernels that ran without a graph, on each stream in order, [e]."""

    kernels: Rows
    lanes: Rows
    """A number for stream and iteration."""
    content: Rows
    """A number for op, inputs and which of the op's kernels it is."""
    keys: Rows
    """Of every kernel of the trace: a number for name, grid and block, and of copies their size."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Chains:
    """Hold the ops of the warm-up that stand for a graph's kernels, with all around them, [c]; outer before inner."""

    op: Rows
    parent: Rows
    """Row of the chains, -1 for the outermost."""
    forward: Rows
    kernel: Rows
    """The first of the graph's kernels inside, by its place in the launch."""
    of_kernel: Rows
    """Of each kernel of the graph its innermost op, [n]; -1: none."""


def join_warm_up(trace: Trace) -> Trace:
    """Return the trace with ops and inputs for kernels of graphs, from iterations in it that ran them without one.

    Modules that annotations name are kept. Graphs whose kernels the trace does not hold outside graphs stay as they
    are.

    >>> join_warm_up(measured) is measured
    True
    """
    asking = named_graph_kernels(trace) | unexplained_graph_kernels(trace)
    warm_up = _find_warm_up(trace) if np.any(asking) else None
    if warm_up is None:
        return trace
    known: dict[bytes, _Chains] = {}
    tables: list[OpTable] = []
    op, count = trace.kernels.op.astype(np.int64), row_count(trace.ops)
    for kernels in _launches_of(trace, np.flatnonzero(asking)):
        key = np.stack((warm_up.keys[kernels], trace.kernels.stream[kernels])).tobytes()
        if key not in known:
            known[key] = _chains(trace, warm_up, _match(trace, warm_up, kernels))
        chains = known[key]
        if len(chains.op):
            tables.append(_ops_at(trace, kernels, chains, count))
            op[kernels] = np.where(chains.of_kernel == MISSING, op[kernels], chains.of_kernel + count)
            count += len(chains.op)
    return add_ops(trace, tables, op) if tables else trace


def _launches_of(trace: Trace, rows: Rows) -> list[Rows]:
    """Return the kernels of each launch of a graph, on each stream in order."""
    kernels = trace.kernels
    order = rows[np.lexsort((kernels.start_ns[rows], kernels.stream[rows], kernels.call[rows]))]
    return np.split(order, np.flatnonzero(np.diff(kernels.call[order])) + 1)


def _find_warm_up(trace: Trace) -> _WarmUp | None:
    """Return what ran without a graph and has ops with inputs; None where nothing does."""
    kernels, ops = trace.kernels, trace.ops
    signature = at_rows(ops.signature, kernels.op)
    eager = ~graph_kernels(trace) & (kernels.op != MISSING)
    if not np.any(eager & (signature != MISSING)):
        return None
    rows = np.flatnonzero(eager)
    rows = rows[np.lexsort((kernels.start_ns[rows], kernels.stream[rows], kernels.device[rows]))]
    step = np.searchsorted(trace.iterations.start_ns, kernels.start_ns[rows], side="right")
    op = kernels.op[rows]
    order = np.argsort(op, kind="stable")
    at = np.arange(len(order))
    begins = np.append(True, np.diff(op[order]) != 0)[: len(order)]
    rank = np.empty(len(op), dtype=np.int64)
    rank[order] = at - np.maximum.accumulate(np.where(begins, at, 0))
    return _WarmUp(
        kernels=rows,
        lanes=group_rows([kernels.device[rows], kernels.stream[rows], step])[1],
        content=group_rows([ops.name[kernels.op[rows]], signature[rows], rank])[1],
        keys=group_rows([kernels.name, kernels.kind, kernels.size_bytes, *kernels.grid.T, *kernels.block.T])[1],
    )


def _match(trace: Trace, warm_up: _WarmUp, kernels: Rows) -> Rows:
    """Return the place in the warm-up of each kernel of a launch, [n]; -1: none, as all are where too few are found."""
    nothing = np.full(len(kernels), MISSING, dtype=np.int64)
    if not trace.kernels.grid[kernels].any():
        return nothing  # names alone do not tell one batch from another
    lanes = group_rows([trace.kernels.stream[kernels]])[1]
    keys = (warm_up.keys[kernels], warm_up.keys[warm_up.kernels])
    place = nothing
    for before, after in _SIDES:
        unknown = place == MISSING
        if not np.any(unknown):
            break
        mine, theirs = _sides(keys[0], lanes, before, after), _sides(keys[1], warm_up.lanes, before, after)
        columns = [np.concatenate(pair) for pair in zip(mine, theirs, strict=True)]
        whole = np.min(columns, axis=0) != MISSING
        group = np.where(whole, group_rows(columns)[1], MISSING)
        place = np.where(unknown, _choose(group[: len(kernels)], group[len(kernels) :], warm_up.content), place)
    is_work = trace.kernels.kind[kernels] != KernelKind.MEMSET
    if np.sum((place != MISSING) & is_work) < LEAST_FOUND_RATIO * np.sum(is_work):
        return nothing
    return _in_runs(place, lanes, keys[1], warm_up)


def _sides(keys: Rows, lanes: Rows, before: int, after: int) -> Iterator[Rows]:
    """Yield the key of each kernel and of those beside it in its lane, -1 beyond its ends."""
    count = len(keys)
    for shift in range(-before, after + 1):
        at = np.arange(count) + shift
        inside: Mask = (at >= 0) & (at < count)
        at = np.where(inside, at, 0)
        yield np.where(inside & (lanes[at] == lanes), keys[at], MISSING)


def _choose(wanted: Rows, offered: Rows, content: Rows) -> Rows:
    """Return for each wanted group a place of it in the warm-up, -1 where none or where it stays in doubt.

    All places of a group hold the same content, or as many as are wanted in the same order again and again.
    """
    order = np.argsort(offered, kind="stable")
    groups, starts, counts = np.unique(offered[order], return_index=True, return_counts=True)
    at = np.minimum(np.searchsorted(groups, wanted), max(len(groups) - 1, 0))
    found = (groups[at] == wanted) & (wanted != MISSING)
    first = order[starts]
    lowest, highest = (reduce.reduceat(content[order], starts) for reduce in (np.minimum, np.maximum))
    place = np.where(found & (lowest == highest)[at], first[at], MISSING)
    for group in np.unique(at[found & (place == MISSING)]).tolist():
        asked = np.flatnonzero(found & (at == group))
        places = order[starts[group] : starts[group] + counts[group]]
        if len(places) % len(asked) == 0:
            turns = content[places].reshape(-1, len(asked))
            if (turns == turns[0]).all():
                place[asked] = places[-len(asked) :]
    return place


def _in_runs(place: Rows, lanes: Rows, keys: Rows, warm_up: _WarmUp) -> Rows:
    """Return places with the same content that follow each other where they can, so that ops keep what is in them."""
    found, lane, previous = place.tolist(), lanes.tolist(), MISSING
    key, content, theirs = keys.tolist(), warm_up.content.tolist(), warm_up.lanes.tolist()
    for row, at in enumerate(found):
        after = previous + 1
        if MISSING not in (at, previous) and lane[row] == lane[row - 1] and after < len(key):
            is_same = (key[after], content[after]) == (key[at], content[at]) and theirs[after] == theirs[previous]
            found[row] = after if is_same else at
        previous = found[row]
    return np.array(found, dtype=np.int64)


def _chains(trace: Trace, warm_up: _WarmUp, place: Rows) -> _Chains:
    """Return the ops of the places, anew for each run of places that follow each other, and all ops around them."""
    matched = np.flatnonzero(place != MISSING)
    run = np.cumsum(np.append(True, np.diff(place[matched]) != 1)[: len(matched)])
    ops, count = trace.ops, row_count(trace.ops)
    inner = trace.kernels.op[warm_up.kernels[place[matched]]].astype(np.int64)
    pairs, kernel = [run * count + inner], [matched]
    while len(pairs[-1]):
        above = at_rows(ops.parent, pairs[-1] % count)
        has_more = above != MISSING
        pairs.append((pairs[-1] // count * count + above)[has_more])
        kernel.append(kernel[-1][has_more])
    whole, firsts = np.concatenate(pairs), np.concatenate(kernel)
    order = np.lexsort((firsts, whole))
    distinct, at = np.unique(whole[order], return_index=True)
    of_kernel = np.full(len(place), MISSING, dtype=np.int64)
    of_kernel[matched] = np.searchsorted(distinct, run * count + inner)
    row = distinct % max(count, 1)
    return _Chains(
        op=row,
        parent=_find(distinct, distinct - row, ops.parent[row]),
        forward=_find(distinct, distinct - row, ops.forward[row]),
        kernel=firsts[order][at],
        of_kernel=of_kernel,
    )


def _find(distinct: Rows, base: Rows, op: Rows) -> Rows:
    """Return where other ops of the same runs stand, -1 where they do not."""
    wanted = base + op
    at = np.minimum(np.searchsorted(distinct, wanted), max(len(distinct) - 1, 0))
    return np.where((op != MISSING) & (distinct[at] == wanted), at, MISSING)


def _ops_at(trace: Trace, kernels: Rows, chains: _Chains, count: int) -> OpTable:
    """Return the chains as ops of one launch of the graph, inside what annotations say is around their kernels."""
    ops, call = trace.ops, int(trace.kernels.call[kernels[0]])
    around = trace.kernels.op[kernels[chains.kernel]]
    module = at_rows(ops.module, around)
    size = len(chains.op)
    return build_table(
        OpTable,
        size,
        name=ops.name[chains.op],
        signature=ops.signature[chains.op],
        thread=np.full(size, trace.calls.thread[call]),
        start_ns=np.full(size, trace.calls.start_ns[call]),
        duration_ns=np.zeros(size),
        parent=np.where(chains.parent == MISSING, around, chains.parent + count),
        phase=ops.phase[chains.op],
        forward=np.where(chains.forward == MISSING, MISSING, chains.forward + count),
        module=np.where(module == MISSING, ops.module[chains.op], module),
    )
