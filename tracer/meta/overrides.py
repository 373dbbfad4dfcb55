"""Makes the meta device issue the ops that CUDA would, while recording; everything is undone afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.utils import _foreach_utils

from ..hooks.patches import patched
from .attention import attend
from .recurrent import (
    run_gru,
    run_lstm,
    run_packed_gru,
    run_packed_lstm,
    run_packed_rnn_relu,
    run_packed_rnn_tanh,
    run_rnn_relu,
    run_rnn_tanh,
)
from .recurrent_cells import run_gru_cell, run_lstm_cell
from .shape_rules import FAILING_RULES, SHAPE_RULES


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


def soften_max(data: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Run softmax as CUDA does, which reads float16 and gives float32 in one op (schema of aten::softmax.int)."""
    return _run_softmax(torch.ops.aten._softmax, data, dim, dtype)


def soften_max_log(data: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Run the softmax's logarithm as CUDA does (schema of aten::log_softmax.int)."""
    return _run_softmax(torch.ops.aten._log_softmax, data, dim, dtype)


def _run_softmax(run: Callable[..., Tensor], data: Tensor, dim: int, dtype: torch.dtype | None) -> Tensor:
    if data.dtype is torch.float16 and dtype is torch.float32:
        return run(data, dim, True)
    return run(data if dtype is None else data.to(dtype), dim, False)


def put_in_place(data: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """Write the gradient of an indexed tensor in place (schema of aten::index_put).

    So does torch where no dispatch mode looks on; under one it copies the zeros that it writes to.
    """
    output: Tensor = torch.ops.aten._index_put_impl_(data, indices, values, accumulate, True)
    return output


STAND_INS: dict[str, Callable[..., Any]] = {
    "aten::scaled_dot_product_attention": attend,
    "aten::dropout": drop_out,
    "aten::softmax.int": soften_max,
    "aten::log_softmax.int": soften_max_log,
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
            if _is_missing(name) or name in FAILING_RULES:
                # Library.impl refuses a meta kernel for an op that can also decompose, which is our purpose.
                library.m.impl(name, "Meta", function, False)  # type: ignore[union-attr]
        yield
    finally:
        library._destroy()


def _is_missing(name: str) -> bool:
    """Say whether this torch has the op, but no rule of its own for the meta device."""
    is_known = torch._C._dispatch_has_kernel(name)
    return is_known and not torch._C._dispatch_has_kernel_for_dispatch_key(name, "Meta")


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


_SUPPORT = (
    "_get_foreach_kernels_supported_devices",
    "_get_fused_kernels_supported_devices",
    "_get_capturable_supported_devices",
)
"""Functions that name the types of devices where optimizers can do something."""


def _with_meta(list_devices: Callable[..., list[str]], *args: Any, **kwargs: Any) -> list[str]:
    return [*list_devices(*args, **kwargs), "meta"]
