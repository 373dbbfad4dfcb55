"""Shapes of ops that run whole on CUDA, and that the meta device decomposes or knows no rule for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .recurrent import shape_cudnn_rnn_backward
from .recurrent_cells import shape_gru_cell, shape_gru_cell_backward, shape_lstm_cell, shape_lstm_cell_backward


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
FAILING_RULES = frozenset({"aten::_thnn_fused_lstm_cell"})
"""Ops whose rule in torch fails: it asks for biases, which a cell need not have."""
