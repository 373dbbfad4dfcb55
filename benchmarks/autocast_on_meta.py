"""Runs a model on the meta device in the types that CUDA's autocast would choose.

torch.autocast switches itself off where there is no CUDA. Its rules are applied here one level lower, to the ops that
composite functions decompose into: conversions appear as the ops that they are on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from wavecast.analyzer.whatif.autocast import CASTS, Cast

_HALVES = (torch.float16, torch.bfloat16)
_SUMS = frozenset({"sum", "prod", "cumsum", "cumprod"})
"""Reductions that read the lower precision and add up in float32: autocast sets their `dtype`, nothing is converted."""
_SOFTMAXES = frozenset({"_softmax", "_log_softmax"})


@contextmanager
def autocast_on_meta(dtype: torch.dtype) -> Iterator[None]:
    """Convert the inputs of ops as autocast on CUDA does; each parameter is converted once."""
    copies = _Copies(dtype)
    with _CastOps(copies), _CastFunctions(copies):
        yield


class _Copies:
    """Hold what parameters were converted to."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._made: dict[tuple[int, tuple[int, ...], tuple[int, ...]], torch.Tensor] = {}

    def lower(self, value: Any) -> Any:
        """Return float32 tensors in the lower precision, anything else as it is."""
        if not isinstance(value, torch.Tensor) or value.dtype is not torch.float32:
            return value
        base = value if value._base is None else value._base
        if not isinstance(base, torch.nn.Parameter):
            return value.to(self._dtype)
        key = id(base), tuple(value.shape), tuple(value.stride())
        if key not in self._made:
            self._made[key] = value.to(self._dtype)
        return self._made[key]


class _CastFunctions(TorchFunctionMode):
    """Convert before functions that refuse mixed types, or choose their kernel by type (convolution, attention)."""

    def __init__(self, copies: _Copies) -> None:
        super().__init__()
        self._copies = copies

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if CASTS.get(getattr(func, "__name__", "")) is Cast.LOWER:
            args, kwargs = tree_map(self._copies.lower, (args, dict(kwargs or {})))
        return func(*args, **(kwargs or {}))


class _CastOps(TorchDispatchMode):
    def __init__(self, copies: _Copies) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._copies = copies

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs, name = dict(kwargs or {}), func._schema.name.removeprefix("aten::")
        cast = CASTS.get(name, Cast.FOLLOW)
        if cast is Cast.LOWER:
            args, kwargs = tree_map(self._copies.lower, (args, kwargs))
        elif cast is Cast.WIDE and name in _SUMS and _has(args, _HALVES):
            kwargs.setdefault("dtype", torch.float32)
        elif cast is Cast.WIDE and name in _SOFTMAXES:
            args = (*args[:2], args[0].dtype in _HALVES)
        elif (cast is Cast.WIDE and name not in _SUMS) or (cast is Cast.PROMOTE and _has(args, (torch.float32,))):
            args, kwargs = tree_map(_widen, (args, kwargs))
        return func(*args, **kwargs)


def _has(args: tuple[Any, ...], dtypes: tuple[torch.dtype, ...]) -> bool:
    return any(isinstance(item, torch.Tensor) and item.dtype in dtypes for item in args)


def _widen(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in _HALVES else value
