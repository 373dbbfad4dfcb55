"""Which op model predicts which work."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..work import Work
from ..work.recorded_indices import Spread
from .embedding.problems import with_distinct, with_indices
from .frame.problems import Problems
from .registry import OP_MODELS, OpModel, model_of, problems_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assignment:
    """Hold the rows that one model predicts, as its problems: columns [n]."""

    model: str
    rows: npt.NDArray[np.int64]
    problems: Problems


def assign_models(
    works: Sequence[Work | None],
    rates: npt.NDArray[np.object_],
    available: Container[str],
    indices: Spread | None = None,
) -> list[Assignment]:
    """Group works by the model that covers them; works without a model, or whose model is not at hand, are left out.

    `indices` says how lookups in embedding tables are spread over rows, where that is known.

    >>> assigned = assign_models(workload.works, workload.work.rate, library.fitted)
    >>> [(found.model, len(found.rows)) for found in assigned]
    [('vector', 7), ('matmul', 5), ('attention_prefill', 1)]
    """
    works = [None if work is None else with_distinct(with_indices(work, indices), indices) for work in works]
    rows_of: dict[str, list[int]] = {}
    for row, (work, rate) in enumerate(zip(works, rates.tolist(), strict=True)):
        model = None if work is None or _is_empty(work) else model_of(work, rate)
        if model is not None and model.name in available:
            rows_of.setdefault(model.name, []).append(row)
    return [_assign(OP_MODELS[name], rows, works, rates) for name, rows in rows_of.items()]


def _is_empty(work: Work) -> bool:
    """Say whether some dimension is 0: such an op launches a kernel that does nothing, if any."""
    return work.is_matrix and work.flops <= 0


def _assign(
    model: OpModel, rows: Sequence[int], works: Sequence[Work | None], rates: npt.NDArray[np.object_]
) -> Assignment:
    chosen = [work for row in rows if (work := works[row]) is not None]
    problems = problems_of(model, chosen, [rates[row] for row in rows])
    return Assignment(model=model.name, rows=np.array(rows, dtype=np.int64), problems=problems)
