"""State spaces as columns: what is passed on per head, in chunks or token by token."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ....arrays import Codes, Floats
from ....records import dataclass
from ....specs.gpu import Rate
from ...work.recurrent import FLOPS_PER_STATE
from ...work.table import WorkTable
from ...work.work import StateRule, StateSpaceDims, Work
from ..frame.problems import copies_between, dims_of, element_bytes, rate_codes, rates_of, shared_columns

COLD_COPIES: Final = 6.0
"""Working sets between two uses of the same one: in a step the rest of the model lies between."""
FLOPS: Final = np.array([float(FLOPS_PER_STATE[rule]) for rule in StateRule])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StateSpaceProblems:
    """Hold state spaces as columns."""

    rule: Codes
    """`StateRule`."""
    batch: Floats
    steps: Floats
    heads: Floats
    head_dim: Floats
    state_dim: Floats
    groups: Floats
    is_update: Codes
    """1: token by token on a state that is kept."""
    is_fused: Codes
    """1: one kernel written for it, 0: Triton's; 2: SGLang's older build of the convolution."""
    state_bytes: Floats
    """Per element of the state."""
    element_bytes: Floats
    rate: Codes
    """Index into `RATES` of frame/problems."""
    copies: Floats
    """Working sets of this size between two uses of the same one; 1: the same tensors again and again."""


def problems_of(works: Sequence[Work], rates: Sequence[Rate]) -> StateSpaceProblems:
    """Return the problems of works with the sizes of state spaces, on the units of `rates`."""
    dims = dims_of(works, StateSpaceDims)

    return StateSpaceProblems(
        **shared_columns(StateSpaceProblems, dims, StateSpaceDims),
        element_bytes=element_bytes(rates),
        rate=rate_codes(rates),
        copies=np.array([copies_between(work, COLD_COPIES) for work in works], dtype=np.float64),
    )


def states(p: StateSpaceProblems) -> Floats:
    """Return the elements of all states."""
    return np.asarray(p.batch * p.heads * p.head_dim * p.state_dim)


def token_bytes(p: StateSpaceProblems) -> Floats:
    """Return the bytes of values, results, queries and keys, each once."""
    keys = np.where(p.rule == StateRule.CAUSAL_CONVOLUTION, 0.0, 2.0 * p.groups * p.state_dim)
    return np.asarray(p.batch * p.steps * (2.0 * p.heads * p.head_dim + keys) * p.element_bytes)


def least_work(p: StateSpaceProblems) -> WorkTable:
    """Return the least that any kernel computes and moves; tokens of a short prompt may meet in pairs."""
    updated = np.where(p.is_update == 1, 2.0 * states(p) * np.where(p.rule == 0, p.element_bytes, p.state_bytes), 0.0)
    state, pairs = FLOPS[p.rule] * p.head_dim * p.state_dim, p.steps * (p.head_dim + p.state_dim)
    per_token = np.where((p.is_update == 1) | (p.rule == 0), state, np.minimum(state, pairs))
    flops = p.batch * p.steps * p.heads * per_token
    return WorkTable(flops=flops, moved_bytes=token_bytes(p) + updated, rate=rates_of(p.rate))
