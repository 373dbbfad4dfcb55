"""Scaled dot-product attention. FLOPs are those of the full score matrix, as in torch's flop counter.

A causal mask halves what a kernel must compute; torch counts the full matrix, and so do we: the analyzer's
models know causality from the arguments. Forward: QKᵀ and PV; backward: the scores again and four gradients.

Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): all heads read one short latent per token.
Absorbed, the projection of keys multiplies the queries instead: d = 512 + 64 dims per key, of which the first e = 512
are the values, the same for all heads. Else each head has its own keys (d = 128 + 64) and values (e = 128).
"""

import re
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Final

from ...formats.trace.signature import DTYPE_BYTES, Signature, TensorSpec
from ...specs.attention_kernels import AttentionKernel
from .arguments import LackingArgumentError, argument_at, flag_at, optional_tensor_at, size_at, tensor_at, tensors_at
from .kernel_names import attention_of_kernel
from .registry import register
from .traffic import STATISTICS_DTYPE, bytes_of, tensor_bytes, total_bytes
from .work import AttentionDims, Direction, Family, LatentAttentionDims, Work

_OLD_KERNEL: Final = re.compile(r"_sm[567]\d")
"""Memory-efficient kernels compiled for GPUs before Ampere."""
_TORCH_VERSION: Final = re.compile(r"torch (\d+)\.(\d+)\.(\d+)")


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
    deterministic: int | None = None
    """Backward: the position of the flag that asks for gradients in a fixed order. PyTorch's ops have none: its global
    setting is not recorded."""
    kernel: AttentionKernel = AttentionKernel.FLASH2
    """Whose op it is."""
    is_torch: bool = True
    """Whether PyTorch chose it, by the GPU that it ran on; else the caller did."""


@dataclass(frozen=True, slots=True)
class _Sizes:
    batch: int
    heads: int
    """Query heads."""
    kv_heads: int
    queries: int
    keys: int
    query_dim: int
    value_dim: int


_EFFICIENT, _CUDNN, _MATH = AttentionKernel.EFFICIENT, AttentionKernel.CUDNN, AttentionKernel.MATH
_FLASH3 = AttentionKernel.FLASH3
_FORWARD: dict[str, _Layout] = {
    "aten::scaled_dot_product_attention": _Layout(bias=3, causal=5),
    "aten::_scaled_dot_product_attention_math": _Layout(bias=3, causal=5, kernel=_MATH),
    "aten::_scaled_dot_product_flash_attention": _Layout(log_sum_exp=True, causal=4),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _Layout(bias=5, log_sum_exp=True, causal=4),
    "aten::_scaled_dot_product_efficient_attention": _Layout(bias=3, log_sum_exp=4, causal=6, kernel=_EFFICIENT),
    "aten::_scaled_dot_product_cudnn_attention": _Layout(bias=3, log_sum_exp=4, causal=6, kernel=_CUDNN),
    "aten::_scaled_dot_product_fused_attention_overrideable": _Layout(bias=3, log_sum_exp=True, causal=5),
    "aten::_cudnn_attention_forward": _Layout(bias=3, log_sum_exp=8, causal=10, kernel=_CUDNN),
    "aten::_flash_attention_forward": _Layout(
        is_heads_first=False, log_sum_exp=True, sequence_offsets=3, causal=8, window=11
    ),
    "aten::_efficient_attention_forward": _Layout(
        bias=3, is_heads_first=False, log_sum_exp=10, sequence_offsets=4, causal=9, window=13, kernel=_EFFICIENT
    ),
    "flash_attn::_flash_attn_forward": _Layout(
        is_heads_first=False, log_sum_exp=True, causal=5, window=6, is_torch=False
    ),
    "FlashAttnFunc": _Layout(is_heads_first=False, log_sum_exp=True, causal=5, is_torch=False),
}
_BACKWARD: dict[str, _Layout] = {
    "aten::_scaled_dot_product_flash_attention_backward": _Layout(query=1, grad=0, saved=(4, 5), causal=11),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _Layout(
        query=1, grad=0, saved=(4, 5), bias=8, causal=7
    ),
    "aten::_scaled_dot_product_efficient_attention_backward": _Layout(
        query=1, grad=0, bias=4, saved=(5, 6), causal=11, kernel=_EFFICIENT
    ),
    "aten::_scaled_dot_product_cudnn_attention_backward": _Layout(
        query=1, grad=0, saved=(4, 5), bias=8, causal=14, kernel=_CUDNN
    ),
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": _Layout(
        query=1, grad=0, bias=4, saved=(6, 7), causal=13
    ),
    "aten::_cudnn_attention_backward": _Layout(query=1, grad=0, saved=(4, 5), bias=8, causal=14, kernel=_CUDNN),
    "aten::_flash_attention_backward": _Layout(
        query=1, grad=0, saved=(4, 5), is_heads_first=False, sequence_offsets=6, causal=11, window=15
    ),
    "aten::_efficient_attention_backward": _Layout(
        query=1,
        grad=0,
        bias=4,
        saved=(5, 10),
        is_heads_first=False,
        sequence_offsets=6,
        causal=14,
        window=18,
        kernel=_EFFICIENT,
    ),
    "flash_attn::_flash_attn_backward": _Layout(
        query=1, grad=0, saved=(4, 5), is_heads_first=False, causal=11, window=12, deterministic=16, is_torch=False
    ),
    "flash_attn::_flash_attn_varlen_backward": _Layout(
        query=1,
        grad=0,
        saved=(4, 5),
        is_heads_first=False,
        sequence_offsets=9,
        causal=15,
        window=16,
        deterministic=20,
        is_torch=False,
    ),
    "flash_attn_3::bwd": _Layout(
        query=1,
        grad=0,
        saved=(4, 5),
        is_heads_first=False,
        sequence_offsets=9,
        longest=13,
        causal=16,
        window=17,
        deterministic=20,
        kernel=_FLASH3,
        is_torch=False,
    ),
}


