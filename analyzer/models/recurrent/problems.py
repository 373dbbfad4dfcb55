"""Whole recurrent layers as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....arrays import Codes, Floats
from ....specs.gpu import Rate
from ...work.work import Direction, RecurrentDims, Work
from ..frame.units import element_bytes, rate_codes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecurrentProblems:
    """Hold recurrent layers as columns."""

    gates: Floats
    layers: Floats
    directions: Floats
    steps: Floats
    batch: Floats
    input_size: Floats
    hidden_size: Floats
    element_bytes: Floats
    rate: Codes
    """Index into `RATES` of frame/units."""
    large_products: Floats
    """How often each weight multiplies all steps at once, beyond the forward's inputs: 1 for a weight gradient."""


def problems_of(works: Sequence[Work], rates: Sequence[Rate]) -> RecurrentProblems:
    """Return the problems of recurrent layers on the units of `rates`."""
    dims = [_dims(work) for work in works]

    def column(name: str) -> Floats:
        return np.array([getattr(item, name) for item in dims], dtype=np.float64)

    return RecurrentProblems(
        gates=column("gates"),
        layers=column("layers"),
        directions=column("directions"),
        steps=column("steps"),
        batch=column("batch"),
        input_size=column("input_size"),
        hidden_size=column("hidden_size"),
        element_bytes=element_bytes(rates),
        rate=rate_codes(rates),
        large_products=np.array([float(item.direction is Direction.BOTH_GRADIENTS) for item in dims]),
    )


def _dims(work: Work) -> RecurrentDims:
    if not isinstance(work.dims, RecurrentDims):
        raise TypeError(f"dims are {type(work.dims).__name__}, RecurrentDims expected")
    return work.dims
