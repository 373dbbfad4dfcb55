"""Products of the second table: which rows are read, as what, and on which of them models are trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from wavecast.analyzer.measurements.matmul import MORE_TABLE, load_more_samples, load_samples, load_training_samples
from wavecast.analyzer.models.matmul.problems import COLD_COPIES

pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")

ROW: Mapping[str, object] = {
    "batch": 1,
    "m": 64,
    "n": 4096,
    "k": 1024,
    "dtype": "fp16",
    "latency_us": 20.0,
    "note": None,
    "accumulate": None,
}


def write(folder: Path, *rows: Mapping[str, object]) -> Path:
    from pyarrow import parquet

    (folder / "ops").mkdir(exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist([{**ROW, **row} for row in rows]), folder / MORE_TABLE)
    first = {**ROW, "gpu": "L40S", "dtype": "bf16", "suspect": False}
    parquet.write_table(pyarrow.Table.from_pylist([first]), folder / "ops/matmul.parquet")
    return folder


LAYER: Mapping[str, object] = {"gpu": "RTX A6000", "source": "llmservingsim/v0"}
TUNED: Mapping[str, object] = {"gpu": "Instinct MI355X", "source": "aiter", "dtype": "bf16"}
BENCH: Mapping[str, object] = {"gpu": "Tesla V100 SXM2 16GB", "source": "deepbench", "accumulate": "fp32"}
LOGIC: Mapping[str, object] = {
    "gpu": "Instinct MI250X (1 GCD)",
    "source": "hipblaslt_logic",
    "note": "aldebaran_HHS_BH.yaml|out=4",
}


def test_each_source_is_a_family_with_its_own_state_of_the_caches(tmp_path: Path) -> None:
    (found,) = load_more_samples(write(tmp_path, LAYER, TUNED, BENCH, LOGIC))
    families = ["LLMServingSim", "aiter", "DeepBench", "hipBLASLt"]
    assert found.family.tolist() == [f"matmul ({name})" for name in families]
    np.testing.assert_array_equal(found.problems.copies, [COLD_COPIES, COLD_COPIES, 1.0, 1.0])


def test_deepbench_counts_its_rows_along_memory(tmp_path: Path) -> None:
    (found,) = load_more_samples(write(tmp_path, LAYER, BENCH))
    np.testing.assert_array_equal(found.problems.m, [64, 4096])
    np.testing.assert_array_equal(found.problems.n, [4096, 64])


@pytest.mark.parametrize(
    "other",
    [
        {**BENCH, "accumulate": "fp32_math"},
        {**LOGIC, "note": "aldebaran_HHS_BH_Bias_HAH_SAV.yaml|out=4"},
        {**TUNED, "dtype": "fp8_block"},
        {**TUNED, "source": "someone"},
    ],
)
def test_other_ops_units_formats_and_sources_are_left_out(tmp_path: Path, other: Mapping[str, object]) -> None:
    (found,) = load_more_samples(write(tmp_path, LAYER, other))
    assert len(found.measured_ns) == 1


def test_old_libraries_and_gpus_of_unknown_rates_are_scored_and_not_trained_on(tmp_path: Path) -> None:
    data = write(tmp_path, LAYER, BENCH, {**TUNED, "gpu": "Instinct MI308X"}, TUNED)
    trained = [gpu.name for item in load_training_samples(data) for gpu in item.gpus]
    assert trained == ["L40S", "Instinct MI355X", "RTX A6000"]
    assert sum(len(item.measured_ns) for item in load_samples(data)) == 5


def test_a_folder_without_the_second_table_has_the_first(tmp_path: Path) -> None:
    data = write(tmp_path, LAYER)
    (data / MORE_TABLE).unlink()
    assert [item.table for item in load_samples(data)] == ["ops/matmul.parquet"]
