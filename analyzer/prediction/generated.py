"""How long kernels take that no recording has and only their work says: those that a compiler would generate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...arrays import Floats
from ...specs.fleet import Fleet
from ...specs.gpu import Rate
from ..models.assignment import assign_models
from ..models.library import Library
from ..work import Work
from ..work.table import tabulate
from .bounds import bound_ops
from .op_models import model_times


def work_times_ns(works: Sequence[Work], fleet: Fleet, library: Library) -> Floats:
    """Return the time of each work on each GPU, [k, m]: its model's, or the roofline where no model covers it.

    Equal works are computed once.
    """
    distinct = list(dict.fromkeys(works))
    at = {work: row for row, work in enumerate(distinct)}
    rates = np.empty(len(distinct), dtype=object)
    rates[:] = Rate.FP32
    bounds = bound_ops(tabulate(distinct, rates.tolist()), fleet)
    found = model_times(assign_models(distinct, rates, library.fitted, library.indices), len(distinct), fleet, library)
    time = np.where(found.is_covered[:, None], np.maximum(found.time_ns, bounds.lower_ns), bounds.roofline_ns)
    return np.asarray(time[[at[work] for work in works]])
