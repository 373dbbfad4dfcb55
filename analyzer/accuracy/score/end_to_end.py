"""Whole networks predicted from their ops' shapes: `models/neusight_e2e.parquet` beside `models/neusight_ops.parquet`.

The tables hold one transformer layer with what comes before and after it; the layer counts as often as the network
has it. A network becomes a trace of shapes only, predicted as `analyze` predicts one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np

from ....arrays import none_for_nan
from ....errors import InputError
from ....formats.column import build_table
from ....formats.signature import Signature
from ....formats.trace import Meta, OpTable, Trace, Workload
from ....specs.catalog import load_catalog
from ....specs.gpu import Gpu
from ....specs.match import find_gpu
from ...analysis.analyze import analyze_trace
from ...measurements.samples import Column, read_table
from ...models.library import Library
from ...prediction.method import Method
from .baselines import ROOFLINE
from .fx_graph import Node, calls_of
from .report import NetworkRow, Split
from .weights import Weights

NETWORKS: Final = "models/neusight_e2e.parquet"
NODES: Final = "models/neusight_ops.parquet"
PEERS: Final = {"neusight": "neusight", "habitat": "habitat", "micro": "micro", "roofline": "neusight_roofline"}
"""Whose predictions the table holds, by column, and what they are called here."""
OP_SUM: Final = "sum_of_measured_ops"
_FIRST_LAYER = re.compile(r"(?:^|_)(?:h|layers?|blocks?)_0_")
KEY: Final = ("gpu", "model", "mode", "seqlen", "batch", "variant")
NS_PER_MS: Final = 1e6

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Hold the nodes of a network, with one of its equal layers."""

    nodes: tuple[Node, ...]
    layer: range
    """The nodes of that layer."""


def score_networks(data: Path, weights: Weights) -> tuple[NetworkRow, ...]:
    """Predict every network of the table whose nodes are known; none where either table is missing."""
    if not (data / NETWORKS).exists() or not (data / NODES).exists():
        return ()
    networks, rows = read_nodes(data / NODES), _rows(read_table(data / NETWORKS))
    return tuple(_score(row, networks[key], weights) for row in rows if (key := _key(row)) in networks)


def layer_of(nodes: Sequence[Node]) -> range:
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


def build_trace(network: Network, layer_count: int, *, name: str, batch: int, mode: str) -> tuple[Trace, int]:
    """Return the network's calls as a trace of shapes, and the number of its nodes that nobody knows."""
    calls, unknown = [], 0
    for row, (_, found) in enumerate(calls_of(network.nodes, is_training=mode == "train")):
        repeats = layer_count if row in network.layer else 1
        unknown += repeats * (found is None)
        calls += list(found or ()) * repeats
    names = tuple(dict.fromkeys(call.op for call in calls))
    signatures: tuple[Signature, ...] = tuple(dict.fromkeys(call.signature for call in calls))
    name_code = {item: code for code, item in enumerate(names)}
    signature_code = {item: code for code, item in enumerate(signatures)}
    ops = build_table(
        OpTable,
        len(calls),
        name=[name_code[call.op] for call in calls],
        signature=[signature_code[call.signature] for call in calls],
    )
    work = Workload(name=name, mode="training" if mode == "train" else "inference", batch_size=batch)
    meta = Meta(capture="shapes", has_shapes=True, workload=work)
    return Trace(meta=meta, strings=names, signatures=signatures, ops=ops), unknown


def _score(row: Row, network: Network, weights: Weights) -> NetworkRow:
    gpu = find_gpu(load_catalog(), row["gpu"])
    name, batch, mode = str(row["model"]), int(row["batch"]), str(row["mode"])
    trace, unknown = build_trace(network, int(row["num_layer"] or 1), name=name, batch=batch, mode=mode)
    found, bare = (
        analyze_trace(trace, load_catalog(), targets=[gpu], library=library).predictions[0]
        for library in (weights.library_for(gpu), Library(fitted={}))
    )
    return NetworkRow(
        table=NETWORKS,
        gpu=gpu.name,
        model=name,
        mode=mode,
        sequence_length=int(row["seqlen"]),
        batch=batch,
        dtype=str(row["dtype"]),
        split=split_of(gpu, weights, found.methods),
        is_suspect=bool(row["suspect"]),
        measured_ns=float(row["measured_ms"]) * NS_PER_MS,
        predicted_ns=found.iteration_ns,
        low_ns=found.iteration_low_ns,
        high_ns=found.iteration_high_ns,
        unmodelled_nodes=unknown,
        baselines_ns={ROOFLINE: bare.iteration_ns, **dict(_baselines(row))},
    )


def split_of(gpu: Gpu, weights: Weights, methods: Mapping[Method, float]) -> Split:
    """Return whether any model that is at hand saw the GPU; where none predicts, nothing was seen."""
    if Method.OP_MODEL not in methods:
        return Split.UNSEEN
    return weights.split_of(gpu, tuple(weights.library_for(gpu).fitted))


def _baselines(row: Row) -> Iterator[tuple[str, float]]:
    parts = [row["opsum_fw_ms"], row["opsum_bw_ms"]]
    if _is_number(parts[0]):
        yield OP_SUM, sum(part for part in parts if _is_number(part)) * NS_PER_MS
    for column, peer in PEERS.items():
        value = row[f"pred_{column}_ms"]
        if _is_number(value):
            yield peer, float(value) * NS_PER_MS


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and bool(np.isfinite(value)) and value > 0


def read_nodes(path: Path) -> dict[tuple[object, ...], Network]:
    """Return the graphs of a table of nodes, by gpu, model, mode, sequence length, batch and variant."""
    rows: dict[tuple[object, ...], list[Row]] = {}
    for row in _rows(read_table(path)):
        rows.setdefault(_key(row), []).append(row)
    return {key: _network(found, path) for key, found in rows.items()}


def _network(rows: list[Row], path: Path) -> Network:
    rows.sort(key=lambda row: int(row["idx"]))
    nodes = tuple(_node(row, path) for row in rows)
    return Network(nodes=nodes, layer=layer_of(nodes))


def _node(row: Row, path: Path) -> Node:
    where = f"{path}: node {row['name']!r}"
    accumulated = [item[1] for item in _literal(row["acc_ops"], where) if item]
    return Node(
        name=str(row["name"]),
        kind=str(row["op"]),
        target=str(row["target"]),
        op_name=str(row["op_name"]),
        inputs=tuple(tuple(shape) for shape in _literal(row["input_shapes"], where)),
        output=tuple(_literal(row["output_shape"], where)),
        dtype=None if row["dtype"] is None else str(row["dtype"]).removeprefix("torch."),
        accumulated=tuple(prod(shape) for shape in accumulated),
    )


def _literal(text: str, where: str) -> Any:
    """Read shapes written as a Python literal, without evaluating anything."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError) as error:
        raise InputError(f"{where}: {text!r} is no list of shapes") from error


def _key(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in KEY)


def _rows(table: Mapping[str, Column]) -> list[Row]:
    """Return the rows of a small table; null numbers are None."""
    columns = {name: [none_for_nan(value) for value in column.tolist()] for name, column in table.items()}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
