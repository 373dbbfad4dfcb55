"""Single calls of ops as torch runs them, kernel by kernel: the rows of `own/ops.parquet` that one family reads.

A row is one call: the sum of its kernels' times by CUPTI, once with its operands in DRAM, once with operands that the
same call has just used. Which rows are of a family, and what they compute, says the family's own reader.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from ...arrays import Floats
from ...errors import InputError
from ...specs.gpu import Rate
from .samples import MeasurementTable, pick, read_table, records_of, shape_share

TABLE: Final = "own/ops.parquet"
COLUMNS: Final = ("gpu", "family", "op", "dims", "dtype", "layout", "direction", "operands", "latency_us", "kernels")
BYTES: Final = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0}
"""Of an element, by the dtypes that tables name."""
RATES: Final = {"fp32": Rate.MATRIX_FP32, "tf32": Rate.MATRIX_TF32, "bf16": Rate.MATRIX_BF16, "fp16": Rate.MATRIX_FP16}
"""Of products, where a row says fp32 with TF32 off."""
SCARCE_SHARE: Final = 0.7
"""Of its shapes train: a kernel has a few dozen of them, not thousands."""
FIRST_DRAWN: Final = 0.01
"""Training takes rows of least share first: all of these, before a table of tens of thousands fills a GPU's part."""


def read_own(
    data: Path, family: str, keep: Callable[[Mapping[str, Any]], bool] | None = None, columns: tuple[str, ...] = COLUMNS
) -> MeasurementTable:
    """Return the rows of one family for which `keep` holds, their `dims` as mappings; none where there is no table."""
    path = data / TABLE
    if not path.exists():
        return MeasurementTable(path, {name: np.empty(0, dtype=object) for name in columns})
    table = read_table(path, columns, may_lack=("layout", "dtype"))
    table = pick(table, table["family"] == family)
    table["dims"] = np.array([_dims_of(text, path) for text in table["dims"].tolist()], dtype=object)
    if keep is None:
        return table
    return pick(table, np.array([keep(row) for row in records_of(table)], dtype=bool))


def _dims_of(text: str, path: Path) -> Mapping[str, Any]:
    try:
        dims = orjson.loads(text)
    except orjson.JSONDecodeError:
        dims = None
    if not isinstance(dims, dict):
        raise InputError(f"{path}: dims {text[:60]!r} is no JSON object")
    return dims


def own_share(table: MeasurementTable, trained: float) -> Floats:
    """Return each row's share by its op, direction and sizes alone, so that `SCARCE_SHARE` of the shapes lie under the
    share that a model trains on: both dtypes, layouts and states of the operands of a shape are drawn alike."""
    texts = [
        orjson.dumps([row["op"], row["direction"], row["dims"]], option=orjson.OPT_SORT_KEYS)
        for row in records_of(table)
    ]
    codes = np.array([_code_of(text) for text in texts], dtype=np.int64)
    share = shape_share(codes) if len(codes) else np.empty(0)
    return np.where(
        share < SCARCE_SHARE,
        FIRST_DRAWN * share * (trained / SCARCE_SHARE),
        trained + (share - SCARCE_SHARE) * ((1.0 - trained) / (1.0 - SCARCE_SHARE)),
    )


def _code_of(text: bytes) -> int:
    """Return a number that every run and machine gives alike."""
    code = 0
    for byte in text:
        code = (code * 1_000_003 ^ byte) & 0x7FFF_FFFF_FFFF_FFFF
    return code
