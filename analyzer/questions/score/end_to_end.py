"""Whole networks predicted from their ops' shapes: `models/neusight_e2e.parquet` beside `models/neusight_ops.parquet`.

The tables hold one transformer layer with what comes before and after it; the layer counts as often as the network
has it. A network becomes a trace of shapes only, predicted as `analyze` predicts one.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from ....formats.trace.column import build_table
from ....formats.trace.signature import Signature
from ....formats.trace.tables import Meta, OpTable, Trace, Workload
from ....specs.catalog import load_catalog
from ....specs.gpu import Gpu
from ....specs.match import find_gpu
from ...iteration.analyze import analyze_trace
from ...measurements.fx_graph import calls_of
from ...measurements.networks import KEY, NODES, NS_PER_MS, PEERS, FxNetwork, TableRow, key_of, read_nodes, rows_of
from ...measurements.samples import read_table
from ...models.library import Library
from ...prediction.prediction import Method
from .report import NetworkRow, Split
from .rows import ROOFLINE
from .weights import Weights

NETWORKS: Final = "models/neusight_e2e.parquet"
COLUMNS: Final = (
    *(*KEY, "num_layer", "dtype", "suspect", "measured_ms", "opsum_fw_ms", "opsum_bw_ms"),
    *(f"pred_{name}_ms" for name in PEERS),
)
OP_SUM: Final = "sum_of_measured_ops"


def score_networks(data: Path, weights: Weights) -> tuple[NetworkRow, ...]:
    """Predict every network of the table whose nodes are known; none where either table is missing."""
    if not (data / NETWORKS).exists() or not (data / NODES).exists():
        return ()
    networks, rows = read_nodes(data / NODES), rows_of(read_table(data / NETWORKS, COLUMNS))
    return tuple(_score(row, networks[key], weights) for row in rows if (key := key_of(row)) in networks)


def build_trace(network: FxNetwork, layer_count: int, *, name: str, batch: int, mode: str) -> tuple[Trace, int]:
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
    meta = Meta(capture="shapes", framework=network.framework, has_shapes=True, workload=work)
    return Trace(meta=meta, strings=names, signatures=signatures, ops=ops), unknown


def _score(row: TableRow, network: FxNetwork, weights: Weights) -> NetworkRow:
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


def _baselines(row: TableRow) -> Iterator[tuple[str, float]]:
    parts = [row["opsum_fw_ms"], row["opsum_bw_ms"]]
    if _is_number(parts[0]):
        yield OP_SUM, sum(part for part in parts if _is_number(part)) * NS_PER_MS
    for column, peer in PEERS.items():
        value = row[f"pred_{column}_ms"]
        if _is_number(value):
            yield peer, float(value) * NS_PER_MS


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and bool(np.isfinite(value)) and value > 0
