"""Writes Chakra traces, as simulators such as ASTRA-sim read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ..files.protobuf import pack_field, pack_varint
from .nodes import ChakraType

_VERSION: Final = "0.0.4"
_FIELD_OF_TYPE: Final = {"int32": 7, "int64": 9, "uint64": 13, "bool": 27, "string": 29}
_TYPES: Final = {
    "is_cpu_op": "bool", "num_ops": "int64", "tensor_size": "uint64", "comm_type": "int64", "comm_size": "int64",
    "comm_src": "int32", "comm_dst": "int32", "comm_tag": "int32", "pg_name": "string", "stream": "int64",
    "tid": "int64", "start_ns": "int64", "duration_ns": "int64",
}  # fmt: skip
"""The types that Chakra's feeder expects; it keeps the last four for whoever asks."""


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
    schema = pack_field(1, "schema") + pack_field(_FIELD_OF_TYPE["string"], "wavecast")
    parts = [_delimit(pack_field(1, _VERSION) + pack_field(2, schema))]
    parts += [_delimit(_encode_node(node)) for node in nodes]
    return b"".join(parts)


def _encode_node(node: WrittenNode) -> bytes:
    parts = [pack_field(1, node.number), pack_field(2, node.name), pack_field(3, int(node.kind))]
    if node.data_deps:
        parts.append(pack_field(5, b"".join(map(pack_varint, node.data_deps))))
    if node.duration_us:
        parts.append(pack_field(7, node.duration_us))
    if node.values:
        parts.append(pack_field(8, pack_field(1, node.values)))
    for name, value in node.attributes.items():
        content = value if isinstance(value, str) else int(value)
        parts.append(pack_field(10, pack_field(1, name) + pack_field(_FIELD_OF_TYPE[_TYPES[name]], content)))
    return b"".join(parts)


def _delimit(message: bytes) -> bytes:
    return pack_varint(len(message)) + message
