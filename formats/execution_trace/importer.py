"""Imports a PyTorch execution trace, alone or with the same run's profiler file. See docs/reference/files.md."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from ...arrays import Rows
from ...errors import InputError, TraceError, parameter
from ..files.importers import collection_paused, find_importer
from ..files.open import read_bytes
from ..files.source import ImportSource, ReadOptions
from ..kineto.collect import MODULE_SPAN_PREFIX
from ..kineto.communication import build_group_collectives
from ..kineto.importer import import_joinable
from ..recording.assemble import assemble
from ..recording.builder import RecordingBuilder
from ..recording.rows import Mark, MarkRows, ModuleRows, OpRows, make_rows
from ..recording.settle import Recording, finish
from ..trace.column import MISSING, Column, build_table, row_count
from ..trace.renumber import renumber
from ..trace.signature import Signature
from ..trace.tables import OperandTable, TensorTable, Trace, as_shapes
from .groups import KnownGroups, add_collectives, read_groups
from .nodes import USER_SCOPE, EtDocument, EtNode, NodeSide, Ticks, choose_step, count_ticks, read_nodes
from .values import Specs, TensorIdentity, find_tensors, read_signature, touches_accelerator

_MARKS = {"Optimizer.step#": Mark.OPTIMIZER, "Optimizer.zero_grad#": Mark.ZERO_GRAD}
_LEAST_SHARE: Final = 0.5
"""Of the ops of the shorter of the two recordings: below it they are of different runs."""
_KINETO: Final = "..kineto"
_EXECUTION_TRACE: Final = "..execution_trace"


def read_execution_trace(source: ImportSource, *, options: ReadOptions) -> Callable[[], Trace]:
    """Read the nodes of an execution trace and return what builds the trace of one iteration of them."""
    with collection_paused():
        document = read_nodes(source.read(), recover=options.recover)
    source.release()
    source.is_chosen = isinstance(options.iteration, int)

    def build() -> Trace:
        with collection_paused():
            return _build(document, options.iteration if isinstance(options.iteration, int) else None)

    return build


def _build(document: EtDocument, iteration: int | None) -> Trace:
    nodes, ticks, outside = choose_step(document.nodes, count_ticks(document.nodes), iteration)
    known = read_groups(document.nodes)
    rows = np.flatnonzero(np.array([node.scope != USER_SCOPE for node in nodes], dtype=bool))
    on_host = _find_host_ops([nodes[row] for row in rows.tolist()])
    rows = rows[~on_host]
    if not len(rows):
        raise TraceError("$.nodes: found no ops, expected those of an execution trace")
    ops = [nodes[row] for row in rows.tolist()]
    builder = RecordingBuilder()
    signatures = SignatureTable()
    _add_ops(builder, ops, _at(ticks, rows), [signatures.number(node.inputs, node.outputs) for node in ops])
    _add_marks(builder, nodes, ticks)
    add_collectives(builder, ops, known)
    recording = finish(builder)
    trace = assemble(recording, signatures=signatures.distinct, signature_of=signatures.rows())
    trace = with_tensors(trace, recording.op_row_of, ops)
    return replace(
        as_shapes(_with_collectives(trace, recording, known)),
        meta=replace(
            trace.meta,
            producer="PyTorch execution trace observer",
            source_format="execution_trace",
            capture="shapes",
            world_size=max((report.size for report in known.reports.values()), default=None),
        ),
        quality=replace(
            trace.quality,
            ops_outside_iteration=outside,
            ops_on_host=int(on_host.sum()),
            dependencies_lost=document.lost_parent_count,
            bytes_lost=document.bytes_lost,
            bytes_read=document.bytes_read,
        ),
    )


class SignatureTable:
    """Number distinct signatures; -1 is for what could not be read."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._specs: Specs = {}
        self._distinct: list[Signature] = []

    @property
    def distinct(self) -> tuple[Signature, ...]:
        """Return them in order of their numbers."""
        return tuple(self._distinct)

    def number(self, inputs: NodeSide, outputs: NodeSide) -> int:
        """Return the number of a call's signature."""
        signature = read_signature(inputs, outputs, self._specs)
        if signature is None:
            return MISSING
        # By text: True, 1 and 1.0 are equal, but not the same.
        number = self._known.setdefault(repr(signature), len(self._distinct))
        if number == len(self._distinct):
            self._distinct.append(signature)
        return number

    def rows(self) -> Rows:
        """Return the row of each number, as builders want it: a last one for what could not be read."""
        return np.append(np.arange(len(self._distinct), dtype=np.int64), MISSING)


def _find_host_ops(ops: Sequence[EtNode]) -> Rows:
    """Say which ops have all their tensors on the host, where others have theirs on an accelerator, [ops]."""
    touches = [touches_accelerator(node) for node in ops]
    if True not in touches:
        return np.zeros(len(ops), dtype=bool)
    return np.array([found is False for found in touches], dtype=bool)


