"""Directories of measurement tables, whole, in part, and broken."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wavecast.analyzer.measurements.readers import TABLES, check_directory, load_tables
from wavecast.analyzer.measurements.samples import gpus_of, pick, read_table
from wavecast.analyzer.questions.score.scoring import score_directory
from wavecast.analyzer.questions.score.weights import Weights, Withheld
from wavecast.errors import InputError, UnknownGpuError

from .conftest import build_samples

pyarrow = pytest.importorskip("pyarrow")


def write(path: Path, **columns: Any) -> Path:
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(columns), path)
    return path


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "t.parquet", gpu=["L40S"], latency_us=[1.0]))
    kept = pick(table, np.array([True]))
    with pytest.raises(InputError, match=r"t\.parquet: no column 'rows'; found are gpu, latency_us"):
        kept["rows"]


def test_what_is_no_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match=r"t\.parquet: no readable parquet table"):
        read_table(tmp_path / "t.parquet")
    with pytest.raises(InputError, match="no such table"):
        read_table(tmp_path / "none.parquet")


def test_without_pyarrow_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(InputError, match=r"pip install 'wavecast\[score\]'"):
        read_table(tmp_path / "t.parquet")


def test_an_unknown_gpu_is_named() -> None:
    with pytest.raises(UnknownGpuError, match="Voodoo 2"):
        gpus_of(np.array(["L40S", "Voodoo 2"], dtype=object))


@pytest.mark.parametrize("name", TABLES)
def test_an_empty_table_has_no_samples(name: str, tmp_path: Path, data_dir: Path) -> None:
    from pyarrow import parquet

    (tmp_path / name).parent.mkdir()
    parquet.write_table(parquet.read_table(data_dir / name).slice(0, 0), tmp_path / name)
    assert list(load_tables(tmp_path)) == []


@pytest.mark.parametrize("name", TABLES)
def test_a_table_with_too_few_columns_is_an_input_error(name: str, tmp_path: Path) -> None:
    write(tmp_path / name, gpu=["L40S"], suspect=[False])
    with pytest.raises(InputError, match="no column"):
        list(load_tables(tmp_path))


def test_a_directory_must_hold_something(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to score; expected at least one of ops/matmul"):
        check_directory(tmp_path)
    with pytest.raises(InputError, match="no such directory"):
        check_directory(tmp_path / "none")


def test_tables_that_are_there_are_scored(
    tmp_path: Path, weights: Callable[..., Weights], monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = build_samples({"A100 SXM4 80GB": 0.1, "L40S": 0.0})
    unknown = build_samples({"L40S": 0.0}, model="another")
    (tmp_path / "traces").mkdir()
    monkeypatch.setattr("wavecast.analyzer.questions.score.scoring.load_tables", lambda _: [samples, unknown])
    done: list[tuple[int, int]] = []
    monkeypatch.setattr(
        "wavecast.analyzer.questions.score.scoring.tell", lambda _, *counts: done.append(counts) if counts else None
    )
    score = score_directory(tmp_path, weights(left_out=Withheld.CHIPS))
    assert done == [(8, 12), (12, 12)]
    assert {row.table for row in score.rows} == {"all", "ops/copy.parquet"}
    assert score.notes == ("4 rows of ops/copy.parquet left out: no weights of another",)
    assert len(score.worst) == 2
    row = next(item for item in score.rows if item.gpu == "L40S" and item.table != "all" and item.size == "all")
    assert set(row.baselines) == {"roofline", "fitted_roofline", "bandwidth_ratio", "wavecast_anchored"}
    assert row.baselines["bandwidth_ratio"] == pytest.approx(1 - 1 / 1.1)


@pytest.mark.data
def test_pairs_of_traces_predict_each_other(data_dir: Path, weights: Callable[..., Weights]) -> None:
    from wavecast.analyzer.questions.score.scoring import score_traces

    rows, notes = score_traces(data_dir / "traces", weights())
    assert notes == ()
    assert len(rows) == 4
    assert {row.workload for row in rows} == {"bert_small_inference", "vit_small_inference"}
    assert all(row.predicted_busy_ns > 0 and row.measured_busy_ns < row.measured_iteration_ns for row in rows)


def test_left_out_shapes_are_those_that_training_never_drew(
    tmp_path: Path, weights: Callable[..., Weights], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows whose share is at least what the weights were trained on, and nothing beside single ops."""
    samples = build_samples({"A100 SXM4 80GB": 0.1, "L4": 0.2}, share=np.array([0.1, 0.2, 0.3, 0.9] * 2))
    monkeypatch.setattr("wavecast.analyzer.questions.score.scoring.load_tables", lambda _: [samples])
    monkeypatch.setattr("wavecast.analyzer.questions.score.scoring.trained_share", {"copy": 0.25}.get)
    write(tmp_path / TABLES[0], gpu=["L4"])
    score = score_directory(tmp_path, weights(left_out=Withheld.SHAPES))
    every = {
        (row.gpu, row.split): row.rows for row in score.rows if row.table == "ops/copy.parquet" and row.size == "all"
    }
    assert every == {("A100 SXM4 80GB", "seen"): 2, ("L4", "unseen"): 2, ("all", "seen"): 2, ("all", "unseen"): 2}
    assert score.left_out == "shapes"
    assert "none of the shapes" in score.weights
    assert "whole networks and traces left out" in score.notes[-1]
