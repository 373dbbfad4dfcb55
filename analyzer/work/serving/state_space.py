"""Gated delta nets, Mamba and causal convolutions of libraries."""

from math import prod

from ....formats.trace.signature import Signature
from ..arguments import LackingArgumentError, size_at, tensor_at, tensor_list_at
from ..recurrent import state_space_work
from ..registry import Formula
from ..traffic import total_bytes
from ..work import Family, StateRule, StateSpaceDims, Work

_STATE = Family.STATE_SPACE


def gated_delta(signature: Signature, *, is_update: bool = False) -> Work:
    """Queries, keys and values (batch, steps, heads, dim): keys' heads are shared by values' heads."""
    query, value = tensor_at(signature, 0, 4), tensor_at(signature, 2, 4)
    batch, steps, groups, state_dim = query.shape
    heads, head_dim = value.shape[2:]
    dims = StateSpaceDims(
        rule=StateRule.GATED_DELTA,
        batch=batch,
        steps=steps,
        heads=heads,
        head_dim=head_dim,
        state_dim=state_dim,
        groups=groups,
        is_update=is_update,
    )
    return state_space_work(dims, query.dtype)


def chunked_scan(signature: Signature) -> Work:
    """Mamba-2: x (batch, steps, heads, dim), time steps, A, B (batch, steps, groups, state), C."""
    x, keys = tensor_at(signature, 0, 4), tensor_at(signature, 3, 4)
    batch, steps, heads, head_dim = x.shape
    return _scalar_decay(batch, steps, heads, head_dim, keys.shape[3], keys.shape[2], x.dtype)


def whole_mixer(signature: Signature) -> Work:
    """Mamba-2 with its convolution: (z, x, B, C, time steps in one; the convolution's weight; bias; bias of dt; A; …).

    The channels of the convolution are x, B and C; the number of groups stands at 17. The convolution and the
    product that may follow are not counted: small beside it, and an op of its own.
    """
    joined, weight, decay = tensor_at(signature, 0, 3), tensor_at(signature, 1), tensor_at(signature, 4, 1)
    (batch, steps, width), channels, heads = joined.shape, weight.shape[0], max(decay.element_count, 1)
    inner, groups = width - channels - heads, max(size_at(signature, 17), 1)
    states = (channels - inner) // 2
    if inner <= 0 or inner % heads or states % groups:
        raise LackingArgumentError("sizes that fit")
    return _scalar_decay(batch, steps, heads, inner // heads, states // groups, groups, joined.dtype)


def selective_scan(signature: Signature) -> Work:
    """Mamba: u (batch, channels, steps), or (channels, steps) packed; A [channels, state] third."""
    u, decay = tensor_at(signature, 0), tensor_at(signature, 2, 2)
    if len(u.shape) not in (2, 3):
        raise LackingArgumentError("channels and steps")
    channels, steps = u.shape[-2:]
    dims = StateSpaceDims(
        rule=StateRule.SELECTIVE_SCAN,
        batch=prod(u.shape[:-2]),
        steps=steps,
        heads=channels,
        head_dim=1,
        state_dim=decay.shape[1],
    )
    return state_space_work(dims, u.dtype)


def update_state(signature: Signature) -> Work:
    """One token per sequence: state (batch, [heads,] channels, state size), then x, …; read and overwritten."""
    state, x = tensor_at(signature, 0), tensor_at(signature, 1)
    if len(state.shape) not in (3, 4):
        raise LackingArgumentError("a state per sequence")
    is_by_head = len(state.shape) == 4
    heads, head_dim = (state.shape[1], state.shape[2]) if is_by_head else (state.shape[1], 1)
    dims = StateSpaceDims(
        rule=StateRule.SCALAR_DECAY if is_by_head else StateRule.SELECTIVE_SCAN,
        batch=x.shape[0],
        steps=1,
        heads=heads,
        head_dim=head_dim,
        state_dim=state.shape[-1],
        is_update=True,
        state_bytes=state.size_bytes / max(state.element_count, 1),
    )
    return state_space_work(dims, x.dtype)


def causal_convolution(signature: Signature, *, weight: int = 1, is_update: bool = False) -> Work:
    """x (batch, channels, steps), packed (channels, steps), updating (batch, channels); weight [channels, width]."""
    x, kernel = tensor_at(signature, 0), tensor_at(signature, weight, 2)
    channels, width = kernel.shape
    if channels not in x.shape:
        raise LackingArgumentError("channels that fit")
    tokens = x.element_count // max(channels, 1)
    batch = x.shape[0] if is_update or len(x.shape) == 3 else 1
    dims = StateSpaceDims(
        rule=StateRule.CAUSAL_CONVOLUTION,
        batch=batch,
        steps=max(tokens // max(batch, 1), 1),
        heads=channels,
        head_dim=1,
        state_dim=width,
        is_update=is_update,
        state_bytes=x.size_bytes / max(x.element_count, 1),
        is_fused=True,
    )
    return state_space_work(dims, x.dtype)


def gradients(signature: Signature, *, forward: Formula) -> Work:
    """Gradient of the result, then what the forward call took: its gradients.

    Arithmetic: the states again, then a gradient for each factor of each product, three times the forward's; bytes:
    what was taken and the gradient are read, a gradient of each is written.
    """
    gradient, taken = tensor_at(signature, 0), tensor_list_at(signature, 1)
    work = forward(Signature(taken))
    return Work(
        family=_STATE,
        flops=3 * work.flops,
        read_bytes=total_bytes((gradient, *taken)),
        written_bytes=total_bytes(taken),
        dtype=work.dtype,
        is_matrix=work.is_matrix,
    )


def _scalar_decay(batch: int, steps: int, heads: int, head_dim: int, state_dim: int, groups: int, dtype: str) -> Work:
    dims = StateSpaceDims(
        rule=StateRule.SCALAR_DECAY,
        batch=batch,
        steps=steps,
        heads=heads,
        head_dim=head_dim,
        state_dim=state_dim,
        groups=groups,
    )
    return state_space_work(dims, dtype)