def forward_work(signature: Signature, layout: _Layout) -> Work:
    """Return 2·h·q·k·(d + e) FLOPs for h heads, q queries, k keys of dim d and values of dim e."""
    query, key, value = _operands(signature, layout)
    sizes = _sizes(signature, layout, query, key, value)
    written = bytes_of(prod(query.shape[:-1]) * sizes.value_dim, query.dtype)
    if _has_log_sum_exp(signature, layout):
        written += bytes_of(prod(query.shape[:-1]), STATISTICS_DTYPE)
    bias = None if layout.bias is None else optional_tensor_at(signature, layout.bias)
    return Work(
        family=Family.ATTENTION,
        flops=2 * sizes.batch * sizes.heads * sizes.queries * sizes.keys * (sizes.query_dim + sizes.value_dim),
        read_bytes=total_bytes((query, key, value)) + tensor_bytes(bias),
        written_bytes=written,
        dtype=query.dtype,
        is_matrix=True,
        dims=_dims(signature, layout, sizes, has_mask=bias is not None, direction=Direction.FORWARD),
    )


def backward_work(signature: Signature, layout: _Layout) -> Work:
    """Return 2·h·q·k·(3d + 2e) FLOPs: the scores again, then the gradients of scores, values, queries and keys."""
    query, key, value = _operands(signature, layout)
    sizes = _sizes(signature, layout, query, key, value)
    grad = tensor_at(signature, layout.grad or 0)
    if grad.shape != (*query.shape[:-1], sizes.value_dim):
        raise LackingArgumentError("a gradient of another shape than the output")
    saved = tensors_at(signature, *layout.saved)
    bias = None if layout.bias is None else optional_tensor_at(signature, layout.bias)
    return Work(
        family=Family.ATTENTION,
        flops=2 * sizes.batch * sizes.heads * sizes.queries * sizes.keys * (3 * sizes.query_dim + 2 * sizes.value_dim),
        read_bytes=total_bytes((grad, query, key, value, *saved)) + tensor_bytes(bias),
        written_bytes=query.size_bytes + key.size_bytes + value.size_bytes,
        dtype=query.dtype,
        is_matrix=True,
        dims=_dims(signature, layout, sizes, has_mask=bias is not None, direction=Direction.BOTH_GRADIENTS),
    )


def with_kernel(work: Work, kernel_name: str, framework: str | None) -> Work:
    """Return an attention's work with the kernel that its recorded name gives away ("": none), and by which PyTorch.

    Other work comes back as it is.
    """
    if not isinstance(work.dims, AttentionDims):
        return work
    recorded = attention_of_kernel(kernel_name) if kernel_name else None
    kernel = work.dims.kernel if recorded is None else recorded
    is_half = work.dtype in ("float16", "bfloat16")
    if kernel is AttentionKernel.EFFICIENT and is_half and not work.dims.has_mask and _OLD_KERNEL.search(kernel_name):
        kernel = AttentionKernel.FLASH2  # which the GPU lacked: where it exists, PyTorch would have run it
    dims = replace(work.dims, kernel=kernel, prefers_cudnn=prefers_cudnn(framework))
    return replace(work, dims=dims)


def prefers_cudnn(framework: str | None) -> bool:
    """Say whether a version of PyTorch puts cuDNN's attention first where it exists.

    2.5.0 did (taken back in 2.5.1 for wrong results), 2.9 does (pull request 162073), 2.10 asks for a newer cuDNN than
    its wheels hold, later wheels hold it (transformers pull request 48163 has the history).

    >>> prefers_cudnn("torch 2.5.1+cu124"), prefers_cudnn("torch 2.9.0")
    (False, True)
    """
    found = _TORCH_VERSION.search(framework or "")
    if found is None:
        return False
    version = tuple(int(part) for part in found.groups())
    return version == (2, 5, 0) or version[:2] == (2, 9) or version >= (2, 11, 0)


