"""Operands that no noise can stand for: what one op leaves for another, such as cuDNN's reserved buffer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch


def complete(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return an op's arguments with those replaced that only another op can make; runs that op where there is one."""
    rule = _RULES.get(name)
    return values if rule is None else rule(values)


def _without_dropout_state(values: dict[str, Any]) -> dict[str, Any]:
    """Leave out the dropout between layers where a trace (of shapes alone) holds no state to draw it from."""
    return values | {"dropout": 0.0} if values["dropout_state"] is None else values


def _after_forward(values: dict[str, Any]) -> dict[str, Any]:
    """Run the forward op for the buffers that its backward op reads."""
    values = _without_dropout_state(values)
    forward = torch.ops.aten._cudnn_rnn.default
    names = [parameter.name for parameter in forward._schema.arguments]
    output, _, _, reserve, buffer = forward(*(values[name] for name in names))
    return values | {"output": output, "reserve": reserve, "weight_buf": buffer}


def _after_pooling(values: dict[str, Any]) -> dict[str, Any]:
    """Pool for the indices: those of a real pass lie near each other, which decides what scattering to them takes."""
    names = ("self", "kernel_size", "stride", "padding", "dilation", "ceil_mode")
    _, indices = torch.ops.aten.max_pool2d_with_indices.default(*(values[name] for name in names))
    return values | {"indices": indices}


def _without_dropout(values: dict[str, Any]) -> dict[str, Any]:
    """Leave out the dropout of attention's backward pass.

    Its kernels read seed and offset on the host or on the device, depending on torch's version and on whether a graph
    is captured; on the wrong one they end the process.
    """
    return values | {"dropout_p": 0.0}


_RULES: Final[Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "_cudnn_rnn": _without_dropout_state,
    "_cudnn_rnn_backward": _after_forward,
    "max_pool2d_with_indices_backward": _after_pooling,
    "_flash_attention_backward": _without_dropout,
    "_efficient_attention_backward": _without_dropout,
    "_scaled_dot_product_flash_attention_backward": _without_dropout,
    "_scaled_dot_product_efficient_attention_backward": _without_dropout,
    "_scaled_dot_product_cudnn_attention_backward": _without_dropout,
}