def _at(ticks: Ticks, rows: Rows) -> Ticks:
    return Ticks(begin=ticks.begin[rows], length=ticks.length[rows])


def _add_ops(builder: RecordingBuilder, ops: Sequence[EtNode], ticks: Ticks, signature: Sequence[int]) -> None:
    numbers = np.array(signature, dtype=np.int64)
    builder.add(
        OpRows(
            name=builder.names.number([node.name for node in ops]),
            thread=builder.threads.number([node.thread for node in ops]),
            start_ns=ticks.begin,
            duration_ns=ticks.length,
            sequence=np.array([node.sequence for node in ops], dtype=np.int64),
            forward_thread=np.array([node.forward_thread for node in ops], dtype=np.int64),
            signature=np.where(numbers == MISSING, numbers.max(initial=MISSING) + 1, numbers),
            external_id=np.array([node.record_function for node in ops], dtype=np.int64),
        )
    )


def _add_marks(builder: RecordingBuilder, nodes: Sequence[EtNode], ticks: Ticks) -> None:
    """Add the optimizer's steps, and the modules that wavecast's tracer or torch put around ops."""
    marks = [
        (row, kind)
        for row, node in enumerate(nodes)
        for prefix, kind in _MARKS.items()
        if node.scope == USER_SCOPE and node.name.startswith(prefix)
    ]
    modules = [row for row, node in enumerate(nodes) if node.name.startswith(MODULE_SPAN_PREFIX)]
    at = _at(ticks, np.array([row for row, _ in marks], dtype=np.int64))
    builder.add(
        make_rows(
            MarkRows,
            len(marks),
            name=[kind for _, kind in marks],
            thread=builder.threads.number([nodes[row].thread for row, _ in marks]),
            start_ns=at.begin,
            duration_ns=at.length,
        )
    )
    at = _at(ticks, np.array(modules, dtype=np.int64))
    builder.add(
        ModuleRows(
            name=builder.modules.number([nodes[row].name.removeprefix(MODULE_SPAN_PREFIX) for row in modules]),
            thread=builder.threads.number([nodes[row].thread for row in modules]),
            start_ns=at.begin,
            duration_ns=at.length,
        )
    )


def with_tensors(trace: Trace, row_of: Rows, nodes: Sequence[EtNode]) -> Trace:
    """Return the trace with the tensors that its ops read and returned; node i is op `row_of[i]`, -1: none.

    Kept are tensors by number, storage, offset, size and type together: the observer numbers addresses, which memory
    that is used again shares.
    """
    keys: dict[TensorIdentity, int] = {}
    uses = sorted(
        (row, is_output, position, keys.setdefault(tensor, len(keys)))
        for row, node in zip(row_of.tolist(), nodes, strict=True)
        if row != MISSING
        for is_output, side in ((0, node.inputs), (1, node.outputs))
        for position, tensor in enumerate(find_tensors(side))
    )
    strings = {text: number for number, text in enumerate(trace.strings)}
    storages: dict[tuple[int, int], int] = {}
    dtype = [strings.setdefault(key.dtype, len(strings)) for key in keys]
    # A tensor without a storage shares none.
    storage = [storages.setdefault((key.storage, 0 if key.storage else key.tensor), len(storages)) for key in keys]
    table = np.array(uses, dtype=np.int64).reshape(-1, 4)
    return replace(
        trace,
        strings=tuple(strings),
        tensors=build_table(
            TensorTable,
            len(keys),
            storage=storage,
            dtype=dtype,
            element_count=[key.element_count for key in keys],
            device=[key.device for key in keys],
        ),
        operands=build_table(OperandTable, len(table), op=table[:, 0], is_output=table[:, 1], tensor=table[:, 3]),
    )


def _with_collectives(trace: Trace, recording: Recording, known: KnownGroups) -> Trace:
    """Return the trace with the collectives of ops where process groups reported none."""
    if row_count(trace.collectives):
        return trace
    names = recording.names
    names.number(trace.strings)
    size = next(iter(known.reports.values())).size if len(known.reports) == 1 else MISSING
    collectives = build_group_collectives(trace.ops, trace.signatures, names, None)
    if size != MISSING and row_count(collectives):
        collectives = replace(
            collectives, group_size=np.full_like(collectives.group_size, size), group=np.zeros_like(collectives.group)
        )
    return replace(trace, strings=tuple(names.texts), collectives=collectives)


def load_joined(path: str | Path, execution_trace: str | Path, *, recover: bool = False) -> Trace:
    """Read a profiler file, and from the execution trace of the same run what its ops were called with.

    Raises InputError where the second is not of the first one's run, TraceError where one is no such file.
    """
    data = _read(path, _KINETO, f"a PyTorch profiler trace, which {parameter('execution_trace')} completes", recover)
    beside = _read(execution_trace, _EXECUTION_TRACE, "a PyTorch execution trace", recover)
    name = path
    try:
        trace, external_ids, record_functions = import_joinable(data, recover=recover)
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
