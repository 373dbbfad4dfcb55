"""The file of `wavecast measure`: what it holds, what it refuses to hold, and that models read it as any table."""

from __future__ import annotations

import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wavecast.analyzer.measurements.calibration import calibrate_library
from wavecast.analyzer.measurements.readers import load_tables
from wavecast.analyzer.measurements.samples import read_table, shape_share
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.questions.score.scoring import score_directory
from wavecast.analyzer.questions.score.weights import choose_weights
from wavecast.errors import InputError, TraceError
from wavecast.formats.measured.ops_file import Columns, MeasuredFamily, MeasuredOps, read_ops, save_ops
from wavecast.mlp_weights.train.driver import load_pool
from wavecast.mlp_weights.train.recipe import given_sources

COUNT = 60
SIZES = np.geomspace(256, 8192, COUNT).astype(int).tolist()
PRODUCTS: Columns = {
    "op": ["mm"] * COUNT,
    "batch": [1] * COUNT,
    "m": SIZES,
    "n": [4096] * COUNT,
    "k": [4096] * COUNT,
    "dtype": ["bf16"] * COUNT,
    "latency_us": [2e6 * m * 4096 * 4096 / 250e12 + 5.0 for m in SIZES],
    "timing": ["graph_mean"] * COUNT,
}
"""Products of an L40S that never was: 250 TFLOP/s, and 5 us."""


def measured(device: Any = "cuda", gpu: str = "L40S", **tables: Columns) -> MeasuredOps:
    family = MeasuredFamily(date=date(2026, 11, 23), wavecast="0.1.0", torch="2.13.0", tables=tables)  # type: ignore[arg-type]
    return MeasuredOps(gpu=gpu, device=device, families={"matmul": family})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_ops(tmp_path / "l40s.json.gz", measured(matmul=PRODUCTS))
    return tmp_path / "l40s.json.gz"


def test_what_is_written_is_read(file: Path) -> None:
    assert read_ops(file) == measured(matmul=PRODUCTS)
    table = read_table(file / "ops" / "matmul.parquet", ["gpu", "m", "source", "suspect"])
    assert (set(table["gpu"]), table["m"].tolist()) == ({"L40S"}, SIZES)
    assert (set(table["source"]), set(table["suspect"].tolist())) == ({"wavecast/0.1.0"}, {False})
    assert [(samples.model, len(samples.measured_ns)) for samples in load_tables(file)] == [("matmul", COUNT)]


def test_the_score_says_error_bias_and_coverage_of_each_family(file: Path) -> None:
    rows = score_directory(file, choose_weights()).rows
    (row,) = [row for row in rows if (row.family, row.gpu, row.size) == ("matmul", "L40S", "all")]
    assert (row.rows, row.dtype) == (COUNT, "bf16")
    assert 0 < abs(row.bias) <= row.mape < 0.5
    assert 0 <= row.coverage_90 <= 1


def test_it_calibrates(file: Path) -> None:
    (found,) = calibrate_library(load_library(), file).corrections
    assert (found.gpu, found.model, found.point_count) == ("L40S", "matmul", COUNT)


def test_training_takes_it_as_a_table_and_names_it(file: Path) -> None:
    pool = load_pool("matmul", (file,))
    assert ([gpu.name for gpu in pool.gpus], len(pool.measured_ns)) == (["L40S"], COUNT)
    assert given_sources((file,), "matmul") == ("L40S, given by a user (wavecast 0.1.0, torch 2.13.0, 2026-11-23)",)
    assert given_sources((file,), "vector") == ()


def test_a_file_of_which_nothing_can_be_scored_is_refused(tmp_path: Path) -> None:
    save_ops(tmp_path / "l40s.json", measured(matmul={**PRODUCTS, "dtype": ["float99"] * COUNT}))
    with pytest.raises(InputError, match=r"l40s\.json: nothing to score: .*left out: dtype 'float99'"):
        score_directory(tmp_path / "l40s.json", choose_weights())


