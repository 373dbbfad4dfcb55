"""MLPerf's recommenders: how rows are read and run, what anchors them, and the sheet that shows their errors."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from wavecast.analyzer.questions.recommender.sizes import HostWork, Interaction, TableLayout
from wavecast.analyzer.questions.score.distributed.recommenders import (
    RECOMMENDERS,
    TRAINED_SHARE,
    MeasuredRecommender,
    node_of_row,
    read_recommenders,
    score_recommenders,
    sizes_of,
    training_of,
)
from wavecast.analyzer.questions.score.page.iterations import recommender_sheet
from wavecast.analyzer.questions.score.page.records import draw_score_json
from wavecast.analyzer.questions.score.report import Score
from wavecast.analyzer.questions.score.rows import ANCHORED
from wavecast.analyzer.questions.score.weights import choose_weights
from wavecast.benchmarks.make.accuracy import read_score_json
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu

ROW: dict[str, Any] = {
    "source": "mlperf-training-v2.0",
    "model": "MLPerf dlrm",
    "gpu": "A100 SXM4 80GB",
    "gpus": 8.0,
    "nodes": 1.0,
    "intra_link": "NVLINK 3.0, NVSWITCH 2.0 600GB/s",
    "inter_link": None,
    "global_batch": 8192.0,
    "precision": "amp fp16 (HugeCTR)",
    "framework": "hugectr",
    "submitter": "NVIDIA",
    "sharding": "HugeCTR hybrid embedding",
    "sharding_params": None,
    "tables_rows": "[100000, 50, 2000000]",
    "pooling": "[1, 1, 1]",
    "dim": 64.0,
    "dense": 13.0,
    "bottom_mlp": "[128,64]",
    "top": "[256,1] after dot interaction",
    "optimizer": "SGD",
    "step_time_ms": 1.0,
    "suspect": False,
}
CROSS = {
    "model": "MLPerf dlrm_dcnv2",
    "source": "mlperf-training-v4.0",
    "gpu": "H100 SXM5 80GB",
    "sharding": "HugeCTR auto",
    "sharding_params": '{"SHARDING_PLAN": "auto", "DP_SHARDING_THRESHOLD": "0.008"}',
    "pooling": "[1, 5, 20]",
    "top": "[256,1] after DCNv2 low-rank 512 x 3",
    "optimizer": "Adagrad",
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [
        ROW,
        ROW | {"gpus": 16.0, "nodes": 2.0, "step_time_ms": 0.8},
        ROW | {"model": "DLRM (PyTorch)"},
        ROW | {"suspect": True},
        ROW | CROSS,
        ROW | CROSS | {"tables_rows": "[2000000000, 50, 2000000]"},
    ]
    path = tmp_path / RECOMMENDERS
    path.parent.mkdir()
    pq.write_table(pa.Table.from_pylist(rows), path)
    return tmp_path


def make_row(**changed: Any) -> MeasuredRecommender:
    values = {"row": 0} | ROW | changed
    kept = {item.name: values[item.name] for item in fields(MeasuredRecommender)}
    whole = {name: int(kept[name]) for name in ("gpus", "nodes", "global_batch", "dim", "dense")}
    return MeasuredRecommender(
        **(kept | whole | {name: kept[name] or "" for name in ("inter_link", "sharding_params")})
    )


def test_rows_are_read_but_for_suspect_and_other_ones(data: Path) -> None:
    rows, suspect = read_recommenders(data)
    assert [row.row for row in rows] == [0, 1, 4, 5]
    assert suspect == 1
    sizes = sizes_of(rows[2])
    assert sizes.pooling == (1, 5, 20)
    assert sizes.top == (256, 1)
    assert sizes.interaction is Interaction.CROSS


@pytest.mark.parametrize(
    ("changed", "layout", "host", "overlaps"),
    [
        ({}, TableLayout.HYBRID, HostWork.GRAPH, True),
        ({"source": "mlperf-training-v0.7"}, TableLayout.LOCALIZED, HostWork.NATIVE, False),
        ({"source": "mlperf-training-v0.7", "framework": "PyTorch 1.6"}, TableLayout.LOCALIZED, HostWork.EAGER, False),
        (CROSS, TableLayout.COLLECTION, HostWork.GRAPH, True),
    ],
)
def test_the_round_says_which_library_ran(
    changed: dict[str, Any], layout: TableLayout, host: HostWork, overlaps: bool
) -> None:
    row = make_row(**changed)
    found = training_of(row, find_gpu(load_catalog(), row.gpu))
    assert (found.layout, found.host, found.overlaps) == (layout, host, overlaps)
    assert found.has_fixed_bags is (layout is TableLayout.COLLECTION)


def test_short_runs_are_not_taken_for_whole_ones() -> None:
    """HugeCTR's logs of DLRM on one machine count what was trained on, not the set."""
    assert make_row(step_time_ms=2.617).step_ns == pytest.approx(2.356e6, rel=1e-3)
    assert make_row(step_time_ms=2.0, gpus=16, nodes=2).step_ns == 2e6
    assert make_row(step_time_ms=2.0, source="mlperf-training-v0.7", framework="PyTorch 1.6").step_ns == 2e6
    assert make_row(**CROSS | {"step_time_ms": 2.0}).step_ns == 2e6


