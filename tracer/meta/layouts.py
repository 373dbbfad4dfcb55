"""Layouts of results that CUDA chooses by its libraries, and the meta device does not know."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

_LAYOUTS: Final = {4: torch.channels_last, 5: torch.channels_last_3d}
"""By number of dimensions."""


def in_cuda_layout(func: torch._ops.OpOverload, args: tuple[Any, ...], result: Any) -> Any:
    """Return a convolution's result with its channels innermost where those of its input or its weights are.

    So does torch with cuDNN (`cudnn_conv_suggest_memory_format`); on the meta device results are contiguous.
    """
    if func is not torch.ops.aten.convolution.default or not isinstance(result, Tensor):
        return result
    layout = _LAYOUTS.get(result.dim())
    if layout is None or not any(_has_innermost_channels(item, layout) for item in args[:2]):
        return result
    return result.contiguous(memory_format=layout)


def _has_innermost_channels(value: Any, layout: torch.memory_format) -> bool:
    """Say whether a tensor is laid out so, and in no other way: without height and width the two are one."""
    return isinstance(value, Tensor) and value.is_contiguous(memory_format=layout) and not value.is_contiguous()
