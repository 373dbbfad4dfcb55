"""Makes the meta device issue the ops that CUDA would, while recording; everything is undone afterwards."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils import _foreach_utils

from ..hooks.patches import patched
from .recurrent import (
    run_gru,
    run_gru_cell,
    run_lstm,
    run_lstm_cell,
    run_packed_gru,
    run_packed_lstm,
    run_packed_rnn_relu,
    run_packed_rnn_tanh,
    run_rnn_relu,
    run_rnn_tanh,
    shape_cudnn_rnn_backward,
    shape_gru_cell,
    shape_gru_cell_backward,
    shape_lstm_cell,
    shape_lstm_cell_backward,
)

_MAX_FLASH_HEAD_DIM = 256
_HALF_TYPES = (torch.float16, torch.bfloat16)
_FLASH_HEAD_DIM_MULTIPLE = 8
_MASK_ALIGNMENT_ELEMENTS = 16
_MAX_CUDNN_HEAD_DIM = 128


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
    """Run scaled-dot-product attention as one fused op, chosen by CUDA's rules (same schema as torch's op).

    Rules after torch's documented order for compute capability 8.0 and newer: half types without a mask run
    FlashAttention, masked or fp32 ones the memory-efficient kernel, anything else the mathematical form. (9.0 and 10.0
    with a recent cuDNN prefer cuDNN's kernel for the first kind: that choice is left to the analyzer.)
    """
    options = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
    if _fits_flash(query, key, value, attn_mask, is_causal, enable_gqa):
        return _attend_flash(query, key, value, **options)  # type: ignore[arg-type]
    if _fits_efficient(query, key, value, attn_mask, is_causal, enable_gqa):
        needs_gradient = torch.is_grad_enabled() and any(item.requires_grad for item in (query, key, value))
        bias = None if attn_mask is None else _expand_mask(query, key, attn_mask)
        fused = torch.ops.aten._scaled_dot_product_efficient_attention
        return fused(query, key, value, bias, needs_gradient, **options)[0]  # type: ignore[no-any-return]
    if _fits_cudnn(query, key, value, enable_gqa):
        bias = None if attn_mask is None else _expand_mask(query, key, attn_mask)
        cudnn = torch.ops.aten._scaled_dot_product_cudnn_attention
        return cudnn(query, key, value, bias, torch.is_grad_enabled(), **options)[0]  # type: ignore[no-any-return]
    if not torch.backends.cuda.math_sdp_enabled():
        raise RuntimeError("No available kernel. Aborting execution.")  # as torch says it
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


def _fits_cudnn(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> bool:
    """Say whether cuDNN's kernel is what a script asks for: it has switched the other fused ones off."""
    backends = torch.backends.cuda
    return (
        getattr(backends, "cudnn_sdp_enabled", lambda: False)()
        and not (backends.flash_sdp_enabled() or backends.mem_efficient_sdp_enabled())
        and query.dtype in _HALF_TYPES
        and _is_batched(query, key, value)
        and _same_heads(query, key, value, enable_gqa)
        and query.shape[-1] % 8 == value.shape[-1] % 8 == 0
        and query.shape[-1] <= _MAX_CUDNN_HEAD_DIM
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


def drop_out(data: Tensor, p: float, train: bool) -> Tensor:
    """Run dropout as the one fused op that CUDA uses (schema of aten::dropout)."""
    if p == 0 or not train or data.numel() == 0:
        return data
    if p == 1:
        return data.mul(torch.zeros((), device=data.device, dtype=data.dtype))
    output: Tensor = torch.ops.aten.native_dropout(data, p, True)[0]
    return output


def normalize_rms(
    data: Tensor, normalized_shape: list[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Run RMS normalisation as the one fused op that CUDA uses (schema of aten::rms_norm)."""
    output: Tensor = torch.ops.aten._fused_rms_norm(data, normalized_shape, weight, eps)[0]
    return output


def soften_max(run: Callable[..., Tensor], data: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Run softmax as CUDA does, which reads float16 and gives float32 in one op (schema of aten::softmax.int)."""
    if data.dtype is torch.float16 and dtype is torch.float32:
        return run(data, dim, True)
    return run(data if dtype is None else data.to(dtype), dim, False)


def put_in_place(data: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """Write the gradient of an indexed tensor in place (schema of aten::index_put).

    So does torch where no dispatch mode looks on; under one it copies the zeros that it writes to.
    """
    output: Tensor = torch.ops.aten._index_put_impl_(data, indices, values, accumulate, True)
    return output


def part_bias(grad: Tensor, *arguments: Any) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """Sum a convolution's bias gradient by itself (schema of aten::convolution_backward), as torch does on a GPU."""
    *setting, (wants_data, wants_weights, _) = arguments
    found: tuple[Tensor | None, Tensor | None] = None, None
    if wants_data or wants_weights:
        mask = [wants_data, wants_weights, False]
        found = torch.ops.aten.convolution_backward(grad, *setting, mask)[:2]
    return *found, grad.sum([0, *range(2, grad.dim())])


STAND_INS: dict[str, Callable[..., Any]] = {
    "aten::scaled_dot_product_attention": attend,
    "aten::dropout": drop_out,
    "aten::softmax.int": partial(soften_max, torch.ops.aten._softmax),
    "aten::log_softmax.int": partial(soften_max, torch.ops.aten._log_softmax),
    "aten::lstm.input": run_lstm,
    "aten::gru.input": run_gru,
    "aten::rnn_tanh.input": run_rnn_tanh,
    "aten::rnn_relu.input": run_rnn_relu,
    "aten::gru_cell": run_gru_cell,
    "aten::lstm_cell": run_lstm_cell,
    "aten::lstm.data": run_packed_lstm,
    "aten::gru.data": run_packed_gru,
    "aten::rnn_tanh.data": run_packed_rnn_tanh,
    "aten::rnn_relu.data": run_packed_rnn_relu,
    **({"aten::rms_norm": normalize_rms} if hasattr(torch.ops.aten, "_fused_rms_norm") else {}),
}
"""Ops that decompose differently on the meta device, and what runs in their place (same schema)."""


@contextmanager
def cuda_ops_on_meta() -> Iterator[None]:
    """Route the ops of `STAND_INS` and of the shape rules for meta tensors; restore torch's own routing on leaving."""
    library = torch.library.Library("aten", "IMPL")
    try:
        for name, function in STAND_INS.items():
            library.impl(name.removeprefix("aten::"), function, "AutogradMeta")
        for name, function in SHAPE_RULES.items():
            # Whether this torch has the op, but no rule of its own for the meta device.
            is_known = torch._C._dispatch_has_kernel(name)
            if (is_known and not torch._C._dispatch_has_kernel_for_dispatch_key(name, "Meta")) or name in FAILING_RULES:
                # Library.impl refuses a meta kernel for an op that can also decompose, which is our purpose.
                library.m.impl(name, "Meta", function, False)  # type: ignore[union-attr]
        yield
    finally:
        library._destroy()


@contextmanager
def foreach_on_meta() -> Iterator[None]:
    """Let optimizers and gradient clipping use on meta tensors what they use on CUDA's: multi-tensor ops by default."""
    # `torch.optim` deletes its attribute `optimizer`, so the module has to be imported by name.
    import_module("torch.optim.optimizer")
    # Each optimizer's module holds these functions under its own name too.
    owners = [module for name, module in sys.modules.items() if name.startswith("torch.optim.")]
    with ExitStack() as stack:
        for owner, name in product((_foreach_utils, *owners), _SUPPORT):
            if hasattr(owner, name):
                stack.enter_context(patched(owner, name, partial(_with_meta, getattr(owner, name))))
        yield


_SUPPORT = tuple(f"_get_{kind}_supported_devices" for kind in ("foreach_kernels", "fused_kernels", "capturable"))
"""Functions that name the types of devices where optimizers can do something."""


def _with_meta(list_devices: Callable[..., list[str]], *args: Any, **kwargs: Any) -> list[str]:
    return [*list_devices(*args, **kwargs), "meta"]


def shape_fused_rms_norm(
    data: Tensor, normalized_shape: list[int], _weight: Tensor | None, _eps: float | None
) -> tuple[Tensor, Tensor]:
    """Return the shapes of aten::_fused_rms_norm: the output and one reciprocal deviation per row, in fp32 or wider."""
    rows = [*data.shape[: data.dim() - len(normalized_shape)], *(1 for _ in normalized_shape)]
    statistics_dtype = torch.float64 if data.dtype is torch.float64 else torch.float32
    return torch.empty_like(data), data.new_empty(rows, dtype=statistics_dtype)


def shape_like_first(data: Tensor, *_rest: Any, **_options: Any) -> Tensor:
    """Return the shape of an op whose result is like what it reads first: a gradient, a sample, a running sum."""
    return torch.empty_like(data)


def shape_like_second(_gradient: Tensor, data: Tensor, *_rest: Any, **_options: Any) -> Tensor:
    """Return the shape of a gradient with respect to what an op reads second."""
    return torch.empty_like(data)


def change_in_place(*_arguments: Any, **_options: Any) -> None:
    """Return nothing: the op writes to what it is given (fused optimizers)."""


SHAPE_RULES: dict[str, Callable[..., Any]] = {
    "aten::_cudnn_rnn_backward": shape_cudnn_rnn_backward,
    "aten::_thnn_fused_gru_cell": shape_gru_cell,
    "aten::_thnn_fused_gru_cell_backward": shape_gru_cell_backward,
    "aten::_thnn_fused_lstm_cell": shape_lstm_cell,
    "aten::_thnn_fused_lstm_cell_backward_impl": shape_lstm_cell_backward,
    "aten::_fused_rms_norm": shape_fused_rms_norm,
    **{f"aten::{name}": shape_like_first for name in (
        "mish_backward", "_logcumsumexp", "_standard_gamma_grad", "_sample_dirichlet", "_dirichlet_grad", "binomial",
    )},
    **{f"aten::{name}": shape_like_second for name in (
        "multi_margin_loss_backward", "multilabel_margin_loss_backward", "_ctc_loss_backward",
    )},
    **dict.fromkeys(("aten::_cummax_helper", "aten::_cummin_helper"), change_in_place),
    **{f"aten::_fused_{name}_{overload}": change_in_place
       for name in ("sgd", "adam", "adamw", "adagrad") for overload in ("", ".tensor_lr")},
}  # fmt: skip
"""What gives an op its shapes where torch itself has no rule for the meta device."""
FAILING_RULES = frozenset({"aten::_thnn_fused_lstm_cell"})
"""Ops whose rule in torch fails: it asks for biases, which a cell need not have."""
