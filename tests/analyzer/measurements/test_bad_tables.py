"""Measured times that cannot be, and tables that are no files, are refused in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from wavecast.analyzer.measurements.samples import read_table
from wavecast.errors import InputError

pyarrow = pytest.importorskip("pyarrow")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 0.0])
def test_an_impossible_time_is_named_with_its_row(tmp_path: Path, value: float) -> None:
    from pyarrow import parquet

    path = tmp_path / "matmul.parquet"
    parquet.write_table(pyarrow.table({"m": [1, 2, 3], "latency_us": np.array([5.0, value, 7.0])}), path)
    message = r"matmul\.parquet: latency_us of row 1 is .*; expected a number above 0 to 1e\+12"
    with pytest.raises(InputError, match=message):
        read_table(path, ["m", "latency_us"])


def test_a_directory_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no readable parquet table"):
        read_table(tmp_path)
