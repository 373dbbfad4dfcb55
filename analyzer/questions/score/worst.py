"""The rows that were predicted worst."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...models.frame.problems import Problems, problem_columns
from .report import Split, WorstRow
from .rows import PredictedSamples, codes_of

LEAST_NS: Final = 20e3
"""Shorter rows are left out: there, launches decide."""

DERIVED: Final = frozenset(
    {"kind", "flops", "elements", "read_bytes", "written_bytes", "moved_bytes", "element_bytes", "library", "rate"}
    | {"fused_blocks", "least_fused_blocks", "tiles", "is_event_timed", "host_ratio", "host_floor_ns"}
)
"""Columns of problems that follow from others, or from family and dtype."""


def worst_rows(made: Sequence[PredictedSamples], limit: int) -> tuple[WorstRow, ...]:
    """Return the worst row over 20 us of each family, dtype and GPU, the `limit` worst of these."""
    found = [row for item in made for row in _worst_of_groups(item)]
    found.sort(key=lambda pair: -pair[0])
    return tuple(row for _, row in found[:limit])


def _worst_of_groups(made: PredictedSamples) -> list[tuple[float, WorstRow]]:
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


def describe_problem(problems: Problems, row: int) -> str:
    """Return the sizes of one problem, e.g. `m=64 n=4096 k=4096`; what is 0, unknown or derived is left out."""
    columns = problem_columns(problems).items()
    values = [(name, float(column[row])) for name, column in columns if name not in DERIVED]
    return " ".join(f"{name}={value:.10g}" for name, value in values if value and np.isfinite(value))
