"""Op models applied: time and interval of every row that a model covers, and of works no recording has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...arrays import Floats, Mask, row_blocks
from ...records import dataclass, replace
from ...specs.fleet import Fleet, take_gpus
from ...specs.gpu import Rate
from ..models.frame.problems import as_columns, take_problems
from ..models.library import Library
from ..models.registry import Assignment, assign_models, columns_of
from ..work import Work
from ..work.table import WorkTable, tabulate
from .bounds import Bounds, bound_ops
from .workload import GpuWorkload

BLOCK_PAIRS: Final = 2**16
"""Problems times GPUs simulated at a time: with their candidates about what the processor's cache holds."""
BLOCK_ROWS: Final = 256
"""Of these whole multiples, so that the learned correction meets the same rows together whatever the fleet."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelTimes:
    """Hold what the op models say of n rows on m GPUs; NaN where no model covers the row."""

    time_ns: Floats
    """Of the whole op, [n, m]."""
    half_width: Floats
    """Of the 90 % interval, natural log, [n, m]."""
    anchored_half_width: Floats
    """The same where the op was measured on a source of the same vendor, [n, m]."""
    foreign_half_width: Floats
    """The same where the source is of another vendor, [n, m]; NaN where nothing tells."""
    anchor: Floats
    """What part of the GPU's deviation from the model carries over where it is the source, [n, m]."""

    @property
    def is_covered(self) -> Mask:
        """Say which rows a model covers, [n]."""
        return np.asarray(~np.isnan(self.anchor).any(axis=1))

    def on(self, column: int) -> ModelTimes:
        """Return the same of one of the GPUs."""
        one = slice(column, column + 1)
        return replace(
            self,
            time_ns=self.time_ns[:, one],
            half_width=self.half_width[:, one],
            anchored_half_width=self.anchored_half_width[:, one],
            foreign_half_width=self.foreign_half_width[:, one],
            anchor=self.anchor[:, one],
        )


def assign_rows(workload: GpuWorkload, library: Library) -> list[Assignment]:
    """Return which model covers which rows of a workload."""
    return assign_models(workload.works, workload.work.rate, library.fitted, library.indices)


def covered_rows(assignments: Sequence[Assignment], count: int) -> Mask:
    """Say which of `count` rows some model covers."""
    covered = np.zeros(count, dtype=bool)
    for assignment in assignments:
        covered[assignment.rows] = True
    return covered


def model_times(assignments: Sequence[Assignment], count: int, fleet: Fleet, library: Library) -> ModelTimes:
    """Predict the assigned ones of `count` rows, from their shapes alone.

    >>> model_times(assign_rows(workload, library), len(workload.op), fleet, library).time_ns.shape
    (13, 2)
    """
    shape = (count, len(fleet.gpus))
    time_ns, width, anchored, anchor, foreign = (np.full(shape, np.nan) for _ in range(5))
    for assignment in assignments:
        columns = columns_of(assignment.model, fleet)
        if not len(columns):
            continue
        is_whole = len(columns) == len(fleet.gpus)
        part = fleet if is_whole else take_gpus(fleet, columns)
        prepared, model = library.prepare(assignment.model, part), library.fitted[assignment.model].model
        pairs = BLOCK_PAIRS * (len(model.class_names) if model.is_by_class else 1)
        size = BLOCK_ROWS * max(1, pairs // (BLOCK_ROWS * len(columns)))
        for block in row_blocks(len(assignment.rows), size):
            rows = assignment.rows[block]
            problems = as_columns(take_problems(assignment.problems, block))
            predicted = library.predict(assignment.model, problems, part, prepared)
            at = rows if is_whole else np.ix_(rows, columns)
            time_ns[at], width[at] = predicted.time_ns, predicted.half_width
            anchored[at], anchor[at] = predicted.anchored_half_width, predicted.anchor
            foreign[at] = predicted.foreign_half_width
    return ModelTimes(
        time_ns=time_ns, half_width=width, anchored_half_width=anchored, foreign_half_width=foreign, anchor=anchor
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GeneratedTimes:
    """Hold what is predicted of k works on m GPUs."""

    work: WorkTable
    time_ns: Floats
    """[k, m]."""
    half_width: Floats
    """Of the 90 % interval, natural log, [k, m]; NaN where no model covers the work."""
    is_covered: Mask
    """Whether a model does, [k]."""
    bounds: Bounds


def predict_works(works: Sequence[Work], fleet: Fleet, library: Library) -> GeneratedTimes:
    """Predict each work on each GPU: by its model, or by the roofline where no model covers it.

    Equal works are computed once.

    >>> found = predict_works(workload.works[:2], fleet, library)
    >>> found.time_ns.shape == (2, len(fleet.gpus))
    True
    """
    distinct = list(dict.fromkeys(works))
    at = {work: row for row, work in enumerate(distinct)}
    rows = np.array([at[work] for work in works], dtype=np.int64)
    rates = np.empty(len(distinct), dtype=object)
    rates[:] = Rate.FP32
    bounds = bound_ops(tabulate(distinct, rates.tolist()), fleet)
    found = model_times(assign_models(distinct, rates, library.fitted, library.indices), len(distinct), fleet, library)
    time = np.where(found.is_covered[:, None], np.maximum(found.time_ns, bounds.lower_ns), bounds.roofline_ns)
    return GeneratedTimes(
        work=tabulate(works, [Rate.FP32] * len(works)),
        time_ns=time[rows],
        half_width=found.half_width[rows],
        is_covered=found.is_covered[rows],
        bounds=Bounds(roofline_ns=bounds.roofline_ns[rows], lower_ns=bounds.lower_ns[rows]),
    )
