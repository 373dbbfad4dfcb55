"""Whole recurrent layers as columns."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ....arrays import Codes, Floats
from ....records import dataclass
from ....specs.gpu import Rate
from ...work.table import WorkTable
from ...work.work import Direction, RecurrentDims, Work
from ..frame.problems import dims_of, element_bytes, rate_codes, rates_of, shared_columns

GROUPS: Final = ("forward", "data gradient", "weight gradient")
"""Both gradients at once count as the second: the steps are most of their time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecurrentProblems:
    """Hold recurrent layers as columns."""

    gates: Floats
    layers: Floats
    directions: Floats
    steps: Floats
    batch: Floats
    input_size: Floats
    """Of the first layer; 0: its product is no part of the time."""
    hidden_size: Floats
    element_bytes: Floats
    rate: Codes
    """Index into `RATES` of frame/problems."""
    walks: Floats
    """How often the steps are walked one by one: 0 for weight gradients alone."""
    weight_gradients: Floats
    """How often each weight multiplies all steps at once, beyond the inputs' products."""
    is_backward: Floats
    """1: the steps are those of the data gradient, against the transposed weights."""
    is_host_timed: Floats
    """1: a host's clock over calls, with what a call costs there; 0: the kernels' own time."""


def problems_of(works: Sequence[Work], rates: Sequence[Rate]) -> RecurrentProblems:
    """Return the problems of recurrent layers on the units of `rates`."""
    return problems_of_dims(dims_of(works, RecurrentDims), rates)


def problems_of_dims(dims: Sequence[RecurrentDims], rates: Sequence[Rate]) -> RecurrentProblems:
    """Return recurrent layers on the units of `rates`, in kernels' own time."""

    directions = [item.direction for item in dims]
    return RecurrentProblems(
        **shared_columns(RecurrentProblems, dims, RecurrentDims),
        element_bytes=element_bytes(rates),
        rate=rate_codes(rates),
        walks=np.array([float(item is not Direction.WEIGHT_GRADIENT) for item in directions]),
        weight_gradients=np.array([float(item in WEIGHT_GRADIENTS) for item in directions]),
        is_backward=np.array([float(item is not Direction.FORWARD) for item in directions]),
        is_host_timed=np.zeros(len(dims)),
    )


WEIGHT_GRADIENTS: Final = (Direction.WEIGHT_GRADIENT, Direction.BOTH_GRADIENTS)


def state_weights(problems: RecurrentProblems) -> Floats:
    """Return the elements that one layer's state is multiplied with in one direction."""
    return np.asarray(problems.gates * problems.hidden_size * problems.hidden_size)


def input_weights(problems: RecurrentProblems) -> Floats:
    """Return the elements that the inputs of all layers are multiplied with in one direction."""
    p = problems
    return np.asarray(p.gates * p.hidden_size * (p.input_size + (p.layers - 1.0) * p.directions * p.hidden_size))


def product_flops(problems: RecurrentProblems) -> tuple[Floats, Floats]:
    """Return the FLOPs of products of all steps at once, and of those that wait for each other."""
    p = problems
    own = p.layers * state_weights(p)
    large = input_weights(p) * (p.walks + p.weight_gradients) + own * p.weight_gradients
    per_weight = 2.0 * p.steps * p.batch * p.directions
    return per_weight * large, per_weight * own * p.walks


def least_work(problems: RecurrentProblems) -> WorkTable:
    """Return what any kernel computes, and moves where registers hold the weights for all steps."""
    p = problems
    weights = p.directions * (p.layers * state_weights(p) + input_weights(p))
    rows = p.steps * p.batch * p.directions * p.layers * p.hidden_size
    return WorkTable(
        flops=sum(product_flops(p), start=np.zeros(len(p.gates))),
        moved_bytes=(weights + 2.0 * rows) * p.element_bytes,
        rate=rates_of(p.rate),
    )


def group(problems: RecurrentProblems) -> Codes:
    """Return the index into `GROUPS` of each problem."""
    return np.where(problems.walks == 0, 2, problems.is_backward).astype(np.int64)


def kernel_kind(problems: RecurrentProblems) -> Codes:
    """Return a code of direction and unit: each has kernels of its own."""
    return np.asarray(problems.rate * len(GROUPS) + group(problems))
