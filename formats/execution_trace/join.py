"""Joins an execution trace with the profiler file of the same run: times and kernels of one, inputs of the other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from ...arrays import Rows
from ...errors import InputError, TraceError, parameter
from ..files.importers import Progress, find_importer
from ..files.open import read_bytes
from ..kineto.importer import import_joinable
from ..trace.column import MISSING, Column, row_count
from ..trace.renumber import renumber
from ..trace.tables import Trace
from .importer import SignatureTable, with_tensors
from .nodes import USER_SCOPE, EtNode, read_nodes

_LEAST_SHARE: Final = 0.5
"""Of the ops of the shorter of the two recordings: below it they are of different runs."""
_KINETO: Final = "..kineto"
_EXECUTION_TRACE: Final = "..execution_trace"


def load_joined(
    path: str | Path, execution_trace: str | Path, *, recover: bool = False, progress: Progress | None = None
) -> Trace:
    """Read a profiler file, and from the execution trace of the same run what its ops were called with.

    Raises InputError where the second is not of the first one's run, TraceError where one is no such file.
    """
    data = _read(path, _KINETO, f"a PyTorch profiler trace, which {parameter('execution_trace')} completes", recover)
    beside = _read(execution_trace, _EXECUTION_TRACE, "a PyTorch execution trace", recover)
    name = path
    try:
        trace, external_ids, record_functions = import_joinable(data, recover=recover, progress=progress)
        name = execution_trace
        nodes = [node for node in read_nodes(beside, recover=recover).nodes if node.scope != USER_SCOPE]
    except TraceError as error:
        raise TraceError(f"{name}: {error}") from error
    row_of = _match(trace, nodes, record_functions if np.any(record_functions > 0) else external_ids)
    met = int((row_of != MISSING).sum())
    shorter = min(len(nodes), row_count(trace.ops))
    if met < _LEAST_SHARE * shorter or not met:
        raise InputError(
            f"{execution_trace}: {met} of its {len(nodes)} ops ({met / max(len(nodes), 1):.0%}) are in {path} by "
            "number and name: the two are not of one run"
        )
    return renumber(join_nodes(trace, nodes, row_of))


def join_nodes(trace: Trace, nodes: list[EtNode], row_of: Rows) -> Trace:
    """Return the trace with the signatures and tensors of the nodes; node i is op `row_of[i]`, -1: none."""
    table = SignatureTable()
    found = np.array([table.number(node.inputs, node.outputs) for node in nodes], dtype=np.int64)
    signature = trace.ops.signature.astype(np.int64)
    known = (row_of != MISSING) & (found != MISSING)
    signature[row_of[known]] = found[known] + len(trace.signatures)
    used = np.unique(signature[signature != MISSING])
    both = (*trace.signatures, *table.distinct)
    joined = replace(
        trace,
        signatures=tuple(both[number] for number in used.tolist()),
        ops=replace(
            trace.ops,
            signature=np.where(signature == MISSING, MISSING, np.searchsorted(used, signature)).astype(np.int32),
        ),
    )
    joined = with_tensors(joined, row_of, nodes)
    return replace(
        joined,
        meta=replace(trace.meta, source_format="kineto+execution_trace", has_shapes=True),
        quality=replace(
            trace.quality,
            ops_without_shapes=int((signature == MISSING).sum()),
            ops_not_joined=row_count(trace.ops) - int((row_of != MISSING).sum()),
        ),
    )


def _match(trace: Trace, nodes: list[EtNode], ids: Column) -> Rows:
    """Return the op of each node: that of its number and name, -1: none. Each op is one node's at most."""
    rows = {number: row for row, number in reversed(list(enumerate(ids.tolist()))) if number > 0}
    names = trace.ops.name.tolist()
    found = np.full(len(nodes), MISSING, dtype=np.int64)
    for index, node in enumerate(nodes):
        row = rows.get(node.record_function, MISSING)
        if row != MISSING and trace.strings[names[row]] == node.name:
            found[index] = row
            del rows[node.record_function]
    return found


def _read(path: str | Path, module: str, expected: str, recover: bool) -> bytes:
    data = read_bytes(path, recover=recover)
    importer = find_importer(data)
    if importer is None or importer.module != module:
        what = "another file" if importer is None else importer.name
        raise TraceError(f"{path}: expected {expected}, found {what}")
    return data
