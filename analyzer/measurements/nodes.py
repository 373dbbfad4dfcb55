"""Ops measured one by one: nodes of `models/neusight_ops.parquet` that call one op, with the predictions of others.

The times are those of single launches between CUDA events, so that short ones read the host's floor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...specs.gpu import Catalog, Rate
from ..models.assignment import Assignment, assign_models
from ..models.frame.problems import Problems
from ..models.registry import OP_MODELS
from ..work import Work, work_of
from ..work.table import WorkTable
from .fx_graph import FxNode, OpCall, calls_of
from .networks import KEY, NODE_COLUMNS, NODES, NS_PER_MS, PEERS, FxNetwork, read_nodes
from .samples import Samples, gpus_of, read_table

EVENT_TIMED: Final[Mapping[str, float]] = {"host_floor_ns": np.nan, "is_event_timed": 1.0}
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
        for node, call in _single_calls(network):
            row, work = row_of[*key, node.name], work_of(call.op, call.signature)
            time_ns = float(table["measured_fw_ms"][row]) * NS_PER_MS
            identity = (key[0], call)
            if work is None or time_ns <= 0 or table["suspect"][row] or identity in seen:
                continue
            seen.add(identity)
            peers = {peer: float(table[f"pred_{name}_fw_ms"][row]) * NS_PER_MS for name, peer in PEERS.items()}
            yield MeasuredNode(
                gpu=str(key[0]),
                family=f"{FAMILIES.get(node.op_name, OTHER_FAMILY)} (of networks)",
                work=work,
                time_ns=time_ns,
                peers_ns={peer: value if value > 0 else np.nan for peer, value in peers.items()},
            )


def _single_calls(network: FxNetwork) -> Iterator[tuple[FxNode, OpCall]]:
    """Yield the nodes that the source has a class for and that launch one op, without what batches it first."""
    for node, calls in calls_of(network.nodes, is_training=False):
        if calls and node.op_name != "misc":
            yield node, calls[-1]
