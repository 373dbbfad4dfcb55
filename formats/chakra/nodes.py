"""Reads the nodes of a Chakra trace: protocol buffers one after the other, or JSON with a `workload_graph`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import msgspec

from ...errors import TraceError, parameter
from ..files.importers import Progress
from ..files.protobuf import VARINT, Value, as_numbers, as_signed, as_zigzag, iterate_fields, read_varint
from ..trace.column import MISSING

_MOST_US: Final = 2**41
"""25 days: nothing lasts longer."""
_MAX_ID: Final = 2**63 - 1
_CACHED_BYTES: Final = 64
_REPORT_EVERY: Final = 1 << 12
_DOUBLED: Final = re.compile(r"\bvoId\b|anonymous Namespace|StrIde")
"""What Chakra's own tool makes of kernel names when it renames the keys `id` and `name`."""


class ChakraType(IntEnum):
    """Say what a node is."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


@dataclass(slots=True, kw_only=True)
class ChakraNode:
    """Hold a node; times are in µs, 0 where the file has none."""

    number: int = 0
    name: str = ""
    kind: int = ChakraType.INVALID
    ctrl_deps: list[int] = field(default_factory=list)
    data_deps: list[int] = field(default_factory=list)
    start_us: int = 0
    duration_us: int = 0
    inputs: tuple[bytes, bytes, bytes] | None = None
    """Values, shapes and types as Python writes them."""
    outputs: tuple[bytes, bytes, bytes] | None = None
    attributes: dict[str, Any] = field(default_factory=dict)

    def integer(self, name: str, default: int = MISSING) -> int:
        """Return an attribute that is a number."""
        value = self.attributes.get(name)
        return int(value) if isinstance(value, int) and abs(value) < 2**53 else default

    @property
    def is_host(self) -> bool:
        """Say whether it runs on the host: where the file does not say, what PyTorch numbered does."""
        value = self.attributes.get("is_cpu_op")
        return (
            value if isinstance(value, bool) else bool(value) if isinstance(value, int) else "rf_id" in self.attributes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChakraDocument:
    """Hold the nodes in file order, and how much of a damaged file is lost."""

    nodes: list[ChakraNode]
    bytes_lost: int = 0
    bytes_read: int = 0


def read_binary(data: bytes, *, recover: bool = False, progress: Progress | None = None) -> ChakraDocument:
    """Return the nodes of a `.et` file: a GlobalMetadata, then Nodes, each behind its length.

    Raises TraceError that says at which node the file is damaged; with `recover` what comes before it is kept.
    """
    nodes: list[ChakraNode] = []
    known: dict[bytes, tuple[str, Any]] = {}
    content, at, index = memoryview(data), 0, -1
    try:
        while at < len(data):
            length, begin = read_varint(content, at, "length")
            if length > len(data) - begin:
                raise TraceError(f"{length} bytes are announced, {len(data) - begin} are there")
            if index >= 0:
                nodes.append(_read_node(content[begin : begin + length], known))
            at, index = begin + length, index + 1
            if progress is not None and index % _REPORT_EVERY == 0:
                progress(at, len(data))
    except (TraceError, UnicodeDecodeError) as error:
        if not recover or not nodes:
            advice = (
                f"; {len(nodes)} nodes before it are readable: import it with {parameter('recover')}" if nodes else ""
            )
            raise TraceError(f"node {max(index, 0)}, at byte {at}: damaged or cut short: {error}{advice}") from None
        return ChakraDocument(nodes=nodes, bytes_lost=len(data) - at, bytes_read=at)
    if progress is not None:
        progress(len(data), len(data))
    return ChakraDocument(nodes=nodes)


def _read_node(data: memoryview, known: dict[bytes, tuple[str, Any]]) -> ChakraNode:
    node = ChakraNode()
    for number, kind, value in iterate_fields(data, "node"):
        if isinstance(value, int):
            if kind == VARINT:
                _set_number(node, number, value)
        elif number == 2:
            node.name = str(value, "utf-8", "replace")
        elif number in (4, 5):
            (node.ctrl_deps if number == 4 else node.data_deps).extend(as_numbers(value, "dependencies"))
        elif number == 8:
            node.inputs = _read_side(value)
        elif number == 9:
            node.outputs = _read_side(value)
        elif number == 10:
            text = bytes(value)
            name, item = known.get(text) or _read_attribute(value)
            if len(text) <= _CACHED_BYTES:
                known[text] = name, item
            node.attributes[name] = item
    return node


def _set_number(node: ChakraNode, number: int, value: int) -> None:
    if number == 1:
        node.number = _bounded(value, _MAX_ID, "an id")
    elif number == 3:
        node.kind = value
    elif number in (4, 5):
        (node.ctrl_deps if number == 4 else node.data_deps).append(value)
    elif number == 6:
        node.start_us = _bounded(value, 2**62 // 1000, "a start")
    elif number == 7:
        node.duration_us = _bounded(value, _MOST_US, "a duration")


def _bounded(value: int, most: int, what: str) -> int:
    if value > most:
        raise TraceError(f"{what} of {value}; expected at most {most}")
    return value


def _read_side(data: memoryview) -> tuple[bytes, bytes, bytes]:
    fields = iterate_fields(data, "values")
    parts = {number: bytes(value) for number, _, value in fields if not isinstance(value, int)}
    return parts.get(1, b""), parts.get(2, b""), parts.get(3, b"")


def _read_attribute(data: memoryview) -> tuple[str, Any]:
    """Return name and value: numbers, truths and texts; what is of another type is None."""
    name, found = "", None
    for number, kind, value in iterate_fields(data, "attribute"):
        if number == 1 and not isinstance(value, int):
            name = str(value, "utf-8", "replace")
        elif number > 2:
            found = _value(number, kind, value)
    return name, found


def _value(number: int, kind: int, value: Value) -> Any:
    if kind == VARINT and isinstance(value, int):
        if number in (15, 17):
            return as_zigzag(value)
        return bool(value) if number == 27 else as_signed(value) if number in (7, 9) else value
    return str(value, "utf-8", "replace") if number == 29 and not isinstance(value, int) else None


def read_json(data: bytes) -> ChakraDocument:
    """Return the nodes of Chakra's JSON: an object whose `workload_graph` is a list of them."""
    try:
        items = msgspec.json.decode(data, type=dict[str, Any]).get("workload_graph")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"not a Chakra trace: {error}") from None
    except RecursionError:
        raise TraceError("$.workload_graph: found values nested too deeply to read") from None
    if not isinstance(items, list):
        raise TraceError("$.workload_graph: expected a list of nodes")
    nodes = [_from_json(item, f"$.workload_graph[{index}]") for index, item in enumerate(items)]
    if any(_DOUBLED.search(node.name) for node in nodes):
        for node in nodes:
            node.name = node.name.replace("Id", "id").replace("Name", "name")
    return ChakraDocument(nodes=nodes)


def _from_json(item: Any, path: str) -> ChakraNode:
    if not isinstance(item, dict):
        raise TraceError(f"{path}: expected a node, an object")
    name = item.get("Name", "")
    if not isinstance(name, str):
        raise TraceError(f"{path}.Name: expected a text")
    deps = item.get("data_deps") or []
    if not isinstance(deps, list) or not all(type(number) is int for number in deps):
        raise TraceError(f"{path}.data_deps: expected a list of ids")
    return ChakraNode(
        number=_count(item, "Id", path, _MAX_ID),
        name=name,
        kind=_count(item, "NodeType", path, _MAX_ID),
        data_deps=deps,
        duration_us=_count(item, "runtime", path, _MOST_US),
        attributes={key: value for key, value in item.items() if isinstance(value, bool | int | str)},
    )


def _count(item: Mapping[str, Any], key: str, path: str, most: int) -> int:
    value = item.get(key, 0)
    if type(value) is not int or not 0 <= value <= most:
        raise TraceError(f"{path}.{key}: expected an integer from 0 to {most}")
    return value
