"""Chooses the fused attention op that CUDA would run, because the meta device decomposes attention.

Rules after torch's documented order for compute capability 8.0 and newer: half types without a mask run
FlashAttention, masked or fp32 ones the memory-efficient kernel, anything else the mathematical form.
(Compute capability 9.0 and 10.0 with a recent cuDNN prefer cuDNN's kernel for the first kind; one trace
serves all targets, so that choice is left to the analyzer.)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_MAX_FLASH_HEAD_DIM = 256
_HALF_TYPES = (torch.float16, torch.bfloat16)
_FLASH_HEAD_DIM_MULTIPLE = 8
_MASK_ALIGNMENT_ELEMENTS = 16


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Run scaled-dot-product attention as one fused op, chosen by CUDA's rules (same schema as torch's op)."""
    options = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
    if _fits_flash(query, key, value, attn_mask, is_causal, enable_gqa):
        return _attend_flash(query, key, value, **options)  # type: ignore[arg-type]
    if _fits_efficient(query, key, value, attn_mask, is_causal, enable_gqa):
        needs_gradient = torch.is_grad_enabled() and any(item.requires_grad for item in (query, key, value))
        bias = None if attn_mask is None else _expand_mask(query, key, attn_mask)
        fused = torch.ops.aten._scaled_dot_product_efficient_attention
        return fused(query, key, value, bias, needs_gradient, **options)[0]  # type: ignore[no-any-return]
    plain = torch.ops.aten._scaled_dot_product_attention_math
    return plain(query, key, value, attn_mask, **options, enable_gqa=enable_gqa)[0]  # type: ignore[no-any-return]


def _attend_flash(
    query: Tensor, key: Tensor, value: Tensor, *, dropout_p: float, is_causal: bool, scale: float | None
) -> Tensor:
    head_dim = query.shape[-1]
    missing = -head_dim % _FLASH_HEAD_DIM_MULTIPLE
    if missing:
        query, key, value = (functional.pad(item, (0, missing)) for item in (query, key, value))
    chosen_scale = scale if scale is not None or not missing else head_dim**-0.5
    fused = torch.ops.aten._scaled_dot_product_flash_attention
    output: Tensor = fused(query, key, value, dropout_p, is_causal, False, scale=chosen_scale)[0]
    return output[..., :head_dim] if missing else output


def _fits_flash(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, enable_gqa: bool
) -> bool:
    return (
        torch.backends.cuda.flash_sdp_enabled()
        and mask is None
        and query.dtype in _HALF_TYPES
        and _is_batched(query, key, value)
        and _same_heads(query, key, value, enable_gqa)
        and query.shape[-1] == value.shape[-1] <= _MAX_FLASH_HEAD_DIM
        and not (is_causal and query.shape[-2] != key.shape[-2])
    )


def _fits_efficient(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, enable_gqa: bool
) -> bool:
    multiple = 4 if query.dtype is torch.float32 else 8
    return (
        torch.backends.cuda.mem_efficient_sdp_enabled()
        and query.dtype in (torch.float32, *_HALF_TYPES)
        and _is_batched(query, key, value)
        and not enable_gqa
        and _same_heads(query, key, value, False)
        and query.shape[-1] % multiple == 0
        and value.shape[-1] % multiple == 0
        and not (is_causal and mask is not None)
        and not (mask is not None and mask.requires_grad)
    )


def _is_batched(*operands: Tensor) -> bool:
    return all(item.dim() == 4 and item.numel() > 0 and item.stride(-1) == 1 for item in operands)


def _same_heads(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> bool:
    if not (query.shape[0] == key.shape[0] == value.shape[0] and key.shape[1] == value.shape[1]):
        return False
    return query.shape[1] % key.shape[1] == 0 if enable_gqa else query.shape[1] == key.shape[1]


def _expand_mask(query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
    """Return the mask as an additive bias of full shape, its rows aligned as the kernel needs them."""
    if mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    length = key.shape[-2]
    missing = -length % _MASK_ALIGNMENT_ELEMENTS
    if missing:
        mask = functional.pad(mask, (0, missing))[..., :length] if mask.shape[-1] == length else mask
    return mask.expand(query.shape[0], query.shape[1], query.shape[-2], length)
