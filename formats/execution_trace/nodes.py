"""Reads the nodes of an execution trace, whichever version of its schema wrote them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from ...arrays import Rows
from ...errors import TraceError, parameter
from ...progress import tell
from ...records import dataclass, field
from ..trace.column import MISSING

_ID = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_BOUNDARY: Final = re.compile(rb"\]\s*\}(?=\s*,?\s*(?:\{|\Z|[^\s,\]}]))")
"""The end of a node: all versions write a list last."""
_SALVAGE_TRIES: Final = 8
_REPORT_EVERY: Final = 1 << 14
_MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError)
USER_SCOPE: Final = 7
"""torch's RecordScope of what scripts and libraries annotate themselves; all others are ops."""
_ROOT = "[pytorch|profiler|execution_trace|process]"
_STEP = "ProfilerStep#"
_IDLE_RATIO = 0.05
"""Of the ops of the step that has most: what has fewer is no iteration."""


class _Side(msgspec.Struct, gc=False):
    values: list[Any]
    shapes: list[Any]
    types: list[Any]
    strides: list[Any] | None = None


class _Attribute(msgspec.Struct, gc=False):
    name: str
    value: Any = None


class _Node(msgspec.Struct, gc=False):
    """Hold a node as written: 1.0.1 has its fields side by side, later versions have sides and attributes."""

    id: _ID
    name: str
    ctrl_deps: _ID | list[_ID] | None = None
    inputs: _Side | list[Any] | None = None
    outputs: _Side | list[Any] | None = None
    attrs: list[_Attribute] = msgspec.field(default_factory=list)
    parent: _ID | None = None
    input_shapes: list[Any] = msgspec.field(default_factory=list)
    input_types: list[Any] = msgspec.field(default_factory=list)
    output_shapes: list[Any] = msgspec.field(default_factory=list)
    output_types: list[Any] = msgspec.field(default_factory=list)
    rf_id: int | None = None
    seq_id: int | None = None
    scope: int | None = None
    tid: int | None = None
    fw_tid: int | None = None


