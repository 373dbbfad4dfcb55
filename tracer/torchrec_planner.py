"""Asks TorchRec's planner how it would share tables: a program of its own, JSON in, JSON out.

`wavecast shard --torchrec` runs it as `python -m wavecast.tracer.torchrec_planner`, so that the analyzer needs no torch
and whatever TorchRec or FBGEMM print, or die of, stays here. In: `tables` (`rows`, `width`, `dtype`, `pooling`,
`is_bag`), `gpus`, `gpus_per_node`, `batch` (of a GPU), `memory_bytes`, `state_ratio` and, in bytes per s,
`memory_bandwidth`, `link_bandwidth` and `node_bandwidth`. Out: `version` and `tables`, for each its `sharding_type`,
`compute_kernel` and `ranks`, and the rows and columns of its shards; or `error`.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any, Final

_MILLISECONDS: Final = 1000.0
"""TorchRec's bandwidths are bytes per ms."""
_WAYS: Final = ("table_wise", "column_wise", "row_wise", "data_parallel", "table_row_wise", "table_column_wise")
_ADAGRAD_STATE: Final = 0.5
_ADAM_STATE: Final = 1.5
"""Optimizer state per parameter from which on it is taken for Adagrad's, and for Adam's."""


def main() -> None:
    """Read the question from standard input, and write the planner's answer to standard output."""
    question = json.load(sys.stdin)
    answer = sys.stdout
    with redirect_stdout(sys.stderr):
        try:
            found = ask_planner(question)
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent says it
            lines = str(error).strip().splitlines() or [type(error).__name__]
            found = {"error": lines[0], "kind": type(error).__name__}
    json.dump(found, answer)


def ask_planner(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return what TorchRec's planner proposes. Raises whatever it raises, and ImportError without TorchRec."""
    warnings.simplefilter("ignore")
    import torch
    import torchrec
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
    from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation

    tables: Sequence[Mapping[str, Any]] = question["tables"]
    topology = Topology(
        world_size=question["gpus"],
        compute_device="cuda",
        local_world_size=question["gpus_per_node"],
        hbm_cap=int(question["memory_bytes"]),
        hbm_mem_bw=question["memory_bandwidth"] / _MILLISECONDS,
        intra_host_bw=question["link_bandwidth"] / _MILLISECONDS,
        inter_host_bw=question["node_bandwidth"] / _MILLISECONDS,
    )
    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=question["batch"],
        storage_reservation=FixedPercentageStorageReservation(percentage=0.0),
        constraints={
            f"t{at}": ParameterConstraints(
                sharding_types=list(_WAYS), compute_kernels=["dense", "fused"], pooling_factors=[table["pooling"]]
            )
            for at, table in enumerate(tables)
        },
        debug=False,
    )
    module = build_module(tables, question["state_ratio"])
    plan = planner.plan(module, [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()])
    entries = {name: entry for part in plan.plan.values() for name, entry in part.items()}
    return {
        "version": torchrec.__version__,
        "torch": str(torch.__version__),
        "tables": [_describe(entries[f"t{at}"]) for at in range(len(tables))],
    }


def build_module(tables: Sequence[Mapping[str, Any]], state_ratio: float) -> Any:
    """Return a module with the tables, `t0` and so on, without memory; its optimizer tells what state it has."""
    import torch
    from torch.distributed.optim.apply_optimizer_in_backward import _apply_optimizer_in_backward
    from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, EmbeddingConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

    types = {"float16": DataType.FP16, "bfloat16": DataType.BF16}
    bags, rows = [], dict[int, list[Any]]()
    for at, table in enumerate(tables):
        about = {
            "name": f"t{at}",
            "feature_names": [f"f{at}"],
            "num_embeddings": table["rows"],
            "embedding_dim": table["width"],
            "data_type": types.get(table["dtype"], DataType.FP32),
        }
        if table["is_bag"]:
            bags.append(EmbeddingBagConfig(**about))
        else:
            rows.setdefault(table["width"], []).append(EmbeddingConfig(**about))
    module, device = torch.nn.Module(), torch.device("meta")
    if bags:
        module.bags = EmbeddingBagCollection(tables=bags, device=device)
    for width, configs in rows.items():
        setattr(module, f"rows{width}", EmbeddingCollection(tables=configs, device=device))
    optimizer: type[torch.optim.Optimizer] = torch.optim.SGD
    if state_ratio >= _ADAGRAD_STATE:
        optimizer = torch.optim.Adam if state_ratio >= _ADAM_STATE else torch.optim.Adagrad
    _apply_optimizer_in_backward(optimizer, module.parameters(), {"lr": 0.01})
    return module


def _describe(entry: Any) -> dict[str, Any]:
    shards = getattr(entry.sharding_spec, "shards", None) or []
    return {
        "sharding_type": entry.sharding_type,
        "compute_kernel": entry.compute_kernel,
        "ranks": entry.ranks,
        "shards": [{"shard_sizes": list(shard.shard_sizes), "placement": str(shard.placement)} for shard in shards],
    }


if __name__ == "__main__":
    main()
