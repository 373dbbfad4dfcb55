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
from ..work.work import AttentionDims, ConvolutionDims, MatmulDims, RecurrentDims
from .frame.model import take_problems
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
        name = None if work is None or _is_empty(work) else model_of(work, rate)
        if name is not None:
            rows_of.setdefault(name, []).append(row)
    found = [_assign(name, rows, works, rates) for name, rows in rows_of.items()]
    return [part for item in found for part in split_quantized(item) if part.model in available]


def _is_empty(work: Work) -> bool:
    """Say whether some dimension is 0: such an op launches a kernel that does nothing, if any."""
    return work.is_matrix and work.flops <= 0


def _assign(name: str, rows: Sequence[int], works: Sequence[Work | None], rates: npt.NDArray[np.object_]) -> Assignment:
    module = import_module(MODULES[name], __package__)
    problems = module.problems_of([works[row] for row in rows], [rates[row] for row in rows])
    return Assignment(model=name, rows=np.array(rows, dtype=np.int64), problems=problems)


def split_quantized(item: Assignment) -> list[Assignment]:
    """Part products with quantised operands, which a model of their own predicts, from plain ones."""
    if item.model != "matmul":
        return [item]
    plain = np.asarray(item.problems.kind == 0)
    parts = (("matmul", plain), ("matmul_quantized", ~plain))
    return [
        Assignment(model=name, rows=item.rows[rows], problems=take_problems(item.problems, rows))
        for name, rows in parts
        if rows.any()
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
