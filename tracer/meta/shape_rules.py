"""Shapes of ops that run whole on CUDA, and that the meta device decomposes or knows no rule for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .recurrent import shape_cudnn_rnn_backward


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


def return_first(data: Tensor, *_rest: Any, **_options: Any) -> Tensor:
    """Return what an op changes in place."""
    return data


def shape_like_second(_gradient: Tensor, data: Tensor, *_rest: Any, **_options: Any) -> Tensor:
    """Return the shape of a gradient with respect to what an op reads second."""
    return torch.empty_like(data)


def change_in_place(*_arguments: Any, **_options: Any) -> None:
    """Return nothing: the op writes to what it is given (fused optimizers)."""


def shape_masked_rows(data: Tensor, mask: Tensor) -> Tensor:
    """Return the shape of aten::sparse_mask: of a whole tensor, the elements that a sparse one has."""
    values = torch.empty_like(mask._values(), dtype=data.dtype)
    kept: Tensor = torch.ops.aten._sparse_coo_tensor_unsafe(mask._indices(), values, mask.shape)
    return kept._coalesced_(mask.is_coalesced())


def shape_coalesced(data: Tensor) -> Tensor:
    """Return the shape of aten::_coalesce, which finds no element twice: how many it would, values say."""
    joined: Tensor = torch.ops.aten._sparse_coo_tensor_unsafe(
        data._indices(), torch.empty_like(data._values()), data.shape
    )
    return joined._coalesced_(True)


def shape_whole(data: Tensor, dtype: torch.dtype | None = None, _masked: bool | None = None) -> Tensor:
    """Return the shape of aten::_to_dense."""
    return torch.empty(data.shape, dtype=dtype or data.dtype, device="meta")


def shape_scaled(data: Tensor, _factor: Any) -> Tensor:
    """Return the shape of a sparse tensor times a number (aten::mul.Tensor)."""
    scaled: Tensor = torch.ops.aten._sparse_coo_tensor_unsafe(data._indices(), data._values(), data.shape)
    return scaled._coalesced_(data.is_coalesced())


def write_to_out(*_arguments: Any, out: Tensor, **_options: Any) -> Tensor:
    """Return what an op is told to write to."""
    return out


def shape_product(left: Tensor, right: Tensor) -> Tensor:
    """Return the shape of a sparse matrix times a whole one, which is whole (aten::mm)."""
    return torch.empty((left.shape[0], right.shape[1]), dtype=left.dtype, device="meta")


def shape_added_product(_data: Tensor, left: Tensor, right: Tensor, **_factors: Any) -> Tensor:
    """Return the shape of a whole matrix plus a sparse one times a whole one (aten::addmm)."""
    return shape_product(left, right)


SHAPE_RULES: dict[str, Callable[..., Any]] = {
    "aten::_cudnn_rnn_backward": shape_cudnn_rnn_backward,
    "aten::mish_backward": shape_like_first,
    "aten::_fused_rms_norm": shape_fused_rms_norm,
    "aten::_logcumsumexp": shape_like_first,
    "aten::_standard_gamma_grad": shape_like_first,
    "aten::_sample_dirichlet": shape_like_first,
    "aten::_dirichlet_grad": shape_like_first,
    "aten::binomial": shape_like_first,
    "aten::multi_margin_loss_backward": shape_like_second,
    "aten::multilabel_margin_loss_backward": shape_like_second,
    "aten::_ctc_loss_backward": shape_like_second,
    "aten::_cummax_helper": change_in_place,
    "aten::_cummin_helper": change_in_place,
    "aten::_fused_sgd_": change_in_place,
    "aten::_fused_sgd_.tensor_lr": change_in_place,
    "aten::_fused_adam_": change_in_place,
    "aten::_fused_adam_.tensor_lr": change_in_place,
    "aten::_fused_adamw_": change_in_place,
    "aten::_fused_adamw_.tensor_lr": change_in_place,
    "aten::_fused_adagrad_": change_in_place,
    "aten::_fused_adagrad_.tensor_lr": change_in_place,
}
"""What gives an op its shapes where torch itself has no rule for the meta device."""
_PRODUCTS: dict[str, Callable[..., Any]] = {"aten::mm": shape_product, "aten::addmm": shape_added_product}
SPARSE_SHAPE_RULES: dict[str, dict[str, Callable[..., Any]]] = {
    "SparseMeta": {
        "aten::sparse_mask": shape_masked_rows,
        "aten::_coalesce": shape_coalesced,
        "aten::_to_dense": shape_whole,
        "aten::add_.Tensor": return_first,
        "aten::add.out": write_to_out,
        "aten::mul.Tensor": shape_scaled,
        "aten::mul_.Tensor": return_first,
        "aten::mul.out": write_to_out,
        **_PRODUCTS,
    },
    "SparseCsrMeta": {"aten::_to_dense": shape_whole, **_PRODUCTS},
}
"""The same for ops that read sparse tensors, by the dispatch key of their layout."""
