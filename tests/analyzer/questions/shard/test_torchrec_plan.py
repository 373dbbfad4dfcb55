"""TorchRec's plans, serialised as TorchRec 1.8.0 writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from wavecast.analyzer.questions.shard.plan_file import load_placements
from wavecast.analyzer.questions.shard.tables import EmbeddingTable, TablePlacement
from wavecast.errors import InputError

EXPECTED = (
    ("table_wise", (2,)),
    ("column_wise", (3, 1, 0, 1)),
    ("row_wise", (0, 1, 2, 3)),
    ("data_parallel", (0, 1, 2, 3)),
    ("row_wise", (2, 3)),
    ("table_wise", (1,)),
)


def build_table(name: str, *, rows: int = 100, width: int = 8) -> EmbeddingTable:
    return EmbeddingTable(
        name=name, rows=rows, width=width, dtype="float32", lookups=64, outputs=64, is_bag=True, mode=0,
        is_sparse=False, index_bytes=8,
    )  # fmt: skip


TABLES = tuple(build_table(f"Dlrm.sparse.ebc.embedding_bags.t{at}") for at in range(6))


def entry(kind: Any = "table_wise", ranks: Any = (0,), **more: Any) -> dict[str, Any]:
    return {"sharding_type": kind, "compute_kernel": "fused", "ranks": ranks, **more}


def shard_of(rows: int, columns: int, rank: int) -> dict[str, Any]:
    return {"shard_offsets": [0, 0], "shard_sizes": [rows, columns], "placement": f"rank:{rank}/cuda:{rank}"}


def read(tmp_path: Path, content: str, tables: tuple[EmbeddingTable, ...] = TABLES) -> tuple[TablePlacement, ...]:
    path = tmp_path / "plan.json"
    path.write_text(content)
    return load_placements(path, tables, 4)


def test_a_serialised_plan_is_read(tmp_path: Path) -> None:
    modules = {f"t{at}": entry(kind, list(ranks)) for at, (kind, ranks) in enumerate(EXPECTED)}
    modules["t4"] = entry("table_row_wise", [0], shards=[shard_of(50, 8, 2), shard_of(50, 8, 3)])
    modules["t5"] = entry("table_column_wise", [1])
    for document in ({"plan": {"sparse.ebc": modules}}, {"sparse.ebc": modules}):
        found = read(tmp_path, json.dumps(document))
        assert [(item.sharding.value, item.ranks) for item in found] == list(EXPECTED)
        assert [item.table for item in found] == [table.name for table in TABLES]


def test_tables_of_one_name_are_told_apart_by_their_module(tmp_path: Path) -> None:
    tables = (build_table("Model.user.bags.t0"), build_table("Model.item.bags.t0"))
    plan = {"item": {"t0": entry(ranks=[3])}, "user": {"t0": entry(ranks=[1])}}
    assert [item.ranks for item in read(tmp_path, json.dumps(plan), tables)] == [(1,), (3,)]
    with pytest.raises(InputError, match=r"'t0' may be Model.user.bags.t0, Model.item.bags.t0: name its module"):
        read(tmp_path, json.dumps({"other": {"t0": entry()}}), tables)
    with pytest.raises(InputError, match="'t6': the recording has no table of that name"):
        read(tmp_path, json.dumps({"item": {"t6": entry()}}), tables)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (entry("grid_shard", [0, 1]), "sharding_type grid_shard: not priced"),
        (entry(7), "sharding_type a number: not priced"),
        (entry() | {"compute_kernel": "fused_uvm_caching"}, "tables outside the GPU's memory are not modelled"),
        (entry("table_row_wise", [0]), "expected its shards"),
        (entry("table_wise", [9]), "rank 9: expected 0 to 3"),
        (entry(ranks=None), "expected a list of ranks"),
        (entry(ranks="[0]"), "expected a list of ranks"),
        (entry(shards=7), "shards: expected a list"),
        (entry(shards=[7]), "shards\\[0\\]: expected shard_sizes"),
        (entry(shards=[{"shard_sizes": [-1, 8]}]), "shards\\[0\\]: expected shard_sizes"),
        (entry(shards=[{"shard_sizes": [1e3, True]}]), "shards\\[0\\]: expected shard_sizes"),
        (entry(shards=[shard_of(99, 8, 0)]), "its shards make 99 rows of 8, the recording's table"),
        (
            entry("column_wise", [0, 1, 2], shards=[shard_of(100, 3, 0), shard_of(100, 3, 1), shard_of(100, 2, 2)]),
            "shards of 2 and 3 columns: only equal ones",
        ),
        (7, "found a number"),
    ],
)
def test_what_is_not_priced_is_refused_in_one_line(changed: Any, message: str, tmp_path: Path) -> None:
    modules = {f"t{at}": entry() for at in range(6)} | {"t3": changed}
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path, json.dumps({"plan": {"sparse.ebc": modules}}))
    assert "\n" not in str(caught.value)