def test_training_refuses_the_times_of_a_cpu(tmp_path: Path) -> None:
    save_ops(tmp_path / "cpu.json", measured("cpu", matmul=PRODUCTS))
    with pytest.raises(InputError, match=r"cpu\.json: times of a CPU"):
        given_sources((tmp_path / "cpu.json",), "matmul")


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (b'"gpu":', b'"hostname":"here","gpu":', "unknown field `hostname`"),
        (b'"date":', b'"user":"me","date":', r"unknown field `user` - at `\$\.families"),
        (b'"timing":', b'"path":', r"Invalid enum value 'path'"),
        (b'"matmul":{"op"', b'"fft":{"op"', r"Invalid enum value 'fft'"),
        (b'"version":"1.0"', b'"version":"2.0"', "found '2.0'; update wavecast"),
        (b'"batch":[1,', b'"batch":[', "matmul: expected columns of equal length"),
        (b'"device":"cuda"', b'"device":"tpu"', "Invalid enum value 'tpu'"),
        (b"2026-11-23", b"2026-02-31", "Invalid RFC3339 encoded date"),
        (b"{", b"[", "expected what 'wavecast measure' writes"),
    ],
)
def test_anything_else_is_refused_with_its_place(before: bytes, after: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "l40s.json"
    save_ops(path, measured(matmul=PRODUCTS))
    path.write_bytes(path.read_bytes().replace(before, after, 1))
    with pytest.raises(TraceError, match=words):
        read_ops(path)


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("latency_us", -1.0, r"l40s\.json\S*: matmul: latency_us of row 3 is -1.0"),
        ("latency_us", 1e-300, "latency_us of row 3 is 1e-300"),
        ("m", 10**400, "m: expected numbers"),
        ("dtype", 7, "a text"),
    ],
)
def test_impossible_values_are_named(column: Any, value: Any, words: str, tmp_path: Path) -> None:
    columns = {**PRODUCTS, column: [*PRODUCTS[column][:3], value, *PRODUCTS[column][4:]]}
    save_ops(tmp_path / "l40s.json", measured(matmul=columns))
    with pytest.raises((InputError, TraceError), match=words):
        list(load_tables(tmp_path / "l40s.json"))


def test_a_file_without_a_table_has_nothing_to_score(tmp_path: Path) -> None:
    save_ops(tmp_path / "l40s.json", measured())
    with pytest.raises(InputError, match="nothing to score; measure more"):
        score_directory(tmp_path / "l40s.json", choose_weights())


def test_scoring_it_needs_no_pyarrow(file: Path) -> None:
    arguments = ["wavecast", "score", str(file)]
    start = "from wavecast.__main__ import main; main()"
    code = f"import sys; sys.modules['pyarrow'] = None; sys.argv = {arguments}; {start}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert f"Score of {COUNT} op measurements" in found.stdout


@pytest.mark.data
def test_real_rows_score_as_they_do_in_their_table(data_dir: Path, tmp_path: Path) -> None:
    table = read_table(data_dir / "ops" / "matmul.parquet")
    rows = np.flatnonzero((table["gpu"].astype(str) == "L40S") & (table["dtype"].astype(str) == "bf16"))[::50]
    columns: Any = {name: table[name][rows].tolist() for name in PRODUCTS}
    save_ops(tmp_path / "l40s.json", measured(matmul=columns))
    (samples,) = load_tables(tmp_path / "l40s.json")
    np.testing.assert_allclose(samples.measured_ns, table["latency_us"][rows] * 1e3, rtol=1e-6)
    np.testing.assert_array_equal(samples.share, shape_share(*(table[name][rows] for name in ("batch", "m", "n", "k"))))
    scored = [row for row in score_directory(tmp_path / "l40s.json", choose_weights()).rows if row.family == "matmul"]
    assert all(row.mape < 0.25 and row.split == "seen" for row in scored if row.size == "all")
