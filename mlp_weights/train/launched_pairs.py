"""Read the vector kernels whose launches the tables hold, and pair them between two GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...analyzer.measurements.samples import read_table
from ...arrays import Floats
from ...specs.fleet import Fleet

TABLE: Final = "ops/vector.parquet"
FAMILIES: Final = ("elementwise", "layernorm", "softmax")
_ELEMENTWISE: Final = frozenset(
    {"add", "mul", "div", "pow", "add_scalar", "mul_scalar", "div_scalar", "pow_scalar", "relu", "gelu", "tanh"}
)
_FLOPS_PER_ELEMENT: Final = {"layernorm": 7.0, "softmax": 5.0}
"""As analyzer/work counts them; 1 for elementwise."""

LaunchedRow = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairing:
    """Hold the kernels measured on both of an ordered pair of GPUs, [n]."""

    source: Fleet
    target: Fleet
    source_us: Floats
    target_us: Floats
    intensity: Floats
    """FLOP per byte."""
    moved_bytes: Floats
    block_count: Floats
    block_threads: Floats


def load_rows(data: Path) -> dict[tuple[str, str], list[LaunchedRow]]:
    """Return the rows with a launch by family and GPU."""
    table = read_table(data / TABLE)
    names = list(table)
    rows: dict[tuple[str, str], list[LaunchedRow]] = {}
    for values in zip(*(table[name].tolist() for name in names), strict=True):
        row = dict(zip(names, values, strict=True))
        family = "elementwise" if row["op"] in _ELEMENTWISE else row["op"]
        if row["kernel"] and row["grid_x"] > 0 and not row["suspect"] and family in FAMILIES:
            rows.setdefault((family, row["gpu"]), []).append(row)
    return rows


def pair_up(family: str, shared: Sequence[tuple[LaunchedRow, LaunchedRow]], source: Fleet, target: Fleet) -> Pairing:
    """Return the pairs (row on the source, row on the target) as columns."""

    def values(get: Callable[[LaunchedRow, LaunchedRow], float]) -> Floats:
        return np.array([get(left, right) for left, right in shared], dtype=np.float64)

    flops_per_element = _FLOPS_PER_ELEMENT.get(family, 1.0)
    return Pairing(
        source=source,
        target=target,
        source_us=values(lambda left, _: left["latency_us"]),
        target_us=values(lambda _, right: right["latency_us"]),
        intensity=values(
            lambda left, _: (
                left["rows"] * left["cols"] * flops_per_element / (left["bytes_read"] + left["bytes_written"])
            )
        ),
        moved_bytes=values(lambda left, _: left["bytes_read"] + left["bytes_written"]),
        block_count=values(lambda left, _: left["grid_x"] * left["grid_y"] * left["grid_z"]),
        block_threads=values(lambda left, _: left["block_x"] * left["block_y"] * left["block_z"]),
    )