class _Document(msgspec.Struct):
    nodes: list[msgspec.Raw]
    schema: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSide:
    """Hold what an op read or returned, one item per value; `strides` are None where the version has none."""

    values: list[Any] = field(default_factory=list)
    shapes: list[Any] = field(default_factory=list)
    types: list[Any] = field(default_factory=list)
    strides: list[Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EtNode:
    """Hold a node: an op or an annotation. Numbers are -1 where the file has none."""

    number: int
    name: str
    parent: int
    record_function: int
    sequence: int
    scope: int
    thread: int
    forward_thread: int
    inputs: NodeSide
    outputs: NodeSide
    more: Mapping[str, Any]
    """The other attributes, such as those of collectives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EtDocument:
    """Hold an execution trace's nodes in order of their numbers, which is the order in which they began."""

    schema: str
    nodes: Sequence[EtNode]
    bytes_lost: int = 0
    bytes_read: int = 0

    @property
    def lost_parent_count(self) -> int:
        """Return how many nodes name a parent that is not before them; the first is the root."""
        numbers = {node.number for node in self.nodes}
        places = ((node.parent, node.number) for node in self.nodes[1:])
        return sum(parent > 0 and (parent >= own or parent not in numbers) for parent, own in places)


def read_nodes(data: bytes, *, recover: bool = False) -> EtDocument:
    """Return the nodes of an execution trace; with `recover` those before the place where the file ends early.

    Raises TraceError where the file is none, holds several, names two nodes alike, or ends early.
    """
    document, lost = _decode(data, recover)
    nodes = sorted(_read_all(document.nodes, len(data)), key=lambda node: node.number)
    for before, after in pairwise(nodes):
        if before.number == after.number:
            raise TraceError(f"$.nodes: two nodes have the id {after.number}; expected each its own")
    roots = sum(node.name == _ROOT for node in nodes)
    if roots > 1:
        raise TraceError(f"$.nodes: this looks like {roots} ranks or runs in one file; give one of them")
    if not nodes:
        raise TraceError("$.nodes: found none, expected the ops of an execution trace")
    return EtDocument(schema=document.schema, nodes=nodes, bytes_lost=lost, bytes_read=len(data) - lost if lost else 0)


def _decode(data: bytes, recover: bool) -> tuple[_Document, int]:
    """Return the document with its nodes undecoded, and how many bytes at its end are lost."""
    try:
        return msgspec.json.decode(data, type=_Document), 0
    except msgspec.ValidationError as error:
        raise TraceError(f"not a PyTorch execution trace: {error}") from None
    except RecursionError:
        raise TraceError("$.nodes: found values nested too deeply to read") from None
    except _MALFORMED as error:
        if not recover:
            raise TraceError(
                f"the file ends early or is malformed ({error}); with {parameter('recover')} it is read as far as it "
                "goes"
            ) from None
    ends = [match.end() for match in _BOUNDARY.finditer(data)]
    for end in reversed(ends[-_SALVAGE_TRIES:]):
        try:
            return msgspec.json.decode(data[:end] + b"]}", type=_Document), len(data) - end
        except (*_MALFORMED, RecursionError):
            continue
    raise TraceError("$.nodes: no readable node: the file is malformed from its start")


def _read_all(texts: Sequence[msgspec.Raw], size: int) -> Iterator[EtNode]:
    decoder = msgspec.json.Decoder(_Node)
    done = 0
    for index, text in enumerate(texts):
        try:
            yield _read_node(decoder.decode(text))
        except msgspec.ValidationError as error:
            raise TraceError(f"not a PyTorch execution trace: $.nodes[{index}]: {error}") from None
        except (*_MALFORMED, RecursionError):
            raise TraceError(f"$.nodes[{index}]: found a value that cannot be read, or nested too deeply") from None
        done += len(memoryview(text))
        if index % _REPORT_EVERY == 0:
            tell("", done, size)


def _read_node(node: _Node) -> EtNode:
    attributes = {item.name: item.value for item in node.attrs}
    parents = node.ctrl_deps if isinstance(node.ctrl_deps, list) else [node.ctrl_deps]
    parent = node.parent if node.parent is not None else next((item for item in parents if item is not None), MISSING)
    numbers = {
        name: _integer(attributes.pop(name, None) if own is None else own)
        for name, own in (
            ("rf_id", node.rf_id), ("seq_id", node.seq_id), ("scope", node.scope), ("tid", node.tid),
            ("fw_tid", node.fw_tid),
        )
    }  # fmt: skip
    return EtNode(
        number=node.id,
        name=node.name,
        parent=parent,
        record_function=numbers["rf_id"],
        sequence=numbers["seq_id"],
        scope=numbers["scope"],
        thread=numbers["tid"],
        forward_thread=numbers["fw_tid"],
        inputs=_side(node.inputs, node.input_shapes, node.input_types),
        outputs=_side(node.outputs, node.output_shapes, node.output_types),
        more=attributes,
    )


def _side(side: _Side | list[Any] | None, shapes: list[Any], types: list[Any]) -> NodeSide:
    if isinstance(side, _Side):
        return NodeSide(values=side.values, shapes=side.shapes, types=side.types, strides=side.strides)
    return NodeSide(values=side or [], shapes=shapes, types=types)


def _integer(value: object) -> int:
    """Return a number that int64 holds, -1 for all else: the largest unsigned one stands for none, too."""
    return value if type(value) is int and MISSING <= value < 2**63 else MISSING


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticks:
    """Hold when each node begins and how long it lasts, in ticks that only order means anything of."""

    begin: Rows
    length: Rows


def count_ticks(nodes: Sequence[EtNode]) -> Ticks:
    """Return ticks by which each node lies inside its parent and after what ended before it.

    `nodes` are in order of their numbers. A parent that is not in the file, or not before its child, is none.
    """
    place = {node.number: row for row, node in enumerate(nodes)}
    last = list(range(len(nodes)))
    for row in range(len(nodes) - 1, -1, -1):
        parent = place.get(nodes[row].parent, MISSING)
        if MISSING < parent < row and nodes[parent].thread == nodes[row].thread:
            last[parent] = max(last[parent], last[row])
    begin = 2 * np.arange(len(nodes), dtype=np.int64)
    return Ticks(begin=begin, length=2 * np.array(last, dtype=np.int64) + 1 - begin)


def choose_step(nodes: Sequence[EtNode], ticks: Ticks, iteration: int | None) -> tuple[Sequence[EtNode], Ticks, int]:
    """Return the nodes of one step of the profiler, and how many ops lie outside it; all where no step is marked.

    Without `iteration` it is the step of median number of ops among those that do work.
    """
    steps = [row for row, node in enumerate(nodes) if node.scope == USER_SCOPE and node.name.startswith(_STEP)]
    if not steps:
        if iteration not in (None, 0):
            raise TraceError(f"iteration {iteration}: the file marks no iterations (ProfilerStep#); leave it out")
        return nodes, ticks, 0
    is_op = np.array([node.scope != USER_SCOPE for node in nodes], dtype=bool)
    before = np.concatenate(([0], np.cumsum(is_op)))
    begin = np.array(steps, dtype=np.int64)
    end = (ticks.begin[begin] + ticks.length[begin]) // 2 + 1
    counts = before[end] - before[begin]
    chosen = _median(counts) if iteration is None else iteration
    if not 0 <= chosen < len(steps):
        raise TraceError(f"iteration {iteration}: expected one of the file's {len(steps)}: 0 to {len(steps) - 1}")
    rows = slice(int(begin[chosen]), int(end[chosen]))
    kept = Ticks(begin=ticks.begin[rows], length=ticks.length[rows])
    return nodes[rows], kept, int(is_op.sum() - counts[chosen])


def _median(counts: Rows) -> int:
    working = np.flatnonzero(counts >= _IDLE_RATIO * counts.max())
    ordered = working[np.argsort(counts[working], kind="stable")]
    return int(ordered[(len(ordered) - 1) // 2])
