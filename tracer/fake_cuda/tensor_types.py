"""Stands in for the types of tensors on a GPU that older scripts name: `torch.cuda.FloatTensor` and its like."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch

_PREFIX: Final = "torch.cuda."
_DTYPES: Final = {
    "BFloat16Tensor": torch.bfloat16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}


class _CudaTensorType(type):
    """Be a type whose instances are tensors of one dtype on a GPU, made of sizes or of data."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and instance.dtype is cls.dtype and instance.is_cuda

    def __call__(cls, *arguments: Any, **_options: Any) -> torch.Tensor:
        is_data = len(arguments) == 1 and not isinstance(arguments[0], int | torch.Size)
        if is_data:
            return torch.as_tensor(arguments[0], dtype=cls.dtype, device="cuda")
        return torch.empty(*(arguments or (0,)), dtype=cls.dtype, device="cuda")


def cuda_tensor_types() -> Iterator[tuple[object, str, object]]:
    """Yield what stands for the types, and for the function that makes one of them the default."""
    for name, dtype in _DTYPES.items():
        yield torch.cuda, name, _CudaTensorType(name, (), {"dtype": dtype})
    choose = torch.set_default_tensor_type

    def choose_any(kind: Any) -> None:
        dtype = find_cuda_dtype(kind)
        if dtype is None:
            choose(kind)
            return
        torch.set_default_dtype(dtype)
        torch.set_default_device("cuda")

    yield torch, "set_default_tensor_type", choose_any


def find_cuda_dtype(kind: object) -> torch.dtype | None:
    """Return the dtype of such a type, or of its name; None for anything else."""
    if isinstance(kind, str) and kind.startswith(_PREFIX):
        return _DTYPES.get(kind.removeprefix(_PREFIX))
    return kind.dtype if isinstance(kind, _CudaTensorType) else None
