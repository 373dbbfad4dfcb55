"""Reads the nodes of a Chakra trace, protocol buffers or JSON, and writes them as ASTRA-sim and others read them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from functools import cache
from io import BytesIO
from typing import Any, Final

import msgspec

from ...errors import TraceError, parameter
from ...progress import tell
from ...records import dataclass, field
from ..files.protobuf import as_text, declare, messages_of, parse
from ..trace.column import MISSING

_MOST_US: Final = 2**41
"""25 days: nothing lasts longer."""
_MAX_ID: Final = 2**63 - 1
_CACHED_BYTES: Final = 64
_REPORT_EVERY: Final = 1 << 12
_MOST_LENGTH_BYTES: Final = 10
_DOUBLED: Final = re.compile(r"\bvoId\b|anonymous Namespace|StrIde")
"""What Chakra's own tool makes of kernel names when it renames the keys `id` and `name`."""
_TYPES: Final = {
    "is_cpu_op": "bool", "num_ops": "int64", "tensor_size": "uint64", "comm_type": "int64", "comm_size": "int64",
    "comm_src": "int32", "comm_dst": "int32", "comm_tag": "int32", "pg_name": "string", "stream": "int64",
    "tid": "int64", "start_ns": "int64", "duration_ns": "int64",
}  # fmt: skip
"""The types that Chakra's feeder expects; it keeps the last four for whoever asks."""


@cache
def chakra_messages() -> dict[str, Any]:
    """Return the classes of Chakra's messages, by the names and numbers of its `et_def.proto`."""
    return declare("chakra", messages_of("chakra"))


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


def read_binary(data: bytes, *, recover: bool = False) -> ChakraDocument:
    """Return the nodes of a `.et` file: a GlobalMetadata, then Nodes, each behind its length.

    Raises TraceError that says at which node the file is damaged; with `recover` what comes before it is kept.
    """
    nodes: list[ChakraNode] = []
    known: dict[bytes, tuple[str, Any]] = {}
    at, index = 0, -1
    try:
        while at < len(data):
            length, begin = read_length(data, at)
            if length > len(data) - begin:
                raise TraceError(f"{length} bytes are announced, {len(data) - begin} are there")
            if index >= 0:
                nodes.append(_read_node(data[begin : begin + length], known))
            at, index = begin + length, index + 1
            if index % _REPORT_EVERY == 0:
                tell("", at, len(data))
    except TraceError as error:
        if not recover or not nodes:
            advice = (
                f"; {len(nodes)} nodes before it are readable: keep them with {parameter('recover')}" if nodes else ""
            )
            raise TraceError(f"node {max(index, 0)}, at byte {at}: damaged or cut short: {error}{advice}") from None
        return ChakraDocument(nodes=nodes, bytes_lost=len(data) - at, bytes_read=at)
    return ChakraDocument(nodes=nodes)


def read_length(content: bytes, at: int) -> tuple[int, int]:
    """Return the number of bytes that a message's length announces, and where the message begins.

    >>> read_length(bytes([0xAC, 0x02]), 0)
    (300, 2)
    """
    length = 0
    for place, byte in enumerate(content[at : at + _MOST_LENGTH_BYTES]):
        length |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return length, at + place + 1
    raise TraceError("found a length without an end")


def _read_node(data: bytes, known: dict[bytes, tuple[str, Any]]) -> ChakraNode:
    kinds = chakra_messages()
    found = parse(kinds["Node"], data, "Node")
    node = ChakraNode(
        number=_bounded(found.id, _MAX_ID, "an id"),
        name=as_text(found.name),
        kind=found.type,
        ctrl_deps=list(found.ctrl_deps),
        data_deps=list(found.data_deps),
        start_us=_bounded(found.start_time_micros, 2**62 // 1000, "a start"),
        duration_us=_bounded(found.duration_micros, _MOST_US, "a duration"),
        inputs=_side(found.inputs) if found.HasField("inputs") else None,
        outputs=_side(found.outputs) if found.HasField("outputs") else None,
    )
    for content in found.attr:
        if (attribute := known.get(content)) is None:
            told = parse(kinds["AttributeProto"], content, "AttributeProto")
            values = [value for field, value in told.ListFields() if field.number > 1]
            value = values[-1] if values else None
            attribute = as_text(told.name), as_text(value) if isinstance(value, bytes) else value
            if len(content) <= _CACHED_BYTES:
                known[content] = attribute
        node.attributes[attribute[0]] = attribute[1]
    return node


def _bounded(value: int, most: int, what: str) -> int:
    if value > most:
        raise TraceError(f"{what} of {value}; expected at most {most}")
    return value


def _side(found: Any) -> tuple[bytes, bytes, bytes]:
    return found.values, found.shapes, found.types


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


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenNode:
    """Hold a node to be written; ids begin with 1, because 0 looks like none."""

    number: int
    name: str
    kind: ChakraType
    duration_us: int
    data_deps: Sequence[int] = ()
    values: str = ""
    attributes: Mapping[str, int | str] = field(default_factory=dict)


def encode_chakra(nodes: Iterable[WrittenNode]) -> bytes:
    """Return a `.et` file's bytes: a GlobalMetadata, then each node, all behind their lengths."""
    from google.protobuf.proto import serialize_length_prefixed

    kinds, stream = chakra_messages(), BytesIO()
    head = kinds["GlobalMetadata"](version=b"0.0.4", attr=[_attribute("schema", "string", "wavecast")])
    serialize_length_prefixed(head, stream)
    for node in nodes:
        told = [_attribute(name, _TYPES[name], value) for name, value in node.attributes.items()]
        made = kinds["Node"](
            id=node.number, name=node.name.encode(), type=node.kind, data_deps=node.data_deps,
            duration_micros=node.duration_us or None, attr=told,
        )  # fmt: skip
        if node.values:
            made.inputs.values = node.values.encode()
        serialize_length_prefixed(made, stream)
    return stream.getvalue()


def _attribute(name: str, kind: str, value: int | str) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    encoded: bytes = chakra_messages()["AttributeProto"](name=name.encode(), **{kind: content}).SerializeToString()
    return encoded
