"""Imports a Chakra execution trace: the host's nodes as ops, the GPU's as kernels. See docs/reference/files.md."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from ...arrays import Rows
from ...errors import TraceError
from ...records import dataclass, replace
from ..execution_trace.groups import KnownGroups, list_groups
from ..execution_trace.importer import SignatureTable, with_tensors
from ..execution_trace.nodes import EtNode, NodeSide
from ..files.importers import collection_paused
from ..files.source import ImportSource, ReadOptions
from ..recording.assemble import assemble
from ..recording.builder import GroupReport, RecordingBuilder
from ..recording.rows import LAUNCH_NAME, CallRows, CollectiveRows, KernelRows, OpRows, make_rows
from ..recording.settle import finish
from ..trace.column import MISSING
from ..trace.tables import KernelKind, Trace
from .layout import Layout, lay_out
from .nodes import ChakraDocument, ChakraNode, ChakraType, read_binary, read_json

_WORK: Final = (ChakraType.COMP, ChakraType.COMM_SEND, ChakraType.COMM_RECV, ChakraType.COMM_COLL,
                ChakraType.MEM_LOAD, ChakraType.MEM_STORE)  # fmt: skip
_COMMUNICATION: Final = (ChakraType.COMM_SEND, ChakraType.COMM_RECV, ChakraType.COMM_COLL)
COLLECTIVE_NAMES: Final = (
    "allreduce", "reduce", "allgather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter",
    "reduce_scatter", "barrier",
)  # fmt: skip
"""By Chakra's number of the collective."""
_MOST_REPEATED: Final = 0.1
"""Of the calls that torch numbered: in a public file none has the number and the name of another."""
_FEWEST_APART: Final = 50
_MOST_PARTS: Final = 64
"""Nodes of a rank or run that depends on no other, and how many of them: a public file is in one piece."""
_PART: Final = re.compile(r"\(\d+\)\Z")
"""Ends the names of the parts into which Chakra's converter cut an op where it launches."""
_NONE: Final = re.compile(rb"\b(None|True|False)\b(?!>)")
_JSON_WORDS: Final = {b"None": b"null", b"True": b"true", b"False": b"false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Op:
    """Hold an op: the nodes that are its parts, the first of which says what it was called with."""

    node: ChakraNode
    start_ns: int
    end_ns: int
    thread: int


def read_chakra(source: ImportSource, *, options: ReadOptions) -> Callable[[], Trace]:
    """Read a `.et` file and return what builds its trace."""
    with collection_paused():
        document = read_binary(source.read(), recover=options.recover)
    source.release()
    return lambda: _build(document)


def read_chakra_json(source: ImportSource, *, options: ReadOptions) -> Callable[[], Trace]:  # noqa: ARG001
    """Read Chakra's JSON and return what builds its trace."""
    with collection_paused():
        document = read_json(source.read())
    source.release()
    return lambda: _build(document)


def _build(document: ChakraDocument) -> Trace:
    nodes = [node for node in document.nodes if node.kind in _WORK]
    if not nodes:
        raise TraceError("found no nodes of work or communication, expected those of a Chakra trace")
    _check_ids(nodes)
    _check_one_run(nodes)
    if not any(node.duration_us or node.integer("duration_ns", 0) for node in nodes):
        raise TraceError(
            "no node has a runtime: a Chakra trace without times cannot be predicted; keep those of the run it is of, "
            "or give the PyTorch execution trace that it was made from"
        )
    with collection_paused():
        lanes = [("host", node.integer("tid", 0)) if node.is_host else ("gpu", _stream(node)) for node in nodes]
        layout = lay_out(nodes, lanes)
        return _assemble(document, nodes, layout)


def _assemble(document: ChakraDocument, nodes: list[ChakraNode], layout: Layout) -> Trace:
    builder, signatures = RecordingBuilder(), SignatureTable()
    builder.is_whole_microseconds = not any("duration_ns" in node.attributes for node in nodes)
    # Metadata nodes list groups as torch's process groups write them in a Python list.
    listed = [node.inputs[0] for node in document.nodes if node.kind == ChakraType.METADATA and node.inputs]
    known = list_groups([value.decode(errors="replace")[2:-2] for value in listed])
    ops = _find_ops(nodes, layout)
    sides = _SideReader()
    et_nodes = [_as_et_node(op.node, sides) for op in ops]
    _add_ops(builder, ops, [signatures.number(node.inputs, node.outputs) for node in et_nodes])
    rows = np.array([row for row, node in enumerate(nodes) if not node.is_host], dtype=np.int64)
    _add_kernels(builder, nodes, rows, layout)
    _add_collectives(builder, [nodes[row] for row in rows.tolist()], known)
    recording = finish(builder)
    trace = assemble(recording, signatures=signatures.distinct, signature_of=signatures.rows())
    trace = with_tensors(trace, recording.op_row_of, et_nodes)
    return replace(
        trace,
        meta=replace(trace.meta, producer="MLCommons Chakra", source_format="chakra"),
        quality=replace(
            trace.quality,
            nodes_unread=sum(node.kind not in (*_WORK, ChakraType.METADATA) for node in document.nodes),
            dependencies_lost=layout.lost_count,
            bytes_lost=document.bytes_lost,
            bytes_read=document.bytes_read,
        ),
    )


def _check_ids(nodes: Sequence[ChakraNode]) -> None:
    seen: set[int] = set()
    for node in nodes:
        if node.number in seen:
            raise TraceError(f"two nodes have the id {node.number}; expected each its own")
        seen.add(node.number)


def _check_one_run(nodes: Sequence[ChakraNode]) -> None:
    """Raise TraceError where ranks or runs are joined: numbers of calls repeat, or parts depend on no other.

    That is so of halves that are alike, and of longer parts where dependencies cross all other places.
    """
    calls = Counter((node.integer("rf_id"), node.name) for node in nodes if node.is_host and node.integer("rf_id") > 0)
    ordered = sorted(nodes, key=lambda node: node.number)
    place, names = {node.number: at for at, node in enumerate(ordered)}, [node.name for node in ordered]
    half, least = len(nodes) // 2, max(_FEWEST_APART, len(nodes) // 10)
    found = [
        (at, place.get(number, at)) for at, node in enumerate(ordered) for number in node.ctrl_deps + node.data_deps
    ]
    ends = np.sort(np.array(found, dtype=np.int64).reshape(-1, 2), axis=1)
    opened, closed = (np.bincount(column + 1, minlength=len(nodes) + 1) for column in ends.T)
    is_cut = np.cumsum(opened - closed) == 0
    is_apart = not is_cut[1:-1].all() and is_cut[half] and names[:half] == names[half:]
    is_apart |= bool(is_cut.sum() <= _MOST_PARTS and is_cut[least:-least].any())
    if is_apart or sum(count > 1 for count in calls.values()) > _MOST_REPEATED * len(calls):
        raise TraceError("this looks like several ranks or runs in one file; give one of them")


def _stream(node: ChakraNode) -> int:
    """Return the stream; older converters call it the thread, and synthetic traces have one each for work and sends."""
    given = node.integer("stream", node.integer("tid"))
    return given if given != MISSING else int(node.kind in _COMMUNICATION)


def _find_ops(nodes: list[ChakraNode], layout: Layout) -> list[_Op]:
    """Return the host's nodes as ops, the parts of one together."""
    parts: defaultdict[Hashable, list[int]] = defaultdict(list)
    for row, node in enumerate(nodes):
        if node.is_host:
            is_part = _PART.search(node.name) is not None and node.integer("rf_id") > 0
            key = (node.integer("rf_id"), _PART.sub("", node.name), node.integer("tid", 0)) if is_part else row
            parts[key].append(row)
    start, end = layout.start_ns.tolist(), layout.end_ns.tolist()
    return [
        _Op(
            node=nodes[rows[0]],
            start_ns=min(start[row] for row in rows),
            end_ns=max(end[row] for row in rows),
            thread=nodes[rows[0]].integer("tid", 0),
        )
        for rows in parts.values()
    ]


def _add_ops(builder: RecordingBuilder, ops: list[_Op], signature: list[int]) -> None:
    numbers = np.array(signature, dtype=np.int64)
    start = np.array([op.start_ns for op in ops], dtype=np.int64)
    builder.add(
        make_rows(
            OpRows,
            len(ops),
            name=builder.names.number([_PART.sub("", op.node.name) for op in ops]),
            thread=builder.threads.number([op.thread for op in ops]),
            start_ns=start,
            duration_ns=np.array([op.end_ns for op in ops], dtype=np.int64) - start,
            sequence=[op.node.integer("seq_id") for op in ops],
            forward_thread=[op.node.integer("fw_tid") for op in ops],
            signature=np.where(numbers == MISSING, numbers.max(initial=MISSING) + 1, numbers),
            external_id=[op.node.integer("rf_id") for op in ops],
        )
    )


def _add_kernels(builder: RecordingBuilder, nodes: list[ChakraNode], rows: Rows, layout: Layout) -> None:
    """Add the GPU's nodes, and a launch at the end of the host's node that each waits for."""
    count = len(rows)
    gpu = [nodes[row] for row in rows.tolist()]
    launcher = layout.launcher[rows]
    launched = np.flatnonzero(launcher != MISSING)
    at = launcher[launched]
    before = np.minimum(layout.end_ns[at] - 1, layout.start_ns[rows[launched]])
    builder.add(
        make_rows(
            CallRows,
            len(launched),
            name=builder.names.number([LAUNCH_NAME] * len(launched)),
            thread=builder.threads.number([nodes[row].integer("tid", 0) for row in at.tolist()]),
            start_ns=np.maximum(before, layout.start_ns[at]),
            duration_ns=0,
            correlation=launched + 1,
        )
    )
    kinds = [_kernel_kind(node) for node in gpu]
    builder.add(
        make_rows(
            KernelRows,
            count,
            name=builder.names.number([node.name for node in gpu]),
            kind=kinds,
            start_ns=layout.start_ns[rows],
            duration_ns=layout.end_ns[rows] - layout.start_ns[rows],
            correlation=np.where(launcher != MISSING, np.arange(count) + 1, MISSING),
            device=0,
            stream=[_stream(node) for node in gpu],
            size_bytes=[
                node.integer("tensor_size") if kind == KernelKind.MEMCPY else MISSING
                for node, kind in zip(gpu, kinds, strict=True)
            ],
        )
    )


def _kernel_kind(node: ChakraNode) -> KernelKind:
    if node.kind in _COMMUNICATION:
        return KernelKind.COLLECTIVE
    if node.kind in (ChakraType.MEM_LOAD, ChakraType.MEM_STORE) or node.name.startswith("Memcpy"):
        return KernelKind.MEMCPY
    return KernelKind.MEMSET if node.name.startswith("Memset") else KernelKind.KERNEL


def _add_collectives(builder: RecordingBuilder, gpu: list[ChakraNode], known: KnownGroups) -> None:
    rows = [row for row, node in enumerate(gpu) if node.kind in _COMMUNICATION]
    builder.groups.update(known.reports)
    names = [str(gpu[row].attributes.get("pg_name") or "") for row in rows]
    for name in names:
        if name and name not in builder.groups:
            builder.groups[name] = GroupReport(name=name, size=MISSING, description="", ranks=())
    numbers = {name: number for number, name in enumerate(builder.groups)}
    count = len(rows)
    named: dict[int, str] = {ChakraType.COMM_SEND: "comm_dst", ChakraType.COMM_RECV: "comm_src"}
    peers = [gpu[row].integer(named[kind]) if (kind := gpu[row].kind) in named else MISSING for row in rows]
    builder.add(
        make_rows(
            CollectiveRows,
            count,
            is_kernel=1,
            row=rows,
            name=builder.collective_texts.number([_collective_name(gpu[row]) for row in rows]),
            # Chakra has bytes alone: they count as elements of one byte.
            dtype=builder.collective_texts.number(["Byte"] * count),
            in_elements=[max(gpu[row].integer("comm_size"), MISSING) for row in rows],
            group_size=[builder.groups[name].size if name in builder.groups else MISSING for name in names],
            group=[numbers.get(name, MISSING) for name in names],
            is_async=0,
            peer=[peer if 0 <= peer < 2**31 else MISSING for peer in peers],
        )
    )


def _collective_name(node: ChakraNode) -> str:
    if node.kind != ChakraType.COMM_COLL:
        return "send" if node.kind == ChakraType.COMM_SEND else "recv"
    number = node.integer("comm_type")
    if 0 <= number < len(COLLECTIVE_NAMES):
        return COLLECTIVE_NAMES[number]
    plain = node.name.lower().replace("_", "")
    return next((name for name in COLLECTIVE_NAMES if name.replace("_", "") in plain), "collective")


class _SideReader:
    """Read inputs and outputs, which Python wrote; equal texts are read once."""

    def __init__(self) -> None:
        self._known: dict[bytes, list[Any]] = {}

    def read(self, texts: tuple[bytes, bytes, bytes] | None) -> NodeSide:
        """Return the lists; empty ones where they cannot be read."""
        if texts is None:
            return NodeSide()
        values, shapes, types = map(self._list, texts)
        return NodeSide(values=values, shapes=shapes, types=types)

    def _list(self, text: bytes) -> list[Any]:
        if text not in self._known:
            json = _NONE.sub(lambda word: _JSON_WORDS[word[1]], text.replace(b"'", b'"'))
            try:
                found = msgspec.json.decode(json)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                found = None
            self._known[text] = found if isinstance(found, list) else []
        return self._known[text]


def _as_et_node(node: ChakraNode, sides: _SideReader) -> EtNode:
    """Return a node as the execution trace has it that it was made from; without inputs its signature is unknown."""
    inputs, outputs = sides.read(node.inputs), sides.read(node.outputs)
    return EtNode(
        number=node.number,
        name=node.name,
        parent=MISSING,
        record_function=node.integer("rf_id"),
        sequence=node.integer("seq_id"),
        scope=0,
        thread=node.integer("tid", 0),
        forward_thread=node.integer("fw_tid"),
        # A type without a value fits no list: the signature counts as not recorded.
        inputs=inputs if node.inputs is not None else NodeSide(types=["?"]),
        outputs=outputs,
        more={},
    )
