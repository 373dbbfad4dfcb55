"""Says which form a view has, by letting torch make the same view of a tensor without data."""

from __future__ import annotations

from typing import Any

import torch

from ...formats.trace.signature import Signature, TensorSpec, Unknown
from .events import TensorKey
from .schemas import Returns

Forms = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
"""Sizes and strides of each result."""


def view_forms(spec: Returns, signature: Signature | None, source: TensorKey) -> Forms | None:
    """Return the sizes and strides of what a viewing op makes of `source`; None where the recording does not tell.

    None too where the op copied instead of viewing, as `reshape` and `to` may.
    """
    if signature is None:
        return None
    base = torch.empty_strided(source.sizes, source.strides, dtype=source.dtype, device="meta")
    values = list(signature.arguments)
    values[spec.viewed] = None
    if any(isinstance(value, Unknown | TensorSpec) for value in values):
        return None
    try:
        with torch.no_grad():
            result = _call(spec.schema, [base if at == spec.viewed else value for at, value in enumerate(values)])
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, NotImplementedError):
        return None
    views = result if isinstance(result, list | tuple) else (result,)
    address = base.untyped_storage()._cdata
    if any(not isinstance(view, torch.Tensor) or view.untyped_storage()._cdata != address for view in views):
        return None
    return tuple((tuple(view.size()), tuple(view.stride())) for view in views)


def _call(schema: Any, values: list[Any]) -> Any:
    namespace, _, name = schema.name.partition("::")
    op = getattr(getattr(getattr(torch.ops, namespace), name), schema.overload_name or "default")
    pairs = list(zip(schema.arguments, values, strict=True))
    positional = [value for argument, value in pairs if not argument.kwarg_only]
    return op(*positional, **{argument.name: value for argument, value in pairs if argument.kwarg_only})
