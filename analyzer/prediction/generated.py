"""How long kernels take that no recording has and only their work says: those that a compiler would generate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...arrays import Floats, Mask
from ...specs.fleet import Fleet
from ...specs.gpu import Rate
from ..models.assignment import assign_models
from ..models.library import Library
from ..work import Work
from ..work.table import WorkTable, tabulate
from .bounds import Bounds, bound_ops
from .op_models import model_times


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
