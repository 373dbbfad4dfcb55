"""Columns of the measurement tables that the op sweep writes, and how they are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from ...formats.files.open import write_atomic

TEXT = pyarrow.dictionary(pyarrow.int16(), pyarrow.string())
I32, I64 = pyarrow.int32(), pyarrow.int64()
TIMED = {"dtype": TEXT, "latency_us": pyarrow.float32(), "timing": TEXT}
LAUNCH = dict.fromkeys(("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"), I32)
END = {"kernel": TEXT, "source": TEXT, "split": TEXT, "suspect": pyarrow.bool_()} | LAUNCH


def _sizes(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names, I32)


MATMUL = {"gpu": TEXT, "op": TEXT} | _sizes("batch", "m", "n", "k") | TIMED | END
ATTENTION_SIZES = ("batch", "heads", "kv_heads", "head_dim", "seq_q", "seq_kv", "window")
ATTENTION = (
    {"gpu": TEXT, "phase": TEXT}
    | _sizes(*ATTENTION_SIZES)
    | {"dtype": TEXT, "kv_dtype": TEXT}
    | TIMED
    | {"kernel": TEXT, "source": TEXT, "suspect": pyarrow.bool_()}
)
CONVOLUTION_SIZES = ("batch", "c_in", "c_out", "kernel_size", "input_size", "stride", "padding", "output_size")
CONVOLUTION = {"gpu": TEXT} | _sizes(*CONVOLUTION_SIZES) | TIMED | {"algorithm": TEXT, "kernels": TEXT} | END
VECTOR = {"gpu": TEXT, "op": TEXT} | _sizes("rows", "cols") | TIMED | {"bytes_read": I64, "bytes_written": I64} | END
DIRECTION = {"direction": TEXT}
SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "matmul": MATMUL,
    "matmul_train": MATMUL,
    "attention": ATTENTION,
    "attention_train": ATTENTION | DIRECTION,
    "convolution": CONVOLUTION,
    "convolution_train": CONVOLUTION | DIRECTION,
    "vector": VECTOR,
    "vector_train": VECTOR | {"inner": I32} | DIRECTION,
    "recurrent": {"gpu": TEXT, "op": TEXT}
    | _sizes("batch", "steps", "input_size", "hidden_size", "layers")
    | {"bidirectional": pyarrow.bool_(), "input_product": pyarrow.bool_()}
    | TIMED
    | DIRECTION
    | END,
}
"""By the name of the file in ops/; those that `wavecast score` does not read end in `_train`."""


def write_table(folder: Path, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows (what they lack is null) to ops/NAME.parquet, sorted by shape, whole or not at all."""
    rows = list(rows)
    schema = pyarrow.schema([(key, _type(kind, key, rows)) for key, kind in SCHEMAS[name].items()])
    keys = [key for key in schema.names if key not in ("latency_us", *END, "bytes_read", "bytes_written")]
    table = pyarrow.Table.from_pylist(
        sorted(rows, key=lambda row: tuple(str(row.get(key, "")).zfill(12) for key in keys)), schema=schema
    )
    path = folder / "ops" / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = BytesIO()
    parquet.write_table(table, buffer, compression="zstd")
    write_atomic(path, buffer.getvalue())


def read_origins(path: Path) -> set[tuple[str, str, str]] | None:
    """Return GPU, source and timing method of a table's rows, each combination once; None where it is no such table."""
    names = ["gpu", "source", "timing"]
    try:
        columns = parquet.ParquetFile(path).read(columns=names)
        return set(zip(*(map(str, columns[name].to_pylist()) for name in names), strict=True))
    except (OSError, KeyError, pyarrow.ArrowException):
        return None


def _type(kind: Any, name: str, rows: Iterable[Mapping[str, Any]]) -> Any:
    """Return plain text for a column of nulls: pyarrow cannot turn an empty dictionary into numpy's objects."""
    return pyarrow.string() if kind == TEXT and all(row.get(name) is None for row in rows) else kind
