"""Tuned products of AMD's GPUs, as their table has them."""

from __future__ import annotations

from pathlib import Path

import pytest
from wavecast.analyzer.measurements.matmul import load_tuned_samples
from wavecast.analyzer.models.matmul.problems import MatmulKernel

pyarrow = pytest.importorskip("pyarrow")


def test_tuned_kernels_take_operands_that_are_quantised(tmp_path: Path) -> None:
    """One source of the table, narrow formats only, and no conversion in their times."""
    from pyarrow import parquet

    columns = {
        "gpu": ["Instinct MI355X"] * 4,
        **{name: [1, 1, 1, 1] for name in ("batch", "m")},
        **{name: [4096] * 4 for name in ("n", "k")},
        "dtype": ["fp8_block", "mxfp4", "bf16", "int8"],
        "latency_us": [9.0, 8.0, 7.0, 6.0],
        "source": ["aiter", "aiter", "aiter", "deepbench"],
    }
    (tmp_path / "ops").mkdir()
    parquet.write_table(pyarrow.table(columns), tmp_path / "ops" / "matmul_more.parquet")
    (samples,) = load_tuned_samples(tmp_path)
    assert samples.problems.kind.tolist() == [MatmulKernel.FP8_BLOCK, MatmulKernel.FP4]
    assert samples.problems.quantized.tolist() == [0, 0]
    assert samples.problems.left_bytes.tolist() == [1.0, 0.53125]
    assert samples.measured_ns.tolist() == [9e3, 8e3]
    assert load_tuned_samples(tmp_path / "none") == []
