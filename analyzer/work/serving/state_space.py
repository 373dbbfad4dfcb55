"""Gated delta nets, Mamba and causal convolutions of libraries."""

from functools import partial
from math import prod

from ....formats.trace.signature import Signature
from ..arguments import LackingArgumentError, size_at, tensor_at, tensor_list_at
from ..recurrent import state_space_work
from ..registry import Formula
from ..traffic import total_bytes
from ..work import Family, StateRule, StateSpaceDims, Work
from .library_op import declare_all

_STATE = Family.STATE_SPACE
_VLLM, _SGLANG = "vLLM", "SGLang"
_BINDINGS, _EXTENSION = "csrc/torch_bindings.cpp", "sgl-kernel/csrc/common_extension.cc"


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


_DELTA = "gated delta rule"
declare_all(
    ("fla", "fla::chunk_gated_delta_rule ChunkGatedDeltaRuleFunction", _STATE, f"{_DELTA}, in chunks",
     "queries, values", "fla/ops/gated_delta_rule/chunk.py", gated_delta),
    ("fla", "fla::fused_recurrent_gated_delta_rule FusedRecurrentFunction", _STATE, f"{_DELTA}, token by token",
     "queries, values", "fla/ops/gated_delta_rule/fused_recurrent.py", partial(gated_delta, is_update=True)),
    ("mamba_ssm", "mamba_ssm::mamba_chunk_scan_combined MambaChunkScanCombinedFn", _STATE, "Mamba-2, in chunks", "x, B",
     "mamba_ssm/ops/triton/ssd_combined.py", chunked_scan),
    ("mamba_ssm", "mamba_ssm::mamba_split_conv1d_scan_combined MambaSplitConv1dScanCombinedFn", _STATE,
     "Mamba-2 with its convolution", "joined input, the convolution's weight, A, groups",
     "mamba_ssm/ops/triton/ssd_combined.py", whole_mixer),
    ("mamba_ssm", "mamba_ssm::selective_scan_fn SelectiveScanFn", _STATE, "Mamba's scan", "u, A",
     "mamba_ssm/ops/selective_scan_interface.py", selective_scan),
    ("mamba_ssm", "mamba_ssm::selective_state_update", _STATE, "Mamba's state after one token", "state, x",
     "mamba_ssm/ops/triton/selective_state_update.py", update_state),
    (_VLLM, "_C::selective_scan_fwd", _STATE, "Mamba's scan", "u, A", _BINDINGS, selective_scan),
    ("causal_conv1d", "causal_conv1d::causal_conv1d_fn CausalConv1dFn DaoAILab::_causal_conv1d_fwd_cpp", _STATE,
     "causal convolution", "x, weight", "causal_conv1d/causal_conv1d_interface.py", causal_convolution),
    ("causal_conv1d", "causal_conv1d::causal_conv1d_update DaoAILab::_causal_conv1d_update_cpp", _STATE,
     "causal convolution of one token", "x, weight", "causal_conv1d/causal_conv1d_interface.py",
     partial(causal_convolution, weight=2, is_update=True)),
    (_SGLANG, "sgl_kernel::causal_conv1d_fwd", _STATE, "causal convolution", "x, weight", _EXTENSION,
     causal_convolution),
    (_SGLANG, "sgl_kernel::causal_conv1d_update", _STATE, "causal convolution of one token", "x, weight", _EXTENSION,
     partial(causal_convolution, weight=2, is_update=True)),
    ("fla", "fla::chunk_gated_delta_rule_backward", _STATE, f"gradients of the {_DELTA}",
     "gradient, the forward's arguments", "fla/ops/gated_delta_rule/chunk.py", partial(gradients, forward=gated_delta)),
    ("mamba_ssm", "mamba_ssm::mamba_chunk_scan_combined_backward", _STATE, "Mamba-2's gradients",
     "gradient, the forward's arguments", "mamba_ssm/ops/triton/ssd_combined.py",
     partial(gradients, forward=chunked_scan)),
    ("mamba_ssm", "mamba_ssm::selective_scan_fn_backward", _STATE, "Mamba's gradients",
     "gradient, the forward's arguments", "mamba_ssm/ops/selective_scan_interface.py",
     partial(gradients, forward=selective_scan)),
    ("causal_conv1d", "causal_conv1d::causal_conv1d_fn_backward", _STATE, "a causal convolution's gradients",
     "gradient, the forward's arguments", "causal_conv1d/causal_conv1d_interface.py",
     partial(gradients, forward=causal_convolution)),
    (_VLLM, "vllm::gdn_attention vllm::gdn_attention_core", _STATE, f"{_DELTA}, whose sequences are no arguments",
     "vllm/model_executor/models/qwen3_next.py"),
    (_VLLM, "vllm::mamba_mixer vllm::mamba_mixer2 vllm::short_conv vllm::linear_attention vllm::plamo2_mamba_mixer",
     _STATE, "state-space layer, whose sequences are no arguments", "vllm/model_executor/layers/mamba"),
    ("mamba_ssm", "MambaInnerFn", _STATE, "whole Mamba layer; its projections are products of their own",
     "mamba_ssm/ops/selective_scan_interface.py"),
)  # fmt: skip
