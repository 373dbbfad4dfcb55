"""The rows that were predicted worst."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

import numpy as np

from .report import Split, WorstRow
from .rows import Forecast, codes_of

LEAST_NS: Final = 20e3
"""Shorter rows are left out: there, launches decide."""

DERIVED: Final = frozenset(
    {"kind", "flops", "elements", "read_bytes", "written_bytes", "moved_bytes", "element_bytes", "library", "rate"}
    | {"fused_blocks", "least_fused_blocks", "tiles", "is_event_timed", "host_ratio", "host_floor_ns"}
)
"""Columns of problems that follow from others, or from family and dtype."""


def worst_rows(made: Sequence[Forecast], limit: int) -> tuple[WorstRow, ...]:
    """Return the worst row over 20 us of each family, dtype and GPU, the `limit` worst of these."""
    found = [row for item in made for row in _worst_of_groups(item)]
    found.sort(key=lambda pair: -pair[0])
    return tuple(row for _, row in found[:limit])


def _worst_of_groups(made: Forecast) -> list[tuple[float, WorstRow]]:
    samples = made.samples
    (families, family), (dtypes, dtype) = codes_of(samples.family), codes_of(samples.dtype)
    error = np.abs(np.log(made.predicted_ns / samples.measured_ns))
    rows = np.flatnonzero(samples.measured_ns >= LEAST_NS)
    group = (family[rows] * len(dtypes) + dtype[rows]) * len(samples.gpus) + samples.gpu[rows]
    order = rows[np.lexsort((-error[rows], group))]
    first = np.unique(np.sort(group), return_index=True)[1]
    return [
        (
            float(error[row]),
            WorstRow(
                table=samples.table,
                family=families[family[row]],
                dtype=dtypes[dtype[row]],
                gpu=samples.gpus[samples.gpu[row]].name,
                split=Split.SEEN if made.is_seen[row] else Split.UNSEEN,
                problem=describe_problem(samples.problems, row),
                measured_ns=float(samples.measured_ns[row]),
                predicted_ns=float(made.predicted_ns[row]),
                low_ns=float(made.low_ns[row]),
                high_ns=float(made.high_ns[row]),
            ),
        )
        for row in order[first].tolist()
    ]


def describe_problem(problems: Any, row: int) -> str:
    """Return the sizes of one problem, e.g. `m=64 n=4096 k=4096`; what is 0, unknown or derived is left out."""
    names = [item.name for item in fields(problems) if item.name not in DERIVED]
    values = [(name, float(getattr(problems, name)[row])) for name in names]
    return " ".join(f"{name}={value:.10g}" for name, value in values if value and np.isfinite(value))
