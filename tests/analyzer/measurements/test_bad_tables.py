"""Measured times that cannot be, and tables that are no files, are refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pytest
from wavecast.analyzer.measurements.networks import NODE_COLUMNS, read_nodes
from wavecast.analyzer.measurements.readers import load_tables
from wavecast.analyzer.measurements.samples import read_table
from wavecast.analyzer.measurements.table_columns import check_known
from wavecast.analyzer.measurements.vector import GATHER, load_samples
from wavecast.errors import InputError

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 0.0])
def test_an_impossible_time_is_named_with_its_row(tmp_path: Path, value: float) -> None:
    from pyarrow import parquet

    path = tmp_path / "matmul.parquet"
    parquet.write_table(pyarrow.table({"m": [1, 2, 3], "latency_us": np.array([5.0, value, 7.0])}), path)
    message = r"matmul\.parquet: latency_us of row 1 is .*; expected a number from 1e-06 to 1e\+12"
    with pytest.raises(InputError, match=message):
        read_table(path, ["m", "latency_us"])


def test_a_directory_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no readable parquet table"):
        read_table(tmp_path)


def write(folder: Path, **columns: object) -> Path:
    from pyarrow import parquet

    path = folder / "matmul.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    return path


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("m", [4, None, 4], "m of row 1 is nothing; expected a whole number from 1 to"),
        ("m", ["4", "x", "5"], "m of row 0 is '4'; expected a whole number"),
        ("m", [4, 0, 5], "m of row 1 is 0; expected a whole number from 1"),
        ("m", [4, -1, 5], "m of row 1 is -1; expected a whole number from 1"),
        ("m", [4, 5, 2**62], "m of row 2 is 4611686018427387904; expected a whole number from 1 to"),
        ("m", [4.0, 5.5, 6.0], "m of row 1 is 5.5; expected a whole number"),
        ("m", [True, True, False], "m of row 0 is True; expected a whole number"),
        ("m", [[1], [2], [3]], "m of row 0 is .*; expected a whole number"),
        ("latency_us", [1.0, 2.0, 1e300], r"latency_us of row 2 is 1e\+300; expected a number from 1e-06"),
        ("latency_us", [1.0, None, 2.0], "latency_us of row 1 is nothing; expected a number from 1e-06"),
        ("gpu", ["L4", None, "L4"], "gpu of row 1 is nothing; expected a text"),
        ("gpu", [1, 2, 3], "gpu of row 0 is 1; expected a text"),
        ("suspect", [False, None, True], "suspect of row 1 is nothing; expected true or false"),
        ("suspect", ["no", "no", "yes"], "suspect of row 0 is 'no'; expected true or false"),
    ],
)
def test_the_first_value_that_no_measurement_has_is_named(
    tmp_path: Path, name: str, values: list[object], message: str
) -> None:
    path = write(tmp_path, **{name: values})
    with pytest.raises(InputError, match=rf"matmul\.parquet: {message}"):
        read_table(path, [name])


def test_what_may_be_missing_may(tmp_path: Path) -> None:
    path = write(tmp_path, kernel=["a", None], bytes_read=[None, None], dtype=[None, "fp32"])
    table = read_table(path, ["kernel", "bytes_read", "dtype"], may_lack=("dtype",))
    assert table["kernel"].tolist() == ["a", None]
    assert table["bytes_read"].tolist() == [None, None]


def test_a_column_that_stands_twice_is_refused(tmp_path: Path) -> None:
    from pyarrow import parquet

    path = tmp_path / "matmul.parquet"
    twice = pyarrow.table([pyarrow.array([1]), pyarrow.array([2])], names=["m", "m"])
    parquet.write_table(twice, path)
    with pytest.raises(InputError, match=r"matmul\.parquet: column 'm' stands twice"):
        read_table(path, ["m"])


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    names = np.array(["context", "sideways"], dtype=object)
    with pytest.raises(InputError, match="phase of row 1 is 'sideways'; expected one of context, encoder"):
        check_known(tmp_path, "phase", names, ("context", "encoder"))


@pytest.mark.parametrize("text", ["[[1, 'x']]", "[1]", "[[-1]]", "[[4611686018427387904]]", "nonsense(", "[" * 500])
def test_shapes_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"node 'a': .* is no list of shapes"):
        read_nodes(write_node(tmp_path, input_shapes=text))


def test_an_unknown_type_of_a_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="node 'a': 'x' is no dtype of torch"):
        read_nodes(write_node(tmp_path, dtype="torch.x"))


def write_node(folder: Path, **changes: object) -> Path:
    row: dict[str, object] = dict.fromkeys(NODE_COLUMNS, "a")
    row |= {"seqlen": 1, "batch": 1, "idx": 0, "measured_fw_ms": 1.0, "suspect": False, "dtype": "torch.float32"}
    row |= {name: 1.0 for name in NODE_COLUMNS if name.startswith("pred_")}
    row |= {"input_shapes": "[]", "output_shape": "(1,)", "acc_ops": "[]"} | changes
    return write(folder, **{name: [value] for name, value in row.items()})


def test_only_gathers_go_without_the_bytes_they_move(tmp_path: Path) -> None:
    rows = {"gpu": "L4", "rows": 64, "cols": 64, "dtype": "fp32", "latency_us": 5.0, "timing": "graph", "source": "x"}
    table = {name: [value] * 3 for name, value in rows.items()} | {"suspect": [False] * 3, "bytes_read": [1, None, 1]}
    (tmp_path / "ops").mkdir()
    path = tmp_path / "ops" / "vector.parquet"
    for ops, is_refused in ((["add", GATHER, "add"], False), (["add", "relu", "add"], True)):
        parquet.write_table(pyarrow.table(table | {"op": ops, "bytes_written": [4, 4, 4]}), path)
        if is_refused:
            with pytest.raises(InputError, match="row 1: relu lacks bytes_read or bytes_written; expected both"):
                load_samples(tmp_path)
        else:
            assert np.isfinite(load_samples(tmp_path)[0].problems.read_bytes).all()


ROWS: Final[dict[str, dict[str, object]]] = {
    "attention": {
        **dict.fromkeys(("batch", "heads", "kv_heads", "head_dim", "seq_q", "seq_kv"), 8),
        **{"phase": "context", "window": 0, "kv_dtype": "bf16", "source": "x"},
    },
    "vector": {
        **dict.fromkeys(("rows", "cols", "bytes_read", "bytes_written"), 64),
        **{"op": "add", "timing": "graph", "source": "x"},
    },
    "matmul": dict.fromkeys(("batch", "m", "n", "k"), 64) | {"op": "mm", "timing": "graph", "kernel": "x"},
    "moe": {
        **dict.fromkeys(("tokens", "hidden", "inter", "topk", "experts", "tp", "ep"), 8),
        **{"kernel": "triton", "distribution": "balanced", "source": "x"},
    },
}


@pytest.mark.parametrize(
    ("table", "column"),
    [
        *(("attention", "dtype"), ("attention", "kv_dtype"), ("vector", "dtype"), ("vector", "op")),
        *(("matmul", "dtype"), ("moe", "dtype"), ("moe", "kernel"), ("moe", "distribution")),
    ],
)
def test_rows_of_what_nothing_knows_are_left_out_and_counted(tmp_path: Path, table: str, column: str) -> None:
    known = "bf16" if table != "vector" else "fp32"
    row = ROWS[table] | {"gpu": "L4", "dtype": known, "latency_us": 50.0, "suspect": False}
    columns = {name: [value, value, value] for name, value in row.items()} | {column: [row[column], "odd", "odd"]}
    (tmp_path / "ops").mkdir()
    parquet.write_table(pyarrow.table(columns), tmp_path / "ops" / f"{table}.parquet")
    found = list(load_tables(tmp_path))
    assert sum(len(samples.measured_ns) for samples in found) == 1
    assert [note for samples in found for note in samples.notes] == [
        f"2 rows of ops/{table}.parquet left out: {column} 'odd' is not known"
    ]


def test_rows_that_another_model_reads_are_not_called_unknown(tmp_path: Path) -> None:
    row = ROWS["matmul"] | {"gpu": "L4", "dtype": "fp32", "latency_us": 50.0, "suspect": False}
    (tmp_path / "ops").mkdir()
    parquet.write_table(pyarrow.table({name: [value] for name, value in row.items()}), tmp_path / "ops/matmul.parquet")
    assert [samples.notes for samples in load_tables(tmp_path)] == [()]
