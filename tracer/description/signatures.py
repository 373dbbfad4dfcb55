"""Describes a dispatcher call as the trace's signature: arguments in schema order, defaults filled in."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...formats.trace.signature import UNKNOWN, Argument, TensorSpec

_TORCH_PREFIX = "torch."
_MOST_NUMBERS = 16
"""Longer lists of fractions are the per-tensor scalars of multi-tensor optimizers: bulky, and they decide no cost."""


def describe_arguments(func: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the raw arguments of a call in the schema's order; those not given take the schema's default."""
    not_positional = func._schema.arguments[len(args) :]
    return [*args, *(kwargs.get(parameter.name, parameter.default_value) for parameter in not_positional)]


def describe_value(value: Any, *, keep_text: bool) -> Argument:
    """Return what the trace may hold of one argument or result.

    Text is kept only with `keep_text`, which is for ops whose schema allows nothing but mode names.
    """
    if isinstance(value, torch.Tensor):
        return describe_tensor(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return _describe_list(value)
    if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
        return str(value).removeprefix(_TORCH_PREFIX)
    if isinstance(value, torch.device):
        return value.type
    return value if keep_text and isinstance(value, str) else UNKNOWN


def describe_tensor(tensor: torch.Tensor) -> TensorSpec:
    """Return dtype, shape and strides of a tensor; of a sparse one, which has no strides, what it stores."""
    strides = tuple(tensor.stride()) if tensor.layout is torch.strided else None
    dtype, shape = str(tensor.dtype).removeprefix(_TORCH_PREFIX), tuple(tensor.shape)
    return TensorSpec(dtype, shape, strides, _stored_shape(tensor))


def tensors_in(values: Any) -> list[torch.Tensor]:
    """Return the tensors among arguments or results in order, lists flattened one level."""
    found: list[torch.Tensor] = []
    for value in values if isinstance(values, list | tuple) else (values,):
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found.extend(item for item in value if isinstance(item, torch.Tensor))
    return found


def _stored_shape(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return the shape of a sparse tensor's values (of a compressed one their number); None of any other tensor."""
    if tensor.layout is torch.sparse_coo:
        return tuple(tensor._values().shape)
    return (tensor.values().numel(),) if tensor.layout in _COMPRESSED else None


_COMPRESSED = frozenset({torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc})


def _describe_list(values: Sequence[Any]) -> Argument:
    if any(isinstance(item, torch.Tensor) for item in values):
        return tuple(describe_tensor(item) for item in values if isinstance(item, torch.Tensor))
    numbers = tuple(item for item in values if isinstance(item, bool | int | float))
    if len(numbers) < len(values):
        return UNKNOWN
    is_per_tensor = len(numbers) > _MOST_NUMBERS and any(isinstance(item, float) for item in numbers)
    return UNKNOWN if is_per_tensor else numbers