def _dims(
    signature: Signature, layout: _Layout, sizes: _Sizes, *, has_mask: bool, direction: Direction
) -> AttentionDims:
    """Return the sizes that the op models need; a mask or window that was not recorded counts as none."""
    window = None if layout.window is None else argument_at(signature, layout.window)
    causal = None if layout.causal is None else argument_at(signature, layout.causal)
    return AttentionDims(
        batch=sizes.batch,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        queries=sizes.queries,
        keys=sizes.keys,
        query_dim=sizes.query_dim,
        value_dim=sizes.value_dim,
        is_causal=isinstance(causal, bool | int) and bool(causal),
        window=window + 1 if isinstance(window, int) and window > 0 else 0,
        has_mask=has_mask,
        direction=direction,
        is_deterministic=layout.deterministic is not None and argument_at(signature, layout.deterministic) is True,
        kernel=layout.kernel,
        is_chosen_by_torch=layout.is_torch,
    )


def _operands(signature: Signature, layout: _Layout) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    query, key, value = (tensor_at(signature, layout.query + offset) for offset in range(3))
    if not len(query.shape) == len(key.shape) == len(value.shape) >= (2 if layout.is_heads_first else 3):
        raise LackingArgumentError("query, key and value of different ranks")
    return query, key, value


def _sizes(signature: Signature, layout: _Layout, query: TensorSpec, key: TensorSpec, value: TensorSpec) -> _Sizes:
    """Return the problem's sizes; packed sequences count as if each were the longest, as in torch."""
    if query.shape[-1] != key.shape[-1]:
        raise LackingArgumentError("query and key of different dims")
    dims = (query.shape[-1], value.shape[-1])
    if layout.is_heads_first:
        heads, kv_heads = (x.shape[-3] if len(x.shape) > 2 else 1 for x in (query, key))
        batch = prod(query.shape[:-3])
        return _Sizes(batch, heads, max(kv_heads, 1), query.shape[-2], key.shape[-2], *dims)
    heads, kv_heads = query.shape[-2], max(key.shape[-2], 1)
    offsets = None if layout.sequence_offsets is None else optional_tensor_at(signature, layout.sequence_offsets)
    if offsets is not None and layout.sequence_offsets is not None and offsets.element_count:
        at = layout.sequence_offsets + 2 if layout.longest is None else layout.longest
        longest = (size_at(signature, at), size_at(signature, at + 1))
        return _Sizes(offsets.element_count - 1, heads, kv_heads, *longest, *dims)
    return _Sizes(prod(query.shape[:-3]), heads, kv_heads, query.shape[-3], key.shape[-3], *dims)


def _has_log_sum_exp(signature: Signature, layout: _Layout) -> bool:
    where = layout.log_sum_exp
    if isinstance(where, bool):
        return where
    return isinstance(argument_at(signature, where), bool | int) and flag_at(signature, where)


for _name, _layout in _FORWARD.items():
    register(_name, family=Family.ATTENTION)(partial(forward_work, layout=_layout))
for _name, _layout in _BACKWARD.items():
    register(_name, family=Family.ATTENTION)(partial(backward_work, layout=_layout))


DEFAULT_BYTES: Final = 2


def latent_attention_work(dims: LatentAttentionDims, dtype: str) -> Work:
    """Return 2·b·h·q·k·(d + e) FLOPs, and the bytes of queries, keys and values, and results.

    The projections before and after, and what builds keys and values from the latent, are products of their own.

    >>> dims = LatentAttentionDims(batch=64, heads=128, queries=1, keys=8192)
    >>> latent_attention_work(dims, "bfloat16").read_bytes / 1e6
    613.41696
    """
    width = DTYPE_BYTES.get(dtype, DEFAULT_BYTES)
    rows = dims.batch * dims.heads * dims.queries
    return Work(
        family=Family.ATTENTION,
        flops=2 * rows * dims.keys * (dims.query_dim + dims.value_dim),
        read_bytes=rows * dims.query_dim * width + dims.batch * dims.keys * key_elements(dims) * dims.cache_bytes,
        written_bytes=rows * dims.value_dim * width,
        dtype=dtype,
        is_matrix=True,
        dims=dims,
    )


def key_elements(dims: LatentAttentionDims) -> int:
    """Return the elements that keys and values have per token: one latent, or those of every head."""
    return dims.query_dim if dims.is_absorbed else dims.heads * (dims.query_dim + dims.value_dim)
