"""Matrix products as torch calls them, measured alone: rows of `own/ops.parquet` for the models of products."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...specs.gpu import Catalog, Rate
from ..models.frame.problems import RATES, rate_codes
from ..models.matmul.problems import FORMATS, MatmulKernel, MatmulProblems, OperandLayout
from ..models.matmul_simt.problems import MatmulSimtProblems
from .own_ops import own_rows, own_share, read_own
from .samples import MeasurementTable, Samples, TableColumn, samples_of

LAYOUTS: Final[Mapping[str, OperandLayout]] = {
    "nt": OperandLayout(0),
    "linear": OperandLayout(0),
    "nn": OperandLayout.RIGHT_ACROSS,
    "tn": OperandLayout.LEFT_ACROSS | OperandLayout.RIGHT_ACROSS,
    "bmm": OperandLayout.RIGHT_ACROSS,
    "bmm_nt": OperandLayout(0),
    "fp8": OperandLayout(0),
}
"""By op. Rows of others are another model's (`grouped`), or of scales that no format here has (`fp8_row`)."""
PLAIN: Final = ("bf16", "fp16", "tf32")
OUT_BYTES: Final[Mapping[str, float]] = {"bf16": 2.0, "fp16": 2.0, "tf32": 4.0, "fp8": 2.0}
COLD_COPIES: Final = 1e3
"""L2 is overwritten between calls."""
LEAST_ROWS: Final = 2.0
"""A product with a vector runs other kernels, which no row of the public tables has: these are not trained on."""


def load_own_products(
    data: Path, catalog: Catalog | None = None, dtypes: Collection[str] = PLAIN, trained: float = 0.25
) -> list[Samples[MatmulProblems]]:
    """Return the rows of matrix units' formats, none where there is no table; `trained`: the model's shape share."""
    table = read_own(data, "matmul", lambda row: row["op"] in LAYOUTS and row["dtype"] in dtypes)
    if not len(table["gpu"]):
        return []
    columns, count = _columns(table), len(table["gpu"])
    names = table["dtype"].astype(str).tolist()
    formats = [FORMATS["fp8_static" if name == "fp8" else name] for name in names]
    problems = MatmulProblems(
        **columns,
        left_bytes=np.array([float(item.left_bytes) for item in formats]),
        right_bytes=np.array([float(item.right_bytes) for item in formats]),
        out_bytes=np.array([OUT_BYTES[name] for name in names]),
        rate=rate_codes([item.rate for item in formats]),
        kind=np.array([int(item.kind) for item in formats]),
        quantized=np.zeros(count, dtype=np.int64),
        copies=np.where(table["operands"].astype(str) == "dram", COLD_COPIES, 1.0),
        distinct=np.ones(count),
        layout=np.array([int(LAYOUTS[op]) for op in table["op"].tolist()]),
    )
    model = "matmul" if all(item.kind is MatmulKernel.PLAIN for item in formats) else "matmul_quantized"
    return [_samples(table, model, problems, catalog, trained)]


def load_own_fp32(
    data: Path, catalog: Catalog | None = None, trained: float = 0.25
) -> list[Samples[MatmulSimtProblems]]:
    """Return the rows of fp32 without TF32, none where there is no table."""
    table = read_own(data, "matmul", lambda row: row["op"] in LAYOUTS and row["dtype"] == "fp32")
    if not len(table["gpu"]):
        return []
    count, ops = len(table["gpu"]), table["op"].tolist()
    problems = MatmulSimtProblems(
        **_columns(table),
        element_bytes=np.full(count, 4.0),
        rate=np.full(count, RATES.index(Rate.MATRIX_FP32), dtype=np.int64),
        contiguous=np.array([int(not LAYOUTS[op]) for op in ops]),
        host_floor_ns=np.zeros(count),
        host_ratio=np.ones(count),
    )
    return [_samples(table, "matmul_simt", problems, catalog, trained)]


def _columns(table: MeasurementTable) -> dict[str, Any]:
    rows = own_rows(table)
    return {name: np.array([float(row["dims"].get(name, 1)) for row in rows]) for name in ("batch", "m", "n", "k")}


def _samples(table: MeasurementTable, model: str, problems: Any, catalog: Catalog | None, trained: float) -> Any:
    share = own_share(table, trained)
    is_vector = np.minimum(problems.m, problems.n) < LEAST_ROWS
    found = samples_of(table, model, problems, catalog, family=_families(table), share=share)
    return replace(found, share=np.where(is_vector, np.maximum(share, trained), share))


def _families(table: MeasurementTable) -> TableColumn:
    return np.array([f"product, own ({op})" for op in table["op"].tolist()], dtype=object)
