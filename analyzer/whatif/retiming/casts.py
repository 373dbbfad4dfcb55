"""How long conversions between dtypes take, and ops from their shapes alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ....arrays import Floats, group_rows
from ....formats.trace.signature import Signature, TensorSpec
from ....specs.fleet import Fleet
from ....specs.gpu import Rate
from ...models.library import Library
from ...models.registry import assign_models
from ...prediction.bounds import bound_ops
from ...prediction.op_models import model_times
from ...work import Work, work_of
from ...work.table import tabulate
from ..change import Casts

_CAST_DTYPES: Final = {4.0: "float32", 2.0: "bfloat16", 1.0: "float8_e4m3fn", 0.5: "int4"}


def cast_times_ns(casts: Casts, fleet: Fleet, library: Library) -> Floats:
    """Return the time of each conversion on each GPU, [n, m]: that of a copy kernel, by its op model."""
    if not len(casts.op):
        return np.zeros((0, len(fleet.gpus)))
    widths = [(2 * column).astype(np.int64) for column in (casts.read_bytes, casts.written_bytes)]
    keys = [casts.element_count, *widths]
    first, group = group_rows(keys)
    works = []
    for row in first.tolist():
        shape = (int(casts.element_count[row]),)
        before, after = (_CAST_DTYPES[float(column[row])] for column in (casts.read_bytes, casts.written_bytes))
        works.append(work_of("aten::_to_copy", Signature((TensorSpec(before, shape),), (TensorSpec(after, shape),))))
    return np.asarray(op_times_ns(works, [Rate.FP32] * len(works), fleet, library)[group])


def op_times_ns(works: Sequence[Work | None], rates: Sequence[Rate], fleet: Fleet, library: Library) -> Floats:
    """Return the time of each op on each GPU, [n, m]: its op model, else its roofline."""
    table = tabulate(works, rates)
    bounds = bound_ops(table, fleet)
    modelled = model_times(assign_models(works, table.rate, library.fitted), len(works), fleet, library)
    covered = modelled.is_covered[:, None]
    return np.asarray(np.where(covered, np.maximum(modelled.time_ns, bounds.lower_ns), bounds.roofline_ns))
