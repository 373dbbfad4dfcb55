"""Which op model predicts which work."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...specs.gpu import Rate
from ..work import Family, Work
from ..work.record import AttentionDims, ConvolutionDims, MatmulDims, RecurrentDims
from .library import MODULES

UNMODELLED_FAMILIES: Final = frozenset({Family.COLLECTIVE, Family.SORT, Family.VIEW})
VECTOR_RATES: Final = frozenset({Rate.FP32, Rate.MATRIX_FP32, Rate.FP64, Rate.MATRIX_FP64})
"""Products in these formats run on vector units on most GPUs, with kernels of their own."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assignment:
    """Hold the rows that one model predicts, as its problems: columns [n]."""

    model: str
    rows: npt.NDArray[np.int64]
    problems: Any


def assign_models(
    works: Sequence[Work | None], rates: npt.NDArray[np.object_], available: Container[str]
) -> list[Assignment]:
    """Group works by the model that covers them; works without a model, or whose model is not at hand, are left out."""
    rows_of: dict[str, list[int]] = {}
    for row, (work, rate) in enumerate(zip(works, rates.tolist(), strict=True)):
        name = None if work is None else model_of(work, rate)
        if name is not None and name in available:
            rows_of.setdefault(name, []).append(row)
    return [
        Assignment(
            model=name,
            rows=np.array(rows, dtype=np.int64),
            problems=_problems(name, [works[row] for row in rows], [rates[row] for row in rows]),
        )
        for name, rows in rows_of.items()
    ]


def model_of(work: Work, rate: Rate) -> str | None:
    """Return the name of the model that covers a work; None where there is none."""
    match work.dims:
        case MatmulDims():
            return "matmul_simt" if rate in VECTOR_RATES else "matmul"
        case AttentionDims(queries=queries, keys=keys):
            return "attention_decode" if queries == 1 and keys > 1 else "attention_prefill"
        case ConvolutionDims():
            return "convolution"
        case RecurrentDims():
            return "recurrent"
    varying = work.is_matrix or work.family in (Family.ATTENTION, Family.CONVOLUTION, Family.RECURRENT)
    return None if varying or work.family in UNMODELLED_FAMILIES else "vector"


def _problems(name: str, works: Sequence[Work | None], rates: Sequence[Rate]) -> Any:
    module = import_module(MODULES[name], __package__)
    return module.problems_of(works, rates)
