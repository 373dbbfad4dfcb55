"""Graphs of whole networks: `models/neusight_ops.parquet` as nodes of one layer with what comes before and after it."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

from ...arrays import none_for_nan
from ...errors import InputError
from .fx_graph import FxNode
from .samples import TableColumn, read_table
from .table_columns import MAX_SIZE

NODES: Final = "models/neusight_ops.parquet"
PEERS: Final = {"neusight": "neusight", "habitat": "habitat", "micro": "micro", "roofline": "neusight_roofline"}
"""Whose predictions the table holds, by column, and what they are called here."""
KEY: Final = ("gpu", "model", "mode", "seqlen", "batch", "variant")
NODE_COLUMNS: Final = (
    *(*KEY, "idx", "name", "op_name", "op", "target", "input_shapes", "output_shape", "dtype", "acc_ops"),
    *("measured_fw_ms", "suspect", *(f"pred_{name}_fw_ms" for name in PEERS)),
)
NS_PER_MS: Final = 1e6
_FIRST_LAYER = re.compile(r"(?:^|_)(?:h|layers?|blocks?)_0_")

TableRow = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FxNetwork:
    """Hold the nodes of a network, with one of its equal layers."""

    nodes: tuple[FxNode, ...]
    layer: range
    """The nodes of that layer."""


def read_nodes(path: Path) -> dict[tuple[object, ...], FxNetwork]:
    """Return the graphs of a table of nodes, by gpu, model, mode, sequence length, batch and variant."""
    rows: dict[tuple[object, ...], list[TableRow]] = {}
    for row in rows_of(read_table(path, NODE_COLUMNS, may_lack=("dtype",))):
        rows.setdefault(key_of(row), []).append(row)
    return {key: _network(found, path) for key, found in rows.items()}


def _network(rows: list[TableRow], path: Path) -> FxNetwork:
    rows.sort(key=lambda row: int(row["idx"]))
    nodes = tuple(_node(row, path) for row in rows)
    return FxNetwork(nodes=nodes, layer=layer_of(nodes))


def _node(row: TableRow, path: Path) -> FxNode:
    where = f"{path}: node {row['name']!r}"
    return FxNode(
        name=str(row["name"]),
        kind=str(row["op"]),
        target=str(row["target"]),
        op_name=str(row["op_name"]),
        inputs=_shapes(_literal(row["input_shapes"], where), row["input_shapes"], where),
        output=_shapes([_literal(row["output_shape"], where)], row["output_shape"], where)[0],
        dtype=None if row["dtype"] is None else str(row["dtype"]).removeprefix("torch."),
        accumulated=tuple(map(prod, _accumulated(row["acc_ops"], where))),
    )


def _accumulated(text: str, where: str) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of what is added to: each op names its kind first."""
    ops = _literal(text, where)
    if not isinstance(ops, list | tuple) or not all(isinstance(item, list | tuple) and len(item) != 1 for item in ops):
        raise InputError(f"{where}: {text[:60]!r} is no list of ops with shapes")
    return _shapes([item[1] for item in ops if item], text, where)


def _shapes(values: Any, text: str, where: str) -> tuple[tuple[int, ...], ...]:
    """Return lists of sizes as tuples."""
    is_list = isinstance(values, list | tuple) and all(isinstance(shape, list | tuple) for shape in values)
    if not is_list or not all(type(size) is int and 0 <= size <= MAX_SIZE for shape in values for size in shape):
        raise InputError(f"{where}: {text[:60]!r} is no list of shapes")
    return tuple(map(tuple, values))


def _literal(text: str, where: str) -> Any:
    """Read shapes written as a Python literal, without evaluating anything."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise InputError(f"{where}: {text[:60]!r} is no list of shapes") from error


def key_of(row: TableRow) -> tuple[object, ...]:
    """Return what names the network of a row."""
    return tuple(row[name] for name in KEY)


def rows_of(table: Mapping[str, TableColumn]) -> list[TableRow]:
    """Return the rows of a small table; null numbers are None."""
    columns = {name: [none_for_nan(value) for value in column.tolist()] for name, column in table.items()}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def layer_of(nodes: Sequence[FxNode]) -> range:
    """Return the nodes of the first layer: from its first to its last, and up to a final normalisation next to it.

    Residual additions at a layer's end carry no layer's name; they belong to it where only the final normalisation
    of the network follows.
    """
    inside = [row for row, node in enumerate(nodes) if _FIRST_LAYER.search(node.name)]
    if not inside:
        return range(0)
    begin, last = inside[0], inside[-1]
    after = next((row for row in range(last + 1, len(nodes)) if nodes[row].kind == "call_module"), None)
    ends_at_norm = after is not None and nodes[after].op_name == "VECln"
    return range(begin, after if ends_at_norm and after is not None else last + 1)
