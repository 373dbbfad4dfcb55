"""Reads process groups and what they were asked to do: `process_group:init` and `record_param_comms`."""

from collections.abc import Sequence
from typing import Any, Final, TypeGuard

import msgspec

from ...records import dataclass
from ..recording.builder import GroupReport, RecordingBuilder
from ..recording.rows import CollectiveRows, make_rows
from ..trace.column import MISSING
from .nodes import EtNode
from .values import find_tensors

GROUPS_NAME: Final = "## process_group:init ##"
COLLECTIVE_NAME: Final = "record_param_comms"
_NO_COLLECTIVES: Final = frozenset({"wait", "init", ""})
"""Reported as collectives, but nothing is sent."""
_SENDS: Final = ("send", "recv")
_MOST_RANKS: Final = 1 << 20
_MAX_INT32: Final = 2**31 - 1
_DTYPES: Final = {
    "float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16", "int64": "Long",
    "int32": "Int", "int16": "Short", "int8": "Char", "uint8": "Byte", "bool": "Bool", "complex64": "ComplexFloat",
    "complex128": "ComplexDouble", "float8_e4m3fn": "Float8_e4m3fn", "float8_e5m2": "Float8_e5m2",
}  # fmt: skip
"""What process groups call torch's dtypes."""


_Call = dict[str, Any]
"""One collective as the observer wrote it, by the names of CollectiveRows; numbers are -1 where it does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownGroups:
    """Hold the groups that a file lists: by name, and the name of each backend's number."""

    reports: dict[str, GroupReport]
    name_of_backend: dict[int, str]


def read_groups(nodes: Sequence[EtNode]) -> KnownGroups:
    """Return the process groups that the file says it made."""
    texts = [value for node in nodes if node.name == GROUPS_NAME for value in node.inputs.values[:1]]
    return list_groups([text for text in texts if isinstance(text, str)])


def list_groups(texts: Sequence[str]) -> KnownGroups:
    """Return the groups of lists in JSON, as torch writes them."""
    known = KnownGroups(reports={}, name_of_backend={})
    for text in texts:
        try:
            items = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            continue
        for item in items if isinstance(items, list) else []:
            if isinstance(item, dict):
                _add_group(item, known)
    return known


def _add_group(item: dict[str, Any], known: KnownGroups) -> None:
    name, size = str(item.get("pg_name", "")), item.get("pg_size", item.get("group_size"))
    count = size if _is_count(size, _MOST_RANKS) else 0
    ranks = item.get("ranks")
    listed = tuple(ranks) if isinstance(ranks, list) and all(_is_count(rank, _MAX_INT32) for rank in ranks) else ()
    # torch leaves the ranks out where they are all of the world.
    members = listed or tuple(range(count))
    if name not in known.reports and members:
        known.reports[name] = GroupReport(
            name=name, size=len(members), description=str(item.get("pg_desc", "")), ranks=members
        )
    backend = item.get("backend_id")
    if type(backend) is int:
        known.name_of_backend.setdefault(backend, name)


def add_collectives(builder: RecordingBuilder, ops: Sequence[EtNode], known: KnownGroups) -> None:
    """Add the collectives among ops, which lie in the builder in this order, and the groups that the file lists."""
    calls = [call for row, node in enumerate(ops) if node.name == COLLECTIVE_NAME and (call := _read(row, node, known))]
    builder.groups.update(known.reports)
    for call in calls:
        if (name := call["group"]) and name not in builder.groups:
            builder.groups[name] = GroupReport(name=name, size=call["group_size"], description="", ranks=())
    numbers = {name: number for number, name in enumerate(builder.groups)}
    if not calls:
        return
    columns: dict[str, Any] = {key: [call[key] for call in calls] for key in calls[0]}
    columns["name"] = builder.collective_texts.number(columns["name"])
    columns["dtype"] = builder.collective_texts.number([_DTYPES.get(dtype, "") for dtype in columns["dtype"]])
    columns["group"] = [numbers.get(name, MISSING) for name in columns["group"]]
    builder.add(make_rows(CollectiveRows, len(calls), is_kernel=0, is_async=0, **columns))


def _read(row: int, node: EtNode, known: KnownGroups) -> _Call | None:
    """Return a collective: what its attributes say (since 1.1), else what its inputs do.

    The inputs are, as far as the version has them: tensors, sequence number, group, rank, name, splits, sizes.
    """
    values, more = node.inputs.values, node.more
    at = next((at for at, kind in enumerate(node.inputs.types) if kind == "String" and at < len(values)), None)
    name = str(more.get("collective_name") or (values[at] if at is not None else ""))
    if name.lower() in _NO_COLLECTIVES:
        return None
    group, sequence, peer = _issued_by(values[:at] if at is not None else [])
    backend = group if isinstance(group, int) else MISSING
    named = str(more.get("pg_name") or known.name_of_backend.get(backend, group if isinstance(group, str) else ""))
    report = known.reports.get(named)
    size = more.get("pg_size", values[-1] if values else None)
    sent, returned = list(find_tensors(node.inputs)), list(find_tensors(node.outputs))
    elements = [sum(tensor.element_count for tensor in tensors) for tensors in (sent, returned)]
    told = [more.get(key) for key in ("in_msg_nelems", "out_msg_nelems")]
    counts = [int(item) if _is_count(item, 2**53) else count for item, count in zip(told, elements, strict=True)]
    return {
        "row": row,
        "name": name,
        "dtype": next((tensor.dtype for tensor in (*sent, *returned)), ""),
        "in_elements": counts[0],
        "out_elements": counts[1],
        "group": named,
        "group_size": int(size) if _is_count(size, _MAX_INT32) and size else (report.size if report else MISSING),
        "sequence": sequence,
        "peer": peer if name.startswith(_SENDS) else MISSING,
    }


def _issued_by(values: list[Any]) -> tuple[Any, int, int]:
    """Return the group, the sequence number and the rank beside the collective's name, which they stand before."""
    rank = values[-1] if values and _is_count(values[-1], _MAX_INT32) else MISSING
    group = values[-2] if len(values) > 1 else None
    number = values[-3] if len(values) > 2 else None
    if isinstance(group, list):
        group = group[0] if group and isinstance(group[0], str) else None
    if isinstance(number, list):
        number = number[0] if number else None
    return group, number if _is_count(number, 2**53) else MISSING, rank


def _is_count(value: object, most: int) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= most
