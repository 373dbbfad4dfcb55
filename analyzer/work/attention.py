"""Scaled dot-product attention. FLOPs are those of the full score matrix, as in torch's flop counter.

A causal mask halves what a kernel must compute; torch counts the full matrix, and so do we: the analyzer's
models know causality from the arguments. Forward: QKᵀ and PV; backward: the scores again and four gradients.
"""

from math import prod

from ...formats.trace.signature import Signature, TensorSpec
from ...records import dataclass
from ...specs.attention_kernels import AttentionKernel
from .arguments import LackingArgumentError, argument_at, flag_at, optional_tensor_at, size_at, tensor_at, tensors_at
from .traffic import STATISTICS_DTYPE, bytes_of, tensor_bytes, total_bytes
from .work import AttentionDims, Direction, Family, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Say how an attention op's schema lays out its tensors and arguments; None where it has none."""

    query: int = 0
    grad: int | None = None
    bias: int | None = None
    saved: tuple[int, ...] = ()
    """Backward: the forward's output and its log-sum-exp."""
    is_heads_first: bool = True
    """(batch, heads, seq, dim) or (batch, seq, heads, dim)."""
    log_sum_exp: int | bool = False
    """Forward: the position of the flag that asks for it, or the fixed answer."""
    sequence_offsets: int | None = None
    """The first of four: cumulative lengths of queries and keys, longest query, longest key."""
    longest: int | None = None
    """The position of the longest query, with the longest key's after it, where it does not follow the lengths."""
    causal: int | None = None
    """The position of the causal flag (or of the kind of mask, 0 for none)."""
    window: int | None = None
    """The position of the number of earlier keys that a query sees, negative or None for all."""
    dropout: int | None = None
    """The position of the part of the scores that is dropped."""
    deterministic: int | None = None
    """Backward: the position of the flag that asks for gradients in a fixed order. PyTorch's ops have none: its global
    setting is not recorded."""
    kernel: AttentionKernel = AttentionKernel.FLASH2
    """Whose op it is."""
    is_torch: bool = True
    """Whether PyTorch chose it, by the GPU that it ran on; else the caller did."""


def attention_work(signature: Signature, layout: _Layout) -> Work:
    """Return the FLOPs and bytes of a forward or a backward op.

    2·h·q·k·(d + e) FLOPs forward for h heads, q queries, k keys (a window at most) of dim d and values of dim e;
    2·h·q·k·(3d + 2e) backward: the scores again, then the gradients of scores, values, queries and keys.
    """
    query, key, value = (tensor_at(signature, layout.query + offset) for offset in range(3))
    if not len(query.shape) == len(key.shape) == len(value.shape) >= (2 if layout.is_heads_first else 3):
        raise LackingArgumentError("query, key and value of different ranks")
    bias = None if layout.bias is None else optional_tensor_at(signature, layout.bias)
    dims = _dims(signature, layout, (query, key, value), has_mask=bias is not None)
    results = prod(query.shape[:-1])
    read: tuple[TensorSpec, ...] = (query, key, value)
    if layout.grad is None:
        per_score = dims.query_dim + dims.value_dim
        statistics = results if _has_log_sum_exp(signature, layout) else 0
        written = bytes_of(results * dims.value_dim, query.dtype) + bytes_of(statistics, STATISTICS_DTYPE)
    else:
        per_score = 3 * dims.query_dim + 2 * dims.value_dim
        grad = tensor_at(signature, layout.grad)
        if grad.shape != (*query.shape[:-1], dims.value_dim):
            raise LackingArgumentError("a gradient of another shape than the output")
        written = sum(item.size_bytes for item in read)
        read = (grad, *read, *tensors_at(signature, *layout.saved))
    return Work(
        family=Family.ATTENTION,
        flops=2 * dims.batch * dims.heads * dims.queries * min(dims.keys, dims.window or dims.keys) * per_score,
        read_bytes=total_bytes(read) + tensor_bytes(bias),
        written_bytes=written,
        dtype=query.dtype,
        is_matrix=True,
        dims=dims,
    )


def _dims(
    signature: Signature, layout: _Layout, operands: tuple[TensorSpec, TensorSpec, TensorSpec], *, has_mask: bool
) -> AttentionDims:
    """Return the sizes that the op models need; a mask or window that was not recorded counts as none."""
    query, key, value = operands
    if query.shape[-1] != key.shape[-1]:
        raise LackingArgumentError("query and key of different dims")
    batch, heads, kv_heads, queries, keys = _sizes(signature, layout, query, key)
    window = None if layout.window is None else argument_at(signature, layout.window)
    causal = None if layout.causal is None else argument_at(signature, layout.causal)
    dropped = None if layout.dropout is None else argument_at(signature, layout.dropout)
    return AttentionDims(
        batch=batch,
        heads=heads,
        kv_heads=max(kv_heads, 1),
        queries=queries,
        keys=keys,
        query_dim=query.shape[-1],
        value_dim=value.shape[-1],
        is_causal=isinstance(causal, bool | int) and bool(causal),
        window=window + 1 if isinstance(window, int) and window > 0 else 0,
        has_mask=has_mask,
        has_dropout=isinstance(dropped, int | float) and dropped > 0,
        direction=Direction.FORWARD if layout.grad is None else Direction.BOTH_GRADIENTS,
        is_deterministic=layout.deterministic is not None and argument_at(signature, layout.deterministic) is True,
        kernel=layout.kernel,
        is_chosen_by_torch=layout.is_torch,
    )


def _sizes(signature: Signature, layout: _Layout, query: TensorSpec, key: TensorSpec) -> tuple[int, int, int, int, int]:
    """Return sequences, heads of queries and of keys, queries and keys.

    Packed sequences count as if each were the longest, as in torch.
    """
    if layout.is_heads_first:
        heads, kv_heads = (x.shape[-3] if len(x.shape) > 2 else 1 for x in (query, key))
        return prod(query.shape[:-3]), heads, kv_heads, query.shape[-2], key.shape[-2]
    heads, kv_heads, first = query.shape[-2], key.shape[-2], layout.sequence_offsets
    offsets = None if first is None else optional_tensor_at(signature, first)
    if first is not None and offsets is not None and offsets.element_count:
        at = first + 2 if layout.longest is None else layout.longest
        return offsets.element_count - 1, heads, kv_heads, size_at(signature, at), size_at(signature, at + 1)
    return prod(query.shape[:-3]), heads, kv_heads, query.shape[-3], key.shape[-3]


def _has_log_sum_exp(signature: Signature, layout: _Layout) -> bool:
    where = layout.log_sum_exp
    if isinstance(where, bool):
        return where
    return isinstance(argument_at(signature, where), bool | int) and flag_at(signature, where)