def test_the_configuration_says_which_tables_are_copied() -> None:
    gpu = find_gpu(load_catalog(), "H100 SXM5 80GB")
    assert training_of(make_row(**CROSS), gpu).replicated_rows == 7813
    bare = CROSS | {"sharding_params": '{"SHARDING_PLAN": "auto"}'}
    assert training_of(make_row(**bare), gpu).replicated_rows == 1
    many = CROSS | {"sharding": "HugeCTR hier_auto", "gpus": 64, "nodes": 8}
    found = training_of(make_row(**many), gpu)
    assert (found.plans_nodes, found.shard_cost, found.sums_in_network) == (True, 67 / 4, True)


def test_a_board_has_its_links_whatever_its_page_names() -> None:
    gpu = find_gpu(load_catalog(), "A100 SXM4 80GB")
    node = node_of_row(make_row(intra_link="PCIe 4.0", gpus=4), gpu)
    assert (node.gpu_count, node.domain_gpu_count) == (4, 4)
    assert node.link != "PCIe"


def test_scores_and_their_sheet(data: Path) -> None:
    rows, notes = score_recommenders(data, choose_weights())
    assert [row.gpus for row in rows] == [8, 16, 8]
    assert any("do not fit" in note for note in notes)
    assert any("suspect" in note for note in notes)
    assert ANCHORED not in rows[0].baselines_ns
    assert rows[1].baselines_ns[ANCHORED] > 0
    assert {"zipf:0.8", "zipf:1.2", "uniform"} <= set(rows[0].baselines_ns)
    assert sum(rows[0].parts.values()) == pytest.approx(1.0)
    sheet = recommender_sheet(rows)
    assert sheet.columns[0].cells[0] == "all"
    score = Score(weights="w", rows=(), recommenders=rows)
    again = read_score_json(orjson.loads(draw_score_json(score))).recommenders
    assert [row.gpu for row in again] == [row.gpu for row in rows]


def test_an_anchor_that_is_exact_makes_its_twin_exact(data: Path) -> None:
    """A row that ran just as its anchor did is predicted to take as long as that did."""
    path = data / RECOMMENDERS
    pq.write_table(pa.Table.from_pylist([ROW | {"step_time_ms": 3.0}, ROW | {"step_time_ms": 5.0}]), path)
    rows, _ = score_recommenders(data, choose_weights())
    assert rows[1].baselines_ns[ANCHORED] == pytest.approx(3e6 * TRAINED_SHARE, rel=0.01)


def test_no_table_is_no_error(tmp_path: Path) -> None:
    assert score_recommenders(tmp_path, choose_weights()) == ((), ())
