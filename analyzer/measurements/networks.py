"""Networks as `models/neusight_ops.parquet` has them: whole graphs, and single ops with the predictions of others.

Times of single ops are those of launches between CUDA events, so that short ones read the host's floor.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...arrays import group_by, none_for_nan
from ...errors import InputError
from ...formats.trace.signature import DTYPE_BYTES
from ...records import dataclass, replace
from ...specs.gpu import Catalog, Rate
from ..models.frame.problems import Problems
from ..models.registry import OP_MODELS, Assignment, assign_models
from ..work import Work, work_of
from ..work.access import Access
from ..work.kernel_names import with_kernel
from ..work.table import WorkTable
from .fx_graph import FxNode, OpCall, calls_of
from .samples import Samples, TableColumn, gpus_of, read_table
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
FRAMEWORK: Final = "torch 2.1.0"
LATER_FRAMEWORK: Final = {"Instinct MI100": "torch 2.4.0"}
"""What measured a GPU where it was another: among its softmax's recorded kernels are those of torch 2.4."""
_FIRST_LAYER = re.compile(r"(?:^|_)(?:h|layers?|blocks?)_0_")

TableRow = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FxNetwork:
    """Hold the nodes of a network, with one of its equal layers."""

    nodes: tuple[FxNode, ...]
    layer: range
    """The nodes of that layer."""
    framework: str | None = None  # as a trace names what measured it


def read_nodes(path: Path) -> dict[tuple[object, ...], FxNetwork]:
    """Return the graphs of a table of nodes, by gpu, model, mode, sequence length, batch and variant."""
    rows = group_by(rows_of(read_table(path, NODE_COLUMNS, may_lack=("dtype",))), key_of)
    return {key: _network(found, path) for key, found in rows.items()}


def _network(rows: list[TableRow], path: Path) -> FxNetwork:
    rows.sort(key=lambda row: int(row["idx"]))
    nodes = tuple(_node(row, path) for row in rows)
    framework = LATER_FRAMEWORK.get(rows[0]["gpu"], FRAMEWORK)
    return FxNetwork(nodes=nodes, layer=layer_of(nodes), framework=framework)


def _node(row: TableRow, path: Path) -> FxNode:
    where = f"{path}: node {row['name']!r}"
    # The shapes of what is added to: each op names its kind first.
    text = row["acc_ops"]
    ops = _literal(text, where)
    if not isinstance(ops, list | tuple) or not all(isinstance(item, list | tuple) and len(item) != 1 for item in ops):
        raise InputError(f"{where}: {text[:60]!r} is no list of ops with shapes")
    dtype = str(row["dtype"] or "").removeprefix("torch.")
    if dtype and dtype not in DTYPE_BYTES:
        raise InputError(f"{where}: {dtype[:60]!r} is no dtype of torch")
    return FxNode(
        name=str(row["name"]),
        kind=str(row["op"]),
        target=str(row["target"]),
        op_name=str(row["op_name"]),
        inputs=_shapes(_literal(row["input_shapes"], where), row["input_shapes"], where),
        output=_shapes([_literal(row["output_shape"], where)], row["output_shape"], where)[0],
        dtype=dtype or None,
        accumulated=tuple(map(prod, _shapes([item[1] for item in ops if item], text, where))),
    )


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


EVENT_TIMED: Final[Mapping[str, float]] = {"host_floor_ns": np.nan, "is_event_timed": 1.0, "copies": 1.0}
"""Columns by which problems say that the host is inside a time, and what they then hold."""
FAMILIES: Final[Mapping[str, str]] = {
    "Linear": "linear",
    "BMM": "bmm",
    "VECln": "layernorm",
    "VECsoftmax": "softmax",
    "EMBEDDING": "embedding",
    "contiguous": "copy",
}
"""By the source's class of op."""
OTHER_FAMILY: Final = "elementwise"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredNode:
    """Hold one measured node."""

    gpu: str
    family: str
    work: Work
    time_ns: float
    peers_ns: Mapping[str, float]


def load_samples(data: Path, catalog: Catalog | None = None) -> list[Samples[Any]]:
    """Return every distinct op that was measured on a GPU, as samples of the models that cover them."""
    rows = list(_measured(data))
    rates = np.empty(len(rows), dtype=object)
    rates[:] = [Rate.MATRIX_FP32 if row.work.is_matrix else Rate.FP32 for row in rows]
    found = assign_models([row.work for row in rows], rates, OP_MODELS)
    return [_samples(item, [rows[row] for row in item.rows.tolist()], rates[item.rows], catalog) for item in found]


def _samples(found: Assignment, rows: Sequence[MeasuredNode], rates: Any, catalog: Catalog | None) -> Samples[Any]:
    gpus, gpu = gpus_of(np.array([row.gpu for row in rows], dtype=object), catalog)
    work = WorkTable(
        flops=np.array([row.work.flops for row in rows]),
        moved_bytes=np.array([row.work.moved_bytes for row in rows]),
        rate=rates,
    )
    return Samples(
        table=NODES,
        model=found.model,
        problems=_event_timed(found.problems),
        gpus=gpus,
        gpu=gpu,
        measured_ns=np.array([row.time_ns for row in rows]),
        family=np.array([row.family for row in rows], dtype=object),
        dtype=np.full(len(rows), "fp32", dtype=object),
        share=np.ones(len(rows)),
        work=work,
        peers_ns={peer: np.array([row.peers_ns[peer] for row in rows]) for peer in PEERS.values()},
    )


def _event_timed(problems: Problems) -> Problems:
    known = {name: value for name, value in EVENT_TIMED.items() if hasattr(problems, name)}
    return replace(problems, **{name: np.full_like(getattr(problems, name), value) for name, value in known.items()})


def _measured(data: Path) -> Iterator[MeasuredNode]:
    """Yield each op once per GPU and shape: equal ones of a network were measured alike."""
    table = read_table(data / NODES, NODE_COLUMNS, may_lack=("dtype",))
    row_of = {key: row for row, key in enumerate(zip(*(table[name].tolist() for name in (*KEY, "name")), strict=True))}
    seen = set()
    for key, network in read_nodes(data / NODES).items():
        for node, calls in _classed(network):
            row, works = row_of[*key, node.name], [work_of(call.op, call.signature) for call in calls]
            time_ns = float(table["measured_fw_ms"][row]) * NS_PER_MS
            identity, work = (key[0], calls), works[-1]
            if work is None or time_ns <= 0 or table["suspect"][row] or identity in seen:
                continue
            seen.add(identity)
            if copied := sum(before.moved_bytes for before in works[:-1] if before is not None):
                work = replace(work, access=Access(before_bytes=copied))
            peers = {peer: float(table[f"pred_{name}_fw_ms"][row]) * NS_PER_MS for name, peer in PEERS.items()}
            yield MeasuredNode(
                gpu=str(key[0]),
                family=f"{FAMILIES.get(node.op_name, OTHER_FAMILY)} (of networks)",
                work=with_kernel(work, "", network.framework),
                time_ns=time_ns,
                peers_ns={peer: value if value > 0 else np.nan for peer, value in peers.items()},
            )


def _classed(network: FxNetwork) -> Iterator[tuple[FxNode, tuple[OpCall, ...]]]:
    """Yield the nodes that the source has a class for, with the op and what copies its operands first."""
    for node, calls in calls_of(network.nodes, is_training=False):
        if calls and node.op_name != "misc":
            yield node, calls
