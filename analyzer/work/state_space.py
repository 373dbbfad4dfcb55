"""Gated delta nets, Mamba-2, Mamba and the causal convolutions before them: a state per sequence and head.

Counted as if token by token, which is the least: chunks save steps and memory traffic, not arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...formats.trace.signature import DTYPE_BYTES
from .work import Family, StateRule, StateSpaceDims, Work

DEFAULT_BYTES: Final = 2
FLOPS_PER_STATE: Final[Mapping[StateRule, int]] = {
    StateRule.CAUSAL_CONVOLUTION: 2,
    StateRule.GATED_DELTA: 6,
    StateRule.SCALAR_DECAY: 5,
    StateRule.SELECTIVE_SCAN: 7,
}
"""Per token and element of the state. Delta: k S, + k vᵀ, q S (arXiv 2412.06464, equation 10; the decay is one more,
folded into the gates in chunks). Mamba-2: a·h + B xᵀ 3, C h 2 (arXiv 2405.21060, equation 1). Mamba: also the
exponential of dt·A, element by element."""
GATES: Final[Mapping[StateRule, int]] = {
    StateRule.CAUSAL_CONVOLUTION: 0,
    StateRule.GATED_DELTA: 2,
    StateRule.SCALAR_DECAY: 1,
    StateRule.SELECTIVE_SCAN: 1,
}
"""Per token and head: decay and strength of the update, or the time step."""

MATRIX_RULES: Final = (StateRule.GATED_DELTA, StateRule.SCALAR_DECAY)
"""In chunks they are products of matrices."""


def state_space_work(dims: StateSpaceDims, dtype: str) -> Work:
    """Return the work of one layer's state, without projections, norms and the gate of its output.

    Bytes: queries and keys (C and B) per group, values, gates and results once; the state written, in decoding also
    read.

    >>> decode = StateSpaceDims(rule=StateRule.GATED_DELTA, batch=64, steps=1, heads=32, head_dim=128, state_dim=128,
    ...                         groups=16, is_update=True)
    >>> state_space_work(decode, "bfloat16").written_bytes / 1e6
    134.742016
    """
    width = DTYPE_BYTES.get(dtype, DEFAULT_BYTES)
    tokens = dims.batch * dims.steps
    state = dims.heads * dims.head_dim * dims.state_dim
    values = tokens * dims.heads * dims.head_dim * width
    state_bytes = dims.batch * state * dims.state_bytes
    keys = 0 if dims.rule is StateRule.CAUSAL_CONVOLUTION else 2 * tokens * dims.groups * dims.state_dim * width
    gates = tokens * dims.heads * GATES[dims.rule] * width
    return Work(
        family=Family.STATE_SPACE,
        flops=FLOPS_PER_STATE[dims.rule] * tokens * state,
        read_bytes=keys + values + gates + (state_bytes if dims.is_update else 0.0),
        written_bytes=values + state_bytes,
        dtype=dtype,
        is_matrix=dims.rule in MATRIX_RULES and not dims.is_update,
        dims=dims,
    )
