"""Matrix products as torch calls them, measured alone: rows of `own/ops.parquet` for the models of products."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...specs.gpu import Catalog, Rate
from ..models.frame.problems import RATES, problems_from, rate_codes
from ..models.matmul.feed import FLUSHED_COPIES
from ..models.matmul.problems import FORMATS, MatmulProblems, OperandLayout
from ..models.matmul_simt.problems import MatmulSimtProblems
from .own_ops import own_share, read_own
from .samples import MeasurementTable, Samples, records_of, samples_of

LAYOUTS: Final[Mapping[str, OperandLayout]] = {
    "nt": OperandLayout(0),
    "linear": OperandLayout(0),
    "nn": OperandLayout.RIGHT_ACROSS,
    "tn": OperandLayout.LEFT_ACROSS | OperandLayout.RIGHT_ACROSS,
    "bmm": OperandLayout.RIGHT_ACROSS,
    "bmm_nt": OperandLayout(0),
    "grouped": OperandLayout(0),
}
"""By op. Rows of `fp8_row` are of scales that no format here has."""
OUT_BYTES: Final[Mapping[str, float]] = {"bf16": 2.0, "fp16": 2.0, "tf32": 4.0}
"""Of a result's element, by the formats that are read for matrix units."""
TRAINED_SHARE: Final = 0.25
"""Shapes below train, as in the models' recipes, but no grouped products: public code says their tiles."""


def load_own_products(data: Path, catalog: Catalog | None = None) -> list[Samples[MatmulProblems]]:
    """Return the rows of 16-bit formats and TF32, none where there is no table."""
    table = read_own(data, "matmul", lambda row: row["op"] in LAYOUTS and row["dtype"] in OUT_BYTES)
    if not len(table["gpu"]):
        return []
    names = table["dtype"].astype(str).tolist()
    formats = [FORMATS[name] for name in names]
    problems = problems_from(
        MatmulProblems,
        len(names),
        **_columns(table),
        left_bytes=[item.left_bytes for item in formats],
        right_bytes=[item.right_bytes for item in formats],
        out_bytes=[OUT_BYTES[name] for name in names],
        rate=rate_codes([item.rate for item in formats]),
        kind=[item.kind for item in formats],
        distinct=1.0,
        layout=[LAYOUTS[op] for op in table["op"].tolist()],
        grouped=table["op"] == "grouped",
    )
    return [_samples(table, "matmul", problems, catalog)]


def load_own_fp32(data: Path, catalog: Catalog | None = None) -> list[Samples[MatmulSimtProblems]]:
    """Return the rows of fp32 without TF32, none where there is no table."""
    table = read_own(data, "matmul", lambda row: row["op"] in LAYOUTS and row["dtype"] == "fp32")
    if not len(table["gpu"]):
        return []
    problems = problems_from(
        MatmulSimtProblems,
        len(table["gpu"]),
        **_columns(table),
        element_bytes=4.0,
        rate=RATES.index(Rate.MATRIX_FP32),
        contiguous=[not LAYOUTS[op] for op in table["op"].tolist()],
        paused=1,
        turned=table["op"].astype(str) == "tn",
        host_ratio=1.0,
        has_bias=table["op"].astype(str) == "linear",
    )
    return [_samples(table, "matmul_simt", problems, catalog)]


def _columns(table: MeasurementTable) -> dict[str, Any]:
    rows = records_of(table)
    found = {name: np.array([float(row["dims"].get(name, 1)) for row in rows]) for name in ("batch", "m", "n", "k")}
    found["m"] = np.where(table["op"] == "grouped", found["m"] / found["batch"], found["m"])  # All groups' rows.
    found["copies"] = np.where(table["operands"].astype(str) == "dram", FLUSHED_COPIES, 1.0)
    return found


def _samples(table: MeasurementTable, model: str, problems: Any, catalog: Catalog | None) -> Any:
    share = own_share(table, TRAINED_SHARE)
    share = np.where(table["op"] == "grouped", np.maximum(share, TRAINED_SHARE), share)
    family = [f"product, own ({op})" for op in table["op"].tolist()]
    return samples_of(table, model, problems, catalog, family=family, share=share)
